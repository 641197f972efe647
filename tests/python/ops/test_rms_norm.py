"""npu.rms_norm: any shape, layout and float type against float64 within the derived bound; zero
rows, equal rows, large and tiny values, residuals; NaN and infinity stay in their row; every typed
error."""

from __future__ import annotations

import numpy as np
import pytest
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_bounds import BF16, check_rms_norm

import npu
from npu.errors import ArgumentError, DtypeError, ShapeError


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_is_the_formula(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    lead = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    width = data.draw(st.integers(1, 600))
    dtype = data.draw(st.sampled_from([BF16, np.dtype(np.float32), np.dtype(np.float16)]))
    x = rng.standard_normal((*lead, 2 * width)).astype(dtype)[
        ..., :: data.draw(st.sampled_from([1, 2]))
    ]
    x = x[..., :width]
    weight = rng.standard_normal(width).astype(np.float32) if data.draw(st.booleans()) else None
    epsilon = data.draw(st.sampled_from([0.0, 1e-6, 1e-5, 1.0]))
    name = data.draw(st.sampled_from(DEVICES))
    residual = rng.standard_normal(x.shape).astype(dtype) if data.draw(st.booleans()) else None
    found = npu.rms_norm(x, weight, residual=residual, epsilon=epsilon, device=name)
    check_rms_norm(found, x, weight, epsilon, residual)


@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("shape", [(1, 1), (4, 128), (5, 16384), (700, 1152), (1030, 256)], ids=str)
def test_sizes_of_models(shape, name, arithmetic):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(BF16)
    weight = rng.standard_normal(shape[1]).astype(np.float32)
    with npu.device(name, arithmetic=arithmetic):
        check_rms_norm(npu.rms_norm(x, weight), x, weight, 1e-6)
        residual = rng.standard_normal(shape).astype(BF16)
        found = npu.rms_norm(x, weight, residual=residual)
    check_rms_norm(found, x, weight, 1e-6, residual)


def test_extreme_rows():
    """A row of zeros is zero, a row of equal values is its sign, whatever their size."""
    x = np.zeros((6, 300), BF16)
    for row, value in enumerate((1e-15, -3e15, 1.0, -1e-3, 7.0), start=1):
        x[row] = value
    found = npu.rms_norm(x, epsilon=0.0)
    assert np.all(np.isnan(found[0]))  # 0 / 0, as the formula says
    np.testing.assert_array_equal(found[1:].astype(np.float32), np.sign(x[1:].astype(np.float32)))
    assert not npu.rms_norm(x)[0].any()


def test_nan_and_infinity_stay_in_their_row():
    x = np.ones((5, 200), BF16)
    x[1, 7], x[3, 150] = np.nan, np.inf
    found = npu.rms_norm(x).astype(np.float32)
    assert np.isnan(found[1]).all() and np.isnan(found[3, 150])
    assert not found[3, np.arange(200) != 150].any()
    np.testing.assert_array_equal(found[[0, 2, 4]], np.float32(1))


def test_a_residual_is_added_to_the_norm():
    """In fp32: where norm and residual cancel, digits remain that a rounded norm would not have."""
    x = np.random.default_rng(3).standard_normal((9, 300)).astype(BF16)
    plain = npu.rms_norm(x)
    np.testing.assert_array_equal(npu.rms_norm(x, residual=np.zeros_like(x)), plain)
    rest = npu.rms_norm(x, residual=-plain.astype(np.float32)).astype(np.float32)
    assert rest.any() and np.all(np.abs(rest) <= np.abs(plain.astype(np.float32)) * 2.0**-8)


def test_one_configuration_serves_every_size():
    device = npu.Device("emu:npu2", "fast")
    for rows, width in ((1, 3), (700, 1152), (9, 16384)):
        x = np.ones((rows, width), np.float32)
        npu.rms_norm(x, device=device)
        npu.rms_norm(x, residual=x, device=device)
    counters = device.counters()
    assert counters["configuration_loads"] == 1 and counters["streams_built"] == 6


def test_empty_rows():
    assert npu.rms_norm(np.empty((0, 64), np.float32)).shape == (0, 64)


@pytest.mark.parametrize("x, weight, epsilon, error", [
    (np.ones((2, 16385), np.float32), None, 1e-6, ShapeError),
    (np.ones((2, 0), np.float32), None, 1e-6, ShapeError),
    (np.float32(1), None, 1e-6, ShapeError),
    (np.ones((2, 8), np.float32), np.ones(7), 1e-6, DtypeError),
    (np.ones((2, 8), np.float32), np.ones(7, np.float32), 1e-6, ShapeError),
    (np.ones((2, 8), np.float32), np.ones((1, 8), np.float32), 1e-6, ShapeError),
    (np.ones((2, 8), np.int8), None, 1e-6, DtypeError),
    (np.ones((2, 8)), None, 1e-6, DtypeError),
    (np.ma.masked_array(np.ones((2, 8), np.float32)), None, 1e-6, ArgumentError),
    ([[1.0], [2.0, 3.0]], None, 1e-6, ArgumentError),
    (np.ones((2, 8), np.float32), None, -1.0, ArgumentError),
    (np.ones((2, 8), np.float32), None, float("nan"), ArgumentError),
    (np.ones((2, 8), np.float32), None, float("inf"), ArgumentError),
    (np.ones((2, 8), np.float32), None, "1", ArgumentError),
    (np.ones((2, 8), np.float32), None, True, ArgumentError),
])  # fmt: skip
def test_errors(x, weight, epsilon, error):
    with pytest.raises(error, match=r"\[rms_norm\] .*"):
        npu.rms_norm(x, weight, epsilon=epsilon)


@pytest.mark.parametrize("residual, error", [
    (np.ones((2, 7), np.float32), ShapeError),
    (np.ones(8, np.float32), ShapeError),
    (np.ones((2, 8)), DtypeError),
    (np.ma.masked_array(np.ones((2, 8), np.float32)), ArgumentError),
])  # fmt: skip
def test_errors_of_residuals(residual, error):
    with pytest.raises(error, match=r"\[rms_norm\] residual .*"):
        npu.rms_norm(np.ones((2, 8), np.float32), residual=residual)
