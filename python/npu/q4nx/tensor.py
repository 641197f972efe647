"""A Q4NX matrix: raw blocks, the logical shape, and the formula that gives its values.

The values are w = m + d * code (dialect "additive") or w = d * (code - z) ("zero_point", found in
older files). Blocks are never expanded unless asked, and a Tensor over a memory-mapped file reads
nothing before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from npu.errors import ArgumentError, ShapeError
from npu.q4nx import layout

ADDITIVE, ZERO_POINT = "additive", "zero_point"
# Weights expanded at a time: bounds the temporaries of a large matrix.
_CHUNK_WEIGHTS = 1 << 21


class Tensor:
    """An (N, K) weight matrix in Q4NX blocks. Make one with ``from_blocks`` or ``quantize``."""

    def __init__(self, blocks: np.ndarray, shape: tuple[int, int], dialect: str = ADDITIVE) -> None:
        assert blocks.dtype == np.uint8
        assert blocks.shape == (*layout.grid(shape), layout.BLOCK_BYTES)
        self.blocks = blocks
        self.shape = shape
        self.dialect = dialect

    @staticmethod
    def from_blocks(data: Any, shape: Sequence[int], *, dialect: str = ADDITIVE) -> Tensor:
        """Wraps raw blocks in row-block-major order, without a copy when they are contiguous.

        ``data`` is bytes, another buffer or a uint8 array; ``shape`` the logical (N, K), whose
        blocks cover N rounded up to 32 and K rounded up to 256.
        """
        n_k = _checked_shape(shape)
        if dialect not in (ADDITIVE, ZERO_POINT):
            raise ArgumentError(
                f"[q4nx] the dialect is {dialect!r}; use {ADDITIVE!r} or {ZERO_POINT!r}"
            )
        raw = _as_bytes(data)
        rows, columns = layout.grid(n_k)
        needed = rows * columns * layout.BLOCK_BYTES
        if raw.size != needed:
            raise ShapeError(
                f"[q4nx] a matrix of shape {n_k} has {rows} x {columns} blocks, {needed} bytes; "
                f"the data has {raw.size}"
            )
        return Tensor(raw.reshape(rows, columns, layout.BLOCK_BYTES), n_k, dialect)

    @property
    def padded_shape(self) -> tuple[int, int]:
        """(N, K) rounded up to whole blocks."""
        rows, columns = self.blocks.shape[:2]
        return rows * layout.ROWS, columns * layout.COLUMNS

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks, padding included."""
        return self.blocks.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<npu.q4nx.Tensor {self.shape} {self.dialect}, {self.nbytes} bytes>"

    def __getitem__(self, rows: slice) -> Tensor:
        """Rows [start:stop] as a view; multiples of 32, except the end of the matrix."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise ArgumentError("[q4nx] a Tensor is sliced by rows: t[start:stop]")
        start, stop, _ = rows.indices(self.shape[0])
        if start % layout.ROWS or (stop % layout.ROWS and stop != self.shape[0]) or start >= stop:
            raise ShapeError(
                f"[q4nx] rows {start} to {stop} of {self.shape[0]} are not whole row-blocks; use "
                f"multiples of {layout.ROWS}"
            )
        blocks = self.blocks[start // layout.ROWS : -(-stop // layout.ROWS)]
        return Tensor(blocks, (stop - start, self.shape[1]), self.dialect)

    def to_numpy(self, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
        """The (N, K) values by the formula, in bfloat16 or float32; see :func:`dequantize_host`."""
        return dequantize_host(self, dtype)

    def to_additive(self) -> Tensor:
        """The same matrix in the additive dialect: m = -d * z, rounded to bfloat16."""
        if self.dialect == ADDITIVE:
            return self
        blocks = np.array(self.blocks)
        scales, zeros = layout.planes(self.blocks)
        minima = -(scales.astype(np.float32) * zeros.astype(np.float32))
        raw = minima.astype(layout.BFLOAT16).reshape(*blocks.shape[:2], -1).view(np.uint8)
        blocks[:, :, layout.PLANE_BYTES : layout.CODES_AT] = raw
        return Tensor(blocks, self.shape, ADDITIVE)


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """One Tensor with the rows of all: projections that share their input.

    A view when the blocks already follow one another in one buffer (as in a file written by
    ``npu convert``), else a copy. All but the last must have whole row-blocks.
    """
    if not tensors:
        raise ArgumentError("[q4nx] concatenate needs at least one Tensor")
    first = tensors[0]
    for tensor in tensors:
        if tensor.shape[1] != first.shape[1] or tensor.dialect != first.dialect:
            raise ShapeError(
                f"[q4nx] {tensor!r} does not go with {first!r}: K and dialect must be equal"
            )
    for tensor in tensors[:-1]:
        if tensor.shape[0] % layout.ROWS:
            raise ShapeError(
                f"[q4nx] {tensor!r} ends inside a row-block; only the last may have rows that are "
                f"not a multiple of {layout.ROWS}"
            )
    shape = (sum(tensor.shape[0] for tensor in tensors), first.shape[1])
    blocks = _joined([tensor.blocks for tensor in tensors])
    return Tensor(blocks, shape, first.dialect)


def dequantize_host(tensor: Tensor, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    """The (N, K) values: the reference for every device operation that reads Q4NX.

    additive: float32(m) + float32(d) * code. The product is exact (8 bits by 4), the sum is rounded
    once to float32. zero_point: float32(d) * (code - float32(z)), each operation rounded to
    float32. bfloat16 results are these float32 values rounded once, to nearest even.
    """
    dtype = np.dtype(dtype)
    if dtype not in (layout.BFLOAT16, np.dtype(np.float32)):
        raise ArgumentError(f"[q4nx] dequantise to bfloat16 or float32, not to {dtype}")
    n, k = tensor.shape
    out = np.empty((n, k), dtype)
    step = max(1, _CHUNK_WEIGHTS // (tensor.padded_shape[1] * layout.ROWS))
    for start in range(0, tensor.blocks.shape[0], step):
        values = _values(tensor.blocks[start : start + step], tensor.dialect)
        row = start * layout.ROWS
        part = out[row : row + len(values)]
        with np.errstate(over="ignore", invalid="ignore"):
            part[...] = values[: len(part), :k]
    return out


def _values(blocks: np.ndarray, dialect: str) -> np.ndarray:
    """Padded float32 values of some row-blocks."""
    codes, scales, second = layout.unpack(blocks)
    groups = codes.reshape(*scales.shape, layout.GROUP).astype(np.float32)
    d = scales.astype(np.float32)[..., None]
    other = second.astype(np.float32)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        if dialect == ADDITIVE:
            groups *= d
            groups += other
        else:
            groups -= other
            groups *= d
    return groups.reshape(codes.shape)


def _checked_shape(shape: Sequence[int]) -> tuple[int, int]:
    try:
        n, k = (int(size) for size in shape)
    except (TypeError, ValueError):
        raise ShapeError(f"[q4nx] the shape is {shape!r}; give the logical (N, K)") from None
    if n < 1 or k < 1:
        raise ShapeError(f"[q4nx] the shape is {(n, k)}; both sizes must be at least 1")
    return n, k


def _as_bytes(data: Any) -> np.ndarray:
    if isinstance(data, np.ndarray):
        if data.dtype not in (np.dtype(np.uint8), np.dtype(np.int8)):
            raise ArgumentError(f"[q4nx] blocks are uint8, the array has dtype {data.dtype}")
        return np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"[q4nx] the blocks are not a byte buffer: {error}") from None


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    follows = all(
        before.flags.c_contiguous
        and after.flags.c_contiguous
        and _owner(before) is _owner(after)
        and after.ctypes.data == before.ctypes.data + before.nbytes
        for before, after in itertools.pairwise(parts)
    )
    if not follows:
        return np.concatenate(parts)
    rows = sum(len(part) for part in parts)
    # Within one owner's memory, so the longer view stays inside it and keeps it alive.
    return np.lib.stride_tricks.as_strided(
        parts[0], (rows, *parts[0].shape[1:]), writeable=parts[0].flags.writeable
    )


def _owner(array: np.ndarray) -> Any:
    """The object whose memory an array views."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base
