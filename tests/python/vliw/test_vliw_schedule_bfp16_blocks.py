"""Generated products for npu2 with A, B and C in BFP16: bit for bit the C++ kernel's blocks, a
multiplication in every cycle from k = 48 on and at 32, those that widen C included, with one file
for A and C.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from npu.errors import ShapeError
from npu.vliw import assembly, kernels, matmul_bfp16_blocks, reference
from npu.vliw.kernels import Schedule

INTERVALS = {2: 14, 4: 20, 5: 25, 8: 36}


def schedule(m1: int, k1: int, n1: int, attempts: int = 4) -> Schedule:
    return kernels.schedule("npu2", "matmul_bfp16_tiles", m1, k1, n1, attempts, "bfp16")


def check(found: Schedule, seed: int = 0) -> None:
    given = reference.operands(found, seed)
    result, run = found.run(given.a, given.b, given.c)
    np.testing.assert_array_equal(result, given.after)
    assert (given.after != given.c).mean() > 0.5
    m1, k1, n1 = found.shape
    assert run.stalls == 0
    assert (run.issued["vmul.f"], run.issued["vmac.f"]) == (m1 * n1, m1 * k1 * n1)
    assert run.issued["vst.push"] == m1 * n1 == 2 * run.issued["vst.leave"]


@pytest.mark.parametrize("shape", [(2, 1, 2), (4, 2, 6), (2, 3, 2), (4, 4, 8), (6, 5, 10)])
def test_the_results_of_the_cpp_kernel(shape: tuple[int, int, int]) -> None:
    check(schedule(*shape), 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@over(m2=st.integers(1, 4), k1=st.integers(1, 8), n2=st.integers(1, 5), seed=st.integers(0, 99))
def test_any_size(m2: int, k1: int, n2: int, seed: int) -> None:
    check(schedule(2 * m2, k1, 2 * n2, 2), seed)


@pytest.mark.parametrize("k1", [2, 4, 5, 8])
def test_the_loop(k1: int) -> None:
    """Full where it has a multiplication per cycle. C's bank has 12 accesses per block; below four
    steps and at five the file of A and C, its pointer or registers are in the way."""
    (loop,) = schedule(4, k1, 8, 1).document()["loops"]
    assert loop["bundles"] == 2 * INTERVALS[k1]
    assert INTERVALS[k1] >= max(4 * k1 + 4, 12)
    if k1 in (4, 8):
        assert INTERVALS[k1] == 4 * k1 + 4


def test_the_pointer_of_a_file_serves_two_places() -> None:
    found = schedule(4, 4, 8)
    text = assembly.write(found.program, found.prototype)
    assert "mov p0, p3" in text and "mov p0, p4" in text


def test_wrong_sizes() -> None:
    with pytest.raises(ShapeError, match=r"\[matmul_bfp16_tiles\] n1 is 3: give a number of tiles"):
        matmul_bfp16_blocks.regions(2, 4, 3)
