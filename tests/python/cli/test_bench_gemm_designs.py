"""`npu bench gemm --designs default` as a user runs it: TOPS of what npu.matmul chooses, what binds
one size, JSON and CSV, and command lines that are refused before anything is simulated.

References: npu.simulate_gemm on the same design, the definition of 2 M K N operations, the bytes of
A and B that each output round reads, and what npu.matmul itself reports to have chosen.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npu
from npu import cli
from npu.designs import gemm
from npu.perf.execution import constant

COMMAND = ["bench", "gemm", "--designs", "default"]
ONE = [*COMMAND, "--device", "npu2", "--dtype", "int8", "--out-dtype", "int8", "--b-layout", "row"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def documented(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def design_of(sweep: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The choices that a row names, for npu.simulate_gemm."""
    return {
        "dtype_in": sweep["dtype_in"], "dtype_out": sweep["dtype_out"],
        "b_layout": sweep["b_layout"], "accumulate": sweep["accumulate"],
        "tile": (row["tile_m"], row["tile_k"], row["tile_n"]), "k_mt": row["k_mt"],
        "kernel": row["kernel"], "c_buffers": row["c_buffers"],
    }  # fmt: skip


@pytest.mark.parametrize("sums", ["wide", "narrow"])
def test_a_row_is_the_simulation_of_its_design(
    sums: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """npu1, whose catalogue names all choices in the row; whole output rounds, so nothing is
    padded by the call."""
    words = ["--device", "npu1", "--dtype", "int8", "--out-dtype", "int8", "--b-layout", "col"]
    found = documented(capsys, *COMMAND, *words, "--sizes", "512x512x512", "--accumulate", sums)
    assert (found["times"], found["method"], found["device"]) == ("simulated", "emulator", "npu1")
    (sweep,) = found["sweeps"]
    assert (sweep["accumulate"], sweep["b_layout"]) == (sums, "col")
    first = sweep["rows"][0]
    m, k, n = 4 * first["tile_m"], first["k_mt"], 4 * first["tile_n"]
    size = (2 * m, 2 * k, 3 * n)
    found = documented(
        capsys, *COMMAND, *words, "--sizes", "x".join(map(str, size)), "--accumulate", sums
    )
    (sweep,) = found["sweeps"]
    (row,) = sweep["rows"]
    choices = design_of(sweep, row)
    reference = npu.simulate_gemm("npu1", *size, **choices)
    assert row["simulated_seconds"] == pytest.approx(reference.seconds, rel=1e-9)
    assert row["simulated_tops"] == pytest.approx(2 * math.prod(size) / reference.seconds / 1e12)
    assert sweep["geometric_mean_tops"] == pytest.approx(row["simulated_tops"])


def test_what_binds_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes: every output round reads its rows of A and columns of B once. At full DRAM they pass
    at the read ceiling of the timing model or, in runs of 256 bytes, a little below it; at full
    compute no core waits."""
    size = (4096, 4096, 4096)
    (sweep,) = documented(capsys, *ONE, "--sizes", "4096", "--accumulate", "narrow")["sweeps"]
    (row,) = sweep["rows"]
    tile = row["tile_m"], row["tile_n"]
    rows, columns = (-(-4096 // (u * t)) for u, t in zip((4, 8), tile, strict=True))
    read = rows * columns * (4 * tile[0] + 8 * tile[1]) * 4096
    assert row["bytes_L3_read"] == read
    operations, dispatch = 2 * math.prod(size), constant("dispatch") * 1e-6
    ceiling = constant("dram_read_npu2") * 1e9
    full = operations / (dispatch + read / ceiling) / 1e12
    assert 0.95 * full < row["tops_at_full_DRAM"] <= full
    assert row["simulated_tops"] < min(row["tops_at_full_DRAM"], row["tops_at_full_compute"])
    assert row["share_compute"] == pytest.approx(
        (operations / 1e12 / row["tops_at_full_compute"] - dispatch)
        / (row["simulated_seconds"] - dispatch)
    )
    code, out, _ = run(capsys, *ONE, "--sizes", "4096", "--accumulate", "narrow")
    (line,) = (x for x in out.splitlines() if "%" in x)
    assert code == 0 and f"{read / 1e6:.1f}" in line and f"{row['tops_at_full_DRAM']:.2f}" in line


def test_it_is_what_matmul_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    size = (96, 256, 512)
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, size[:2], np.int8)
    b = rng.integers(-4, 5, size[1:], np.int8)
    words = ["--device", "npu1", "--dtype", "int8", "--out-dtype", "int32", "--b-layout", "row"]
    (sweep,) = documented(capsys, *COMMAND, *words, "--sizes", "96x256x512")["sweeps"]
    (row,) = sweep["rows"]
    with npu.device("emu:npu1", designs="array"):
        c = npu.matmul(a, b, out_dtype=np.int32)
        chosen = npu.last_gemm()
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))
    assert chosen is not None
    assert chosen.options.tile == (row["tile_m"], row["tile_k"], row["tile_n"])
    assert (chosen.options.k_mt, chosen.options.kernel) == (row["k_mt"], row["kernel"])


def test_all_products_and_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a dtype: every pair of the published sweep and 32-bit floats, both layouts, and
    narrow sums where C is narrower than they are."""
    table = tmp_path / "rows.csv"
    code, out, err = run(
        capsys, *COMMAND, "--device", "npu2", "--method", "closed-form", "--sizes",
        "256,512x64x128", "--accumulate", "both", "--csv", str(table),
    )  # fmt: skip
    assert code == 0, err
    rows = list(csv.DictReader(table.read_text().splitlines()))
    found = {(r["dtype_in"], r["dtype_out"], r["accumulate"], r["b_layout"]) for r in rows}
    expected = {
        (a, c, sums, layout)
        for a, c in gemm.PAIRS
        if a != "int16"
        for sums in (("wide",) if c in ("int32", "float32") else ("wide", "narrow"))
        for layout in ("row", "col")
    }
    assert found == expected and len(rows) == 2 * len(expected)
    assert "simulated TOPS" in out and "in turn" in out and str(table) in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "gemm", "--designs", "mine"], "default"),
        ([*COMMAND, "--tile", "64x64x64"], "--tile"),
        ([*COMMAND, "--k-mt", "64"], "--k-mt"),
        ([*COMMAND, "--sizes", "0"], "not a positive whole number"),
        ([*COMMAND, "--sizes", "many"], "many"),
        ([*COMMAND, "--accumulate", "double"], "double"),
        ([*COMMAND, "--device", "npu1", "--bf16", "bfp16"], "natively only"),
        ([*COMMAND, "--device", "npu3"], "npu3"),
        ([*COMMAND, "--dtype", "int8", "--out-dtype", "float32"], "float32"),
        ([*COMMAND, "--sizes", "64", "--csv", "/nowhere/rows.csv"], "/nowhere/rows.csv"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(words)
    except SystemExit as left:
        code = int(left.code or 0)
    out, err = capsys.readouterr()
    assert code != 0 and message in err and not out
