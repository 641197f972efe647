"""What a generated kernel must give: random operands and the result of the C++ kernel in `silicon`.

The C++ kernel starts from zero, so the accumulators that go in are its product over half of K, and
the expected result is its product over all of it: both add in steps of k, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
Operands = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def matmul_bf16(m1: int, k1: int, n1: int, seed: int) -> Operands:
    """a, b and c in tiles, and c after the kernel."""
    import npu

    rng = np.random.default_rng(seed)
    a = rng.standard_normal((4 * m1, 16 * k1)).astype(BFLOAT16)
    b = rng.standard_normal((16 * k1, 4 * n1)).astype(BFLOAT16)
    with npu.device("emu:npu1", arithmetic="silicon"):
        before = npu.matmul(a[:, : 8 * k1], b[: 8 * k1], out_dtype="float32")
        after = npu.matmul(a, b, out_dtype="float32")
    left, right = a[:, 8 * k1 :], b[8 * k1 :]
    return _tiled(left, 4, 8), _tiled(right, 8, 4), _tiled(before, 4, 4), _tiled(after, 4, 4)


def matmul_bfp16(m1: int, k1: int, n1: int, seed: int) -> Operands:
    """The same for 8 x 8 x 8, with a and b in blocks of 9 bytes: values that BFP16 holds exactly,
    so that the C++ kernel, which takes bf16, converts them to these blocks."""
    import npu

    rng = np.random.default_rng(seed)
    left, a = _random_blocks(rng, 8 * m1, 16 * k1)
    right, b = _random_blocks(rng, 8 * n1, 16 * k1)
    with npu.device("emu:npu2", arithmetic="silicon", bf16="bfp16"):
        half = 8 * k1
        before = npu.matmul(a[:, :half], b[:, :half].T, out_dtype="float32")
        after = npu.matmul(a, b.T, out_dtype="float32")
    return (
        _pairs(left[:, k1:]),
        _pairs(right[:, k1:]),
        _quads(_tiled(before, 8, 8)),
        _quads(_tiled(after, 8, 8)),
    )


def _random_blocks(rng: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, ...]:
    """Tiles [rows / 8, columns / 8, 8, 9] of bytes, and the matrix as bf16."""
    mantissas = rng.integers(-127, 128, (rows, columns // 8, 8))
    lead = np.abs(mantissas).max(axis=2) < 64  # no value with the block's exponent
    mantissas[..., 0] = np.where(lead, 64, mantissas[..., 0])
    exponents = rng.integers(110, 140, (rows, columns // 8, 1))
    matrix = np.ldexp(mantissas.astype(np.float64), exponents - 133).reshape(rows, columns)
    blocks = np.concatenate([exponents, mantissas & 0xFF], axis=2).astype(np.uint8)
    tiles = blocks.reshape(rows // 8, 8, columns // 8, 9).transpose(0, 2, 1, 3)
    return tiles, matrix.astype(BFLOAT16)


def _pairs(tiles: np.ndarray) -> np.ndarray:
    """[2 i, k, ..] -> [i, k, 2, ..]."""
    rows, steps = tiles.shape[:2]
    return np.ascontiguousarray(tiles.reshape(rows // 2, 2, steps, 8, 9).swapaxes(1, 2))


def _quads(tiles: np.ndarray) -> np.ndarray:
    """[2 i, 2 j, ..] -> [2, i, j, 2, ..]."""
    rows, columns = tiles.shape[:2]
    split = tiles.reshape(rows // 2, 2, columns // 2, 2, 8, 8)
    return np.ascontiguousarray(split.transpose(1, 0, 2, 3, 4, 5))


def _tiled(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    m, n = matrix.shape
    blocks = matrix.reshape(m // rows, rows, n // columns, columns).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(blocks)


OPERANDS: dict[str, Callable[[int, int, int, int], Operands]] = {
    "matmul_bf16": matmul_bf16,
    "matmul_bfp16": matmul_bfp16,
}
