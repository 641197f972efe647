"""Generated rotary embedding: bit for bit the C++ kernel in `silicon`, and the formula with fp32
products made of bf16 parts; published cycles.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, product

from npu.errors import ShapeError
from npu.vliw import rope, vector_kernels
from npu.vliw.machines import MACHINES
from npu.vliw.vector_kernels import LoopSchedule

DEVICES = ("npu1", "npu2")
TURN = {"npu1": 15, "npu2": 16}
PAIRS = {"npu1": 16, "npu2": 32}  # of a turn


def schedule(device: str = "npu2", vectors: int = 1) -> LoopSchedule:
    return vector_kernels.schedule(device, "rope", vectors)


def rotated(x: np.ndarray, table: np.ndarray, device: str) -> np.ndarray:
    low, high = x.astype(np.float32).reshape(-1, 2, 128).transpose(1, 0, 2)
    cosine, sine = table.reshape(-1, 2, 128).transpose(1, 0, 2)
    results = [
        product(sign * other, sine, product(one, cosine, device=device), device).astype(BF16)
        for one, other, sign in ((low, high, -1), (high, low, 1))
    ]
    return np.stack(results, axis=1).reshape(-1)


@settings(deadline=None, max_examples=12)
@given(
    device=st.sampled_from(DEVICES), vectors=st.sampled_from((1, 2, 5)), seed=st.integers(0, 9999)
)
def test_the_cpp_kernels_bits(device: str, vectors: int, seed: int) -> None:
    result, expected, run = schedule(device, vectors).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


@pytest.mark.parametrize("device", DEVICES)
def test_the_formulas_bits(device: str) -> None:
    """Of the C++ kernel, on 250 vectors."""
    x, table, expected = dataclasses.replace(schedule(device), blocks=250).operands(1)
    formula = rotated(x.view(BF16), table.view(np.float32), device)
    np.testing.assert_array_equal(formula.view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize("device", DEVICES)
def test_cycles(device: str) -> None:
    found = vector_kernels.cycles(device, "rope")
    turns = 128 // PAIRS[device]
    assert found.block == turns * TURN[device] and 0 < found.outside < 80
    run = schedule(device, 3).simulated()
    assert abs(found.total(3) - run.cycles) <= 2 and run.stalls == 0
    keys = ("vmul.f", "vnegmul.f", "vmac.f", "vmsc.f", "vaddmac.f", "vaddmsc.f")
    count = sum(run.issued[key + (".x" if device == "npu2" else "")] for key in keys)
    assert count == {"npu1": 12, "npu2": 16}[device] * turns * 3


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is 0: give 1 or more vectors of 256"):
        rope.regions(MACHINES["npu2"], 0)
