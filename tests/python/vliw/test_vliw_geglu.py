"""Generated GeGLU: bit for bit the C++ kernel in `silicon`, and the formula with fp32 products made
of bf16 parts; published cycles.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, fused, nearest, product

import npu
from npu.errors import ShapeError
from npu.vliw import geglu, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.vector_kernels import LoopSchedule

TURN = 33
ROOT, CUBE, TWO_LOG2E = np.float32(0.797884561), np.float32(0.044715), np.float32(2.88539008)


def schedule(chunks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule("npu2", "geglu", chunks)


def gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    g = gate.astype(np.float32)
    every = np.ones_like(g)
    u = g * product(g * g, ROOT * CUBE * every, ROOT)
    exponent = product(u, TWO_LOG2E * every, -1)
    power = np.exp2(np.minimum(exponent, 0).astype(np.longdouble))
    power = np.minimum(nearest(np.where(power < 2.0**-126, 0, power)), np.float32(0.5))
    h = fused(power, np.abs(nearest(np.tanh(u.astype(np.longdouble)))), power)
    zero = np.float32(0)  # that sums begin with: no product is -0
    return ((h * g + zero) * up.astype(np.float32) + zero).astype(BF16)


@settings(deadline=None, max_examples=10)
@given(chunks=st.sampled_from((1, 2, 4)), seed=st.integers(0, 9999))
def test_the_cpp_kernels_bits(chunks: int, seed: int) -> None:
    result, expected, run = schedule(chunks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


def test_the_formulas_bits() -> None:
    """Of the C++ kernel, on 256,000 elements."""
    gate, up, expected = dataclasses.replace(schedule(), blocks=1000).operands(1)
    formula = gated(gate.view(BF16), up.view(BF16))
    np.testing.assert_array_equal(formula.view(np.uint16), expected.view(np.uint16))


def test_all_gates() -> None:
    """Every fifth bf16 from 2^-100 to 2^42 against the C++ kernel."""
    bits = np.arange(0x0D81, 0x5480, 5, dtype=np.uint16)
    both = np.concatenate([bits, bits | 0x8000])
    chunks = -(-len(both) // geglu.CHUNK)
    gate = np.resize(both, chunks * geglu.CHUNK)
    up = np.full(len(gate), 1, BF16)
    with npu.device("emu:npu2", arithmetic="silicon"):
        expected = npu.geglu(gate.view(BF16), up).view(np.uint16)
    result, _ = schedule(chunks).run(gate.view(np.uint8), up.view(np.uint8))
    np.testing.assert_array_equal(result.view(np.uint16), expected)


def test_cycles() -> None:
    found = vector_kernels.cycles("npu2", "geglu")
    assert found.block == 8 * TURN and 0 < found.outside < 180
    run = schedule(4).simulated()
    assert abs(found.total(4) - run.cycles) <= 2 and run.stalls == 0
    assert sum(run.issued[f"{key}.f.x"] for key in ("vmul", "vmac", "vaddmac")) == 31 * 8 * 4


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is None: give 1 or more of 256"):
        geglu.regions(AIE2P, None)  # type: ignore[arg-type]
