"""Generated products of 8-bit blocks with a vector: bit for bit what npu.gemv gives in silicon
arithmetic, within its bound of float64, blocks in one call or in several; published cycles.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.errors import ShapeError
from npu.vliw import gemv_q8, vector_kernels
from npu.vliw.machines import MACHINES
from npu.vliw.vector_kernels import LoopSchedule

DEVICES = ("npu1", "npu2")
TURN = {"npu1": 87, "npu2": 35}


def schedule(device: str, blocks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule(device, "gemv_q8", blocks)


@settings(deadline=None, max_examples=8)
@given(device=st.sampled_from(DEVICES), blocks=st.integers(1, 2), seed=st.integers(0, 999))
def test_the_cpp_kernels_bits(device: str, blocks: int, seed: int) -> None:
    result, expected, run = schedule(device, blocks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


@pytest.mark.parametrize("device", DEVICES)
def test_sums_of_float64(device: str) -> None:
    """Within the bound of docs/gemv.md."""
    blocks, x, y, _ = schedule(device).operands(3)
    result, _ = schedule(device).run(blocks, x, y)
    scales = blocks[0, :1024].view(np.float32).astype(np.float64).reshape(8, 1, 32)
    weights = scales * blocks[0, 1024:].view(np.int8).reshape(8, 16, 32)
    values = x.view(ml_dtypes.bfloat16).astype(np.float64).reshape(8, 16)
    exact = np.einsum("gcr,gc->r", weights, values)
    sizes = np.einsum("gcr,gc->r", np.abs(weights), np.abs(values))
    bound = (3 if device == "npu1" else 1) * 2.0**-24 * (19 + 8) * sizes
    assert (np.abs(result.view(np.float32) - exact) <= bound).all() and sizes.all()


@pytest.mark.parametrize("device", DEVICES)
def test_y_goes_on(device: str) -> None:
    """Two calls give what one call with both blocks gives."""
    blocks, x, y, expected = schedule(device, 2).operands(5)
    for block in range(2):
        y, _ = schedule(device).run(blocks[block], x.reshape(2, -1)[block], y)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_cycles(device: str) -> None:
    found = vector_kernels.cycles(device, "gemv_q8")
    assert found.block == 8 * TURN[device] and 0 < found.outside < 150
    # 128 columns of 32 rows in 16 or 32 lanes; sums, parts and products of groups beside them.
    issued = schedule(device).simulated().issued
    products = {"npu1": 256 + 256 + 8 * 18, "npu2": 64 + 128 + 8 * 9}[device]
    names = ("vmul.f", "vmac.f", "vmsc.f", "vmul.f.x", "vmac.f.x")
    assert sum(issued[name] for name in names) == products


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is -1"):
        gemv_q8.regions(MACHINES["npu2"], -1)
