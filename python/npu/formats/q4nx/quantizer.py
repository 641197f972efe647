"""Arrays to Q4NX: the scale, minimum and 4-bit codes of least squared error per group of 32.

For every group the minimum of sum (x - (m + d * code))^2 is approached by alternation from several
starts: the line through the extremes and lines that clip them, each shifted by thirds of a step;
and the extremes 10 to 14 steps apart, which finds the scale of values that were quantised before
and do not use all levels. A round solves the least-squares line for the codes at hand, rounds m to
bfloat16, solves d again for that very m, rounds it, and gives every weight its nearest code under
the two rounded numbers. Every start gets one round, the best of them four more, then its minimum
one or two codes lower and higher, which m rounds differently; the best pair of all rounds is kept.
Groups far from zero, where m is coarse, also start from m rounded down and keep it. Errors are
those of the formula before its own rounding to bfloat16; d is never negative.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.formats.q4nx import layout
from npu.formats.q4nx.tensor import Tensor

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), layout.BFLOAT16)
# A start's 15 steps, in ranges of the group, and the shift of its middle, in steps.
_CLIPPED = tuple(itertools.product((1.0, 0.95, 0.9, 0.85, 0.8), (0.0, -1 / 3, 1 / 3)))
_FEWER_STEPS = range(10, 15)  # between the extremes
_ROUNDS = 4  # lines and codes, from the best start and from a fixed minimum
_CHUNK_WEIGHTS = 1 << 18  # float32 temporaries of a chunk stay in a core's cache
# Where m + 15 d of a group could overflow float32 on the way.
_LARGEST = 2.0**126


def quantize(array: ArrayLike) -> Tensor:
    """A Q4NX Tensor (additive dialect) of an (N, K) float array.

    Rows are padded to a multiple of 32 and columns to 256 with d = m = code = 0. Raises
    ArgumentError for NaN, infinities and magnitudes of 2^126 and above, which it cannot hold.
    """
    values = _checked(array)
    n, k = values.shape
    rows, columns = layout.grid((n, k))
    blocks = np.empty((rows, columns, layout.BLOCK_BYTES), np.uint8)
    step = max(1, _CHUNK_WEIGHTS // (columns * layout.COLUMNS * layout.ROWS))
    for start in range(0, rows, step):
        part = values[start * layout.ROWS : (start + step) * layout.ROWS]
        blocks[start : start + step] = quantize_rows(part)
    return Tensor(blocks, (n, k))


def quantize_rows(rows: np.ndarray) -> np.ndarray:
    """Blocks (row-blocks, column-blocks, 5120) of some rows (N, K) of a larger matrix."""
    n, k = rows.shape
    x = np.asarray(rows, np.float32) if rows.dtype != np.float64 else _narrowed(rows)
    magnitude = np.abs(x).max(initial=0)
    if not magnitude < _LARGEST:  # also when it is NaN
        _refuse(x)
    groups = -(-k // layout.GROUP)
    if k % layout.GROUP:
        x = _filled(x)
    codes, scales, minima = fit(x.reshape(n * groups, layout.GROUP))
    return padded_blocks(
        codes.reshape(n, -1)[:, :k], scales.reshape(n, groups), minima.reshape(n, groups)
    )


def padded_blocks(codes: np.ndarray, scales: np.ndarray, minima: np.ndarray) -> np.ndarray:
    """Blocks from codes (N, K) and bfloat16 planes (N, groups), the padding all zeros."""
    rows, columns = layout.grid((codes.shape[0], codes.shape[1]))
    n, k = rows * layout.ROWS, columns * layout.COLUMNS

    def grown(array: np.ndarray, width: int) -> np.ndarray:
        if array.shape == (n, width) and array.flags.c_contiguous:
            return array
        out = np.zeros((n, width), array.dtype)
        out[: array.shape[0], : array.shape[1]] = array
        return out

    groups = k // layout.GROUP
    return layout.pack(grown(codes, k), grown(scales, groups), grown(minima, groups))


def fit(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (G, 32) uint8 and bfloat16 d, m (G) of finite float32 groups (G, 32)."""
    x = np.ascontiguousarray(groups.T)  # a group per column: sums run over whole rows
    exponents = _exponents(x)
    if exponents is not None:
        x = np.ldexp(x, -exponents)
    state = _Fit(x)
    low, high = x.min(axis=0), x.max(axis=0)
    for stretch, shift in _CLIPPED:
        d = (high - low) * np.float32(stretch / 15)
        state.improve(d, (low + high) * np.float32(0.5) - np.float32(7.5 + shift) * d)
    for steps in _FEWER_STEPS:
        d = (high - low) * np.float32(1 / steps)
        state.improve(d, low - np.float32((15 - steps) // 2) * d)
    state.improve(state.d.copy(), state.m.copy(), _ROUNDS)
    d, m = state.d.copy(), state.m.copy()
    for shift in (-2.0, -1.0, 1.0, 2.0):
        state.improve(d, m + np.float32(shift) * d)
    # Far from zero m is coarse: from below, the codes can make up for it.
    below = _rounded_down(low)
    far = below != low.astype(layout.BFLOAT16).astype(np.float32)
    far |= (high - low) * np.float32(8) < np.abs(low)
    if far.any():
        state.improve((high - below) * np.float32(1 / 15), below, _ROUNDS, fixed=True)
    codes, d, m = state.result()
    if exponents is not None:
        d, m = np.ldexp(d, exponents), np.ldexp(m, exponents)
    return codes, d.astype(layout.BFLOAT16), m.astype(layout.BFLOAT16)


def _exponents(x: np.ndarray) -> np.ndarray | None:
    """Powers of two to divide groups by when squares of some could overflow or vanish."""
    largest = np.abs(x).max(axis=0)
    used = largest[largest > 0]
    if used.size == 0 or (used.max() < 2.0**40 and used.min() > 2.0**-40):
        return None
    return np.frexp(largest)[1]


class _Fit:
    """The best d, m so far of every group (column) of x, and buffers for trying others."""

    def __init__(self, x: np.ndarray) -> None:
        self.mean = x.mean(axis=0)
        # Centred, or the sums would cancel in groups far from zero.
        self.x = x - self.mean
        self.codes = np.empty_like(x)
        self.spare = np.empty_like(x)
        self.error = np.full(x.shape[1], np.inf, np.float32)
        self.d = np.zeros_like(self.mean)
        self.m = np.zeros_like(self.mean)

    def improve(
        self, d: np.ndarray, m: np.ndarray, rounds: int = 1, *, fixed: bool = False
    ) -> None:
        """Alternates from one start; ``fixed`` keeps m, which is bfloat16 then."""
        self._nearest(d, m)
        for _ in range(rounds):
            d, m = self._line(m if fixed else None)
            self._nearest(d, m)
            error = self._squared_error(d, m)
            better = error < self.error
            np.copyto(self.error, error, where=better)
            np.copyto(self.d, d, where=better)
            np.copyto(self.m, m, where=better)

    def result(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._nearest(self.d, self.m)
        codes = np.ascontiguousarray(self.codes.astype(np.uint8).T)
        return codes, self.d, self.m

    def _nearest(self, d: np.ndarray, m: np.ndarray) -> None:
        """Fills ``codes``; zeros where d is zero or has no finite inverse."""
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(d > 0, np.float32(1) / d, np.float32(0))
        inverse[~np.isfinite(inverse)] = 0
        np.subtract(self.x, m - self.mean, out=self.codes)
        self.codes *= inverse
        np.rint(self.codes, out=self.codes)
        np.clip(self.codes, 0, 15, out=self.codes)

    def _line(self, m: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Least squares of d and m, or of d alone, for the codes; both bfloat16 numbers."""
        total = self.codes.sum(axis=0)
        np.multiply(self.codes, self.codes, out=self.spare)
        squares = self.spare.sum(axis=0)
        np.multiply(self.codes, self.x, out=self.spare)
        products = self.spare.sum(axis=0)
        if m is None:
            spread = squares - total * total / np.float32(layout.GROUP)
            d = np.where(spread > 0, products / np.where(spread > 0, spread, 1), 0)
            m = _bfloat16(self.mean - np.maximum(d, 0) * total / np.float32(layout.GROUP))
        # The best d under this m: sum q (x - m) / sum q^2.
        products += (self.mean - m) * total
        d = np.where(squares > 0, products / np.where(squares > 0, squares, 1), 0)
        return _bfloat16(np.maximum(d, 0)), m

    def _squared_error(self, d: np.ndarray, m: np.ndarray) -> np.ndarray:
        np.multiply(self.codes, d, out=self.spare)
        self.spare += m - self.mean
        self.spare -= self.x
        np.multiply(self.spare, self.spare, out=self.spare)
        return self.spare.sum(axis=0)


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 numbers, as float32."""
    return values.astype(layout.BFLOAT16).astype(np.float32)


def _rounded_down(values: np.ndarray) -> np.ndarray:
    """The largest bfloat16 numbers not above float32 values, as float32."""
    bits = values.view(np.uint32)
    inexact = (bits & 0xFFFF) != 0
    # Cutting bits off rounds towards zero: one step more for negative numbers.
    down = (bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000) * (inexact & (values < 0))
    return down.astype(np.uint32).view(np.float32)


def _checked(array: ArrayLike) -> np.ndarray:
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            "[q4nx.quantize] the array is masked, and its mask would be ignored; fill it first"
        )
    try:
        values = np.asarray(array)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"[q4nx.quantize] the operand is not a matrix ({error}); give an array (N, K)"
        ) from None
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype not in _FLOATS:
        raise DtypeError(
            f"[q4nx.quantize] the array has dtype {values.dtype}; give float32, float64, float16 "
            "or bfloat16"
        )
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(
            f"[q4nx.quantize] the array has shape {values.shape}; give a matrix (N, K) with "
            "elements"
        )
    return values


def _narrowed(rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return rows.astype(np.float32)


def _refuse(x: np.ndarray) -> None:
    bad = ~(np.abs(x) < _LARGEST)
    row, column = (int(i) for i in np.argwhere(bad)[0])
    raise ArgumentError(
        f"[q4nx.quantize] {int(bad.sum())} values are NaN, infinite or of magnitude 2^126 and "
        f"above, the first {x[row, column]} at row {row}, column {column}; the format cannot hold "
        "them"
    )


def _filled(x: np.ndarray) -> np.ndarray:
    """Rows whose last group is filled up with repetitions of its own values, so that the padding
    changes nothing of the fit."""
    k = x.shape[1]
    begin = k - k % layout.GROUP
    index = np.arange(begin + layout.GROUP)
    index[begin:] = begin + np.arange(layout.GROUP) % (k - begin)
    return np.ascontiguousarray(x[:, index])
