"""Generated expansion of Q4NX blocks: bit for bit the C++ kernel's results in silicon arithmetic
and the published formula's, on both cores, with the cycles that docs/kernels.md publishes.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from q4nx_blocks import blocks_from

import npu
from npu.errors import ArgumentError, DesignError, ShapeError
from npu.vliw import dequant_q4nx, vector_kernels
from npu.vliw.machines import MACHINES
from npu.vliw.vector_kernels import LoopSchedule

BF16 = np.dtype(ml_dtypes.bfloat16)
DEVICES = ("npu1", "npu2")


def schedule(device: str, blocks: int = 1) -> LoopSchedule:
    return vector_kernels.schedule(device, "dequant_q4nx", blocks)


@settings(deadline=None, max_examples=8)
@given(device=st.sampled_from(DEVICES), blocks=st.integers(1, 3), seed=st.integers(0, 999))
def test_the_cpp_kernels_bits(device: str, blocks: int, seed: int) -> None:
    found = schedule(device, blocks)
    result, expected, run = found.compared(seed)
    np.testing.assert_array_equal(result, expected)
    assert run.stalls == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("exponents", [(-3, 3), (-133, -100), (90, 119)])
def test_the_formula(device: str, exponents: tuple[int, int]) -> None:
    """Planes of any size, zeros and both signs among them: d code + m, rounded twice."""
    rng = np.random.default_rng(abs(exponents[0]))
    codes = rng.integers(0, 16, (32, 256))
    d, m = (
        np.ldexp(
            rng.choice([-1.5, -1, 0, 1, 1.9921875], (32, 8)), rng.integers(*exponents, (32, 8))
        )
        .astype(BF16)
        .astype(np.float64)
        for _ in range(2)
    )
    block = blocks_from(codes, d, m)
    wide_d, wide_m = np.repeat(d, 32, axis=1), np.repeat(m, 32, axis=1)
    expected = (wide_d * codes + wide_m).astype(np.float32).astype(BF16)
    result, _ = schedule(device).run(block)
    found = result.view(BF16).reshape(32, 256)
    if device == "npu1" and exponents[0] < -126:  # its multiplier flushes what is subnormal
        expected = npu_silicon(block)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def npu_silicon(block: np.ndarray) -> np.ndarray:
    with npu.device("emu:npu1", arithmetic="silicon"):
        return npu.dequantize((block, (32, 256)))


@pytest.mark.parametrize(("device", "turn"), [("npu1", 76), ("npu2", 49)])
def test_cycles(device: str, turn: int) -> None:
    found = vector_kernels.cycles(device, "dequant_q4nx")
    assert found.block == 16 * turn and 0 < found.outside < turn
    assert found.total(3) == schedule(device, 3).simulated().cycles
    figures = schedule(device).document()
    (loop,) = figures["loops"]
    assert loop["bundles"] == 2 * turn and figures["cycles"] == found.total()
    assert figures["stalls"] == 0 and figures["code_bytes"] < 4500
    # 32 rows of 256 columns leave 32 bytes at a time.
    assert schedule(device).simulated().issued["vst.w"] == 512


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is 0"):
        dequant_q4nx.regions(MACHINES["npu1"], 0)
    with pytest.raises(DesignError, match="give fewer blocks"):
        schedule("npu2", 4).places()
    with pytest.raises(ArgumentError, match="no kernel dequant_q4nx on npu3; there is"):
        vector_kernels.schedule("npu3", "dequant_q4nx")
    with pytest.raises(ArgumentError, match="give 1 or more"):
        vector_kernels.cycles("npu2", "dequant_q4nx").total(0)
