"""Weight blocks: packing gives the published layout (weight_blocks.py), reading inverts it, and
8-bit codes are as close to the values as the format allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_blocks import BF16, bf16_blocks, q8_blocks

from npu.errors import ArgumentError
from npu.formats.blocks import BlockTensor, pack_bf16, pack_q8, quantize_q8


@given(n=st.integers(1, 70), k=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_packing_gives_the_published_layout_and_reading_inverts_it(n, k, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, (n, k), dtype=np.int8)
    d = rng.standard_normal((n, -(-k // 16))).astype(np.float32)
    blocks = pack_q8(codes, d)
    assert np.array_equal(blocks.reshape(-1, 5120), q8_blocks(codes, d))
    values = BlockTensor(blocks, (n, k), "q8").to_numpy()
    assert np.array_equal(values, np.repeat(d, 16, axis=1)[:, :k] * codes)
    w = rng.standard_normal((n, k)).astype(np.float32)
    blocks = pack_bf16(w)
    assert np.array_equal(blocks.reshape(-1, 5120), bf16_blocks(w.astype(BF16)))
    assert np.array_equal(BlockTensor(blocks, (n, k), "bf16").to_numpy(BF16), w.astype(BF16))


@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(-30, 30), columns=st.integers(1, 64))
@settings(max_examples=50, deadline=None)
def test_groups_are_within_half_a_step_and_no_worse_than_rounding_to_the_largest(
    seed, spread, columns
):
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((3, columns)) * 2.0**spread).astype(np.float32)
    codes, d = quantize_q8(w)
    assert codes.dtype == np.int8 and d.dtype == np.float32
    wide = np.repeat(d.astype(np.float64), 16, axis=1)[:, :columns]
    error = np.abs(wide * codes - w)
    groups = -(-columns // 16)

    def grouped(values: np.ndarray) -> np.ndarray:
        padded = np.zeros((3, groups * 16))
        padded[:, :columns] = values
        return padded.reshape(3, groups, 16)

    largest = np.abs(grouped(w)).max(axis=2)
    # Rounding to steps of largest / 124.5 is off by half a step at most, and the scale that fits
    # the codes best is no worse for the group; then two float32 roundings of each value.
    half = largest / 124.5 / 2 + 2.0**-23 * largest + 1e-45
    assert (np.square(grouped(error)).sum(axis=2) <= 16 * np.square(half)).all()
    plain = np.repeat(largest / 127, 16, axis=1)[:, :columns]
    safe = np.where(plain > 0, plain, 1)
    rounding = np.rint(w / safe) * plain
    mine, theirs = np.square(error).sum(), np.square(rounding - w).sum()
    # Two float32 roundings of each value.
    assert mine <= theirs * (1 + 1e-4) + np.square(2.0**-23 * w.astype(np.float64)).sum()


def test_extreme_groups():
    for value in (0.0, 1e-45, 3e38, -3e38):
        codes, d = quantize_q8(np.full((1, 16), value, np.float32))
        assert np.isfinite(d).all()
        assert np.allclose(d * codes, value, rtol=1e-6, atol=1e-40)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ArgumentError, match="NaN or infinity"):
            quantize_q8(np.array([[1.0, bad]], np.float32))
