"""`--kernels both`: the figures of both profiles, as text, as one JSON document, in files of their
own; each is what the command gives for that profile alone; errors stay one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu.cli import main

DEQUANT = ["bench", "dequant", "--device", "emu:npu2"]
GEMM = ["bench", "gemm", "--device", "npu2", "--dtype", "int8", "--out-dtype", "int8"]
GEMM += ["--tile", "64x64x64", "--k-mt", "256", "--sizes", "256"]


def document(command: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    assert main([*command, "--json"]) == 0
    found: dict[str, dict] = json.loads(capsys.readouterr().out)
    return found


def test_text_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DEQUANT, "--kernels", "both"]) == 0
    lines = [s for s in capsys.readouterr().out.splitlines() if s.startswith("kernels:")]
    assert lines == ["kernels: published;", "kernels: scheduled;"]


def test_a_document_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    both = document([*DEQUANT, "--kernels", "both"], capsys)
    assert list(both) == ["published", "scheduled"]
    for profile, found in both.items():
        alone = document([*DEQUANT, "--kernels", profile], capsys)
        assert found["kernels"] == alone["kernels"] == profile
        assert found["results"] == alone["results"]
    assert both["published"]["results"] != both["scheduled"]["results"]


def test_files_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    csv, doc = tmp_path / "t.csv", tmp_path / "t.json"
    assert main([*GEMM, "--kernels", "both", "--csv", str(csv), "--json", str(doc)]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"t.{p}.{s}" for p in ("published", "scheduled") for s in ("csv", "json")]
    for profile in ("published", "scheduled"):
        found = json.loads((tmp_path / f"t.{profile}.json").read_text())
        assert found["kernels"] == profile


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_error_is_one_line(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "gemm", "--device", "npu2", "--machine", "nowhere", "--kernels", "both"]
    assert main([*command, *more]) == 1
    captured = capsys.readouterr()
    assert "nowhere" in captured.err and captured.err.count("\n") == 1
