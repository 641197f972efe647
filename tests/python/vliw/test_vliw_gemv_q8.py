"""The generated inner loop of products of 8-bit blocks with a vector: bit for bit what npu.gemv
gives in silicon arithmetic, near the sums of float64, a full multiply slot; broken schedules are
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
from npu.vliw import gemv_q8, generate, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.vector_kernels import LoopSchedule

TURN = 25  # products: 8 with the identity, 16 with x, and a sum


def schedule(blocks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule("npu2", "gemv_q8", blocks)


@settings(deadline=None, max_examples=5)
@given(blocks=st.integers(1, 2), seed=st.integers(0, 999))
def test_the_cpp_kernels_bits(blocks: int, seed: int) -> None:
    result, expected, run = schedule(blocks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0 and run.issued["vmac.f.x"] + run.issued["vmul.f.x"] == 128 * blocks


def test_sums_of_float64() -> None:
    """s = sum code x: 8 terms to a sum, each with half a unit of what it is at most."""
    blocks, x, _ = schedule().operands(3)
    result, _ = schedule().run(blocks, x)
    codes = blocks[0, 1024:].view(np.int8).astype(np.float64).reshape(8, 16, 32)
    values = x.view(ml_dtypes.bfloat16).astype(np.float64).reshape(8, 16)
    exact = np.einsum("gcr,gc->gr", codes, values)
    bound = 9 * 2.0**-24 * np.einsum("gcr,gc->gr", np.abs(codes), np.abs(values))
    assert (np.abs(result.view(np.float32).reshape(8, 32) - exact) <= bound).all()


def test_cycles() -> None:
    found = vector_kernels.cycles("npu2", "gemv_q8")
    assert found.block == 8 * TURN and 0 < found.outside < 80
    assert schedule().document()["busy"]["vec"] == 1


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is -1"):
        gemv_q8.regions(AIE2P, -1)
    with pytest.raises(ArgumentError, match="no kernel gemv_q8 on npu1; there is"):
        vector_kernels.schedule("npu1", "gemv_q8")


@pytest.mark.parametrize("key", ["vldb.x", "vextbcst.16", "vconv.bf16.fp32", "vmul.f"])
def test_a_latency_that_is_one_cycle_too_short(key: str) -> None:
    machine = believed(AIE2P, key)
    program = on(AIE2P, generate.generate("broken", gemv_q8.regions(machine, 1), machine, 2))
    broken = dataclasses.replace(schedule(), program=program)
    *inputs, _ = broken.operands(0)
    with pytest.raises(ScheduleError, match=r"meant|never written|two results|used twice"):
        broken.run(*inputs)
