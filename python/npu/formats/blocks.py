"""Weights in the blocks that the array takes: 32 rows each, in one of five formats.

Blocks of 5120 bytes:

- "q4nx": 256 columns, 4-bit codes (npu.formats.q4nx has their tensors and files);
- "q8": 128 columns, int8 codes and a float32 scale per row and 16 columns, w = d * code. GGUF's
  Q8_0, Q5_0 and Q6_K are such numbers exactly;
- "bf16": 80 columns, bfloat16.

Blocks of 4608 bytes, which the array does not multiply together with the others:

- "q4_0": 256 columns, 4-bit codes and a bfloat16 scale per row and 32 columns,
  w = d * (code - 8): GGUF's Q4_0, but for the rounding of d;
- "q8_0": as "q8" with a scale per 32 columns. GGUF's Q8_0 and Q5_0 are such numbers exactly.

Blocks of a matrix follow one another row-block by row-block; weights that only fill blocks are
zero. The layout within a block is in aie_kernels/weight_block.h.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from npu._npu import facts
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.formats.q4nx import layout as q4nx_layout

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROWS: int = facts.BLOCK_ROWS
COLUMNS: dict[str, int] = dict(facts.BLOCK_COLUMNS)
BYTES: dict[str, int] = dict(facts.BYTES_OF_BLOCK)
FORMATS = tuple(COLUMNS)
Q8_GROUP: int = facts.Q8_GROUP
# Of int8 blocks: columns of a scale, and where the codes begin.
_INT8 = {
    "q8": (facts.Q8_GROUP, facts.Q8_CODES_AT),
    "q8_0": (facts.Q8_0_GROUP, facts.Q8_0_CODES_AT),
}
_Q4_0_ZERO: int = facts.Q4_0_ZERO  # the code of 0
_MAX_CODE = 127
_FLOATS = (*map(np.dtype, (np.float32, np.float64, np.float16)), BFLOAT16)


def grid(shape: tuple[int, int], format: str) -> tuple[int, int]:
    """Row-blocks and column-blocks of an (N, K) matrix. Raises ArgumentError, ShapeError."""
    if (
        not isinstance(shape, (tuple, list))
        or len(shape) != 2
        or not all(
            isinstance(side, (int, np.integer)) and not isinstance(side, bool) and side > 0
            for side in shape
        )
    ):
        raise ShapeError(f"[blocks] the shape is {shape!r}; expected (N, K), both >= 1")
    return -(-shape[0] // ROWS), -(-shape[1] // columns_of(format))


def columns_of(format: str) -> int:
    """Columns of a block. Raises ArgumentError for a format that does not exist."""
    return COLUMNS[_known(format)]


def bytes_of(format: str) -> int:
    """Bytes of a block. Raises ArgumentError for a format that does not exist."""
    return BYTES[_known(format)]


def _known(format: str) -> str:
    if not isinstance(format, str) or format not in COLUMNS:
        raise ArgumentError(
            f"[blocks] the format is {format!r}; use {', '.join(map(repr, FORMATS))}"
        )
    return format


@dataclass(frozen=True)
class BlockTensor:
    """A matrix (N, K) in blocks: ``blocks`` (row-blocks, column-blocks, bytes of a block) uint8,
    not copied.

    Raises ArgumentError, DtypeError, ShapeError.
    """

    blocks: np.ndarray
    shape: tuple[int, int]
    format: str

    def __post_init__(self) -> None:
        wanted = (*grid(self.shape, self.format), bytes_of(self.format))
        if isinstance(self.blocks, np.ma.MaskedArray):
            raise ArgumentError(
                "[blocks] blocks are a masked array, whose mask would be ignored; pass its data"
            )
        if not isinstance(self.blocks, np.ndarray) or self.blocks.dtype != np.uint8:
            found = getattr(self.blocks, "dtype", type(self.blocks).__name__)
            raise DtypeError(f"[blocks] blocks are {found}; pass a uint8 array")
        if self.blocks.shape != wanted:
            raise ShapeError(
                f"[blocks] {self.format} blocks of {self.shape} have shape {wanted}, not "
                f"{self.blocks.shape}"
            )

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    def to_numpy(self, dtype: np.dtype | type = np.float32) -> np.ndarray:
        """The values (N, K), rounded to ``dtype`` from float32 (where d * code is rounded once).

        Raises DtypeError.
        """
        try:
            dtype = np.dtype(dtype)
        except (TypeError, ValueError) as error:
            raise DtypeError(f"[blocks] {dtype!r} is not a valid dtype: {error}") from error
        n, k = self.shape
        return _unpack(self.blocks, self.format)[:n, :k].astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<npu.BlockTensor {self.shape} {self.format}>"


def quantize_q8(values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes (N, K) and float32 scales (N, ceil(K / 16)) of values (N, K), as float32.

    Codes are nearest to value / d; of a few d around largest / 127 per group, the one with least
    squared error after a least-squares fit of d to its codes. Raises DtypeError, ShapeError, and
    ArgumentError for values that are NaN or infinite.
    """
    matrix = _matrix("blocks.quantize_q8", values, "values", _FLOATS)
    n, k = matrix.shape
    groups = -(-k // Q8_GROUP)
    padded = np.zeros((n, groups * Q8_GROUP), np.float32)
    with np.errstate(over="ignore"):
        padded[:, :k] = matrix
    if not np.isfinite(padded).all():
        raise ArgumentError("[blocks.quantize_q8] values have NaN or infinity")
    grouped = padded.reshape(n, groups, Q8_GROUP)
    largest = np.abs(grouped).max(axis=2, keepdims=True)
    best_error = np.full((n, groups, 1), np.inf, np.float32)
    best_codes = np.zeros(grouped.shape, np.int8)
    best_scale = np.zeros((n, groups, 1), np.float32)
    for most in (127.0, 126.0, 124.5):
        codes, scale = _fitted(grouped, largest, np.float32(most))
        with np.errstate(divide="ignore", invalid="ignore"):  # a group of zeros has error 0 / 0
            error = np.square((grouped - codes * scale) / largest).sum(axis=2, keepdims=True)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
        np.copyto(best_codes, codes, where=better, casting="unsafe")
    return best_codes.reshape(n, -1)[:, :k], best_scale[:, :, 0]


def _fitted(
    grouped: np.ndarray, largest: np.ndarray, most: np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Codes (as float32) whose largest is near ``most``, and the scale that fits them best."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, most / largest, 0)
        inverse = np.where(np.isfinite(inverse), inverse, 0)  # of denormal groups, which become 0
        codes = np.clip(np.rint(grouped * inverse), -_MAX_CODE, _MAX_CODE)
        # Sums relative to the largest, which squares would overflow or vanish.
        unit = np.where(largest > 0, grouped / largest, 0)
        squares = np.square(codes).sum(axis=2, keepdims=True)
        scale = np.where(
            squares > 0, (codes * unit).sum(axis=2, keepdims=True) / squares * largest, 0
        )
    return codes, scale.astype(np.float32)


def pack_q8(codes: ArrayLike, scales: ArrayLike) -> np.ndarray:
    """q8 blocks of int8 codes (N, K) and scales (N, ceil(K / 16)), rounded to float32.

    Raises ArgumentError, DtypeError, ShapeError.
    """
    return _pack_int8("q8", codes, scales)


def pack_q8_0(codes: ArrayLike, scales: ArrayLike) -> np.ndarray:
    """q8_0 blocks of int8 codes (N, K) and scales (N, ceil(K / 32)), rounded to float32.

    Raises ArgumentError, DtypeError, ShapeError.
    """
    return _pack_int8("q8_0", codes, scales)


def _pack_int8(format: str, codes: ArrayLike, scales: ArrayLike) -> np.ndarray:
    group, codes_at = _INT8[format]
    columns = COLUMNS[format]
    codes, scales = _codes_and_scales(f"blocks.pack_{format}", codes, np.int8, scales, group)
    p, q = grid(codes.shape, format)
    codes = _padded(codes, p * ROWS, q * columns)
    scales = _padded(scales.astype(np.float32, copy=False), p * ROWS, q * columns // group)
    out = np.empty((p, q, BYTES[format]), np.uint8)
    planes = scales.reshape(p, ROWS, q, -1).transpose(0, 2, 3, 1)
    out[:, :, :codes_at] = np.ascontiguousarray(planes).view(np.uint8).reshape(p, q, -1)
    tiles = codes.reshape(p, ROWS, q, columns).transpose(0, 2, 3, 1)
    out[:, :, codes_at:].reshape(p, q, columns, ROWS)[...] = tiles.view(np.uint8)
    return out


def pack_q4_0(codes: ArrayLike, scales: ArrayLike) -> np.ndarray:
    """q4_0 blocks of uint8 codes (N, K) below 16 and scales (N, ceil(K / 32)), rounded to bfloat16.

    Raises ArgumentError, also for a code above 15, DtypeError, ShapeError.
    """
    group = q4nx_layout.GROUP
    codes, scales = _codes_and_scales("blocks.pack_q4_0", codes, np.uint8, scales, group)
    if codes.max() > 15:
        raise ArgumentError(f"[blocks.pack_q4_0] a code is {codes.max()}; codes are 0 to 15")
    p, q = grid(codes.shape, "q4_0")
    rows, columns = p * ROWS, q * COLUMNS["q4_0"]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = scales.astype(BFLOAT16, copy=False)
    words = _padded(rounded.view(np.uint16), rows, columns // group)
    return q4nx_layout.pack(_padded(codes, rows, columns, _Q4_0_ZERO), words.view(BFLOAT16))


def _codes_and_scales(
    function: str, codes: ArrayLike, dtype: type, scales: ArrayLike, group: int
) -> tuple[np.ndarray, np.ndarray]:
    codes = _matrix(function, codes, "codes", [np.dtype(dtype)])
    scales = _matrix(function, scales, "scales", _FLOATS)
    n, k = codes.shape
    if scales.shape != (n, -(-k // group)):
        raise ShapeError(
            f"[{function}] scales have shape {scales.shape}; codes of {codes.shape} need "
            f"{(n, -(-k // group))}"
        )
    return codes, scales


def pack_bf16(values: ArrayLike) -> np.ndarray:
    """bf16 blocks of values (N, K), rounded to nearest even. Raises ArgumentError, DtypeError,
    ShapeError.
    """
    matrix = _matrix("blocks.pack_bf16", values, "values", _FLOATS)
    n, k = matrix.shape
    p, q = grid((n, k), "bf16")
    columns = COLUMNS["bf16"]
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = matrix.astype(BFLOAT16, copy=False)
    padded = _padded(rounded.view(np.uint16), p * ROWS, q * columns)
    tiles = np.ascontiguousarray(padded.reshape(p, ROWS, q, columns).transpose(0, 2, 3, 1))
    return tiles.view(np.uint8).reshape(p, q, BYTES["bf16"])


def _matrix(function: str, value: ArrayLike, name: str, dtypes: Collection[np.dtype]) -> np.ndarray:
    """A matrix with elements of one of ``dtypes``, in native byte order."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"[{function}] {name} are a masked array, whose mask would be ignored; fill it first"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"[{function}] {name} cannot become an array: {error}") from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in dtypes:
        raise DtypeError(
            f"[{function}] {name} are {array.dtype}; pass {', '.join(map(str, dtypes))}"
        )
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(f"[{function}] {name} have shape {array.shape}; pass a matrix (N, K)")
    return array


def _padded(array: np.ndarray, rows: int, columns: int, value: int = 0) -> np.ndarray:
    if array.shape == (rows, columns):
        return np.ascontiguousarray(array)
    out = np.full((rows, columns), value, array.dtype)
    out[: array.shape[0], : array.shape[1]] = array
    return out


def _unpack(blocks: np.ndarray, format: str) -> np.ndarray:
    """Values (padded N, padded K): float32, or bfloat16 of that format."""
    p, q, _ = blocks.shape
    columns = COLUMNS[format]
    if format == "bf16":
        tiles = np.ascontiguousarray(blocks).view(np.uint16).reshape(p, q, columns, ROWS)
        words = np.ascontiguousarray(tiles.transpose(0, 3, 1, 2)).reshape(p * ROWS, q * columns)
        return words.view(BFLOAT16)
    if format not in _INT8:
        codes, *planes = q4nx_layout.unpack(blocks)
        scale, *minima = (
            np.repeat(plane.astype(np.float32), q4nx_layout.GROUP, axis=1) for plane in planes
        )
        if format == "q4_0":
            return scale * (codes - np.float32(_Q4_0_ZERO))
        return scale * codes + minima[0]
    group, codes_at = _INT8[format]
    scales = np.ascontiguousarray(blocks[:, :, :codes_at]).view(np.float32)
    scales = scales.reshape(p, q, -1, ROWS).transpose(0, 3, 1, 2).reshape(p * ROWS, -1)
    codes = np.ascontiguousarray(blocks[:, :, codes_at:]).view(np.int8)
    codes = codes.reshape(p, q, columns, ROWS).transpose(0, 3, 1, 2).reshape(p * ROWS, -1)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.repeat(scales, group, axis=1) * codes
