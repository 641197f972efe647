"""Generated BFP16 products for npu2 in the layout of the designs' kernels: bit for bit the C++
kernel's results, C in bf16 and fp32, for odd and even numbers of steps, which share load files
differently.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from npu.errors import ShapeError
from npu.vliw import assembly, kernels, matmul_bfp16_tiles, reference
from npu.vliw.kernels import Schedule

OUTS = matmul_bfp16_tiles.OUTS
ACCESSES = {"bfloat16": 2, "float32": 4}  # to a tile of C each way
LOADS = {"bfloat16": "vlda.conv.fp32.bf16", "float32": "vlda.bm"}
STORES = {"bfloat16": "vst.conv.bf16.fp32", "float32": "vst.bm"}


def schedule(m1: int, k1: int, n1: int, out: str, attempts: int = 4) -> Schedule:
    return kernels.schedule("npu2", "matmul_bfp16_tiles", m1, k1, n1, attempts, out)


def check(found: Schedule, seed: int = 0) -> None:
    given = reference.operands(found, seed)
    result, run = found.run(given.a, given.b, given.c)
    bits = f"uint{8 * result.itemsize}"
    np.testing.assert_array_equal(result.view(bits), given.after.view(bits))
    m1, k1, n1 = found.shape
    assert run.stalls == 0
    assert run.issued["vmac.f"] == m1 * k1 * n1
    accesses = ACCESSES[found.out] * m1 * n1
    assert run.issued[LOADS[found.out]] == run.issued[STORES[found.out]] == accesses
    popped = sum(run.issued[f"vld{unit}.{key}"] for unit in "ab" for key in ("pop", "leave"))
    assert popped == m1 * k1 * n1
    filled = run.issued["vlda.fill"] + run.issued["vldb.fill"]
    runs = k1 // 4 if k1 % 4 == 0 else -(-k1 // 2)  # of tiles in a row
    assert filled == m1 * n1 * runs


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("shape", [(4, 2, 6), (2, 3, 2), (4, 4, 14), (6, 5, 10), (2, 6, 4)])
def test_the_results_of_the_cpp_kernel(shape: tuple[int, int, int], out: str) -> None:
    check(schedule(*shape, out), 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@over(
    m2=st.integers(1, 5), k1=st.integers(1, 8), n2=st.integers(1, 6), out=st.sampled_from(OUTS),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_size(m2: int, k1: int, n2: int, out: str, seed: int) -> None:
    check(schedule(2 * m2, k1, 2 * n2, out, 2), seed)


@pytest.mark.parametrize(
    ("out", "k1", "interval"),
    # The bank of C binds below 4 (bf16) and 8 steps; seven steps with fp32 find no shorter one.
    [("bfloat16", k1, max(16, 4 * k1)) for k1 in range(2, 9)]
    + [("float32", k1, 38 if k1 == 7 else 32) for k1 in range(2, 9)],
)
def test_the_loop_is_full_or_the_bank_of_c_is(out: str, k1: int, interval: int) -> None:
    (loop,) = schedule(4, k1, 8, out, 1).document()["loops"]
    assert loop["bundles"] == 2 * interval


def test_two_load_files_serve_four_rows_of_tiles() -> None:
    """The text has pops that move on by a modifier and in two dimensions."""
    found = schedule(4, 5, 10, "bfloat16")
    text = assembly.write(found.program, found.prototype)
    assert "vlda.pop.576 ex" in text and ", lf0, r24, m" in text
    assert "pop.576.2d ex" in text and ", lf1, r25, d" in text


def test_wrong_sizes() -> None:
    with pytest.raises(ShapeError, match=r"\[matmul_bfp16_tiles\] m1 is 3: give a number of tiles"):
        schedule(3, 4, 2, "float32")
