"""`npu bench --compare`: ratios against figures made by hand, refusals, exit codes; and the stamp
that every JSON document of `npu bench` carries."""

from __future__ import annotations

import copy
import datetime
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gemma3_files import Shape, write_model

import npu
from npu import cli
from npu.cli import stamp
from npu.models.identity import fingerprint

STAMP = {
    "benchmark": "model", "version": "1", "commit": "c0ffee", "date": "2026-01-01T00:00:00+00:00",
    "device": "emu:npu2", "machine": None, "kernels": None, "arithmetic": "fast", "host_cpu": "X",
    "host_cpus": 2, "model": "abc",
}  # fmt: skip


def spread(value: float) -> dict[str, Any]:
    return {"median": value, "min": value / 2, "max": value * 2, "values": [value]}


def measured(test: str, rate: float, threads: int = 2) -> dict[str, Any]:
    return {
        "test": test, "prompt_tokens": 5, "generated_tokens": 0, "depth": 0, "threads": threads,
        "tokens_per_s": spread(rate), "seconds": spread(5 / rate),
    }  # fmt: skip


A = {
    "times": "host time",
    "stamp": STAMP,
    "results": [measured("pp5", 100.0), measured("pp5", 150.0, 4), measured("tg1", 8.0)],
}
B = {
    "times": "host time",
    "stamp": STAMP | {"commit": "beef", "date": "later"},
    "results": [measured("pp9", 1.0), measured("pp5", 150.0, 4), measured("pp5", 80.0)],
}


def compared(
    capsys: pytest.CaptureFixture[str], path: Path, a: Any, b: Any, *words: str
) -> tuple[int, str, str]:
    for name, document in (("a.json", a), ("b.json", b)):
        text = document if isinstance(document, str) else json.dumps(document)
        (path / name).write_text(text)
    code = cli.main(["bench", "--compare", str(path / "a.json"), str(path / "b.json"), *words])
    return (code, *capsys.readouterr())


def test_ratios_of_the_rows_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = compared(capsys, tmp_path, A, B, "--json")
    found = json.loads(out)
    assert code == 0 and found["different"] == {"commit": ["c0ffee", "beef"]}
    rows = {(row["row"], row["figure"]): row for row in found["rows"]}
    assert set(rows) == {
        (f"test pp5, threads {t}", figure) for t in (2, 4) for figure in ("tokens_per_s", "seconds")
    }
    slower = rows["test pp5, threads 2", "tokens_per_s"]
    assert (slower["a"], slower["b"]) == (100, 80)
    assert slower["ratio"] == pytest.approx(0.8) and slower["loss"] == pytest.approx(20)
    longer = rows["test pp5, threads 2", "seconds"]
    assert longer["ratio"] == pytest.approx(1.25) and longer["loss"] == pytest.approx(25)
    assert rows["test pp5, threads 4", "seconds"]["loss"] == 0
    assert found["only_in_a"] == ["test tg1, threads 2"]
    assert found["only_in_b"] == ["test pp9, threads 2"]
    code, out, _ = compared(capsys, tmp_path, A, B)
    assert "commit: c0ffee in A, beef in B" in out and "only in A: test tg1" in out
    lines = [line.split() for line in out.splitlines() if line.startswith("test pp5, threads 2")]
    assert [line[-2:] for line in lines] == [["0.800", "worse"], ["1.250", "worse"]]


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(capsys, tmp_path, A, B, "--fail-over", "25.1")[0] == 0
    assert compared(capsys, tmp_path, A, B, "--fail-over", "24")[0] == 1
    assert compared(capsys, tmp_path, B, A, "--fail-over", "0")[0] == 0  # all better
    assert cli.main(["bench", "--compare", str(tmp_path / "a.json")]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmark": "gemv"}, "different benchmarks: model in .*, gemv in"),
        ({"model": "abd"}, "different models: abc in .*, abd in"),
        ({"times": "simulated"}, "different kinds of time: host time in .*, simulated in"),
    ],
)
def test_what_cannot_be_compared_is_refused_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], message: str
) -> None:
    other = copy.deepcopy(B)
    if "times" in change:
        other |= change
    else:
        other["stamp"] |= change  # type: ignore[operator]
    code, out, err = compared(capsys, tmp_path, A, other)
    assert (code, out) == (1, "")
    assert re.search(message, err) and "--different" in err
    assert compared(capsys, tmp_path, A, other, "--different")[0] == 0


@pytest.mark.parametrize(
    "bad",
    ["", "{", "[]", "5", "{}", '{"stamp": 3}', '{"stamp": {}, "results": []}', "[" * 100_000,
     '{"stamp": {}, "results": 7, "rows": [3], "sweeps": [{"rows": 3}, 4]}'],
)  # fmt: skip
def test_files_that_are_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    code, _, err = compared(capsys, tmp_path, A, bad, "--different")
    assert code == 1 and err.startswith("npu: error: [bench]") and "Error" not in err
    assert cli.main(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path)]) == 1


def test_rows_that_look_alike_are_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = A | {"results": [measured("pp5", 10.0), measured("pp5", 20.0)]}
    _, out, _ = compared(capsys, tmp_path, one, one, "--json")
    rates = [row["a"] for row in json.loads(out)["rows"] if row["figure"] == "tokens_per_s"]
    assert rates == [10, 20]


@pytest.mark.parametrize(
    "words",
    [
        ["gemm", "--sizes", "1000", "--method", "closed-form", "--dtype", "int8"],
        ["gemm", "--designs", "default", "--sizes", "512", "--method", "closed-form", "--dtype",
         "bf16"],
        ["gemm", "--host", "--sizes", "64", "--repeats", "1"],
        ["dequant", "--projections", "gemma3-1b"],
        ["operations", "--operation", "rms_norm"],
    ],
)  # fmt: skip
def test_every_benchmark_has_a_stamp_and_compares_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    path = tmp_path / "f.json"
    assert cli.main(["bench", *words, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert set(document["stamp"]) == set(STAMP)
    assert document["stamp"]["benchmark"].split()[0] == words[0]
    assert document["stamp"]["version"] == npu.__version__ and document["stamp"]["model"] is None
    capsys.readouterr()
    assert cli.main(["bench", "--compare", str(path), str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] and all(row["ratio"] == 1 for row in found["rows"])
    assert found["different"] == {} and found["only_in_a"] == []


def test_the_stamp_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = Shape(layers=1, width=32, heads=2, kv_heads=1, head_dim=8, ffn_width=32, context=64)
    model = str(write_model(tmp_path / "m.gguf", shape))
    assert cli.main(["bench", "-m", model, "-p", "2", "-n", "0", "-r", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stamp"]
    assert found["model"] == fingerprint([model])
    assert (found["device"], found["arithmetic"]) == ("emu:npu2", "fast")
    assert found["host_cpu"] and found["host_cpus"] >= 1
    age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(
        found["date"]
    )
    assert 0 <= age.total_seconds() + 1 < 600


def test_the_commit_is_that_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "python/npu/cli"
    place.mkdir(parents=True)
    (place / "stamp.py").write_text("")
    monkeypatch.setattr(stamp, "__file__", str(place / "stamp.py"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert stamp._commit() in (None, stamp._installed_commit())  # no commit yet
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    assert stamp._commit() == head
    (place / "stamp.py").write_text("changed")
    assert stamp._commit() == f"{head}+"
    monkeypatch.setenv("PATH", "")
    assert stamp._commit() == stamp._installed_commit()
