"""Generated int8 products for npu2: bit for bit the C++ kernel's results for any numbers of tiles,
every type of C and layout of B; a multiplication in every cycle of the loop unless C's bank binds;
C loaded and stored once.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from vliw_programs import check_int8

from npu.errors import ArgumentError, ShapeError
from npu.vliw import kernels, matmul_i8, reference
from npu.vliw.kernels import Schedule

OUTS = matmul_i8.OUTS
LAYOUTS = ("row", "col")
# Accesses to a tile of C each way, and what they are.
ACCESSES = {"int8": 1, "int16": 2, "int32": 4}
LOADS = {"int8": "vlda.ups.4x", "int16": "vlda.ups.2x", "int32": "vlda.bm"}
STORES = {"int8": "vst.srs.4x", "int16": "vst.srs.2x", "int32": "vst.bm"}

each_kind = pytest.mark.parametrize(
    ("out", "layout"), [(out, layout) for out in OUTS for layout in LAYOUTS]
)


def schedule(m1: int, k1: int, n1: int, out: str, layout: str, attempts: int = 4) -> Schedule:
    return kernels.schedule("npu2", "matmul_i8", m1, k1, n1, attempts, out, layout)


def check(found: Schedule, seed: int) -> None:
    c = LOADS[found.out], STORES[found.out]
    check_int8(found, c, ("vlda.x", "vldb.x"), 2, seed)


@each_kind
@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 8, 6), (6, 5, 2), (2, 3, 10)])
def test_the_results_of_the_cpp_kernel(shape: tuple[int, int, int], out: str, layout: str) -> None:
    """One block, the longest k, a column of blocks, a row of them."""
    check(schedule(*shape, out, layout), 1)


@settings(deadline=None, max_examples=10)
@over(
    m2=st.integers(1, 5), k1=st.integers(1, 8), n2=st.integers(1, 5), out=st.sampled_from(OUTS),
    layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_size(m2: int, k1: int, n2: int, out: str, layout: str, seed: int) -> None:
    check(schedule(2 * m2, k1, 2 * n2, out, layout, 2), seed)


@pytest.mark.parametrize("out", ["int8", "int16"])
def test_the_operands_saturate_and_round(out: str) -> None:
    given = reference.matmul_i8(4, 4, 4, 0, out, "row")
    assert {np.iinfo(out).max, np.iinfo(out).min} <= set(given.after.ravel().tolist())
    assert given.shift > 0


@each_kind
@pytest.mark.parametrize("k1", range(2, 9))
def test_the_loop_is_full_or_the_bank_of_c_is(k1: int, out: str, layout: str) -> None:
    """Four tiles' accesses each way, one per cycle."""
    found = schedule(4, k1, 8, out, layout)
    (loop,) = found.document()["loops"]
    assert loop["bundles"] == 2 * max(4 * k1, 8 * ACCESSES[out])
    # Setting up, the first loads and the last stores.
    cycles = found.simulated().cycles
    assert cycles <= 8 * loop["bundles"] // 2 + 42


def test_a_and_b_share_a_bank_without_stalls() -> None:
    """208 x 32 x 176, a tile of the designs: C takes three banks of four."""
    found = schedule(26, 4, 22, "int8", "col", 1)
    a, b, c = found.places()
    assert a // 16384 == (b + 4 * 22 * 64 - 1) // 16384 < c // 16384
    run = found.simulated()
    assert run.stalls == 0 and run.issued["vmac"] / run.cycles > 0.98


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0, 4, 2), "m1 is 0: give a number of tiles, a multiple of 2"),
        ((2, 4, 3), "n1 is 3"),
        ((2, 0, 2), "k1 is 0"),
    ],
)
def test_wrong_sizes(values: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        matmul_i8.regions(*values, "int8", "row")


def test_wrong_choices() -> None:
    with pytest.raises(ArgumentError, match="out of matmul_i8 is 'float32'; it can be int8, int16"):
        schedule(2, 2, 2, "float32", "row")
    with pytest.raises(ArgumentError, match="b_layout of matmul_i8 is 'columns'"):
        schedule(2, 2, 2, "int8", "columns")
