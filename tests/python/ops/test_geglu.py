"""npu.geglu: every bfloat16 gate, any shape, layout and float type, against float64 within the
derived bound; zeros, infinities and NaN; every typed error."""

from __future__ import annotations

import numpy as np
import pytest
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_bounds import BF16, check_geglu

import npu
from npu.errors import ArgumentError, DtypeError, ShapeError

GATES = np.arange(1 << 16, dtype=np.uint16).view(BF16)


def generation(name: str) -> str:
    with npu.device(name) as device:
        return device.generation


@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("up", [1.0, -1.4921875, 1e30, -1e-30, 3e38, 1e-40, 0.0])
def test_every_gate(name, arithmetic, up):
    with npu.device(name, arithmetic=arithmetic) as device:
        found = npu.geglu(GATES, np.full(GATES.shape, up, BF16))
        check_geglu(found, GATES, np.full(GATES.shape, up, BF16), device.generation)


@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
@pytest.mark.parametrize("name", DEVICES)
def test_signs_infinities_and_nan(name, arithmetic):
    """What float64 gives for infinities and NaN; gates from 4 on, and 0, are exact."""
    inf, nan = np.inf, np.nan
    gate = np.array([0, -0.0, 4, 100, 3e38, inf, inf, -inf, nan, 1, 1, -1, 0, -1000], BF16)
    up = np.array([2, 2, 1, -3, 1, 1, -2, 1, 1, inf, nan, inf, inf, 3e38], BF16)
    wanted = np.array([0, 0, 4, -300, 3e38, inf, -inf, nan, nan, inf, nan, -inf, nan, 0], BF16)
    with npu.device(name, arithmetic=arithmetic):
        found = npu.geglu(gate, up)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("name", DEVICES)
def test_results_far_below_zero_keep_their_digits(name):
    """A gelu through 1 + tanh alone would be 0 there."""
    gate = np.linspace(-9.5, -5, 3000).astype(BF16)
    found = npu.geglu(gate, np.ones_like(gate), device=name)
    assert np.all(found.astype(np.float32) < 0)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_is_the_formula(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    rows, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 2500))
    dtype = data.draw(st.sampled_from([BF16, np.dtype(np.float32), np.dtype(np.float16)]))
    step = data.draw(st.sampled_from([1, 2, -1]))
    both = (3 * rng.standard_normal((rows, 2 * width))).astype(dtype)
    gate, up = both[:, :width][:, ::step], both[:, width:][:, ::step]
    name = data.draw(st.sampled_from(DEVICES))
    check_geglu(npu.geglu(gate, up, device=name), gate, up, generation(name))


@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("shape", [(), (1,), (4096,), (4097,), (6912,), (300, 8192)], ids=str)
def test_sizes_of_models(shape, name, arithmetic):
    rng = np.random.default_rng(5)
    gate, up = (np.asarray(2 * rng.standard_normal(shape)).astype(BF16) for _ in range(2))
    with npu.device(name, arithmetic=arithmetic) as device:
        check_geglu(npu.geglu(gate, up), gate, up, device.generation)


def test_one_configuration_serves_every_size():
    device = npu.Device("emu:npu2", "fast")
    for size in (1, 5000, 3_000_000):
        npu.geglu(np.ones(size, np.float32), np.ones(size, np.float32), device=device)
    counters = device.counters()
    assert counters["configuration_loads"] == 1 and counters["streams_built"] == 3


def test_empty():
    assert npu.geglu(np.empty((0, 64), BF16), np.empty((0, 64), BF16)).shape == (0, 64)


@pytest.mark.parametrize("gate, up, error", [
    (np.ones(8, np.float32), np.ones(7, np.float32), ShapeError),
    (np.ones((2, 4), np.float32), np.ones(8, np.float32), ShapeError),
    (np.ones(8, np.float32), np.float32(1), ShapeError),
    (np.ones(8, np.int8), np.ones(8, np.float32), DtypeError),
    (np.ones(8, np.float32), np.ones(8), DtypeError),
    (np.ma.masked_array(np.ones(8, np.float32)), np.ones(8, np.float32), ArgumentError),
    ([[1.0], [2.0, 3.0]], np.ones(8, np.float32), ArgumentError),
])  # fmt: skip
def test_errors(gate, up, error):
    with pytest.raises(error, match=r"\[geglu\] .*"):
        npu.geglu(gate, up)
