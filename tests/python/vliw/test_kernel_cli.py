"""`npu kernel`: table, JSON, assembly and plot of a schedule, a run against the C++ kernel, a
program from a file; errors are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu.cli import main
from npu.vliw import assembly
from npu.vliw.aie2 import AIE2
from npu.vliw.aie2p import AIE2P

SIZE = ["--m1", "4", "--k1", "2", "--n1", "8"]
SCHEDULE = ["kernel", "schedule", "--device", "npu1", "--kernel", "matmul_bf16", *SIZE]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SCHEDULE) == 0
    out = capsys.readouterr().out.splitlines()
    assert "cycles simulated" in out[0] and "64 with a multiplication" in out[0]
    assert out[2].split() == ["vec", "lda", "ldb", "st", "alu", "mv"]
    rows = out[3:]
    assert [int(row[:5]) for row in rows] == list(range(len(rows)))
    assert any(row[5:6] == "|" for row in rows) and any("vmac.f" in row for row in rows)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCHEDULE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulated"] is True and found["multiplication_bundles"] == 64
    assert found["cycles"] == found["bundles"] + found["stalls"]
    assert found["utilisation"] == pytest.approx(64 / found["cycles"])
    assert len(found["slots"]) == found["code_bundles"] and found["code_bytes"] % 2 == 0
    (loop,) = found["loops"]
    passes = (found["bundles"] - found["code_bundles"]) / loop["bundles"]
    assert passes == int(passes) >= 0


def test_assembly_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plot = tmp_path / "k.s", tmp_path / "k.svg"
    assert main([*SCHEDULE, "--asm", str(source), "--plot", str(plot)]) == 0
    capsys.readouterr()
    assert assembly.read(source.read_text(), AIE2).labels
    assert "cycles (simulated)" in plot.read_text()
    assert main([*SCHEDULE, "--asm", "-"]) == 0
    assert capsys.readouterr().out == source.read_text()


def test_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "run", *SIZE, "--seed", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == 0 and found["values"] == 512 and found["cycles"] > 64
    assert main(["kernel", "run", *SIZE]) == 0
    assert "0 of 512 values differ" in capsys.readouterr().out


def test_the_second_generation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--m1", "2", "--k1", "4", "--n1", "4"]
    kernel = ["--device", "npu2", "--kernel", "matmul_bfp16", *size]
    assert main(["kernel", "run", *kernel]) == 0
    assert "0 of 512 values differ" in capsys.readouterr().out
    source = tmp_path / "k.s"
    assert main(["kernel", "schedule", *kernel, "--asm", str(source)]) == 0
    text = source.read_text()
    assert "vlda.pop.576 ex" in text and "[p1, lf1, r25]" in text
    again = assembly.read(text, AIE2P)
    assert sum(op.operation.key == "vldb.fill" for b in again.bundles for op in b.ops) == 2


def test_run_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.s"
    path.write_text("mov r0, #5\npadda [p1], #64\nret lr\n" + "nop\n" * 5)
    command = ["kernel", "run", "--program", str(path), "--pointer", "p1=32"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cycles"] == 8 and found["registers"]["r0"] == 5
    assert found["registers"]["p1"] == 96


def test_early_reads_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.s"
    path.write_text("mov r0, #2\nmov r1, #3\nmul r0, r0, r1\nmov r2, r0\nret lr\n" + "nop\n" * 5)
    command = ["kernel", "run", "--program", str(path)]
    assert main(command) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("1 reads of a register before a result under way")
    assert out[2] == "  bundle 3, mov r2, r0: r0, before bundle 2, mul r0, r0, r1"
    assert main([*command, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["early_reads"]
    assert found == {"read": "bundle 3, mov r2, r0: r0", "before": "bundle 2, mul r0, r0, r1"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["schedule", "--m1", "1", "--k1", "1"], 1, "give --m1, --k1, --n1"),
        (["schedule", "--m1", "0", "--k1", "1", "--n1", "1"], 2, "positive"),
        (["schedule", "--device", "npu2", *SIZE], 1, "--device npu1 has it; there is convert_bf16"),
        (["schedule", "--kernel", "gemv"], 1, "no kernel gemv on npu1; there is dequant_q4nx, "),
        (["schedule", "--kernel", "rope", "--n1", "2", "--out", "int8"], 1, "no --n1, --out; its"),
        (["schedule", *SIZE, "--blocks", "2"], 1, "no --blocks; its size is --m1, --k1 and --n1"),
        (["schedule", "--m1", "8", "--k1", "400", "--n1", "8"], 1, "has at least 25685 bytes"),
        (["schedule", "--m1", "8", "--k1", "150", "--n1", "8"], 1, "filled and drained"),
        (["run", "--device", "npu2", "--kernel", "matmul_bfp16", *SIZE], 1, "multiple of 4"),
        (["schedule", "--kernel", "gemv", *SIZE], 1, "no kernel gemv"),
        (["schedule", *SIZE, "--plot", "k.txt"], 1, "must end in"),
        (["schedule", *SIZE, "--asm", "/no/such/folder/k.s"], 1, "--asm"),
        (["run", "--program", "/no/such/file.s"], 1, "--program"),
        (["run", "--pointer", "q0=1", *SIZE], 2, "not of the form p0=1024"),
        (["run", "--m1", "40", "--k1", "2", "--n1", "40"], 1, "give fewer tiles"),
        ([], 2, "ACTION"),
    ],
)
def test_errors(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernel", *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1


def test_a_file_that_breaks_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.s"
    path.write_text("vst wl0, [p0], #32\n")
    assert main(["kernel", "run", "--program", str(path), "--pointer", "p0=0"]) == 1
    assert "wl0 was never written" in capsys.readouterr().err
