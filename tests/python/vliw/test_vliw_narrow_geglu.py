"""Generated GeGLU of npu1: bit for bit the C++ kernel in `silicon`, and its polynomials with fp32
products made of bf16 parts; gates of all sizes; the cycles that docs/kernels.md publishes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, product

import npu
from npu.errors import ShapeError
from npu.vliw import geglu, vector_kernels
from npu.vliw.aie2 import AIE2
from npu.vliw.vector_kernels import LoopSchedule

TURN = 124
# Below, 2^v and its products become so small that the C++ kernel takes one multiply-add each, and
# parts vanish here: 2^-83 at this gate, 2^-127 at -10.2.
LEAST = -8.5
# Of aie_kernels/gelu.h.
SLOPE = np.float32(0.797884561) * np.float32(2.88539008)
CUBE = SLOPE * np.float32(0.044715)
MAGIC = np.float32(12583039)
EXP2 = (0.0550089314, 0.242210962, 0.693282927, 1)
INVERSE = (-0.109112594, 0.430776906, -0.783540454, 0.959154799, -0.997308188, 1)


def schedule(chunks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule("npu1", "geglu", chunks)


def times(a: np.ndarray, b: np.ndarray, c: np.ndarray | float = 0) -> np.ndarray:
    return product(a, b, c, device="npu1")


def polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = times(value, x, np.float32(coefficient))
    return value


def gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    g = gate.astype(np.float32)
    v = times(times(g * g, np.full_like(g, CUBE), SLOPE), g)
    limited = np.maximum(-np.abs(v), np.float32(-127))
    shifted = limited + MAGIC
    scale = (shifted.view(np.int32) << 23).view(np.float32)
    power = times(polynomial(EXP2, limited - (shifted - MAGIC)), scale)
    h = times(np.where(v < 0, power, np.float32(1)), polynomial(INVERSE, power))
    return times(times(h, g), up.astype(np.float32)).astype(BF16)


def check(gate: np.ndarray, result: np.ndarray, expected: np.ndarray) -> None:
    """The same bits; of bytes."""
    found, wanted = (v.view(np.uint16) for v in (result, expected))
    small = gate.view(BF16).astype(np.float32) < LEAST
    np.testing.assert_array_equal(found[~small], wanted[~small])
    both = (v[small].view(BF16).astype(np.float64) for v in (found, wanted))
    np.testing.assert_allclose(*both, rtol=2**-6, atol=2.0**-120)


@settings(deadline=None, max_examples=6)
@given(chunks=st.sampled_from((1, 3)), seed=st.integers(0, 9999))
def test_the_cpp_kernels_bits(chunks: int, seed: int) -> None:
    gate, up, expected = schedule(chunks).operands(seed)
    result, run = schedule(chunks).run(gate, up)
    check(gate, result, expected)
    assert run.stalls == 0


def test_the_formulas_bits() -> None:
    """Of the C++ kernel, on 25,600 elements."""
    gate, up, expected = dataclasses.replace(schedule(), blocks=100).operands(1)
    formula = gated(gate.view(BF16), up.view(BF16))
    check(gate, formula, expected)


def test_all_gates() -> None:
    """Every 29th bf16 from 2^-100 to 2^42, and all from -16 to -2, against the C++ kernel."""
    bits = np.arange(0x0D81, 0x5480, 29, dtype=np.uint16)
    far = np.arange(0xC000, 0xC180, dtype=np.uint16)
    both = np.concatenate([bits, bits | 0x8000, far, np.array([0, 0x8000], np.uint16)])
    chunks = -(-len(both) // geglu.CHUNK)
    gate = np.resize(both, chunks * geglu.CHUNK).view(BF16)
    up = np.full(len(gate), 1, BF16)
    with npu.device("emu:npu1", arithmetic="silicon"):
        expected = npu.geglu(gate, up)
    result, _ = schedule(chunks).run(gate.view(np.uint8), up.view(np.uint8))
    check(gate, result, expected)


def test_cycles() -> None:
    found = vector_kernels.cycles("npu1", "geglu")
    assert found.block == 16 * TURN and 0 < found.outside < 700
    run = schedule(3).simulated()
    assert abs(found.total(3) - run.cycles) <= 2 and run.stalls == 0
    # Products, those with two sums, and the sums that split the exponent.
    keys = ("vmul.f", "vmac.f", "vmsc.f", "vaddmac.f", "vadd.f", "vsub.f")
    assert sum(run.issued[key] for key in keys) == 103 * 16 * 3


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is 0: give 1 or more of 256"):
        geglu.regions(AIE2, 0)
