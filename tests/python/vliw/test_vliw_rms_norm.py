"""Generated RMSNorm: bit for bit its formula with fp32 products made of bf16 parts, and within one
result in 10^5 the C++ kernel's bits, whose products are one FMA; the cycles that docs/kernels.md
publishes; broken schedules are caught, those that lose what a turn leaves to the next among them.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, fused, product
from vliw_programs import believed, on

from npu.errors import ArgumentError, ScheduleError, ShapeError
from npu.vliw import generate, rms_norm, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.program import Program
from npu.vliw.vector_kernels import LoopSchedule

SIZES = (1, 2, 4, 8)
SQUARES, SCALE = 3, 15  # cycles of a turn


def schedule(chunks: int = 2) -> LoopSchedule:
    return vector_kernels.schedule("npu2", "rms_norm", chunks)


def normalised(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """32 sums of squares, added by halves; the root; two products."""
    wide = x.astype(np.float32)
    sums = np.zeros(32, np.float32)
    for step in wide.reshape(-1, 32):
        sums = fused(step, step, sums)
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    mean = sums[0] / np.float32(len(x)) + np.float32(rms_norm.EPSILON)
    factor = np.float32(1 / np.sqrt(np.float64(mean)))
    return product(wide * factor, weight).astype(BF16)


@settings(deadline=None, max_examples=12)
@given(chunks=st.sampled_from(SIZES), seed=st.integers(0, 9999))
def test_the_formulas_bits(chunks: int, seed: int) -> None:
    found = schedule(chunks)
    x, weight, expected = found.operands(seed)
    result, run = found.run(x, weight)
    formula = normalised(x.view(BF16), weight.view(np.float32))
    np.testing.assert_array_equal(result.view(np.uint16), formula.view(np.uint16))
    assert run.stalls == 0
    # A product is the nearest fp32 or its neighbour: 4 % of them, which a bf16 seldom shows.
    apart = result.view(np.int16).astype(int) - expected.view(np.int16).astype(int)
    assert np.abs(apart).max() <= 1 and np.count_nonzero(apart) <= 1


def test_the_cpp_kernels_bits() -> None:
    for seed in range(4):
        result, expected, _ = schedule(8).compared(seed)
        np.testing.assert_array_equal(result, expected)


def test_products_of_parts() -> None:
    """With a factor of eight bits the product is the nearest fp32; of two fp32 it is within one."""
    rng = np.random.default_rng(7)
    a = rng.standard_normal(200_000).astype(np.float32)
    b = rng.standard_normal(len(a)).astype(np.float32)
    narrow = b.astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(product(a, narrow), a * narrow)
    apart = product(a, b).view(np.int32) - (a * b).view(np.int32)
    assert np.abs(apart).max() == 1 and 0.03 < np.mean(apart != 0) < 0.06
    assert np.count_nonzero(product(a, b).astype(BF16) != (a * b).astype(BF16)) <= 2


def test_cycles() -> None:
    found = vector_kernels.cycles("npu2", "rms_norm")
    assert found.block == pytest.approx(4 * (SQUARES + SCALE), abs=0.3) and 0 < found.outside < 170
    run = schedule(8).simulated()
    assert found.total(8) == run.cycles and run.stalls == 0
    first, second = schedule(8).document()["loops"]
    assert (first["bundles"], second["bundles"]) == (2 * SQUARES, 2 * SCALE)
    assert run.issued["vmac.f.x"] + run.issued["vmul.f.x"] == 32 * (1 + 13) + 2 + 3 + 2


def test_other_sizes() -> None:
    for chunks in (0, 3, True):
        with pytest.raises(ShapeError, match=r"give a power of two"):
            rms_norm.regions(AIE2P, chunks)
    with pytest.raises(ArgumentError, match="no kernel rms_norm on npu1"):
        vector_kernels.schedule("npu1", "rms_norm")


# Broken schedules.

MEANT = r"meant|never written|two results|used twice"


def refused(program: Program) -> None:
    found = schedule()
    *inputs, _ = found.operands(0)
    with pytest.raises(ScheduleError, match=MEANT):
        dataclasses.replace(found, program=program).run(*inputs)


KEYS = [
    "vmac.f.x", "vmul.f.x", "vadd.f", "vconv.bf16.fp32", "vmov.x", "vshift", "vextract.32",
    "invsqrt", "vldb.x", "vbcst.32",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_latency_that_is_one_cycle_too_short(key: str) -> None:
    machine = believed(AIE2P, key)
    refused(on(AIE2P, generate.generate("broken", rms_norm.regions(machine, 2), machine, 2)))


def test_a_sum_that_does_not_begin_with_zero() -> None:
    squares, *rest = rms_norm.regions(AIE2P, 2)
    preamble = tuple(line for line in squares.preamble if line[1] != ("dm4",))
    assert len(preamble) == len(squares.preamble) - 1
    broken = [dataclasses.replace(squares, preamble=preamble), *rest]
    refused(generate.generate("broken", broken, AIE2P, 2))


def test_a_turn_that_does_not_wait_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two turns per cycle less than the chain takes."""
    from npu.vliw import loop, modulo

    monkeypatch.setattr(loop, "_recurrence", lambda region, machine: 1)
    original = modulo.dependences
    monkeypatch.setattr(loop, "dependences", lambda r, m, interval: original(r, m, 4 * interval))
    refused(generate.generate("broken", rms_norm.regions(AIE2P, 2), AIE2P, 2))


def test_regions_that_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_apart", lambda before, after, machine: before)
    refused(generate.generate("broken", rms_norm.regions(AIE2P, 2), AIE2P, 2))
