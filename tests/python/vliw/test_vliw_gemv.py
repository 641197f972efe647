"""Generated products of Q4NX blocks with a vector: bit for bit what npu.gemv gives in silicon
arithmetic, within its bound of float64, blocks in one call or in several; published cycles.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.errors import ShapeError
from npu.vliw import gemv_q4nx, gemv_rows, narrow_gemv_sums, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.vector_kernels import LoopSchedule

DEVICES = ("npu1", "npu2")
# On npu1 the move slot is full: 5 moves for 2 columns; then the multiply slot, but for 5 cycles.
# On npu2 it needs 72: 2 shuffles, 8 broadcasts and 8 interleaves for 8 columns.
TURNS = {"npu1": (80, 19), "npu2": (73,)}


def schedule(device: str, blocks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule(device, "gemv_q4nx", blocks)


@settings(deadline=None, max_examples=10)
@given(device=st.sampled_from(DEVICES), blocks=st.integers(1, 3), seed=st.integers(0, 999))
def test_the_cpp_kernels_bits(device: str, blocks: int, seed: int) -> None:
    result, expected, run = schedule(device, blocks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_float64(device: str) -> None:
    """Within the bound of docs/gemv.md."""
    blocks, x, y, _ = schedule(device).operands(3)
    result, _ = schedule(device).run(blocks, x, y)
    half = blocks[0, 1024:].reshape(2, 8, 32, 8)  # half, group, column, pair of rows
    codes = np.stack([half & 15, half >> 4], axis=-1).transpose(1, 2, 0, 3, 4).reshape(8, 32, 32)
    planes = blocks[0, :1024].view(ml_dtypes.bfloat16).astype(np.float64).reshape(2, 8, 1, 32)
    values = x.view(ml_dtypes.bfloat16).astype(np.float64).reshape(8, 32)
    exact = np.einsum("gcr,gc->r", planes[0] * codes + planes[1], values)
    d, m = (np.einsum("gr,gc->r", np.abs(plane[:, 0]), np.abs(values)) for plane in planes)
    bound = 2.0**-24 * (13182 * d + 31 * m + (256 / 16 + 2) * (15 * d + m))
    assert (np.abs(result.view(np.float32)[:32] - exact) <= bound).all() and exact.all()


@pytest.mark.parametrize("device", DEVICES)
def test_y_goes_on(device: str) -> None:
    """Two calls give what one call with both blocks gives."""
    blocks, x, y, expected = schedule(device, 2).operands(5)
    for block in range(2):
        y, _ = schedule(device).run(blocks[block], x.reshape(2, -1)[block], y[: gemv_q4nx.Y])
    np.testing.assert_array_equal(y[:128], expected)


def test_sums_of_groups_on_npu1() -> None:
    """What the first loop leaves is the sum of codes times x, exact in float64, of 32 rows."""
    blocks, x, y, _ = schedule("npu1").operands(7)
    result, _ = schedule("npu1").run(blocks, x, y)
    left = result[gemv_rows.Y :].view(np.float32)[: narrow_gemv_sums.BLOCK // 4].reshape(8, 48)
    codes = blocks[0, 1024:].reshape(2, 8, 32, 8)  # half, group, column, pair of rows
    rows = np.stack([codes & 15, codes >> 4], axis=-1).transpose(1, 2, 0, 3, 4).reshape(8, 32, 32)
    values = x.view(ml_dtypes.bfloat16).astype(np.float64).reshape(8, 32)
    exact, total = np.einsum("gcr,gc->gr", rows, values), values.sum(axis=1)
    sizes = np.abs(values).sum(axis=1)[:, None]
    # 34 sums of terms of up to 128 + 15 times |x|, three roundings each on npu1.
    assert (np.abs(left[:, 16:] - exact) <= 3 * 34 * 2.0**-24 * 271 * sizes).all()
    assert (np.abs(left[:, :16] - total[:, None]) <= 5 * 2.0**-24 * sizes).all() and exact.all()


@pytest.mark.parametrize("device", DEVICES)
def test_cycles(device: str) -> None:
    found = vector_kernels.cycles(device, "gemv_q4nx")
    turns = TURNS[device]
    assert 8 * sum(turns) < found.block < found.total() < 8 * sum(turns) + 236
    loops = schedule(device).document()["loops"][-len(turns) :]
    assert [loop["bundles"] for loop in loops] == [2 * turn for turn in turns]


def test_operations() -> None:
    """256 columns; of a group a sum, 4 for the parts of s and X, 6 products of parts. Before them 8
    + 3 + 2 of sums of x and -128 X. On npu1 half as many lanes, and products with two parts."""
    issued = schedule("npu2").simulated().issued
    assert issued["vmac.f.x"] + issued["vmul.f.x"] == 8 * (32 + 4 + 4) + 8 + 3 + 2
    assert issued["vaddmac.f.x"] == 16 and issued["vadd.f"] == 8 + 2 + 1 + 1 + 1
    issued = schedule("npu1").simulated().issued
    assert issued["vmac.f"] + issued["vmul.f"] == 8 * (64 + 4) + 3
    assert issued["vmsc.f"] == 8 * 6 + 2 and issued["vaddmac.f"] == 8 * 4
    assert issued["vadd.f"] == 8 * 2 + 8 + 4 + 2 + 1 + 1


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is -1"):
        gemv_q4nx.regions(AIE2P, -1)
