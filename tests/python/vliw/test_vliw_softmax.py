"""Generated softmax of a chunk of scores: with it attention gives the C++ kernel's bits; weights,
maxima and sums are bit for bit their formula with fp32 products made of bf16 parts; published
cycles; schedules that lose a maximum which a turn leaves to the next are caught.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, nearest, product

from npu.errors import ScheduleError, ShapeError
from npu.vliw import generate, softmax, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.program import Program
from npu.vliw.vector_kernels import LoopSchedule

SCALING, WEIGHING = 13, 8  # cycles of a turn
SCALE = np.float32(np.log2(np.e) / 16)


def schedule(blocks: int = 2) -> LoopSchedule:
    return vector_kernels.schedule("npu2", "softmax", blocks)


@settings(deadline=None, max_examples=10)
@given(blocks=st.sampled_from((1, 2, 4)), seed=st.integers(0, 9999))
def test_the_cpp_kernels_bits(blocks: int, seed: int) -> None:
    """Scores are bf16 numbers, so that scaling them rounds once, as there."""
    result, expected, run = schedule(blocks).compared(seed)
    assert result.size == 8 * 16 * blocks and len(np.unique(expected)) > 20
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


def weighed(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (positions, rows), maxima, sums: of every fourth position, then added by halves."""
    scaled = product(scores, np.full(scores.shape, SCALE))
    maxima = np.ceil(scaled.max(axis=0))
    power = np.exp2((scaled - maxima).astype(np.longdouble))
    weights = nearest(np.where(power < 2.0**-126, 0, power))
    sums = np.zeros((4, 8), np.float32)
    for four in weights.reshape(-1, 4, 8):
        sums = sums + four
    return weights, maxima, (sums[0] + sums[2]) + (sums[1] + sums[3])


@settings(deadline=None, max_examples=10)
@given(
    blocks=st.sampled_from((1, 2, 4)),
    seed=st.integers(0, 9999),
    size=st.sampled_from((0.01, 1, 30, 3000)),
    middle=st.sampled_from((-5000, -1, 0, 700)),
)
def test_the_formulas_bits(blocks: int, seed: int, size: float, middle: float) -> None:
    """Any fp32 scores: all negative, all equal in a row, maxima that are whole numbers."""
    rng = np.random.default_rng(seed)
    scores = (size * rng.standard_normal((16 * blocks, 8)) + middle).astype(np.float32)
    scores[:, 0] = middle
    scores[3, 1] = np.float32(1 / SCALE) * np.abs(scores).max()
    out, _ = schedule(blocks).run(scores.view(np.uint8).reshape(-1))
    weights, maxima, sums = weighed(scores)
    end = blocks * softmax.WEIGHTS
    found = out[:end].view(BF16).reshape(-1, 8, 8).transpose(0, 2, 1).reshape(-1, 8)
    np.testing.assert_array_equal(found.view(np.uint16), weights.astype(BF16).view(np.uint16))
    np.testing.assert_array_equal(out[end : end + 32].view(np.float32), maxima)
    np.testing.assert_array_equal(out[end + 32 : end + 64].view(np.float32), sums)


def test_cycles() -> None:
    found = vector_kernels.cycles("npu2", "softmax")
    assert found.block == pytest.approx(4 * SCALING + 2 * WEIGHING, abs=2)
    assert 0 < found.outside < 170
    first, second = schedule(4).document()["loops"]
    assert (first["bundles"], second["bundles"]) == (2 * SCALING, 2 * WEIGHING)
    run = schedule(4).simulated()
    assert run.issued["vexp2"] == 16 * 4 * 8 // 16 and run.stalls == 0


def test_other_sizes() -> None:
    for blocks in (0, 3, 8):
        with pytest.raises(ShapeError, match="give 1, 2 or 4 times 16 positions"):
            softmax.regions(AIE2P, blocks)


# Broken schedules.


def refused(program: Program) -> None:
    found = schedule()
    inputs, _ = found.operands(0)
    with pytest.raises(ScheduleError, match=r"meant|never written|two results|used twice"):
        dataclasses.replace(found, program=program).run(inputs)


def test_a_maximum_that_does_not_begin_with_nothing() -> None:
    scaling, *rest = softmax.regions(AIE2P, 2)
    preamble = tuple(line for line in scaling.preamble if line[1][0] != "x4")
    assert len(preamble) == len(scaling.preamble) - 1
    broken = [dataclasses.replace(scaling, preamble=preamble), *rest]
    refused(generate.generate("broken", broken, AIE2P, 2))


@pytest.mark.usefixtures("no_known_states")
def test_a_maximum_that_a_turn_does_not_leave_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from npu.vliw import loop, modulo

    monkeypatch.setattr(loop, "_recurrence", lambda region, machine: 1)
    original = modulo.dependences
    monkeypatch.setattr(loop, "dependences", lambda r, m, interval: original(r, m, 2 * interval))
    refused(generate.generate("broken", softmax.regions(AIE2P, 2), AIE2P, 2))
