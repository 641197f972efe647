"""Host operations of a decoder layer against float64 formulas, over sizes around the vector width,
with extreme, infinite and NaN inputs. Bounds: float32 rounding of the operations named beside them.
"""

from __future__ import annotations

import compare
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu._npu import host as native
from npu.errors import ArgumentError
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


@given(
    queries=st.integers(1, 40), shift=st.integers(0, 150), kv_heads=st.integers(1, 3),
    group=st.integers(1, 5), head_dim=st.sampled_from([2, 16, 24, 64, 80, 256]),
    window=st.sampled_from([None, 1, 9, 100]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_attention(queries, shift, kv_heads, group, head_dim, window, seed):
    """Views of a larger cache, any group of heads, against float64 products and exponentials."""
    rng = np.random.default_rng(seed)
    keys, scale = shift + queries, head_dim**-0.5
    q = rng.standard_normal((queries, kv_heads * group, head_dim)).astype(np.float32)
    cache = rng.standard_normal((2, kv_heads, keys + 5, head_dim)).astype(np.float32)
    k, v = cache[:, :, :keys]
    actual = host.attention(q, k, v, query_start=shift + 7, key_start=7, scale=scale, window=window)
    distance = shift + np.arange(queries)[:, None] - np.arange(keys)
    visible = (distance >= 0) & (distance < (window or keys))
    wide_k, wide_v = (np.repeat(a, group, axis=0).astype(np.float64) for a in (k, v))
    scores = np.where(visible, np.einsum("thd,hsd->hts", q.astype(np.float64), wide_k), -np.inf)
    p = np.exp(scale * (scores - scores.max(axis=2, keepdims=True)))
    p /= p.sum(axis=2, keepdims=True)
    expected = np.einsum("hts,hsd->thd", p, wide_v).reshape(queries, -1)
    # An error e of every score changes weights by 2 e; |q| |k| scale is below 6 sqrt(head_dim).
    error = 2 * head_dim * 6 * head_dim**0.5 * EPS / 2 + (keys + 8) * EPS
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= error * np.abs(wide_v).max()


@given(
    queries=st.integers(1, 40), start=st.integers(0, 600), kv_heads=st.integers(1, 3),
    group=st.integers(1, 4), head_dim=st.sampled_from([8, 40, 64, 128, 256]),
    window=st.sampled_from([None, 1, 9, 100, 300]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_attention_over_pages(queries, start, kv_heads, group, head_dim, window, seed):
    """Rows of bfloat16 in pages in any order, pages before the window missing and everything else
    in the pool NaN, are the float32 arrays of the same values, bit for bit."""
    rng = np.random.default_rng(seed)
    keys = start + queries
    k, v = compare.round_bf16(rng.standard_normal((2, kv_heads, keys, head_dim)))
    q = rng.standard_normal((queries, kv_heads * group, head_dim)).astype(np.float32)
    count, chunk = -(-keys // 256), native.kv_chunk(head_dim)
    oldest = max(0, start - window + 1) if window else 0
    shape = (2 * count, kv_heads, 256 // chunk, 2, chunk, head_dim)
    pool = np.full(shape, np.nan, ml_dtypes.bfloat16)
    table = rng.permutation(2 * count)[:count].astype(np.int64)
    for position in range(oldest, keys):
        inside = position % 256
        rows = pool[table[position // 256], :, inside // chunk, :, inside % chunk]
        rows[:, 0], rows[:, 1] = k[:, position], v[:, position]
    table[: oldest // 256] = -1
    options = {"scale": head_dim**-0.5, "window": window}
    flat = pool.view(np.uint8).reshape(-1)
    paged = host.paged_attention(q, flat, table, kv_heads=kv_heads, start=start, **options)
    plain = host.attention(q, k, v, query_start=start, key_start=0, **options)
    assert np.array_equal(paged, plain)
    table[-1] = -1
    with pytest.raises(ArgumentError, match="does not hold positions"):
        host.paged_attention(q, flat, table, kv_heads=kv_heads, start=start, **options)


def test_attention_ignores_what_later_positions_hold():
    rng = np.random.default_rng(1)
    q = rng.standard_normal((2, 2, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 30, 16)).astype(np.float32)
    shown = host.attention(q, k, v, query_start=9, key_start=0, scale=1, window=None)
    k[:, 11:], v[:, 11:] = np.nan, np.nan
    assert np.array_equal(
        shown, host.attention(q, k, v, query_start=9, key_start=0, scale=1, window=None)
    )


def test_rope():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 3, 24)).astype(np.float32)
    angles = (11 + np.arange(5))[:, None] / 8 * 1e4 ** (-np.arange(12) / 12)
    pairs = (x[..., :12].astype(complex) + 1j * x[..., 12:]) * np.exp(1j * angles)[:, None]
    expected = np.concatenate([pairs.real, pairs.imag], axis=-1)
    table = host.rope_table(11, 5, 24, 1e4, 8)
    assert np.abs(host.rope(x, table) - expected).max() <= 4 * EPS * np.abs(x).max()
    # A strided part of a wider matrix, as q of a fused projection is.
    wide = rng.standard_normal((5, 100)).astype(np.float32)
    part = wide[:, 10:82].reshape(5, 3, 24)
    assert np.array_equal(host.rope(part, table), host.rope(part.copy(), table))


def test_shapes_are_checked():
    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape, np.float32)

    q = ones(2, 4, 8)
    for k, v, shift, window in (
        (ones(2, 5, 8), ones(2, 5, 8), 4, 0),  # the last query has no key
        (ones(2, 5, 8), ones(2, 5, 8), -1, 0),
        (ones(2, 5, 8), ones(2, 5, 8), 1, -1),
        (ones(3, 5, 8), ones(3, 5, 8), 1, 0),
        (ones(2, 5, 6), ones(2, 5, 6), 1, 0),
        (ones(2, 5, 8), ones(2, 6, 8), 1, 0),
        (ones(2, 5, 16)[:, :, ::2], ones(2, 5, 16)[:, :, ::2], 1, 0),
        (ones(2, 10, 8)[:, ::2], ones(2, 10, 8)[:, ::2], 1, 0),
    ):
        with pytest.raises(Exception, match="shapes"):
            native.attention(q, k, v, shift, window, 1.0, q.copy())
    with pytest.raises(Exception, match="shapes"):
        native.rope(q, ones(2, 3), ones(2, 4), q.copy())
    x = ones(2, 3)
    with pytest.raises(Exception, match="shapes"):
        native.rms_norm(x, np.ones(4, np.float32), 1e-6, x.copy())
    with pytest.raises(Exception, match="shapes"):
        native.geglu(x, x[:, :2], np.ones((2, 3), np.float32))
    with pytest.raises(Exception, match="shapes"):
        native.causal_softmax(x, 0, 0, 0)
