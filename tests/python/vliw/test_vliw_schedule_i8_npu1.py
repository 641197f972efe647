"""Generated int8 products for npu1: bit for bit the C++ kernel's results for any numbers of tiles,
every type of C and layout of B; a multiplication in every cycle of the loop unless C's bank binds.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from vliw_programs import check_int8

from npu.vliw import assembly, kernels, matmul_i8, reference
from npu.vliw.kernels import Schedule

OUTS = matmul_i8.OUTS
LAYOUTS = ("row", "col")
LOADS = {"int8": "vlda.ups.s32.s8", "int16": "vlda.ups.s32.s16", "int32": "vlda.am"}
STORES = {"int8": "vst.srs.s8.s32", "int16": "vst.srs.s16.s32", "int32": "vst.am"}

each_kind = pytest.mark.parametrize(
    ("out", "layout"), [(out, layout) for out in OUTS for layout in LAYOUTS]
)


def schedule(m1: int, k1: int, n1: int, out: str, layout: str, attempts: int = 2) -> Schedule:
    return kernels.schedule("npu1", "matmul_i8", m1, k1, n1, attempts, out, layout)


def check(found: Schedule, seed: int) -> None:
    c = LOADS[found.out], STORES[found.out]
    check_int8(found, c, ("vlda.w", "vldb.w"), 3, seed)


@each_kind
@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 6, 6), (6, 5, 2), (2, 3, 10)])
def test_the_results_of_the_cpp_kernel(shape: tuple[int, int, int], out: str, layout: str) -> None:
    """One block, several, a column of blocks, a row of them."""
    check(schedule(*shape, out, layout), 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@over(
    m2=st.integers(1, 4), k1=st.integers(1, 16), n2=st.integers(1, 4), out=st.sampled_from(OUTS),
    layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_size(m2: int, k1: int, n2: int, out: str, layout: str, seed: int) -> None:
    check(schedule(2 * m2, k1, 2 * n2, out, layout), seed)


@pytest.mark.parametrize("out", ["int8", "int16"])
def test_the_operands_saturate_and_round(out: str) -> None:
    given = reference.matmul_i8(4, 4, 4, 0, out, "row", "npu1")
    assert {np.iinfo(out).max, np.iinfo(out).min} <= set(given.after.ravel().tolist())
    assert given.shift > 0


@each_kind
@pytest.mark.parametrize("k1", [2, 4, 7])
def test_the_loop_is_full_or_the_bank_of_c_is(k1: int, out: str, layout: str) -> None:
    """Four tiles' accesses each way, one per cycle; where both are as many, a cycle may be lost."""
    found = schedule(4, k1, 8, out, layout)
    (loop,) = found.document()["loops"]
    least = max(4 * k1, 8 * np.dtype(out).itemsize)
    assert least <= loop["bundles"] // 2 <= least + (k1 == 7 and out == "int32")


def test_the_text_names_whole_registers_for_tiles_of_a() -> None:
    found = schedule(4, 2, 4, "int8", "col")
    text = assembly.write(found.program, found.prototype)
    assert "vmac cm" in text and "vlda.ups.s32.s8 cm" in text and "vst.srs.s8.s32 cm" in text
