"""Generated rotary embedding: bit for bit its formula with fp32 products made of bf16 parts, a bf16
step from the C++ kernel's results in one of 10^4 at most; published cycles; broken schedules.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, fused, parts
from vliw_programs import believed, on

from npu.errors import ScheduleError, ShapeError
from npu.vliw import generate, rope, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.vector_kernels import LoopSchedule

TURN = 16


def schedule(vectors: int = 1) -> LoopSchedule:
    return vector_kernels.schedule("npu2", "rope", vectors)


def rotated(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    low, high = x.astype(np.float32).reshape(-1, 2, 128).transpose(1, 0, 2)
    cosine, sine = table.reshape(-1, 2, 128).transpose(1, 0, 2)
    results = []
    for one, other, sign in ((low, high, -1), (high, low, 1)):
        total = np.zeros(one.shape, np.float32)
        for part in reversed(parts(cosine)):
            total = fused(one, part, total)
        np.testing.assert_array_equal(total, one * cosine)
        for part in parts(sine):
            total = fused(sign * other, part, total)
        results.append(total.astype(BF16))
    return np.stack(results, axis=1).reshape(-1)


@settings(deadline=None, max_examples=12)
@given(vectors=st.sampled_from((1, 2, 5)), seed=st.integers(0, 9999))
def test_the_formulas_bits(vectors: int, seed: int) -> None:
    found = schedule(vectors)
    x, table, expected = found.operands(seed)
    result, run = found.run(x, table)
    formula = rotated(x.view(BF16), table.view(np.float32))
    np.testing.assert_array_equal(result.view(np.uint16), formula.view(np.uint16))
    assert run.stalls == 0
    apart = result.view(np.int16).astype(int) - expected.view(np.int16).astype(int)
    assert np.abs(apart).max() <= 1 and np.count_nonzero(apart) <= 1


def test_the_cpp_kernels_bits() -> None:
    for seed in range(4):
        result, expected, _ = schedule(2).compared(seed)
        np.testing.assert_array_equal(result, expected)


def test_how_often_the_cpp_kernels_bits_differ() -> None:
    """On 250 vectors, by the formula."""
    x, table, expected = dataclasses.replace(schedule(), blocks=250).operands(1)
    formula = rotated(x.view(BF16), table.view(np.float32))
    apart = formula.view(np.int16).astype(int) - expected.view(np.int16).astype(int)
    assert np.abs(apart).max() <= 1 and np.count_nonzero(apart) <= 6


def test_cycles() -> None:
    found = vector_kernels.cycles("npu2", "rope")
    assert found.block == 4 * TURN and 0 < found.outside < 60
    run = schedule(3).simulated()
    assert abs(found.total(3) - run.cycles) <= 2 and run.stalls == 0
    assert sum(run.issued[f"{key}.f.x"] for key in ("vmul", "vmac", "vmsc")) == 16 * 4 * 3


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is 0: give 1 or more vectors of 256"):
        rope.regions(AIE2P, 0)


@pytest.mark.parametrize("key", ["vmac.f.x", "vmsc.f.x", "vconv.bf16.fp32", "vldb.x"])
def test_a_latency_that_is_one_cycle_too_short(key: str) -> None:
    machine = believed(AIE2P, key)
    program = on(AIE2P, generate.generate("broken", rope.regions(machine, 2), machine, 2))
    broken = dataclasses.replace(schedule(2), program=program)
    *inputs, _ = broken.operands(0)
    with pytest.raises(ScheduleError, match=r"meant|never written|two results|used twice"):
        broken.run(*inputs)
