"""The folder of kept files.

Asserts which one each setting of NPU_CACHE and XDG_CACHE_HOME gives, and that everything that is
kept follows it: prepared weights, xclbins, the module for C++ programs, the self-test's verdict.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from npu import cache_folder
from npu.hardware import verdict
from npu.hardware.build import cache, xrt_module
from npu.models.prepare import folder

LARGE = 1 << 30

# NPU_CACHE, XDG_CACHE_HOME -> the folder, with HOME=/home/u, "here" the current folder; whether
# large and small weights are kept.
SETTINGS = [
    (None, None, "/home/u/.cache/npu-xdna", True, False),
    ("", "", "/home/u/.cache/npu-xdna", True, False),
    (None, "/var/c", "/var/c/npu-xdna", True, False),
    (None, "~/c", "/home/u/c/npu-xdna", True, False),
    ("off", None, "/home/u/.cache/npu-xdna", False, False),
    ("OFF", "/var/c", "/var/c/npu-xdna", False, False),
    ("Off", "", "/home/u/.cache/npu-xdna", False, False),
    ("/data/npu", "/var/c", "/data/npu", True, True),
    ("~/npu", None, "/home/u/npu", True, True),
    ("npu", None, "{here}/npu", True, True),
    ("offline", None, "{here}/offline", True, True),
]


@pytest.mark.parametrize(("named", "caches", "expected", "large", "small"), SETTINGS)
def test_one_rule_for_everything_that_is_kept(
    named: str | None, caches: str | None, expected: str, large: bool, small: bool,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/u")
    for name, value in (("NPU_CACHE", named), ("XDG_CACHE_HOME", caches)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("NPU_XCLBINS", raising=False)
    place = Path(expected.format(here=tmp_path))
    assert cache_folder.root() == place and place.is_absolute()
    assert verdict.path() == place / "selftest.json"
    assert cache.root() == place / "xclbins"
    assert xrt_module.target() == place / "xrt" / "libnpu_xrt.so"
    assert folder.of_size(LARGE) == (place if large else None)
    assert folder.of_size(0) == (place if small else None)
