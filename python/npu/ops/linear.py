"""Linear projections on the device: y = x W^T with W bound once.

A weight in blocks stays 4-bit, 8-bit or bfloat16 in memory. Up to 48 rows of x are multiplied by
``npu.gemv``, which dequantises in the cores; more rows by GEMM with a bfloat16 copy that the device
writes into a buffer all weights share, and that the GEMM reads where it lies.
"""

from __future__ import annotations

import threading
import weakref
from functools import cached_property
from typing import Any

import numpy as np

from npu._npu import facts
from npu.devices import Device, current_device
from npu.formats.blocks import BFLOAT16, ROWS, BlockTensor
from npu.formats.q4nx import Tensor, layout
from npu.ops.dequantize import padded_width
from npu.ops.dequantize import run as dequantize_blocks
from npu.ops.gemv import MAX_TOP, BoundWeights, bind, gemv_top
from npu.ops.gemv import run as multiply_blocks

# Most rows of x that go through the GEMV: twelve passes over the weights, which take less time on
# the emulator than expanding them once and multiplying a matrix padded to 64 rows.
DECODE_ROWS = 48
# Most bytes of weights expanded at a time: bounds the shared buffer for a large vocabulary.
EXPANDED_BYTES = 64 << 20
# Tiles (m, k, n) of native bfloat16 products on npu2 by the rows of x per output round. A round of
# 64, 128, 256 rows takes times like 1.05, 1.65, 2.8 on the emulator, a change of tile 0.02. n = 48
# times 8 columns divides the widths of Gemma 3 1B.
TILES = {64: (16, 192, 48), 128: (32, 128, 48), 256: (64, 96, 48)}
_LARGEST = max(TILES)
_SCANNED_BLOCKS = 4096  # at a time: bounds the temporaries of a large head
# Bytes of a block with numbers that bound its weights: scales and minima, scales, weights.
_BOUNDING_BYTES = {
    "q4nx": layout.CODES_AT, "q8": facts.Q8_CODES_AT, "bf16": facts.BLOCK_BYTES,
    "q4_0": facts.Q4_0_CODES_AT, "q8_0": facts.Q8_0_CODES_AT,
}  # fmt: skip
# |W x| and every sum on the way to it are at most this times the largest of those numbers, or 1,
# and the sum of |x| (docs/gemv.md): q4nx d s + m X with |s| <= (2 * 128 + 15) sum |x|, q4_0 d s
# with |s| at most 8 sum |x| more, q8 and q8_0 d s with |s| <= 128 sum |x|.
_GROWTH = {"q4nx": 512, "q8": 256, "bf16": 2, "q4_0": 512, "q8_0": 256}
_FLOAT_SCALES = ("q8", "q8_0")  # of 32 bits


