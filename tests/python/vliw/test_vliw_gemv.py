"""Generated products of Q4NX blocks with a vector: bit for bit what npu.gemv gives in silicon
arithmetic, within its bound of float64, blocks in one call or in several; published cycles.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.errors import ArgumentError, ShapeError
from npu.vliw import gemv_q4nx, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.vector_kernels import LoopSchedule

TURN = 73  # the move slot needs 72: 2 shuffles, 8 broadcasts and 8 interleaves for 8 columns


def schedule(blocks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule("npu2", "gemv_q4nx", blocks)


@settings(deadline=None, max_examples=5)
@given(blocks=st.integers(1, 2), seed=st.integers(0, 999))
def test_the_cpp_kernels_bits(blocks: int, seed: int) -> None:
    result, expected, run = schedule(blocks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


def test_sums_of_float64() -> None:
    """Within the bound of docs/gemv.md."""
    blocks, x, y, _ = schedule().operands(3)
    result, _ = schedule().run(blocks, x, y)
    half = blocks[0, 1024:].reshape(2, 8, 32, 8)  # half, group, column, pair of rows
    codes = np.stack([half & 15, half >> 4], axis=-1).transpose(1, 2, 0, 3, 4).reshape(8, 32, 32)
    planes = blocks[0, :1024].view(ml_dtypes.bfloat16).astype(np.float64).reshape(2, 8, 1, 32)
    values = x.view(ml_dtypes.bfloat16).astype(np.float64).reshape(8, 32)
    exact = np.einsum("gcr,gc->r", planes[0] * codes + planes[1], values)
    d, m = (np.einsum("gr,gc->r", np.abs(plane[:, 0]), np.abs(values)) for plane in planes)
    bound = 2.0**-24 * (13182 * d + 31 * m + (256 / 16 + 2) * (15 * d + m))
    assert (np.abs(result.view(np.float32)[:32] - exact) <= bound).all() and exact.all()


def test_y_goes_on() -> None:
    """Two calls give what one call with both blocks gives."""
    blocks, x, y, expected = schedule(2).operands(5)
    for block in range(2):
        y, _ = schedule().run(blocks[block], x.reshape(2, -1)[block], y[: gemv_q4nx.Y])
    np.testing.assert_array_equal(y[:128], expected)


def test_cycles() -> None:
    found = vector_kernels.cycles("npu2", "gemv_q4nx")
    assert 8 * TURN < found.block < found.total() < 800
    loop = schedule().document()["loops"][-1]
    assert loop["bundles"] == 2 * TURN
    # 256 columns; of a group a sum, 4 for the parts of s and X, 6 products of parts.
    issued = schedule().simulated().issued
    loops = 8 * (32 + 4 + 4)  # vmul.f and vmac.f
    first = 8 + 3 + 2  # of sums of x, and -128 X
    assert issued["vmac.f.x"] + issued["vmul.f.x"] == loops + first
    assert issued["vaddmac.f.x"] == 16 and issued["vadd.f"] == 8 + 2 + 1 + 1 + 1


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is -1"):
        gemv_q4nx.regions(AIE2P, -1)
    with pytest.raises(ArgumentError, match="no kernel gemv_q4nx on npu1; there is"):
        vector_kernels.schedule("npu1", "gemv_q4nx")
