"""Generated RMSNorm of npu1: bit for bit the C++ kernel in `silicon`, and the formula with fp32
products made of bf16 parts; its root is the division by the root, both rounded to nearest; the
cycles that docs/kernels.md publishes.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, added, product

from npu.vliw import rms_norm, software_root, vector_kernels
from npu.vliw.aie2 import AIE2
from npu.vliw.lane_arithmetic import integer
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_kernels import LoopSchedule

SQUARES, SCALE = 4, 21  # cycles of a turn of 32 and of 16 elements


def schedule(chunks: int = 2) -> LoopSchedule:
    return vector_kernels.schedule("npu1", "rms_norm", chunks)


@settings(deadline=None, max_examples=12)
@given(chunks=st.sampled_from((1, 2, 4, 8)), seed=st.integers(0, 9999))
def test_the_cpp_kernels_bits(chunks: int, seed: int) -> None:
    result, expected, run = schedule(chunks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


def test_a_row_of_zeros() -> None:
    x, weight = np.zeros(256, BF16), np.ones(256, np.float32)
    result, _ = schedule(2).run(x.view(np.uint8), weight.view(np.uint8))
    assert not result.any()


def normalised(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float32)
    sums = np.zeros(32, np.float32)
    for step in wide.reshape(-1, 32):
        sums = added("npu1", step, step, sums)
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    factor = np.float32(1) / np.sqrt(sums[0] / np.float32(len(x)) + np.float32(rms_norm.EPSILON))
    return product(product(wide, factor, device="npu1"), weight, device="npu1").astype(BF16)


def test_the_formulas_bits() -> None:
    """Of the C++ kernel, on 100 rows."""
    for seed in range(100):
        x, weight, expected = schedule(4).operands(seed)
        formula = normalised(x.view(BF16), weight.view(np.float32))
        np.testing.assert_array_equal(formula.view(np.uint16), expected.view(np.uint16))


def test_the_root() -> None:
    """Its operations, one after the other, on numbers of all sizes and beside powers of two."""
    flow = Dataflow(AIE2)
    given = flow.value("R", "r8")
    result = software_root.inverse_root(flow, given)
    names = {"add": "add", "sub": "subtract", "ashl": "shift", "and": "mask"}

    def root(bits: int) -> int:
        values = dict(software_root.CONSTANTS) | {given: bits}
        for node in flow.nodes:
            to, *operands = (str(operand) for operand in node.operands)
            a, b = (values[operand] & 0xFFFFFFFF for operand in operands)
            if node.forms[0] == "add":
                values[to] = a + b & 0xFFFFFFFF
            else:
                values[to] = integer(names[node.forms[0]], a, b)
        return values[result]

    rng = np.random.default_rng(4)
    some = np.ldexp(1 + rng.random(600), rng.integers(-125, 127, 600)).astype(np.float32)
    powers = np.ldexp(1.0, np.arange(-125, 128)).astype(np.float32)
    numbers = np.concatenate([some, powers, np.nextafter(powers, np.float32(0))])
    numbers = np.append(numbers, np.nextafter(powers, np.float32(3e38)))
    found = np.array([root(int(bits)) for bits in numbers.view(np.uint32)], np.uint32)
    np.testing.assert_array_equal(found.view(np.float32), np.float32(1) / np.sqrt(numbers))


def test_cycles() -> None:
    found = vector_kernels.cycles("npu1", "rms_norm")
    assert found.block == pytest.approx(4 * SQUARES + 8 * SCALE, abs=0.3)
    assert 500 < found.outside < 700
    run = schedule(8).simulated()
    assert abs(found.total(8) - run.cycles) <= 2 and run.stalls == 0
    keys = ("vmul.f", "vmac.f", "vmsc.f")
    assert sum(run.issued[key] for key in keys) == 32 * 2 + 64 * 12 + 2