class Weight:
    """A projection's weight, (N, K) as checkpoints store it, on one device.

    The blocks of ``tensor`` are bound: read where they lie if the device can, for example in a
    memory-mapped file. ``device``: default the current one. ``bf16`` is how products of more than
    48 rows are computed, as in ``npu.matmul``. Raises ArgumentError for a Tensor with zero points.
    """

    def __init__(
        self,
        tensor: Tensor | BlockTensor,
        device: str | Device | None = None,
        bf16: str | None = None,
    ) -> None:
        self._device = current_device(device)
        self._bf16 = bf16
        self.bound = bind(tensor, device=self._device)
        self.tensor = tensor
        self.shape = tensor.shape
        self._parts: dict[int, BoundWeights | None] = {}

    @property
    def nbytes(self) -> int:
        """Memory taken beyond the blocks given: 0 where they are read in place."""
        return 0 if self.bound.in_place else self.bound.nbytes

    def multiply(self, x: np.ndarray) -> np.ndarray:
        """x (T, K) float32 -> (T, N) float32."""
        if len(x) <= DECODE_ROWS:
            out = np.empty((len(x), self.shape[0]), np.float32)
            multiply_blocks(self.bound, np.ascontiguousarray(x, np.float32), out)
            return out
        return self._multiply_expanded(x)

    def top(self, x: np.ndarray, k: int, rows: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The k largest of the first ``rows`` elements of W x, x (K,) float32, and their indices.

        Largest first, equal ones by index. They are found on the device, which shows no other
        element; so only where all are certainly finite. None: multiply and look at all.
        """
        if not 1 <= k <= min(MAX_TOP, rows):
            return None
        if not float(np.abs(x, dtype=np.float64).sum()) < self.safe_sum:
            return None
        bound = self._first_rows(rows)
        return None if bound is None else gemv_top(bound, x, k)

    def _first_rows(self, rows: int) -> BoundWeights | None:
        """The first rows alone: the same blocks, or None where that would take a copy."""
        if rows == self.shape[0]:
            return self.bound
        if rows not in self._parts:
            part = self.tensor.blocks[: -(-rows // ROWS)], (rows, self.shape[1]), self.bound.format
            self._parts[rows] = bind(part, device=self._device) if self.bound.in_place else None
        return self._parts[rows]

    @cached_property
    def safe_sum(self) -> float:
        """Below this sum of |x| no element can be infinite or NaN; 0 if a weight is not finite."""
        format = self.bound.format
        wide = format in _FLOAT_SCALES
        kind = np.dtype(np.uint32 if wide else np.uint16)
        sign = kind.type(1 << 8 * kind.itemsize - 1)
        blocks = self.tensor.blocks.reshape(-1, facts.BYTES_OF_BLOCK[format])
        highest = 0
        for first in range(0, len(blocks), _SCANNED_BLOCKS):
            part = blocks[first : first + _SCANNED_BLOCKS, : _BOUNDING_BYTES[format]]
            # Floats without signs are ordered like whole numbers; infinity and NaN are last.
            numbers = np.ascontiguousarray(part).view(kind) & ~sign
            highest = max(highest, int(numbers.max()))
        number = np.array(highest, kind).view(np.float32 if wide else BFLOAT16)
        largest = float(number)
        if not np.isfinite(largest):
            return 0.0
        return 2.0**127 / (_GROWTH[format] * max(largest, 1.0))  # 2^127 is finite

    def _gemms(self, rows: int, columns: int) -> list[tuple[slice, Any]]:
        """The GEMMs for rows of x and columns of the result. Where the array's time is preferred,
        what npu.matmul would choose; else whole rounds of the largest tile and a smaller one for
        the rest.
        """
        mode = self._bf16 or self._device.bf16
        device, options = self._device, ("bfloat16", "float32", "col", mode)
        if device.prefers == "array":
            from npu.ops.gemm_product import Product

            size = (rows, self.shape[1], columns)
            product = Product("bfloat16", "float32", size, "col", "wide", mode)
            return [(slice(0, rows), device.choose_gemm(product))]
        if device.generation != "npu2" or mode != "native" or device.kernel != "published":
            return [(slice(0, rows), device.gemm(*options))]
        rest = rows % _LARGEST
        smallest = min(size for size in TILES if size >= rest)
        cut = rows if smallest == _LARGEST else rows - rest
        parts = [(slice(0, cut), _LARGEST), (slice(cut, rows), smallest)]
        return [
            (part, device.gemm(*options, TILES[size]))
            for part, size in parts
            if part.start < part.stop
        ]

    def _multiply_expanded(self, x: np.ndarray) -> np.ndarray:
        (n, k), bound = self.shape, self.bound
        width = padded_width(k, bound.format)
        blocks = -(-n // ROWS)
        step = min(blocks, max(1, EXPANDED_BYTES // (ROWS * width * 2)))
        out = np.empty((len(x), n), np.float32)
        shared = _expanded_of(self._device)

        def multiply(left: np.ndarray, w: np.ndarray, target: np.ndarray) -> None:
            for rows, gemm in self._gemms(len(left), w.shape[1]):
                views = left[rows].view(np.uint32), "float32", w.view(np.uint16), "bfloat16"
                gemm.run(*views, target[rows].reshape(-1).view(np.uint8), 0)

        x = np.ascontiguousarray(x, np.float32)
        with shared.lock:
            buffer = shared.array(step * ROWS, width)
            for first in range(0, blocks, step):
                count = min(step, blocks - first)
                expanded = buffer[: count * ROWS]
                dequantize_blocks(bound, first, count, expanded, padded=True)
                begin, end = first * ROWS, min((first + count) * ROWS, n)
                w = expanded[: end - begin, :k].T
                if count == blocks:
                    multiply(x, w, out)
                else:
                    part = np.empty((len(x), end - begin), np.float32)
                    multiply(x, w, part)
                    out[:, begin:end] = part
        return out


class _Expanded:
    """The bfloat16 buffer of a device, as large as the largest use of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._memory = np.empty(0, BFLOAT16)

    def array(self, rows: int, columns: int) -> np.ndarray:
        if self._memory.size < rows * columns:
            self._memory = np.empty(rows * columns, BFLOAT16)
        return self._memory[: rows * columns].reshape(rows, columns)


_expanded: weakref.WeakKeyDictionary[Device, _Expanded] = weakref.WeakKeyDictionary()
_expanded_lock = threading.Lock()


def _expanded_of(device: Device) -> _Expanded:
    with _expanded_lock:
        return _expanded.setdefault(device, _Expanded())
