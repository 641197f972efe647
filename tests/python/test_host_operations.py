"""Host operations of a decoder layer against float64 formulas, over sizes around the vector width,
with extreme, infinite and NaN inputs. Bounds: float32 rounding of the operations named beside them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu._npu import host as native
from npu.ops import host

EPS = 2.0**-23  # of float32


@given(rows=st.integers(1, 5), width=st.integers(1, 70), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_rms_norm(rows, width, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    # Sums of `width` squares, root, division, two products.
    assert (np.abs(host.rms_norm(x, weight, 1e-6) - expected) <= 8 * EPS * np.abs(expected)).all()


def gelu(x: np.ndarray) -> np.ndarray:
    # (1 + tanh y) / 2 as a logistic function: 1 + tanh y has no digits left for negative y.
    return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("width", [1, 15, 16, 40, 6912])
def test_geglu(width):
    rng = np.random.default_rng(width)
    both = (4 * rng.standard_normal((3, 2 * width))).astype(np.float32)
    gate, up = both[:, :width], both[:, width:]
    expected = gelu(gate.astype(np.float64)) * up
    actual = host.geglu(gate, up)
    # e^-2y turns the rounding of y into relative errors: up to |2 y| ulps.
    y = np.abs(gate + 0.0447 * gate.astype(np.float64) ** 3) * 1.6
    assert (np.abs(actual - expected) <= (8 + 8 * y) * EPS * np.abs(expected) + 1e-30).all()
    assert np.array_equal(actual, host.geglu(gate.copy(), up))


def test_geglu_is_the_tanh_form():
    x = np.linspace(-3, 3, 101).astype(np.float32)[None]
    wide = x.astype(np.float64)
    tanh = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(host.geglu(x, np.ones_like(x)), tanh, rtol=1e-5, atol=1e-7)


def test_geglu_of_extremes():
    gate = np.array([[0, -0.0, 1e4, -1e4, 3e38, -3e38, 1e-30, -1e-30, np.inf, np.nan]], np.float32)
    actual = host.geglu(gate, np.ones_like(gate))[0]
    expected = [0, 0, 1e4, 0, 3e38, 0, 5e-31, -5e-31, np.inf, np.nan]
    np.testing.assert_allclose(actual, np.array(expected, np.float32), rtol=1e-6)


@given(
    queries=st.integers(1, 40), shift=st.integers(0, 60), heads=st.integers(1, 3),
    window=st.integers(0, 50), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_causal_softmax(queries, shift, heads, window, seed):
    rng = np.random.default_rng(seed)
    keys = shift + queries
    scores = (5 * rng.standard_normal((heads * queries, keys))).astype(np.float32)
    distance = shift + np.arange(queries)[:, None] - np.arange(keys)
    visible = (distance >= 0) & ((distance < window) if window else True)
    masked = np.where(np.tile(visible, (heads, 1)), scores.astype(np.float64), -np.inf)
    expected = np.exp(masked - masked.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    native.causal_softmax(scores, queries, shift, window)
    # The difference of two scores is rounded before e to it: an ulp of up to 40.
    assert (np.abs(scores - expected) <= 64 * EPS * expected).all()
    assert (scores[~np.tile(visible, (heads, 1))] == 0).all()


def test_softmax_of_extremes():
    scores = np.array([[-3e38, 3e38, 0], [-200, 0, -1e-10], [np.nan, 0, 0]], np.float32)
    native.causal_softmax(scores, 1, 2, 0)
    assert np.array_equal(scores[0], [0, 1, 0])
    assert np.allclose(scores[1], [0, 0.5, 0.5])
    assert np.isnan(scores[2]).all()


def test_shapes_are_checked():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(Exception, match="shapes"):
        native.rms_norm(x, np.ones(4, np.float32), 1e-6, x.copy())
    with pytest.raises(Exception, match="shapes"):
        native.geglu(x, x[:, :2], np.ones((2, 3), np.float32))
    with pytest.raises(Exception, match="shapes"):
        native.causal_softmax(x, 0, 0, 0)
