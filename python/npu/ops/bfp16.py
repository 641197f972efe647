"""Matrices in BFP16 (bfp16ebs8), the block floating point that npu2 multiplies: 8 values share an
exponent, 9 bytes for 8 values. ``npu.pack(x, format="bfp16")`` makes them.

A block is the exponent, then 8 mantissas in two's complement: value = mantissa 2^(exponent - 133).
Blocks lie along K, so rows of a left-hand operand and columns of a right-hand one consist of them.
Stored are tiles of 8 x 8 values, row by row, of the left-hand matrix or of the transpose of the
right-hand one: the order that GEMM designs transfer and cores multiply (docs/gemm_designs.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npu import _npu
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.ops.arrays import FLOATS, as_array, typed_view

SIDE = 8  # values along both sides of a tile
TILE_BYTES = 72
FORMAT = "bfp16"
SIDES = ("a", "b")
_LARGEST = 1 << 31
_NAN_EXPONENT = 255


class Bfp16Matrix:
    """A matrix in BFP16, in host memory and of no device.

    ``tiles``: uint8 (ceil(rows / 8), ceil(columns / 8), 72), C-contiguous, of the matrix for side
    "a" and of its transpose for side "b"; what exceeds ``shape`` must be zero. ``side``: "a", a
    left-hand operand or a result, "b", a right-hand operand. Raises ArgumentError, DtypeError,
    ShapeError for others.
    """

    dtype = FORMAT

    def __init__(self, tiles: np.ndarray, shape: tuple[int, int], side: str) -> None:
        checked_side("Bfp16Matrix", side)
        self.shape = _checked_shape(shape)
        self.side = side
        stored = self.shape if side == "a" else self.shape[::-1]
        wanted = (*(-(-size // SIDE) for size in stored), TILE_BYTES)
        if not isinstance(tiles, np.ndarray) or tiles.dtype != np.uint8:
            found = tiles.dtype if isinstance(tiles, np.ndarray) else type(tiles).__name__
            raise DtypeError(f"[Bfp16Matrix] tiles are {found}; pass a NumPy array of uint8")
        if tiles.shape != wanted or not tiles.flags.c_contiguous:
            order = "" if tiles.flags.c_contiguous else ", not C-contiguous"
            raise ShapeError(
                f"[Bfp16Matrix] tiles have shape {tiles.shape}{order}; a {shape} matrix of side "
                f'"{side}" has C-contiguous ones of {wanted}'
            )
        self.tiles = tiles

    @property
    def nbytes(self) -> int:
        """Bytes of the tiles."""
        return self.tiles.nbytes

    @property
    def T(self) -> Bfp16Matrix:
        """The transpose, of the same memory: an operand of the other side."""
        return Bfp16Matrix(self.tiles, self.shape[::-1], "b" if self.side == "a" else "a")

    def to_numpy(self) -> np.ndarray:
        """The values, float32, exact (-2^128, the one beyond them, is -infinity); NaN in blocks
        that an infinity or a NaN went into."""
        down, across, _ = self.tiles.shape
        blocks = self.tiles.reshape(down, across, SIDE, 1 + SIDE)
        exponents = blocks[..., :1].astype(np.int32)
        with np.errstate(over="ignore"):
            values = np.ldexp(blocks[..., 1:].view(np.int8).astype(np.float32), exponents - 133)
        values[np.broadcast_to(exponents == _NAN_EXPONENT, values.shape)] = np.nan
        whole = values.transpose(0, 2, 1, 3).reshape(down * SIDE, across * SIDE)
        rows, columns = self.shape if self.side == "a" else self.shape[::-1]
        found = whole[:rows, :columns]
        return np.ascontiguousarray(found if self.side == "a" else found.T)

    def __repr__(self) -> str:
        return f'<npu.Bfp16Matrix {self.shape} side "{self.side}">'


def packed(x: ArrayLike, side: str) -> Bfp16Matrix:
    """A float matrix in blocks: rounded to bfloat16, then mantissas to nearest even, as npu2's
    cores convert, by the same code. Raises ArgumentError, DtypeError, ShapeError."""
    checked_side("pack", side)
    array = as_array("pack", x, side, FLOATS)
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(
            f"[pack] {side} has shape {array.shape}; expected a matrix with both sizes >= 1"
        )
    if max(array.shape) > _LARGEST:
        raise ShapeError(f"[pack] {side} has shape {array.shape}; sizes are at most 2^31")
    stored = array if side == "a" else array.T
    tiles = np.empty((*(-(-size // SIDE) for size in stored.shape), TILE_BYTES), np.uint8)
    view, name = typed_view(stored)
    _npu.ops.pack_bfp16(view, name, tiles.reshape(-1))
    return Bfp16Matrix(tiles, (array.shape[0], array.shape[1]), side)


def empty(shape: tuple[int, int]) -> Bfp16Matrix:
    """Room for a result of that shape."""
    tiles = np.empty((*(-(-size // SIDE) for size in shape), TILE_BYTES), np.uint8)
    return Bfp16Matrix(tiles, shape, "a")


def checked_side(function: str, side: Any) -> None:
    if not isinstance(side, str) or side not in SIDES:
        raise ArgumentError(
            f'[{function}] side is {side!r}; use "a" for a left-hand operand or "b" for a '
            "right-hand one"
        )


def _checked_shape(shape: Any) -> tuple[int, int]:
    whole = isinstance(shape, tuple) and all(
        isinstance(size, (int, np.integer)) and not isinstance(size, bool) for size in shape
    )
    if not whole or len(shape) != 2 or min(shape) < 1:
        raise ShapeError(f"[Bfp16Matrix] shape is {shape!r}; it must be two sizes of at least 1")
    return int(shape[0]), int(shape[1])
