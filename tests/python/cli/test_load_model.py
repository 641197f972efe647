"""What loading a model shows: where weights are kept and what was chosen;
and how its memory is counted.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gemma3_files import Shape, write_model

from npu import cli

GENERATE = ["generate", "--raw", "-p", "hello", "-n", "1"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "m.gguf", Shape(layers=1)))


def weights_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("weights: ")]


def test_loading_says_what_was_chosen_and_where_it_is(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_CACHE", str(tmp_path))
    assert cli.main([*GENERATE, "-m", file]) == 0
    lines = weights_lines(capsys)
    assert "preparing" in lines[0] and str(tmp_path) in lines[0]
    assert "attention q, k, v: F32 -> bf16, 3 tensors" in lines[1] and "head" in lines[5]
    assert str(tmp_path) in lines[-1] and len(lines) == 7
    assert cli.main([*GENERATE, "-m", file]) == 0
    again = weights_lines(capsys)
    assert "prepared before" in again[0] and again[1:] == lines[1:]
    assert cli.main([*GENERATE, "-m", file, "--quiet"]) == 0
    assert weights_lines(capsys) == []
    bench = ["bench", "-m", file, "--context", "2", "-n", "1", "--repeats", "1", "--weights", "q8"]
    assert cli.main(bench) == 0
    shown = capsys.readouterr()
    assert shown.out.count("F32 -> q8") == 5 and "F32 -> q8" not in shown.err


def test_no_cache(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPU_CACHE", str(tmp_path))
    assert cli.main([*GENERATE, "-m", file, "--no-cache"]) == 0
    assert "in memory" in weights_lines(capsys)[-1]
    assert not list(tmp_path.iterdir())
