"""`npu tune gemm`: tables, JSON, CSV, errors before the search, Ctrl-C."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from npu.cli import main
from npu.perf import tune

FAST = ["tune", "gemm", "--device", "npu1", "--dtype", "bf16", "--top", "3", "--emulate", "3"]


@pytest.mark.slow
def test_table_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, table = tmp_path / "out.json", tmp_path / "out.csv"
    assert main([*FAST, "--json", str(document), "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    found = json.loads(document.read_text())
    best = found["ranking"][0]
    assert "simulated" in out and "x".join(map(str, best["tile"])) in out
    assert found["simulated"] is True
    assert len(found["ranking"]) == 3 and found["walk"] and found["k_mt_curve"]
    assert {tuple(e["tile"]) for e in found["published"]} == {(96, 56, 96), (96, 48, 112)}
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 3 + 2
    assert rows[0]["tile"] == "x".join(map(str, best["tile"]))
    assert float(rows[0]["emulator_tops"]) == best["emulator_tops"]


def test_json_on_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FAST, "--objective", "core", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["objective"] == "core" and found["ranking"][0]["emulator_tops"] is None


def test_sizes_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    for sizes in (["--size", "512,256,300"], ["--sizes", "256,512x128x64"]):
        assert main([*FAST, *sizes, "--json", "-"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["sizes"] in ([[512, 256, 300]], [[256, 256, 256], [512, 128, 64]])
        assert found["ranking"][0]["emulator_tops"] > 0
    assert len(tune.PRESETS["mixed"]) > 15


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--dtype", "int8", "--out-dtype", "f32"], 1, "int8 -> float32 is not supported"),
        (["--json", "/nonexistent/file"], 1, "[tune] /nonexistent/file has no folder"),
        (["--json", "-", "--csv", "-"], 1, "standard output"),
        (["--csv", "/"], 1, "[tune] / is a folder"),
        (["--size", "1,2"], 2, "neither S nor MxKxN"),
        (["--size", "0"], 2, "not a positive whole number"),
        (["--size", "1,2,99999999"], 1, "16777216"),
        (["--sizes", "cubes"], 2, "cubes"),
        (["--dtype", "int4"], 2, "int4"),
        (["--size", "1", "--sizes", "2"], 2, "not allowed with"),
        (["--designs", "pipelined"], 1, "nothing for bfloat16 on npu1"),
    ],
)
def test_errors_before_the_search(
    arguments: list[str],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(tune, "gemm", never)
    assert main([*FAST, *arguments]) == code
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) == 1


def test_a_checked_output_leaves_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C during the search: exit code 130, one line, nothing written."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune.Evaluator, "emulate", interrupted)
    target = tmp_path / "out.json"
    assert main([*FAST, "--json", str(target)]) == 130
    assert not target.exists()
    assert capsys.readouterr().err == "npu: error: interrupted\n"
