"""Q4NX blocks and files built by plain loops from the published formulas, for the Q4NX tests.

Nothing here uses the package: blocks follow docs/q4nx.md (byte half * 2048 + column * 8 + pair, low
nibble the even row, planes at group * 32 + row), files are a length, JSON and bytes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

BLOCK = 5120


@dataclass
class Matrix:
    """Codes (N, K) and planes (N, ceil(K / 32)) of an unpadded matrix."""

    codes: np.ndarray
    d: np.ndarray
    m: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def exact(self, zero_point: bool = False) -> np.ndarray:
        """float64 values of the formula."""
        n, k = self.shape
        out = np.empty((n, k))
        for i in range(n):
            for j in range(k):
                d, m = float(self.d[i, j // 32]), float(self.m[i, j // 32])
                code = int(self.codes[i, j])
                out[i, j] = d * (code - m) if zero_point else m + d * code
        return out


def random_matrix(n: int, k: int, seed: int = 0, low: float = -0.5, high: float = 0.0) -> Matrix:
    """Random codes, scales and minima; the planes hold bfloat16 numbers."""
    random = np.random.default_rng(seed)
    groups = -(-k // 32)
    return Matrix(
        random.integers(0, 16, (n, k), dtype=np.uint8),
        random.uniform(0.01, 0.1, (n, groups)).astype(ml_dtypes.bfloat16),
        random.uniform(low, high, (n, groups)).astype(ml_dtypes.bfloat16),
    )


def pack(matrix: Matrix) -> bytes:
    """The blocks of a matrix, byte by byte."""
    n, k = matrix.shape
    out = bytearray()
    for p in range(-(-n // 32)):
        for q in range(-(-k // 256)):
            block = bytearray(BLOCK)
            for r in range(32):
                for c in range(256):
                    i, j = p * 32 + r, q * 256 + c
                    if i >= n or j >= k:
                        continue
                    at = 1024 + (r // 16) * 2048 + c * 8 + (r % 16) // 2
                    block[at] |= int(matrix.codes[i, j]) << (4 if r % 2 else 0)
                    if c % 32 == 0:
                        index = 2 * ((c // 32) * 32 + r)
                        block[index : index + 2] = matrix.d[i, j // 32].tobytes()
                        block[512 + index : 514 + index] = matrix.m[i, j // 32].tobytes()
            out += block
    return bytes(out)


def value(blocks: bytes, k: int, row: int, column: int) -> float:
    """One weight of additive blocks, by the reading formula, in float64; d code is exact in fp32,
    but for overflow."""
    columns = -(-k // 256)
    start = (row // 32 * columns + column // 256) * BLOCK
    block = blocks[start : start + BLOCK]
    r, c = row % 32, column % 256
    byte = block[1024 + (r // 16) * 2048 + c * 8 + (r % 16) // 2]
    code = byte >> 4 if r & 1 else byte & 15
    index = 2 * ((c // 32) * 32 + r)
    d = np.frombuffer(block[index : index + 2], ml_dtypes.bfloat16)[0]
    m = np.frombuffer(block[512 + index : 514 + index], ml_dtypes.bfloat16)[0]
    return float(m) + float(np.float32(float(d) * code))


def write_file(
    path: Path,
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
    metadata: dict[str, str] | None = None,
) -> Path:
    """A safetensors file from (dtype, shape, bytes) by name."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    raw = json.dumps(header).encode()
    body = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + body)
    return path
