"""A Q4NX matrix: raw blocks, the logical shape, and the formula that gives its values.

The values are w = m + d * code (dialect "additive") or w = d * (code - z) ("zero_point", found in
older files). Blocks are expanded only on request, and a Tensor over a memory-mapped file reads
nothing before that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.formats.mapped_file import owner
from npu.formats.q4nx import layout

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
        if not isinstance(dialect, str) or dialect not in (ADDITIVE, ZERO_POINT):
            raise ArgumentError(
                f"[q4nx.from_blocks] the dialect is {dialect!r}; use {ADDITIVE!r} or {ZERO_POINT!r}"
            )
        raw = _as_bytes(data)
        rows, columns = layout.grid(n_k)
        needed = rows * columns * layout.BLOCK_BYTES
        if raw.size != needed:
            raise ShapeError(
                f"[q4nx.from_blocks] a matrix of shape {n_k} has {rows} x {columns} blocks, "
                f"{needed} bytes; the data has {raw.size}"
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
        try:
            if not isinstance(rows, slice) or rows.step not in (None, 1):
                raise TypeError
            start, stop, _ = rows.indices(self.shape[0])
        except TypeError:
            raise ArgumentError(
                f"[q4nx.Tensor] the index is {rows!r}; a Tensor is sliced by rows: t[start:stop]"
            ) from None
        if start % layout.ROWS or (stop % layout.ROWS and stop != self.shape[0]) or start >= stop:
            raise ShapeError(
                f"[q4nx.Tensor] rows {start} to {stop} of {self.shape[0]} are not whole "
                f"row-blocks; use multiples of {layout.ROWS}"
            )
        blocks = self.blocks[start // layout.ROWS : -(-stop // layout.ROWS)]
        return Tensor(blocks, (stop - start, self.shape[1]), self.dialect)

    def to_numpy(self, dtype: DTypeLike = ml_dtypes.bfloat16) -> np.ndarray:
        """The (N, K) values by the formula, in bfloat16 or float32; see ``dequantize_host``."""
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
    listed = isinstance(tensors, (list, tuple))
    if not listed or not all(isinstance(part, Tensor) for part in tensors):
        raise ArgumentError(
            "[q4nx.concatenate] the operand is not a sequence of Tensors; pass [a, b, ...]"
        )
    if not tensors:
        raise ArgumentError("[q4nx.concatenate] there is no Tensor; pass at least one")
    first = tensors[0]
    for tensor in tensors:
        if tensor.shape[1] != first.shape[1] or tensor.dialect != first.dialect:
            raise ShapeError(
                f"[q4nx.concatenate] {tensor!r} does not match {first!r}: K and dialect "
                "must be equal"
            )
    for tensor in tensors[:-1]:
        if tensor.shape[0] % layout.ROWS:
            raise ShapeError(
                f"[q4nx.concatenate] {tensor!r} ends inside a row-block; only the last may have "
                f"rows that are not a multiple of {layout.ROWS}"
            )
    shape = (sum(tensor.shape[0] for tensor in tensors), first.shape[1])
    blocks = _joined([tensor.blocks for tensor in tensors])
    return Tensor(blocks, shape, first.dialect)


def dequantize_host(tensor: Tensor, dtype: DTypeLike = ml_dtypes.bfloat16) -> np.ndarray:
    """The (N, K) values: the reference for every device operation that reads Q4NX.

    additive: float32(m) + float32(d) * code. The product is exact (8 bits by 4), the sum is rounded
    once to float32. zero_point: float32(d) * (code - float32(z)), each operation rounded to
    float32. bfloat16 results are these float32 values rounded once, to nearest even.
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            f"[q4nx.dequantize_host] the operand is {type(tensor).__name__}; pass a Tensor"
        )
    try:
        wanted = np.dtype(dtype)
    except TypeError:
        raise DtypeError(
            f"[q4nx.dequantize_host] {dtype!r} is not a valid dtype here; use bfloat16 or float32"
        ) from None
    if wanted not in (layout.BFLOAT16, np.dtype(np.float32)):
        raise DtypeError(
            f"[q4nx.dequantize_host] the result cannot be {wanted}; use bfloat16 or float32"
        )
    n, k = tensor.shape
    out = np.empty((n, k), wanted)
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
    sizes = tuple(shape) if isinstance(shape, (tuple, list, np.ndarray)) else ()
    if len(sizes) != 2 or not all(
        isinstance(size, (int, np.integer)) and not isinstance(size, bool) for size in sizes
    ):
        raise ShapeError(f"[q4nx.from_blocks] the shape is {shape!r}; give the logical (N, K)")
    n, k = int(sizes[0]), int(sizes[1])
    if n < 1 or k < 1:
        raise ShapeError(f"[q4nx.from_blocks] the shape is {(n, k)}; both must be at least 1")
    return n, k


def _as_bytes(data: Any) -> np.ndarray:
    if isinstance(data, np.ma.MaskedArray):
        raise ArgumentError(
            "[q4nx.from_blocks] the blocks are a masked array, whose mask would be ignored; pass "
            "its data"
        )
    if isinstance(data, np.ndarray):
        if data.dtype not in (np.dtype(np.uint8), np.dtype(np.int8)):
            raise DtypeError(
                f"[q4nx.from_blocks] the blocks have dtype {data.dtype}; pass uint8, or "
                "array.view(np.uint8) for raw blocks in another array"
            )
        return np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    try:
        view = memoryview(data)
    except TypeError:
        raise ArgumentError(
            f"[q4nx.from_blocks] the blocks are {type(data).__name__}; pass bytes, a buffer or a "
            "uint8 array"
        ) from None
    if view.format not in ("B", "b", "c"):
        raise DtypeError(
            f"[q4nx.from_blocks] the blocks are a buffer of format {view.format!r}; pass bytes"
        )
    if not view.c_contiguous:
        raise ArgumentError("[q4nx.from_blocks] the buffer of the blocks has gaps; copy it first")
    return np.frombuffer(view, np.uint8)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    follows = all(
        before.flags.c_contiguous
        and after.flags.c_contiguous
        and owner(before) is owner(after)
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
