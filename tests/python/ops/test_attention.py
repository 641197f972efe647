"""npu.attention against softmax in float64 within the bound of docs/attention.md: shapes, masks,
positions, float types and layouts; large, equal and single scores; NaN and infinity; what is not
visible has no influence; every typed error."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu.errors import ArgumentError, DtypeError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)


def wide(array: Any) -> np.ndarray:
    return np.asarray(array).astype(BF16).astype(np.float64)


def visible(tokens, keys, causal, window, query_start, key_start):
    at = (keys - tokens if query_start is None else query_start - key_start) + np.arange(tokens)
    behind = at[:, None] - np.arange(keys)
    seen = np.ones((tokens, keys), bool)
    if causal:
        seen &= behind >= 0
    if window is not None:
        seen &= behind < window
    return seen


def reference(q, k, v, scale, seen):
    """One head: the result and how far a computed one may be from it.

    A score: a sum of d products in fp32 and its scale, 2^-23 of the magnitudes' sum per term and
    2^-21 of the score. A weight: that, and the power, 2^-8 + 7.6e-5 of it (AIE2's polynomial) or
    2^-126. The denominator sums the same weights. Values: S additions in fp32. The result: 2^-8.
    """
    with np.errstate(invalid="ignore"):
        scores = q @ k.T * scale
    size = np.abs(q) @ np.abs(k).T * abs(scale)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(1, keepdims=True)
    weights = np.where(seen, np.exp(scores - np.where(np.isfinite(top), top, 0)), 0)
    finite = np.where(seen, scores, 0)
    error = np.where(seen, size, 0) * (q.shape[1] + 4) * 2.0**-23 + np.abs(finite) * 2.0**-21
    off = weights * (np.expm1(np.minimum(error, 100)) + 2.0**-8 + 8e-5) + seen * 2.0**-120
    total = np.maximum(weights.sum(1, keepdims=True), 1e-300)
    exact = weights @ v / total
    bound = (off + weights * k.shape[0] * 2.0**-23) @ np.abs(v) / total
    bound += np.abs(exact) * off.sum(1, keepdims=True) / total
    return exact, bound * 1.02 + np.abs(exact) * 2.0**-8 * 1.05 + 2.0**-125


def check(found, q, k, v, *, causal=True, window=None, scale=None, query_start=None, key_start=0):
    assert found.dtype == BF16 and found.shape == q.shape
    tokens, heads, width = q.shape
    seen = visible(tokens, k.shape[0], causal, window, query_start, key_start)
    factor = float(np.float32(scale)) if scale is not None else 1 / math.sqrt(width)
    group = heads // k.shape[1]
    for head in range(heads):
        exact, bound = reference(
            wide(q[:, head]), wide(k[:, head // group]), wide(v[:, head // group]), factor, seen
        )
        excess = np.abs(wide(found[:, head]) - exact) / bound
        assert np.all(excess <= 1), (head, excess.max(), np.argwhere(~(excess <= 1))[:5])


def operands(rng, tokens, keys, heads, kv_heads, width, size=2.0, dtype=BF16):
    q = (rng.standard_normal((tokens, heads, width)) * size).astype(dtype)
    k, v = (rng.standard_normal((keys, kv_heads, width)).astype(dtype) for _ in range(2))
    return q, k, v


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_and_mask_is_the_formula(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    tokens, keys = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 150))
    width = data.draw(st.sampled_from([1, 37, 64, 72, 128, 200, 256]))
    dtype = data.draw(st.sampled_from([BF16, np.dtype(np.float32), np.dtype(np.float16)]))
    q, k, v = operands(rng, tokens, keys, kv_heads * group, kv_heads, width, dtype=dtype)
    if data.draw(st.booleans()):
        q, k, v = np.asfortranarray(q), k[::-1], v[:, ::-1]
    options: dict[str, Any] = {
        "causal": data.draw(st.booleans()),
        "window": data.draw(st.none() | st.integers(1, 60)),
        "scale": data.draw(st.none() | st.sampled_from([1.0, -0.3, 0.0])),
    }
    if data.draw(st.booleans()):
        options["key_start"] = data.draw(st.integers(-50, 1000))
        options["query_start"] = options["key_start"] + data.draw(st.integers(-30, 200))
    name = data.draw(st.sampled_from(DEVICES))
    check(npu.attention(q, k, v, device=name, **options), q, k, v, **options)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    ("tokens", "keys", "heads", "kv_heads", "width", "window"),
    [(1, 1024, 4, 1, 256, None), (1, 5000, 8, 4, 256, 1024), (8, 700, 4, 1, 256, None),
     (300, 300, 4, 1, 256, None), (300, 300, 8, 4, 128, 64), (100, 1000, 2, 2, 64, None),
     (257, 257, 6, 2, 72, None)],
)  # fmt: skip
def test_sizes_of_models(tokens, keys, heads, kv_heads, width, window, name):
    q, k, v = operands(np.random.default_rng(3), tokens, keys, heads, kv_heads, width)
    check(npu.attention(q, k, v, window=window, device=name), q, k, v, window=window)


@pytest.mark.parametrize("name", DEVICES)
def test_silicon_arithmetic(name):
    q, k, v = operands(np.random.default_rng(4), 12, 50, 4, 2, 64)
    with npu.device(name, arithmetic="silicon"):
        for options in ({}, {"causal": False}, {"window": 7}):
            check(npu.attention(q, k, v, **options), q, k, v, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_sixteen_thousand_keys(name):
    q, k, v = operands(np.random.default_rng(5), 16384, 16384, 1, 1, 64)
    found = npu.attention(q, k, v, device=name)
    for first in range(0, 16384, 4096):
        part = slice(first + 4000, first + 4096)
        check(found[part], q[part], k, v, query_start=first + 4000)
    q, k, v = operands(np.random.default_rng(6), 700, 16384, 8, 4, 256)
    check(npu.attention(q, k, v, window=1024, device=name), q, k, v, window=1024)


@pytest.mark.parametrize("name", DEVICES)
def test_large_equal_and_single_scores(name):
    rng = np.random.default_rng(7)
    for size in (100.0, 1e4, 1e20, 1e-30):
        q, k, v = operands(rng, 20, 90, 2, 1, 64, size)
        check(npu.attention(q, k, v, device=name), q, k, v)
    # Scores of +-1e4 whose maximum moves with every chunk.
    k[...], q[...] = 0, 0
    q[..., 0], k[:, 0, 0] = 100, np.linspace(-100, 100, 90)
    for scale in (1.0, -1.0, 0.01):
        check(npu.attention(q, k, v, scale=scale, device=name), q, k, v, scale=scale)
    # Equal scores: the mean of the values that are seen.
    k[...] = 1
    check(npu.attention(q, k, v, device=name), q, k, v)
    # Denormal values, and queries; an instruction of some hosts takes them for 0.
    q, k, v = operands(rng, 20, 90, 2, 1, 64, 1e-39)
    tiny = (v.astype(np.float32) * np.float32(1e-39)).astype(BF16)
    check(npu.attention(q, k, tiny, device=name), q, k, tiny)
    # One key: its value, exactly.
    found = npu.attention(q, k[:1], v[:1], causal=False, device=name)
    np.testing.assert_array_equal(found, np.broadcast_to(v[:1], q.shape))


def test_rows_that_see_nothing_are_zero():
    q, k, v = operands(np.random.default_rng(8), 40, 64, 2, 1, 64)
    options = {"query_start": 90, "key_start": 100}
    found = npu.attention(q, k, v, **options)
    assert not found[:10].any() and found[10:].all()
    check(found, q, k, v, **options)
    assert not npu.attention(q, k, v, query_start=0, key_start=100).any()
    assert not npu.attention(q, k, v, query_start=500, window=300).any()


@pytest.mark.parametrize("name", DEVICES)
def test_nan_and_infinity(name):
    q, k, v = operands(np.random.default_rng(9), 30, 70, 2, 1, 64)
    before = npu.attention(q, k, v, query_start=40, device=name)
    bad = k.copy()
    bad[50] = np.nan
    found = npu.attention(q, bad, v, query_start=40, device=name)
    np.testing.assert_array_equal(found[:10], before[:10])  # up to position 49
    assert np.isnan(found[10:].astype(np.float32)).all()
    bad = q.copy()
    bad[3, 1, 5] = np.inf
    found = npu.attention(bad, k, v, query_start=40, device=name)
    changed = np.isnan(found.astype(np.float32)).any(-1)
    assert changed[3, 1] and changed.sum() == 1
    # A score of -infinity weighs nothing.
    q[...] = np.abs(q)
    hidden, k[50] = k.copy(), -1e30
    hidden[50] = -np.inf
    np.testing.assert_array_equal(
        npu.attention(q, hidden, v, device=name), npu.attention(q, k, v, device=name)
    )


def test_a_batch_is_its_sequences():
    rng = np.random.default_rng(10)
    q, k, v = (
        np.stack(a) for a in zip(*(operands(rng, 5, 30, 4, 2, 64) for _ in range(3)), strict=True)
    )
    found = npu.attention(q, k, v, window=9)
    assert found.shape == q.shape
    for one, parts in zip(found, zip(q, k, v, strict=True), strict=True):
        np.testing.assert_array_equal(one, npu.attention(*parts, window=9))


def test_one_configuration_serves_every_size():
    device = npu.Device("emu:npu2", "fast")
    rng = np.random.default_rng(11)
    for shape in ((1, 9, 1, 1, 64), (70, 70, 8, 2, 256), (33, 200, 4, 4, 128)):
        npu.attention(*operands(rng, *shape), device=device)
    counters = device.counters()
    assert counters["configuration_loads"] == 1 and counters["streams_built"] == 3


def test_no_queries():
    q, k, v = operands(np.random.default_rng(12), 0, 5, 2, 1, 64)
    assert npu.attention(q, k, v).shape == (0, 2, 64)


_Q, _K = np.ones((3, 4, 64), np.float32), np.ones((5, 2, 64), np.float32)


@pytest.mark.parametrize(("q", "k", "v", "options", "error"), [
    (_Q, _K, _K[:4], {}, ShapeError),
    (_Q, _K[..., :32], _K[..., :32], {}, ShapeError),
    (_Q[0], _K, _K, {}, ShapeError),
    (_Q[None], _K, _K, {}, ShapeError),
    (_Q[None], np.stack([_K, _K]), np.stack([_K, _K]), {}, ShapeError),
    (_Q, _K[:0], _K[:0], {}, ShapeError),
    (_Q[:, :3], _K, _K, {}, ShapeError),
    (np.ones((3, 9, 64), np.float32), _K[:, :1], _K[:, :1], {}, ShapeError),
    (_Q[:, :1], _K, _K, {}, ShapeError),
    (_Q[..., :0], _K[..., :0], _K[..., :0], {}, ShapeError),
    (np.ones((1, 1, 257), np.float32),) + (np.ones((1, 1, 257), np.float32),) * 2
    + ({}, ShapeError),
    (_Q, np.ones((131073, 2, 64), BF16), np.ones((131073, 2, 64), BF16), {}, ShapeError),
    (_Q.astype(np.float64), _K, _K, {}, DtypeError),
    (_Q, _K.astype(np.int8), _K, {}, DtypeError),
    (_Q, _K, [["a"]], {}, DtypeError),
    (_Q, _K, _K, {"window": 0}, ArgumentError),
    (_Q, _K, _K, {"window": 2.5}, ArgumentError),
    (_Q, _K, _K, {"window": True}, ArgumentError),
    (_Q, _K, _K, {"causal": 1}, ArgumentError),
    (_Q, _K, _K, {"scale": float("nan")}, ArgumentError),
    (_Q, _K, _K, {"scale": "1"}, ArgumentError),
    (_Q, _K, _K, {"query_start": 1.5}, ArgumentError),
    (_Q, _K, _K, {"query_start": 1 << 30}, ArgumentError),
    (_Q, _K, _K, {"key_start": None}, ArgumentError),
])  # fmt: skip
def test_errors(q, k, v, options, error):
    with pytest.raises(error, match=r"\[attention\] .*"):
        npu.attention(q, k, v, **options)
