"""The generated product of prompts for npu2: bit for bit the sums of the C++ kernel that finishes a
range of weights; a block every 18 cycles, which is what its accesses take of two load units, at the
addresses of the design, with the stalls that are charged. Sums in one bank show.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from npu.designs import prefill
from npu.errors import DesignError, ShapeError
from npu.vliw import cycles, generate, kernels, prefill_multiply, reference
from npu.vliw.aie2p import AIE2P
from npu.vliw.kernels import Schedule
from npu.vliw.simulator import Core

INTERVAL = 18
ENDS = 28  # cycles beside the intervals, of every size


def schedule(m1: int, k1: int, n1: int, attempts: int = 4) -> Schedule:
    return kernels.schedule("npu2", "prefill_multiply", m1, k1, n1, attempts)


def check(found: Schedule, seed: int) -> None:
    given = reference.operands(found, seed)
    result, run = found.run(given.a, given.b, given.c)
    np.testing.assert_array_equal(result.view(np.uint32), given.after.view(np.uint32))
    assert (result != given.c).any()
    m1, k1, n1 = found.shape
    assert run.issued["vmac.f"] == m1 * k1 * n1
    blocks = m1 * n1 * k1 // 16
    assert run.issued["vlda.bm"] == run.issued["vst.bm"] == 16 * blocks
    assert run.issued["vlda.fill"] + run.issued["vldb.fill"] == 3 * blocks


@pytest.mark.parametrize("shape", [(2, 4, 4), (4, 8, 4), (8, 8, 8), (16, 4, 8), (16, 4, 4)])
def test_the_results_of_the_cpp_kernel(shape: tuple[int, int, int]) -> None:
    """Rows of jobs with one and two row-blocks, one slice and two."""
    check(schedule(*shape), 1)


@settings(deadline=None, max_examples=4)
@over(m2=st.integers(1, 4), slices=st.integers(1, 2), n2=st.integers(1, 4), seed=st.integers(0, 99))
def test_any_size(m2: int, slices: int, n2: int, seed: int) -> None:
    check(schedule(2 * m2, 4 * slices, 2 * n2, 2), seed)


def test_the_load_units_bind() -> None:
    """Sums are 16 lines, which one of two units brings; factors 16 tiles, with three fills."""
    found = schedule(8, 4, 8)
    (loop,) = found.document()["loops"]
    assert loop["bundles"] == 2 * INTERVAL == 2 * -(-(16 + 16 + 3) // 2)
    assert found.simulated().cycles <= INTERVAL * 16 + 36
    assert found.program.code_bytes < 1024


def test_the_addresses_are_those_of_the_design() -> None:
    """A's buffers in a bank of their own, halves of sums 16 KB apart, of which the second ends in
    the bank of W: its last blocks wait."""
    lowered = {
        name: int(line.split("address = ")[1].split(" ")[0])
        for line in prefill.mlir("npu2").splitlines()
        if "aie.buffer" in line and "(%tile_0_2)" in line
        for name in [line.split("=")[0].strip().rstrip("_0123456789")]
    }
    a, w, upper, lower = prefill_multiply.ADDRESSES
    assert (a, upper) == (lowered["%A1_0_0_cons_buff"], lowered["%store"])
    assert w == lowered["%work"] + 8192  # behind the sums of the last rows
    assert lower == upper + 16384 and lowered["%work"] == upper + 24576
    assert schedule(8, 8, 8).simulated().stalls == 0  # 64 rows do not reach that bank
    most = schedule(16, 4, 8, generate.ATTEMPTS).simulated()
    assert 0 < most.stalls < 32
    assert most.cycles == INTERVAL * 32 + ENDS + most.stalls
    line = cycles.of("npu2", "prefill_multiply", 4)
    assert (line.interval, line.outside) == (INTERVAL, ENDS + most.stalls)


def test_sums_in_one_bank_wait() -> None:
    """Rows of tiles one after the other, as they would lie without halves: 32 accesses a block."""
    found = schedule(8, 4, 8)
    a, w, upper, _ = found.places()
    pointers = {"p0": a, "p1": w, "p2": upper, "p3": upper + 8192}
    run = Core(bytearray(AIE2P.memory_bytes), pointers).run(found.program)
    assert run.cycles > 30 * 16


def test_wrong_sizes() -> None:
    with pytest.raises(ShapeError, match=r"\[prefill_multiply\] k1 is 6: give a multiple of 4"):
        schedule(2, 6, 4)
    with pytest.raises(ShapeError, match="m1 is 3: give a number of tiles, a multiple of 2"):
        schedule(3, 4, 4)
    with pytest.raises(DesignError, match="its design has no room for"):
        schedule(32, 4, 8, 1).places()
