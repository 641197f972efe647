"""Weight blocks: packing gives the published layout (weight_blocks.py), reading inverts it, and
8-bit codes are as close to the values as the format allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_blocks import BF16, BYTES, COLUMNS, bf16_blocks, q4_0_blocks, q8_blocks, random_matrix

from npu._npu import facts
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.formats.blocks import (
    FORMATS,
    BlockTensor,
    bytes_of,
    columns_of,
    grid,
    pack_bf16,
    pack_q4_0,
    pack_q8,
    pack_q8_0,
    quantize_q8,
)


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


@given(n=st.integers(1, 70), k=st.integers(1, 600), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_small_blocks_have_the_published_layout_and_reading_inverts_it(n, k, seed):
    rng = np.random.default_rng(seed)
    d = rng.standard_normal((n, -(-k // 32))).astype(np.float32)
    wide = np.repeat(d, 32, axis=1)[:, :k]
    codes = rng.integers(-128, 128, (n, k), dtype=np.int8)
    blocks = pack_q8_0(codes, d)
    assert np.array_equal(blocks.reshape(-1, 4608), q8_blocks(codes, d, "q8_0"))
    assert np.array_equal(BlockTensor(blocks, (n, k), "q8_0").to_numpy(), wide * codes)
    fours = rng.integers(0, 16, (n, k), dtype=np.uint8)
    blocks = pack_q4_0(fours, d)
    assert np.array_equal(blocks.reshape(-1, 4608), q4_0_blocks(fours, d))
    # A bfloat16 times a whole number is exact in float32.
    expected = wide.astype(BF16).astype(np.float64) * (fours.astype(np.float64) - 8)
    assert np.array_equal(BlockTensor(blocks, (n, k), "q4_0").to_numpy(), expected)
    for made, format in ((pack_q8_0(codes, d), "q8_0"), (blocks, "q4_0")):
        p, q = grid((n, k), format)
        whole = BlockTensor(made, (p * 32, q * COLUMNS[format]), format).to_numpy()
        assert not whole[n:].any() and not whole[:, k:].any()


@pytest.mark.parametrize("format", COLUMNS)
def test_matrices_of_the_tests_are_what_the_package_reads(format):
    """Also the facts of a format: bytes and columns."""
    blocks, w = random_matrix(format, 45, 300, np.random.default_rng(1))
    assert blocks.shape[1] == BYTES[format] == bytes_of(format) == facts.BYTES_OF_BLOCK[format]
    assert COLUMNS[format] == columns_of(format)
    found = BlockTensor(blocks.reshape(*grid((45, 300), format), -1), (45, 300), format)
    assert np.array_equal(found.to_numpy(), w.astype(np.float32)) and found.nbytes == blocks.nbytes


def test_sizes_of_blocks():
    assert set(FORMATS) == {*COLUMNS, "q4nx"} and bytes_of("q4nx") == facts.BLOCK_BYTES == 5120
    assert tuple(f for f in FORMATS if bytes_of(f) == 4608) == ("q4_0", "q8_0")
    assert facts.SMALL_BLOCK_BYTES == 4608


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


CODES, SCALES = np.ones((32, 40), np.int8), np.ones((32, 3), np.float32)
VALUES, BLOCKS = np.ones((32, 40), np.float32), np.zeros((1, 1, 5120), np.uint8)
FOURS, SMALL_BLOCKS = np.full((32, 40), 15, np.uint8), np.zeros((1, 1, 4608), np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        # Scales of too few groups would leave the other columns 0.
        (lambda: pack_q8(CODES, SCALES[:, :2]), ShapeError, r"codes of \(32, 40\) need \(32, 3\)"),
        (lambda: pack_q8(CODES, SCALES[:31]), ShapeError, r"scales have shape \(31, 3\)"),
        (lambda: pack_q8(CODES, np.ones((32, 4))), ShapeError, "scales have shape"),
        (lambda: pack_q8(CODES.view(np.uint8), SCALES), DtypeError, "codes are uint8; pass int8"),
        (lambda: pack_q8(VALUES, SCALES), DtypeError, "codes are float32"),
        (lambda: pack_q8(CODES, SCALES.astype(np.int32)), DtypeError, "scales are int32"),
        (lambda: pack_q8(CODES[0], SCALES), ShapeError, r"codes have shape \(40,\)"),
        (lambda: pack_q8_0(CODES, SCALES), ShapeError, r"codes of \(32, 40\) need \(32, 2\)"),
        (lambda: pack_q8_0(FOURS, SCALES[:, :2]), DtypeError, "codes are uint8; pass int8"),
        (lambda: pack_q4_0(FOURS, SCALES), ShapeError, r"codes of \(32, 40\) need \(32, 2\)"),
        (lambda: pack_q4_0(CODES, SCALES[:, :2]), DtypeError, "codes are int8; pass uint8"),
        (lambda: pack_q4_0(FOURS + 1, SCALES[:, :2]), ArgumentError, "a code is 16; codes are 0 t"),
        (lambda: BlockTensor(BLOCKS, (32, 128), "q8_0"), ShapeError, r"\(1, 1, 4608\), not"),
        (lambda: BlockTensor(SMALL_BLOCKS, (32, 128), "q8"), ShapeError, r"\(1, 1, 5120\), not"),
        (lambda: bytes_of("q5"), ArgumentError, "the format is 'q5'; use 'q4nx', 'q8'"),
        (lambda: pack_bf16(VALUES[0]), ShapeError, r"values have shape \(40,\)"),
        (lambda: pack_bf16(VALUES[:0]), ShapeError, "values have shape"),
        (lambda: pack_bf16(CODES), DtypeError, "values are int8"),
        (lambda: pack_bf16(np.ma.array(VALUES, mask=True)), ArgumentError, "masked array"),
        (lambda: pack_bf16([[1.0], [1.0, 2.0]]), ArgumentError, "cannot become an array"),
        (lambda: quantize_q8(np.ma.array(VALUES, mask=True)), ArgumentError, "masked array"),
        (lambda: quantize_q8(VALUES[:, :0]), ShapeError, "values have shape"),
        (lambda: quantize_q8(VALUES.astype(complex)), DtypeError, "values are complex128"),
        (lambda: quantize_q8(np.full((1, 1), 1e300)), ArgumentError, "NaN or infinity"),
        (lambda: BlockTensor(BLOCKS.tolist(), (32, 80), "bf16"), DtypeError, "blocks are list"),
        (
            lambda: BlockTensor(np.ma.array(BLOCKS), (32, 80), "bf16"),
            ArgumentError,
            "masked array",
        ),
        (lambda: BlockTensor(BLOCKS, (32,), "bf16"), ShapeError, r"the shape is \(32,\)"),
        (lambda: BlockTensor(BLOCKS, (32, 0.5), "bf16"), ShapeError, "the shape is"),
        (lambda: BlockTensor(BLOCKS, (32, -80), "bf16"), ShapeError, "the shape is"),
        (lambda: BlockTensor(BLOCKS, (32, 80), ["bf16"]), ArgumentError, "the format is"),
        (
            lambda: BlockTensor(BLOCKS, (32, 80), "bf16").to_numpy("f99"),
            DtypeError,
            "is not a valid",
        ),
        (lambda: grid((0, 80), "bf16"), ShapeError, "the shape is"),
        (lambda: columns_of(None), ArgumentError, "the format is None"),
    ],
)
def test_what_would_be_read_as_something_else_is_a_typed_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_other_byte_orders_and_floats_are_the_same_values():
    w = np.random.default_rng(0).standard_normal((5, 20)).astype(np.float32)
    for other in (w.astype(">f4"), w.astype(np.float64), w.tolist()):
        assert np.array_equal(pack_bf16(other), pack_bf16(w))
        assert np.array_equal(quantize_q8(other)[0], quantize_q8(w)[0])
