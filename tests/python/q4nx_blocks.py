"""Q4NX blocks for tests, made and read by the published formula alone (no code of the package).

Block of 32 rows x 256 columns, 5120 bytes: 256 bf16 scales d, 256 bf16 minima m (index
group * 32 + row, groups of 32 columns), codes: byte half * 2048 + column * 8 + j holds rows
half * 16 + 2 j (low nibble) and 2 j + 1 (high nibble). w = d code + m.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def blocks_from(codes: np.ndarray, d: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Blocks of codes (N, K), N and K multiples of 32 and 256, and d, m (N, K / 32)."""
    n, k = codes.shape
    out = np.zeros((n // 32, k // 256, 5120), np.uint8)
    for p in range(n // 32):
        for q in range(k // 256):
            rows, groups = slice(32 * p, 32 * p + 32), slice(8 * q, 8 * q + 8)
            out[p, q, :512] = d[rows, groups].T.astype(BF16).ravel().view(np.uint8)
            out[p, q, 512:1024] = m[rows, groups].T.astype(BF16).ravel().view(np.uint8)
            tile = codes[rows, 256 * q : 256 * q + 256].astype(np.uint8)
            for half in range(2):
                for j in range(8):
                    row = half * 16 + 2 * j
                    place = 1024 + half * 2048 + 8 * np.arange(256) + j
                    out[p, q, place] = tile[row] | tile[row + 1] << 4
    return out.reshape(-1, 5120)


def padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def random_weights(
    n: int, k: int, rng: np.random.Generator, exact: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Blocks of (n, k), and w, d, m as (n, k) float64; padding has code, d and m 0.

    exact: d is 1/4 or 1/8 and m a small multiple of 1/8, so that sums with small integers x have
    no rounding error in float32.
    """
    rows, columns = padded(n, 32), padded(k, 256)
    codes = rng.integers(0, 16, (rows, columns))
    if exact:
        d = rng.choice([0.25, 0.125], (rows, columns // 32))
        m = rng.integers(-16, 17, (rows, columns // 32)) / 8
    else:
        d = rng.uniform(0.01, 0.1, (rows, columns // 32))
        m = -8 * d + 0.01 * rng.standard_normal(d.shape)
    d, m = (a.astype(BF16).astype(np.float64) for a in (d, m))
    codes[n:], codes[:, k:] = 0, 0
    d[n:], m[n:] = 0, 0
    blocks = blocks_from(codes, d, m)
    wide_d, wide_m = (np.repeat(a, 32, axis=1)[:n, :k] for a in (d, m))
    return blocks, wide_d * codes[:n, :k] + wide_m, wide_d, wide_m


def random_integers(batch: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """(batch, k) of whole numbers from -4 to 4 as bfloat16."""
    return rng.integers(-4, 5, (batch, k)).astype(np.float32).astype(BF16)
