"""Generated products for npu2 with A, B and C in BFP16: bit for bit the C++ kernel's blocks, a
multiplication in every cycle from k = 48 on and at 32, those that widen C included, with one file
for A and C. Broken schedules do not pass.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from vliw_programs import believing, changed, into, on, writers

from npu.errors import ScheduleError, ShapeError
from npu.vliw import assembly, generate, kernels, matmul_bfp16_blocks, reference
from npu.vliw.aie2p import AIE2P
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


@pytest.mark.parametrize("key", ["vlda.pop vldb.pop", "vmac.f"])
def test_a_latency_that_is_one_cycle_too_short(key: str) -> None:
    """The scheduler believes it; the core is the true one."""
    machine = changed(AIE2P, believing(key, -1, 0))
    program = on(
        AIE2P, generate.generate("broken", matmul_bfp16_blocks.regions(4, 4, 8), machine, 4)
    )
    found = dataclasses.replace(schedule(4, 4, 8), program=program)
    with pytest.raises(ScheduleError, match=r"the schedule meant|was never written|is used twice"):
        found.simulated()


def test_a_register_that_is_replaced() -> None:
    found = schedule(4, 4, 8)
    for victim in writers(found.program, AIE2P, "EX")[3::7]:
        other = f"ex{(int(str(victim.operands[0])[2:]) + 1) % 12}"
        broken = dataclasses.replace(found, program=into(found.program, victim, other))
        with pytest.raises(ScheduleError, match=r"meant|never written|two results"):
            broken.simulated()
