"""Memtiles that keep an operand (keeps=True, npu1): the bits are those of the design that reads it
again for every block of C, whichever operand is kept and in whatever order products follow each
other; DRAM is read once per matrix; long problems are split; what has no form for hardware is
refused there and not chosen.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import npu
from npu import _npu
from npu.designs import gemm
from npu.devices import open_device
from npu.errors import ArgumentError, DesignError
from npu.ops import gemm_designs
from npu.ops.arrays import bytes_of, typed_view
from npu.ops.gemm_product import Product
from npu.perf.simulate import simulate_call, simulate_gemm

BF16 = np.dtype(ml_dtypes.bfloat16)
# M, K, N; A lies in rows (forward, dx) or columns (dW), B in columns (forward) or rows; what stays
CASES = [
    ((256, 768, 512), "rows", "columns", "A"),
    ((256, 2304, 512), "rows", "rows", "A"),
    ((256, 3072, 768), "rows", "rows", "A"),
    ((512, 768, 768), "rows", "columns", "A"),
    ((1280, 256, 768), "columns", "rows", "B"),
    ((768, 256, 1024), "columns", "rows", "A"),
    ((768, 256, 768), "columns", "rows", "B"),
    ((256, 1024, 512), "rows", "rows", "A"),
    ((256, 2816, 1280), "rows", "columns", "A"),
    ((512, 512, 512), "rows", "columns", "A"),
    ((256, 3840, 512), "rows", "columns", ""),  # fifteen objects do not fit
    ((1536, 256, 1024), "columns", "rows", ""),
    ((256, 768, 600), "rows", "columns", "A"),  # edges: the last panels of B are packed
    ((256, 1536, 600), "rows", "rows", "A"),
    ((200, 768, 600), "rows", "rows", "A"),  # and A
    ((256, 700, 700), "rows", "rows", "A"),  # tails
    ((300, 600, 330), "columns", "rows", "A"),
]
EDGES = [case for case in CASES if any(x % 256 for x in case[0])]


def point(c_dtype: str, keeps: bool) -> gemm.DesignPoint:
    return gemm.design_point(
        "npu1", "bfloat16", c_dtype, tile=(64, 64, 64), k_mt=256, b_layout="col", square=True,
        keeps=keeps,
    )  # fmt: skip


def stored(rows: int, columns: int, orientation: str, seed: int) -> np.ndarray:
    shape = (rows, columns) if orientation == "rows" else (columns, rows)
    x = np.random.default_rng(seed).standard_normal(shape, np.float32).astype(BF16)
    return x if orientation == "rows" else x.T


def products(device: str, cases: list[tuple], c_dtype: str, keeps: bool) -> list[np.ndarray]:
    """All cases one after the other on a device of its own, which loads its configuration once."""
    design = open_device(device, "fast").gemm_of(point(c_dtype, keeps))
    out = []
    for (m, k, n), a_lies, b_lies, _ in cases:
        a, b = stored(m, k, a_lies, 1), stored(k, n, b_lies, 2)
        out.append(np.full((m, n), np.nan, np.float32 if c_dtype == "float32" else BF16))
        design.run(*typed_view(a), *typed_view(b), bytes_of(out[-1]), 0)
    return out


def check(found: list[np.ndarray], expected: list[np.ndarray], cases: list[tuple]) -> None:
    for one, other, case in zip(found, expected, cases, strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8), str(case))


@pytest.mark.parametrize("c_dtype", ["float32", "bfloat16"])
def test_bits_are_those_of_the_design_that_keeps_nothing(c_dtype: str) -> None:
    """In whatever order products follow each other: one leaves its memtiles as it found them. That
    design is compared with float64 in test_square_designs.py."""
    cases = CASES + CASES[::-2]
    expected = products("emu:npu1", cases, c_dtype, keeps=False)
    before = npu.stats()
    check(products("emu:npu1", cases, c_dtype, keeps=True), expected, cases)
    assert (npu.stats() - before).configuration_loads == 1


@pytest.mark.parametrize("residency", ["reload", "reload-second", "intruder"])
def test_streams_are_right_after_a_reload_and_after_any_other(residency: str) -> None:
    expected = products("emu:npu1", CASES, "bfloat16", keeps=False)
    check(products(f"emu:npu1+{residency}", CASES, "bfloat16", keeps=True), expected, CASES)


@pytest.mark.parametrize("case", [c for c in CASES if c not in EDGES], ids=str)
def test_dram_is_read_once_per_kept_matrix(case: tuple) -> None:
    """The other operand once per block that is kept of the first, but one that has an object per
    row, or column, of blocks and passes three of them once, too; both are read for every block
    where none is kept."""
    (m, k, n), a_lies, b_lies, kept = case
    stored = {"a_across": int(a_lies == "columns"), "b_across": int(b_lies == "rows")}
    run = simulate_call(point("bfloat16", True), (m, k, n), stored=stored)
    again = k == 256 and (m if kept == "A" else n) == 768
    a = 2 * m * k * (1 if kept == "A" or again else n // 256)
    b = 2 * k * n * (1 if kept == "B" or again else m // 256)
    assert run.bytes["L3_read"] == a + b
    assert run.bytes["L3_write"] == 2 * m * n


@pytest.mark.parametrize("across", [0, 1])
def test_channels_of_a_kept_a_read_half_of_b(across: int) -> None:
    """Simulated: four would get 11.1 GB/s across rows and 13.5 along them, eight 16.0 and 16.6."""
    run = simulate_call(point("bfloat16", True), (256, 3072, 3072), stored={"b_across": across})
    assert 14.5 < run.bytes["L3_read"] / run.array_seconds / 1e9 < 16.6


@pytest.mark.parametrize("size, count", [((256, 768, 65536), 1), ((256, 768, 65792), 2)])
def test_tasks_of_memtiles_bound_a_submission(size: tuple[int, int, int], count: int) -> None:
    """768 objects per memtile: three tasks of 256."""
    m, k, n = size
    config = gemm.configuration_of(point("bfloat16", True))
    found = _npu.operations.submissions("gemm", config, {"m": m, "k": k, "n": n})
    assert sum(one["count"] for one in found) == count


def test_layers_keep_operands_where_they_are_simulated() -> None:
    layer = Product("bfloat16", "bfloat16", (256, 768, 768), "col", layer=True)
    for simulated in (False, True):
        (found,) = gemm_designs.candidates("npu1", "array", layer, None, simulated)
        assert found.square and found.keeps == simulated
        if simulated:
            with pytest.raises(DesignError, match="can only be simulated"):
                gemm.mlir_of(found)
        else:
            assert "aie.device(npu1)" in gemm.mlir_of(found)


def test_what_keeps_nothing_is_refused() -> None:
    with pytest.raises(DesignError, match="keeps without square"):
        gemm.design_point("npu1", "bfloat16", "bfloat16", keeps=True)
    with pytest.raises(ArgumentError, match="closed form"):
        simulate_gemm("npu1", 256, 768, 768, design=point("bfloat16", True), model="closed-form")
