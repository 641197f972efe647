"""The generated inner loop of products of Q4NX blocks with a vector: bit for bit what npu.gemv
gives in silicon arithmetic, near the sums of float64, a full move slot; broken schedules are
caught.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vliw_programs import believed, on

from npu.errors import ArgumentError, ScheduleError, ShapeError
from npu.vliw import gemv_q4nx, generate, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.vector_kernels import LoopSchedule

TURN = 72  # 2 shuffles, 8 broadcasts and 8 interleaves for 8 columns


def schedule(blocks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule("npu2", "gemv_q4nx", blocks)


@settings(deadline=None, max_examples=5)
@given(blocks=st.integers(1, 2), seed=st.integers(0, 999))
def test_the_cpp_kernels_bits(blocks: int, seed: int) -> None:
    result, expected, run = schedule(blocks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0 and run.issued["vmac.f.x"] + run.issued["vmul.f.x"] == 256 * blocks


def test_sums_of_float64() -> None:
    """s = sum code x. What is added, 128 X, is subtracted again, so errors are of its size."""
    blocks, x, before, _ = schedule().operands(3)
    result, _ = schedule().run(blocks, x, before)
    found = result.view(np.float32).reshape(8, 2, 32)[:, 0]
    half = blocks[0, 1024:].reshape(2, 8, 32, 8)  # half, group, column, pair of rows
    codes = np.stack([half & 15, half >> 4], axis=-1).transpose(1, 2, 0, 3, 4).reshape(8, 32, 32)
    values = x.view(ml_dtypes.bfloat16).astype(np.float64).reshape(8, 32)
    exact = np.einsum("gcr,gc->gr", codes, values)
    bound = 34 * 2.0**-24 * 272 * np.abs(values).sum(axis=1)
    assert (np.abs(found - exact) <= bound[:, None]).all()


def test_cycles() -> None:
    found = vector_kernels.cycles("npu2", "gemv_q4nx")
    assert found.block == 8 * TURN and 0 < found.outside < TURN
    busy = schedule().document()["busy"]
    assert busy["mv"] == 1


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is -1"):
        gemv_q4nx.regions(AIE2P, -1)
    with pytest.raises(ArgumentError, match="no kernel gemv_q4nx on npu1; there is"):
        vector_kernels.schedule("npu1", "gemv_q4nx")


# Not of vmac.f and vadd.f: at the pace of the move slot their results wait a cycle anyway.
KEYS = ("vunpack", "vshuffle", "vextbcst.16", "vldb.x", "vldb.w", "vlda.bm")


@pytest.mark.parametrize("key", KEYS)
def test_a_latency_that_is_one_cycle_too_short(key: str) -> None:
    machine = believed(AIE2P, key)
    program = on(AIE2P, generate.generate("broken", gemv_q4nx.regions(machine, 1), machine, 2))
    broken = dataclasses.replace(schedule(), program=program)
    *inputs, _ = broken.operands(0)
    with pytest.raises(ScheduleError, match=r"meant|never written|two results|used twice"):
        broken.run(*inputs)
