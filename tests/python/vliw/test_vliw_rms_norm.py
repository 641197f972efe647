"""Generated RMSNorm: bit for bit the C++ kernel in `silicon`, and the formula with fp32 products
made of bf16 parts; what becomes of products whose parts vanish or overflow; the cycles that
docs/kernels.md publishes; schedules that lose what a turn leaves to the next are caught.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, fused, product

import npu
from npu.errors import ScheduleError, ShapeError
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
def test_the_cpp_kernels_bits(chunks: int, seed: int) -> None:
    result, expected, run = schedule(chunks).compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


def test_the_formulas_bits() -> None:
    """Of the C++ kernel, on 200 rows."""
    for seed in range(200):
        x, weight, expected = schedule(4).operands(seed)
        formula = normalised(x.view(BF16), weight.view(np.float32))
        np.testing.assert_array_equal(formula.view(np.uint16), expected.view(np.uint16))


def weighted(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Results for two blocks of weights: of the generated kernel, of the C++ kernel, exact."""
    x = (1 + np.random.default_rng(3).random(256)).astype(BF16)
    with npu.device("emu:npu2", arithmetic="silicon"):
        cpp = npu.rms_norm(x, weight, epsilon=rms_norm.EPSILON)
    out, _ = schedule(2).run(x.view(np.uint8), weight.view(np.uint8))
    wide = x.astype(np.float64)
    return out.view(BF16), cpp, wide / np.sqrt((wide**2).mean() + rms_norm.EPSILON) * weight


def sized(exponents: np.ndarray | int) -> np.ndarray:
    weight = np.ldexp(1 + np.random.default_rng(4).random(256), exponents)
    return weight.astype(np.float32)


def test_where_parts_vanish() -> None:
    """Down to 2^-98 both agree. Below, C++ kernels take one FMA, and the generated one loses what
    its parts do: nothing that a bf16 shows down to 2^-119."""
    generated, cpp, _ = weighted(sized(np.arange(256) % 220 - 98))
    np.testing.assert_array_equal(generated, cpp)
    for size in (-110, -119):
        *results, exact = weighted(sized(size))
        for found in results:
            error = np.abs(found.astype(np.float64) - exact)
            assert (error <= 2.0**-8 * (1 + 2.0**-7) * np.abs(exact)).all()
    generated, cpp, _ = weighted(sized(-126))
    assert (generated != cpp).any()


def test_where_parts_overflow() -> None:
    """The C++ kernel gives what fits; infinity has no parts."""
    weight = np.full(256, 3.4e38, np.float32)
    weight[::2] = 3.3e38
    generated, cpp, exact = weighted(weight)
    fits = exact < 3.38e38
    np.testing.assert_allclose(cpp[fits].astype(np.float64), exact[fits], rtol=2.0**-8)
    assert np.isinf(cpp[exact > 3.41e38]).all()
    assert np.isnan(generated[1::2]).all()
    np.testing.assert_array_equal(generated[::2], cpp[::2])


def test_products_of_parts() -> None:
    """With a factor of eight bits the product is the nearest fp32; of two fp32 it is within one."""
    rng = np.random.default_rng(7)
    a = rng.standard_normal(200_000).astype(np.float32)
    b = rng.standard_normal(len(a)).astype(np.float32)
    narrow = b.astype(BF16).astype(np.float32)
    np.testing.assert_array_equal(product(a, narrow), a * narrow)
    apart = product(a, b).view(np.int32) - (a * b).view(np.int32)
    assert np.abs(apart).max() == 1 and 0.02 < np.mean(apart != 0) < 0.06


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


# Broken schedules.

MEANT = r"meant|never written|two results|used twice"


def refused(program: Program) -> None:
    found = schedule()
    *inputs, _ = found.operands(0)
    with pytest.raises(ScheduleError, match=MEANT):
        dataclasses.replace(found, program=program).run(*inputs)


def test_a_sum_that_does_not_begin_with_zero() -> None:
    squares, *rest = rms_norm.regions(AIE2P, 2)
    preamble = tuple(line for line in squares.preamble if line[1] != ("dm4",))
    assert len(preamble) == len(squares.preamble) - 1
    broken = [dataclasses.replace(squares, preamble=preamble), *rest]
    refused(generate.generate("broken", broken, AIE2P, 2))


@pytest.mark.usefixtures("no_known_states")
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
