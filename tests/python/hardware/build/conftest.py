"""An installation of doubles of the tools, and a cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import doubles
import pytest

from npu import cli

KERNELS = Path(__file__).resolve().parents[4] / "aie_kernels"


@pytest.fixture
def xclbins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache. No tools of this machine are seen."""
    monkeypatch.setenv("NPU_XCLBINS", str(tmp_path / "xclbins"))
    monkeypatch.setenv("NPU_AIE_KERNELS", str(KERNELS))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("MLIR_AIE_INSTALL_DIR", "PEANO_INSTALL_DIR", "AIE_XCLBINUTIL", "NPU_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "xclbins"


@pytest.fixture(params=["new", "old"])
def either(request: pytest.FixtureRequest, tmp_path: Path, xclbins: Path, monkeypatch) -> Path:
    """An installation with one of aiecc's two sets of options."""
    return _installed(tmp_path, monkeypatch, request.param)


@pytest.fixture
def tools(tmp_path: Path, xclbins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with the newer options."""
    return _installed(tmp_path, monkeypatch, "new")


def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> Path:
    folder = doubles.install(tmp_path / "tools", options)
    for name, value in doubles.variables(folder).items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture
def npu(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `npu build` with these words: exit code, standard output and error."""

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.main(["build", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run
