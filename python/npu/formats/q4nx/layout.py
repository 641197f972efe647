"""The bytes of a Q4NX block: 32 rows x 256 columns of 4-bit codes with their scales and minima.

A block has 5120 bytes (docs/q4nx.md; arXiv 2602.06063, section 3.1.1): 256 bfloat16 scales, 256
bfloat16 minima, both at index g * 32 + r for row r and group g of 32 columns, then 4096 bytes of
codes at half * 2048 + column * 8 + pair, where half is r // 16 and pair is r % 16 // 2; the low
nibble holds the even row. Blocks of a matrix follow one another row-block by row-block.

The blocks of the format q4_0 (npu.formats.blocks) are the same without the plane of minima.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from npu._npu import facts

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROWS, COLUMNS, GROUP = facts.Q4NX_ROWS, facts.Q4NX_COLUMNS, facts.Q4NX_GROUP
GROUPS = COLUMNS // GROUP
PLANE_BYTES = ROWS * GROUPS * 2
CODES_AT, CODE_BYTES = 2 * PLANE_BYTES, ROWS * COLUMNS // 2
BLOCK_BYTES = CODES_AT + CODE_BYTES
assert BLOCK_BYTES == facts.Q4NX_BLOCK_BYTES


def grid(shape: tuple[int, int]) -> tuple[int, int]:
    """Row-blocks and column-blocks of an (N, K) matrix."""
    return -(-shape[0] // ROWS), -(-shape[1] // COLUMNS)


def pack(codes: np.ndarray, *planes: np.ndarray) -> np.ndarray:
    """Blocks (row-blocks, column-blocks, bytes) uint8 from a padded matrix.

    ``codes`` is (N, K) uint8 below 16 with N a multiple of 32 and K of 256; ``planes``, scales and
    minima or scales alone, are (N, K / 32) bfloat16.
    """
    p, q = codes.shape[0] // ROWS, codes.shape[1] // COLUMNS
    codes_at = len(planes) * PLANE_BYTES
    out = np.empty((p, q, codes_at + CODE_BYTES), np.uint8)
    for start, plane in zip(range(0, codes_at, PLANE_BYTES), planes, strict=True):
        words = plane.view(np.uint16).reshape(p, ROWS, q, GROUPS).transpose(0, 2, 3, 1)
        # A view would need an aligned stride; bytes are copied through a contiguous array.
        raw = np.ascontiguousarray(words).view(np.uint8).reshape(p, q, PLANE_BYTES)
        out[:, :, start : start + PLANE_BYTES] = raw
    # Row r = half * 16 + pair * 2 + parity.
    split = codes.reshape(p, 2, 8, 2, q, COLUMNS)
    both = split[:, :, :, 0] | split[:, :, :, 1] << 4  # (p, half, pair, q, column)
    out[:, :, codes_at:].reshape(p, q, 2, COLUMNS, 8)[...] = both.transpose(0, 3, 1, 4, 2)
    return out


def planes(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """The planes before the codes, each (row-blocks, column-blocks, group, row) bfloat16."""
    p, q, size = blocks.shape
    parts = []
    for start in range(0, size - CODE_BYTES, PLANE_BYTES):
        raw = np.ascontiguousarray(blocks[:, :, start : start + PLANE_BYTES])
        parts.append(raw.view(BFLOAT16).reshape(p, q, GROUPS, ROWS))
    return tuple(parts)


def unpack(blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """The inverse of ``pack``: codes (N, K) uint8, then the planes (N, K / 32) bfloat16."""
    p, q, _ = blocks.shape
    n, k = p * ROWS, q * COLUMNS
    parts = (
        np.ascontiguousarray(part.transpose(0, 3, 1, 2)).reshape(n, k // GROUP)
        for part in planes(blocks)
    )
    both = np.ascontiguousarray(
        blocks[:, :, -CODE_BYTES:].reshape(p, q, 2, COLUMNS, 8).transpose(0, 2, 4, 1, 3)
    )
    codes = np.empty((p, 2, 8, 2, q, COLUMNS), np.uint8)
    np.bitwise_and(both, 15, out=codes[:, :, :, 0])
    np.right_shift(both, 4, out=codes[:, :, :, 1])
    return codes.reshape(n, k), *parts
