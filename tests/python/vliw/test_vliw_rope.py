"""Generated rotary embedding: bit for bit its formula with fp32 products made of bf16 parts, a bf16
step from the C++ kernel's results in one of 10^4 at most; published cycles; broken schedules.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_products import BF16, fused, parts
from vliw_programs import believed, on

from npu.errors import ScheduleError, ShapeError
from npu.vliw import generate, rope, vector_kernels
from npu.vliw.machines import MACHINES
from npu.vliw.vector_kernels import LoopSchedule

DEVICES = ("npu1", "npu2")
TURN = {"npu1": 18, "npu2": 16}
PAIRS = {"npu1": 16, "npu2": 32}  # of a turn


def schedule(device: str = "npu2", vectors: int = 1) -> LoopSchedule:
    return vector_kernels.schedule(device, "rope", vectors)


def rotated(x: np.ndarray, table: np.ndarray, device: str = "npu2") -> np.ndarray:
    low, high = x.astype(np.float32).reshape(-1, 2, 128).transpose(1, 0, 2)
    cosine, sine = table.reshape(-1, 2, 128).transpose(1, 0, 2)
    results = []
    for one, other, sign in ((low, high, -1), (high, low, 1)):
        total = np.zeros(one.shape, np.float32)
        for part in reversed(parts(cosine)):
            total = fused(one, part, total)
        np.testing.assert_array_equal(total, one * cosine)
        first, second, third = parts(sine)
        # XDNA1 adds the product with both lower parts, which is exact, at once.
        rest = (second + third,) if device == "npu1" else (second, third)
        for part in (first, *rest):
            total = fused(sign * other, part, total)
        results.append(total.astype(BF16))
    return np.stack(results, axis=1).reshape(-1)


@settings(deadline=None, max_examples=12)
@given(
    device=st.sampled_from(DEVICES), vectors=st.sampled_from((1, 2, 5)), seed=st.integers(0, 9999)
)
def test_the_formulas_bits(device: str, vectors: int, seed: int) -> None:
    found = schedule(device, vectors)
    x, table, expected = found.operands(seed)
    result, run = found.run(x, table)
    formula = rotated(x.view(BF16), table.view(np.float32), device)
    np.testing.assert_array_equal(result.view(np.uint16), formula.view(np.uint16))
    assert run.stalls == 0
    apart = result.view(np.int16).astype(int) - expected.view(np.int16).astype(int)
    assert np.abs(apart).max() <= 1 and np.count_nonzero(apart) <= 1


@pytest.mark.parametrize("device", DEVICES)
def test_the_cpp_kernels_bits(device: str) -> None:
    for seed in range(4):
        result, expected, _ = schedule(device, 2).compared(seed)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_how_often_the_cpp_kernels_bits_differ(device: str) -> None:
    """On 250 vectors, by the formula."""
    x, table, expected = dataclasses.replace(schedule(device), blocks=250).operands(1)
    formula = rotated(x.view(BF16), table.view(np.float32), device)
    apart = formula.view(np.int16).astype(int) - expected.view(np.int16).astype(int)
    assert np.abs(apart).max() <= 1 and np.count_nonzero(apart) <= 6


@pytest.mark.parametrize("device", DEVICES)
def test_cycles(device: str) -> None:
    found = vector_kernels.cycles(device, "rope")
    turns = 128 // PAIRS[device]
    assert found.block == turns * TURN[device] and 0 < found.outside < 80
    run = schedule(device, 3).simulated()
    assert abs(found.total(3) - run.cycles) <= 2 and run.stalls == 0
    keys = [f"{key}.f" for key in ("vmul", "vadd", "vsub")]
    if device == "npu2":
        keys = [f"{key}.f.x" for key in ("vmul", "vmac", "vmsc")]
    assert sum(run.issued[key] for key in keys) == {"npu1": 18, "npu2": 16}[device] * turns * 3


def test_other_sizes() -> None:
    with pytest.raises(ShapeError, match="blocks is 0: give 1 or more vectors of 256"):
        rope.regions(MACHINES["npu2"], 0)


KEYS = [("npu2", k) for k in ("vmac.f.x", "vmsc.f.x", "vconv.bf16.fp32", "vldb.x")] + [
    ("npu1", k)
    for k in ("vmul.f", "vadd.f", "vsub.f", "vconv.bf16.fp32", "vconv.fp32.bf16", "vlda.am")
]


@pytest.mark.parametrize(("device", "key"), KEYS)
def test_a_latency_that_is_one_cycle_too_short(device: str, key: str) -> None:
    machine = believed(MACHINES[device], key)
    program = on(
        MACHINES[device], generate.generate("broken", rope.regions(machine, 2), machine, 2)
    )
    broken = dataclasses.replace(schedule(device, 2), program=program)
    *inputs, _ = broken.operands(0)
    with pytest.raises(ScheduleError, match=r"meant|never written|two results|used twice"):
        broken.run(*inputs)
