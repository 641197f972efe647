"""npu.rope: any number of tokens and heads, every width, positions to 131071 and beyond, with and
without the norm, against float64 within the derived bound; exact angles; every typed error."""

from __future__ import annotations

import numpy as np
import pytest
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_bounds import BF16, check_rope

import npu
from npu.errors import ArgumentError, DtypeError, ShapeError

LAST = (1 << 24) - 1  # largest position


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_is_the_formula(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    lead = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    tokens, heads = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    width = data.draw(st.sampled_from([64, 128, 256]))
    dtype = data.draw(st.sampled_from([BF16, np.dtype(np.float32), np.dtype(np.float16)]))
    x = rng.standard_normal((*lead, tokens, 2 * heads, width)).astype(dtype)[..., ::2, :]
    positions = rng.integers(0, data.draw(st.sampled_from([8, 131072, LAST + 1])), tokens)
    weight = rng.standard_normal(width).astype(np.float32) if data.draw(st.booleans()) else None
    base = data.draw(st.sampled_from([10000.0, 1e6, 500.5]))
    factor = data.draw(st.sampled_from([1.0, 8.0, 3.0]))
    epsilon = data.draw(st.sampled_from([0.0, 1e-6, 1.0]))
    found = npu.rope(
        x, positions, base=base, factor=factor, norm_weight=weight, epsilon=epsilon,
        device=data.draw(st.sampled_from(DEVICES)),
    )  # fmt: skip
    check_rope(found, x, positions, base, factor, weight, epsilon)


@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 256), (1, 4, 256), (16, 1, 64), (33, 8, 128),
                                   (520, 4, 256), (1, 513, 64)], ids=str)  # fmt: skip
def test_sizes_of_models(shape, normed, name, arithmetic):
    """The last of 131072 positions; several tasks of a column."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(BF16)
    weight = rng.standard_normal(shape[-1]).astype(np.float32) if normed else None
    start = 131072 - shape[0]
    with npu.device(name, arithmetic=arithmetic):
        found = npu.rope(x, start, base=1e6, factor=8, norm_weight=weight)
    check_rope(found, x, start + np.arange(shape[0]), 1e6, 8.0, weight)


@pytest.mark.parametrize("width", [64, 128, 256])
def test_each_pair_turns_by_its_angle(width):
    """Element i alone shows cosine and sine in places i and i + width / 2, exactly rounded."""
    position, half = 131071, width // 2
    x = np.zeros((half, 1, width), BF16)
    x[np.arange(half), 0, np.arange(half)] = 1
    found = npu.rope(x, np.full(half, position)).astype(np.float64)[:, 0]
    angles = position * 10000.0 ** (-2 * np.arange(half) / width)
    wanted = np.zeros((half, width))
    wanted[np.arange(half), np.arange(half)] = np.cos(angles)
    wanted[np.arange(half), half + np.arange(half)] = np.sin(angles)
    assert np.all(np.abs(found - wanted) <= np.abs(wanted) * 2.0**-8 + 2.0**-22)
    assert np.count_nonzero(found) == np.count_nonzero(wanted)


def test_position_zero_changes_nothing():
    x = np.random.default_rng(1).standard_normal((1, 3, 128)).astype(BF16)
    np.testing.assert_array_equal(npu.rope(x, 0), x)


def test_positions_and_their_start_agree():
    x = np.random.default_rng(1).standard_normal((9, 2, 64)).astype(BF16)
    one = npu.rope(x, 70)
    for positions in (np.arange(70, 79), list(range(70, 79)), np.arange(70, 79, dtype=np.uint16)):
        np.testing.assert_array_equal(npu.rope(x, positions), one)
    np.testing.assert_array_equal(npu.rope(x, np.int64(70)), one)
    assert np.any(npu.rope(x, 71) != one)


def test_a_start_applies_to_every_sequence():
    x = np.random.default_rng(1).standard_normal((3, 5, 2, 64)).astype(BF16)
    found = npu.rope(x, 11)
    for sequence, rows in zip(x, found, strict=True):
        np.testing.assert_array_equal(npu.rope(sequence, 11), rows)


def test_nan_stays_in_its_vector():
    x = np.ones((6, 2, 64), BF16)
    x[3, 1, 7] = np.nan
    usual = npu.rope(np.ones_like(x), 5, norm_weight=np.ones(64, np.float32))
    found = npu.rope(x, 5, norm_weight=np.ones(64, np.float32))
    assert np.isnan(found[3, 1].astype(np.float32)).all()
    found[3, 1] = usual[3, 1]
    np.testing.assert_array_equal(found, usual)


def test_one_configuration_serves_every_size():
    device = npu.Device("emu:npu2", "fast")
    for shape in ((1, 1, 64), (300, 4, 256), (70, 2, 128)):
        npu.rope(np.ones(shape, np.float32), 3, device=device)
    counters = device.counters()
    assert counters["configuration_loads"] == 1 and counters["streams_built"] == 3


@pytest.mark.parametrize("shape", [(0, 4, 64), (3, 0, 256), (0, 5, 2, 128)])
def test_empty(shape):
    assert npu.rope(np.empty(shape, np.float32), 7).shape == shape


X = np.ones((3, 2, 64), np.float32)


@pytest.mark.parametrize("x, positions, options, error", [
    (np.ones((3, 2, 63), np.float32), 0, {}, ShapeError),
    (np.ones((3, 2, 192), np.float32), 0, {}, ShapeError),
    (np.ones((3, 2, 512), np.float32), 0, {}, ShapeError),
    (np.ones((3, 64), np.float32), 0, {}, ShapeError),
    (np.ones((3, 2000, 64), np.float32), 0, {}, ShapeError),
    (np.ones((3, 2, 64)), 0, {}, DtypeError),
    (np.ma.masked_array(X), 0, {}, ArgumentError),
    (X, [0, 1], {}, ShapeError),
    (X, [[0, 1, 2]], {}, ShapeError),
    (X, [0.0, 1.0, 2.0], {}, DtypeError),
    (X, 1.0, {}, DtypeError),
    (X, True, {}, DtypeError),
    (X, "1", {}, DtypeError),
    (X, None, {}, DtypeError),
    (X, [[1], [2, 3]], {}, ArgumentError),
    (X, -1, {}, ArgumentError),
    (X, [0, 1, -1], {}, ArgumentError),
    (X, (1 << 63) - 1, {}, ArgumentError),
    (X, LAST - 1, {}, ArgumentError),
    (X, [0, 1, LAST + 1], {}, ArgumentError),
    (X, 1 << 70, {}, DtypeError),
    (X, np.uint64(1 << 63), {}, ArgumentError),
    (X, 0, {"base": 0.0}, ArgumentError),
    (X, 0, {"base": "1"}, ArgumentError),
    (X, 0, {"factor": -1.0}, ArgumentError),
    (X, 0, {"factor": float("nan")}, ArgumentError),
    (X, 0, {"epsilon": -1.0}, ArgumentError),
    (X, 0, {"norm_weight": np.ones(63, np.float32)}, ShapeError),
    (X, 0, {"norm_weight": np.ones(64)}, DtypeError),
])  # fmt: skip
def test_errors(x, positions, options, error):
    with pytest.raises(error, match=r"\[rope\] .*"):
        npu.rope(x, positions, **options)


def test_the_last_positions_are_taken():
    assert npu.rope(X, LAST - 2).shape == X.shape
