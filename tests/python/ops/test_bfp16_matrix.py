"""npu.pack(format="bfp16") and Bfp16Matrix: bytes and values against the format's definition in
NumPy, both sides, any size, strides and dtype; the way back; what is refused.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compare import bfp16_unit, round_bf16, round_bfp16
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)


def tiles_of(x: np.ndarray) -> np.ndarray:
    """The bytes of a matrix of bfloat16 values, from the definition: blocks along rows, the
    exponent of the largest of eight, mantissas in multiples of 2^(exponent - 133)."""
    rows, columns = (-(-size // 8) * 8 for size in x.shape)
    padded = np.zeros((rows, columns))
    padded[: x.shape[0], : x.shape[1]] = x
    out = np.zeros((rows // 8, columns // 8, 8, 9), np.uint8)
    for i, j, row in np.ndindex(*out.shape[:3]):
        block = padded[8 * i + row, 8 * j : 8 * j + 8]
        largest = np.abs(block).max()
        exponent = max(0, int(np.frexp(largest)[1]) - 1 + 127) if largest > 0 else 0
        mantissas = np.minimum(np.rint(np.ldexp(block, 133 - exponent)), 127)
        out[i, j, row, 0] = exponent
        out[i, j, row, 1:] = mantissas.astype(np.int8).view(np.uint8)
    return out.reshape(rows // 8, columns // 8, 72)


def matrix(data: st.DataObject, most: int = 60) -> np.ndarray:
    """Any size, spread of exponents, dtype and order of strides."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    rows, columns = (data.draw(st.integers(1, most)) for _ in range(2))
    width = data.draw(st.integers(0, 100))
    exponents = rng.integers(-width, width + 1, (rows, columns))
    x = np.ldexp(rng.standard_normal((rows, columns)), exponents)
    x = x.astype(data.draw(st.sampled_from([np.float32, BF16])))
    if data.draw(st.booleans()):
        x = np.asfortranarray(x)
    return x[:, ::-1] if data.draw(st.booleans()) else x


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from("ab"))
def test_bytes_and_values_are_the_definition(data: st.DataObject, side: str) -> None:
    x = matrix(data)
    packed = npu.pack(x, format="bfp16", side=side)
    rounded = round_bf16(x).astype(np.float64)
    stored = rounded if side == "a" else rounded.T
    np.testing.assert_array_equal(packed.tiles, tiles_of(stored))
    values = packed.to_numpy()
    assert values.dtype == np.float32 and values.shape == x.shape == packed.shape
    np.testing.assert_array_equal(values, round_bfp16(rounded, -1 if side == "a" else -2))
    axis = -1 if side == "a" else -2
    assert (np.abs(values - rounded) <= bfp16_unit(rounded, axis) / 2).all()
    assert (packed.nbytes, packed.dtype) == (packed.tiles.size, "bfp16")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_values_come_back(data: st.DataObject) -> None:
    """Packing what was unpacked changes nothing where no mantissa is -128, whose magnitude has the
    next exponent."""
    packed = npu.pack(matrix(data), format="bfp16", side="a")
    again = npu.pack(packed.to_numpy(), format="bfp16", side="a")
    blocks = packed.tiles.reshape(-1, 9)
    kept = (blocks[:, 1:].view(np.int8) != -128).all(-1)
    np.testing.assert_array_equal(again.tiles.reshape(-1, 9)[kept], blocks[kept])


def test_denormals_and_the_largest_numbers() -> None:
    tiny = np.ldexp(np.arange(1, 9, dtype=np.float64), -133)[None]  # bfloat16 denormals
    largest = float(ml_dtypes.finfo(BF16).max)
    for x in (tiny, np.full((1, 8), largest), -np.full((1, 8), largest), np.zeros((2, 3))):
        packed = npu.pack(x.astype(BF16), format="bfp16", side="a")
        np.testing.assert_array_equal(packed.tiles, tiles_of(x))
        assert (packed.to_numpy() == -np.inf).all() == (x < -1).all()  # -128 steps are -2^128
    np.testing.assert_array_equal(
        npu.pack(tiny.astype(BF16), format="bfp16", side="a").to_numpy(), tiny
    )


