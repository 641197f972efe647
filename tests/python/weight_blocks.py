"""Blocks of weights for tests, made by the published layout alone (no code of the package); those
of q4nx are in q4nx_blocks.py. All have 32 rows, K-major (docs/weights.md).

5120 bytes. q8: 128 columns; float32 scales at (column // 16 * 32 + row), then int8 codes at 1024 +
column * 32 + row; w = d code. bf16: 80 columns; bfloat16 at column * 32 + row.

4608 bytes. q8_0: as q8, but scales at (column // 32 * 32 + row) and codes at 512. q4_0: 256
columns; bfloat16 scales at (column // 32 * 32 + row), then at 512 half * 2048 + column * 8 + j,
rows half * 16 + 2 j (low nibble) and 2 j + 1 (high nibble); w = d (code - 8).
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
COLUMNS = {"q8": 128, "bf16": 80, "q4_0": 256, "q8_0": 128}
BYTES = {"q8": 5120, "bf16": 5120, "q4_0": 4608, "q8_0": 4608}
GROUP = {"q8": 16, "q4_0": 32, "q8_0": 32}  # columns of a scale


def q8_blocks(codes: np.ndarray, d: np.ndarray, format: str = "q8") -> np.ndarray:
    """Blocks (B, 5120) of codes (N, K) and scales (N, ceil(K / 16)) of any size, zero-padded; of
    q8_0 (B, 4608), with scales (N, ceil(K / 32))."""
    (n, k), group = codes.shape, GROUP[format]
    groups = 128 // group
    p, q = -(-n // 32), -(-k // 128)
    out = np.zeros((p, q, BYTES[format]), np.uint8)
    for row, column in np.ndindex(n, k):
        at = groups * 128 + column % 128 * 32 + row % 32
        out[row // 32, column // 128, at] = np.int8(codes[row, column]).view(np.uint8)
    for row, index in np.ndindex(n, -(-k // group)):
        at = 4 * (index % groups * 32 + row % 32)
        scale = np.float32(d[row, index]).tobytes()
        out[row // 32, index // groups, at : at + 4] = np.frombuffer(scale, np.uint8)
    return out.reshape(-1, BYTES[format])


def q4_0_blocks(codes: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Blocks (B, 4608) of codes (N, K) and scales (N, ceil(K / 32)) that are bfloat16; what fills
    blocks has the scale 0 and the code 8, of 0."""
    n, k = codes.shape
    p, q = -(-n // 32), -(-k // 256)
    out = np.zeros((p, q, 4608), np.uint8)
    out[:, :, 512:] = 0x88
    for row, column in np.ndindex(n, k):
        byte = 512 + row % 32 // 16 * 2048 + column % 256 * 8 + row % 16 // 2
        shift, other = (4, 0x0F) if row % 2 else (0, 0xF0)
        block = out[row // 32, column // 256]
        block[byte] = block[byte] & other | int(codes[row, column]) << shift
    words = d.astype(BF16).view(np.uint16)
    for row, index in np.ndindex(n, -(-k // 32)):
        at = 2 * (index % 8 * 32 + row % 32)
        out[row // 32, index // 8, at : at + 2] = words[row, index : index + 1].view(np.uint8)
    return out.reshape(-1, 4608)


def bf16_blocks(w: np.ndarray) -> np.ndarray:
    """Blocks (B, 5120) of values (N, K) that are bfloat16, zero-padded."""
    n, k = w.shape
    p, q = -(-n // 32), -(-k // 80)
    out = np.zeros((p, q, 80 * 32), np.uint16)
    words = w.astype(BF16).view(np.uint16)
    for row, column in np.ndindex(n, k):
        out[row // 32, column // 80, column % 80 * 32 + row % 32] = words[row, column]
    return out.view(np.uint8).reshape(-1, 5120)


def q4_0_scales(blocks: np.ndarray, n: int, k: int) -> np.ndarray:
    """The scale of every weight of (n, k), as float64."""
    planes = np.ascontiguousarray(blocks.reshape(-1, 4608)[:, :512]).view(BF16)
    planes = planes.reshape(-(-n // 32), -(-k // 256), 8, 32).transpose(0, 3, 1, 2)
    rows = planes.reshape(-(-n // 32) * 32, -1).astype(np.float64)
    return np.repeat(rows, 32, axis=1)[:n, :k]


def random_matrix(
    format: str, n: int, k: int, rng: np.random.Generator, exact: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of a random (n, k), and its values as float64. exact: sums of products with small
    whole numbers have no rounding error in float32."""
    if format == "bf16":
        w = rng.integers(-100, 101, (n, k)) if exact else rng.standard_normal((n, k))
        values = w.astype(np.float32).astype(BF16).astype(np.float64)
        return bf16_blocks(values), values
    group, four = GROUP[format], format == "q4_0"
    codes = rng.integers(0, 16, (n, k)) if four else rng.integers(-128, 128, (n, k))
    groups = (n, -(-k // group))
    d = rng.choice([0.25, 0.125], groups) if exact else rng.uniform(0.001, 0.01, groups)
    d = d.astype(BF16 if four else np.float32).astype(np.float64)
    blocks = q4_0_blocks(codes, d) if four else q8_blocks(codes, d, format)
    return blocks, np.repeat(d, group, axis=1)[:, :k] * (codes - 8 if four else codes)
