"""8-bit and bfloat16 blocks for tests, made by the published layout alone (no code of the package).

5120 bytes with 32 rows. q8: 128 columns; float32 scales at (column // 16 * 32 + row), then int8
codes at 1024 + column * 32 + row; w = d code. bf16: 80 columns; bfloat16 at column * 32 + row.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
COLUMNS = {"q8": 128, "bf16": 80}


def q8_blocks(codes: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Blocks (B, 5120) of codes (N, K) and scales (N, ceil(K / 16)) of any size, zero-padded."""
    n, k = codes.shape
    p, q = -(-n // 32), -(-k // 128)
    out = np.zeros((p, q, 5120), np.uint8)
    for row, column in np.ndindex(n, k):
        at = 1024 + column % 128 * 32 + row % 32
        out[row // 32, column // 128, at] = np.int8(codes[row, column]).view(np.uint8)
    for row, group in np.ndindex(n, -(-k // 16)):
        at = 4 * (group % 8 * 32 + row % 32)
        scale = np.float32(d[row, group]).tobytes()
        out[row // 32, group // 8, at : at + 4] = np.frombuffer(scale, np.uint8)
    return out.reshape(-1, 5120)


def bf16_blocks(w: np.ndarray) -> np.ndarray:
    """Blocks (B, 5120) of values (N, K) that are bfloat16, zero-padded."""
    n, k = w.shape
    p, q = -(-n // 32), -(-k // 80)
    out = np.zeros((p, q, 80 * 32), np.uint16)
    words = w.astype(BF16).view(np.uint16)
    for row, column in np.ndindex(n, k):
        out[row // 32, column // 80, column % 80 * 32 + row % 32] = words[row, column]
    return out.view(np.uint8).reshape(-1, 5120)


def random_matrix(
    format: str, n: int, k: int, rng: np.random.Generator, exact: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of a random (n, k), and its values as float64. exact: sums of products with small
    whole numbers have no rounding error in float32."""
    if format == "bf16":
        w = rng.integers(-100, 101, (n, k)) if exact else rng.standard_normal((n, k))
        values = w.astype(np.float32).astype(BF16).astype(np.float64)
        return bf16_blocks(values), values
    codes = rng.integers(-128, 128, (n, k))
    groups = (n, -(-k // 16))
    d = rng.choice([0.25, 0.125], groups) if exact else rng.uniform(0.001, 0.01, groups)
    d = d.astype(np.float32).astype(np.float64)
    return q8_blocks(codes, d), np.repeat(d, 16, axis=1)[:, :k] * codes