def test_a_block_with_an_infinity_or_a_nan_is_nan() -> None:
    x = np.ones((3, 20), np.float32)
    x[0, 1], x[1, 19] = np.inf, np.nan
    found = npu.pack(x, format="bfp16", side="a").to_numpy()
    bad = np.zeros(x.shape, bool)
    bad[0, :8] = bad[1, 16:] = True
    np.testing.assert_array_equal(np.isnan(found), bad)
    assert (found[~bad] == 1).all()


def test_the_transpose_is_the_same_memory() -> None:
    x = np.random.default_rng(1).standard_normal((20, 13)).astype(np.float32)
    left, right = npu.pack(x, format="bfp16", side="a"), npu.pack(x.T, format="bfp16")
    assert right.side == "b" and left.T.side == "b" and left.T.T.side == "a"
    assert np.shares_memory(left.T.tiles, left.tiles)
    np.testing.assert_array_equal(left.T.tiles, right.tiles)
    np.testing.assert_array_equal(left.T.to_numpy(), left.to_numpy().T)
    assert repr(left) == '<npu.Bfp16Matrix (20, 13) side "a">'


def test_float16_is_rounded_to_bfloat16() -> None:
    x = np.random.default_rng(2).standard_normal((9, 9)).astype(np.float16)
    np.testing.assert_array_equal(
        npu.pack(x, format="bfp16").tiles, npu.pack(x.astype(BF16), format="bfp16").tiles
    )


ONES = np.ones((4, 4), np.float32)
TILES = np.zeros((1, 1, 72), np.uint8)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: npu.pack(ONES, format="fp8"), ArgumentError, ["[pack]", "'fp8'", "bfp16"]),
        (lambda: npu.pack(ONES, format=3), ArgumentError, ["[pack]", "3"]),
        (lambda: npu.pack(ONES, format="bfp16", side="c"), ArgumentError, ["[pack]", "'c'"]),
        (lambda: npu.pack(ONES, side="a"), ArgumentError, ["[pack]", "format"]),
        (lambda: npu.pack(ONES, side="x"), ArgumentError, ["[pack]", "'x'"]),
        (lambda: npu.pack(ONES, format="bfp16", bf16="native"), ArgumentError, ["native"]),
        (lambda: npu.pack(ONES, format="bfp16", device="emu:npu1"), DeviceError, ["npu1"]),
        (lambda: npu.pack(ONES.astype(np.int8), format="bfp16"), DtypeError, ["[pack]", "int8"]),
        (lambda: npu.pack(ONES.astype(float), format="bfp16"), DtypeError, ["float64"]),
        (lambda: npu.pack(ONES[0], format="bfp16"), ShapeError, ["(4,)"]),
        (lambda: npu.pack(ONES[:0], format="bfp16"), ShapeError, ["(0, 4)"]),
        (lambda: npu.pack(ONES[None], format="bfp16"), ShapeError, ["(1, 4, 4)"]),
        (lambda: npu.pack(np.ma.masked_array(ONES), format="bfp16"), ArgumentError, ["masked"]),
        (lambda: npu.Bfp16Matrix(TILES, (9, 8), "a"), ShapeError, ["(2, 1, 72)"]),
        (lambda: npu.Bfp16Matrix(TILES, (8,), "a"), ShapeError, ["(8,)"]),
        (lambda: npu.Bfp16Matrix(TILES, (0, 8), "a"), ShapeError, ["(0, 8)"]),
        (lambda: npu.Bfp16Matrix(TILES, (8, 8), "c"), ArgumentError, ["'c'"]),
        (lambda: npu.Bfp16Matrix(TILES.view(np.int8), (8, 8), "a"), DtypeError, ["int8"]),
        (lambda: npu.Bfp16Matrix([1], (8, 8), "a"), DtypeError, ["list"]),
        (lambda: npu.Bfp16Matrix(TILES[..., ::-1], (8, 8), "a"), ShapeError, ["contiguous"]),
    ],
)  # fmt: skip
def test_what_is_refused(call, error, words) -> None:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
