"""What a generated kernel must give: random operands and the result of the C++ kernel in `silicon`.

The C++ kernel starts from zero, so what C holds before is its product over a first part of K, and
what it must hold after is its product over all of K: both add in steps of k, in the same order. A C
that is narrow is rounded once per call, in the C++ kernel after 64 columns, on XDNA1 after 128:
each part is as long, filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from npu.vliw.kernels import Schedule

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_CALL, _XDNA1_CALL = 64, 128  # columns of A per call of the C++ kernel
_XDNA2_I8 = 8, _CALL, "pipelined"  # rows of a tile of A, columns of a call, kernel


@dataclass(frozen=True)
class Operands:
    """a, b and c as the kernel has them, and c after it."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    after: np.ndarray
    shift: int = 0


def operands(found: Schedule, seed: int) -> Operands:
    """Random ones for a kernel."""
    if found.kernel == "matmul_bf16":
        return matmul_bf16(*found.shape, seed)
    if found.kernel.startswith("matmul_bf16_square"):
        turned = found.kernel.endswith("turned")
        return matmul_bf16_square(*found.shape, seed, turned, found.b_layout == "row")
    if found.kernel == "matmul_bfp16":
        return matmul_bfp16(*found.shape, seed)
    if found.out == "bfp16":
        return matmul_bfp16_blocks(*found.shape, seed)
    if found.kernel == "matmul_bfp16_tiles":
        return matmul_bfp16_tiles(*found.shape, seed, found.out)
    if found.kernel == "prefill_multiply":
        return prefill_multiply(*found.shape, seed)
    if found.kernel == "matmul_bf16_converting":
        return matmul_bf16_converting(*found.shape, seed, found.out, found.b_layout)
    if found.kernel == "matmul_i16":
        return matmul_i16(*found.shape, seed, found.b_layout, found.device)
    return matmul_i8(*found.shape, seed, found.out, found.b_layout, found.device)


def matmul_i8(
    m1: int, k1: int, n1: int, seed: int, out: str, b_layout: str, device: str = "npu2"
) -> Operands:
    """Sums of which some saturate a narrow C."""
    import npu

    rng = np.random.default_rng(seed)
    rows, call, kernel = (4, _XDNA1_CALL, "published") if device == "npu1" else _XDNA2_I8
    first, a = (rng.integers(-128, 128, (rows * m1, 8 * k1), np.int8) for _ in range(2))
    before, b = (rng.integers(-128, 128, (8 * k1, 8 * n1), np.int8) for _ in range(2))
    wide = np.sqrt(8.0 * k1) * 128 * 128 / 3  # the sums' standard deviation
    most = {"int8": 128, "int16": 32768, "int32": 1 << 31}[out]
    shift = max(1, int(np.log2(2 * wide / most))) if out != "int32" else 0
    left = np.concatenate([_filled(first, 1, call), _filled(a, 1, call)], axis=1)
    right = np.concatenate([_filled(before, 0, call), _filled(b, 0, call)])
    sums = "wide" if out == "int32" else "narrow"
    with npu.device(f"emu:{device}", arithmetic="silicon", kernel=kernel):
        c, after = (
            npu.matmul(left[:, :k], right[:k], out_dtype=out, shift=shift, accumulate=sums)
            for k in (call, 2 * call)
        )
    b = _tiled(b, 8, 8) if b_layout == "row" else _tiled(b.T, 8, 8)
    return Operands(_tiled(a, rows, 8), b, _tiled(c, rows, 8), _tiled(after, rows, 8), shift)


def matmul_i16(m1: int, k1: int, n1: int, seed: int, b_layout: str, device: str) -> Operands:
    """Sums of any size, which C keeps modulo 2^32."""
    from npu._npu import kernels

    rng, columns = np.random.default_rng(seed), 4 if device == "npu1" else 8
    a = rng.integers(-(1 << 15), 1 << 15, (m1, k1, 4, 4), np.int16)
    shape = (k1, n1, 4, columns) if b_layout == "row" else (n1, k1, columns, 4)
    b = rng.integers(-(1 << 15), 1 << 15, shape, np.int16)
    c = rng.integers(-(1 << 31), 1 << 31, (m1, n1, 4, columns), np.int32)
    name = "matmul_i16_i32" + ("_bcol" if b_layout == "col" else "")
    arguments = [x.tobytes() for x in (a, b, c)]
    found = kernels.call(name, device, [*arguments, 4 * m1, 4 * k1, columns * n1])
    return Operands(a, b, c, np.frombuffer(found[2], np.int32).reshape(c.shape))


def _filled(matrix: np.ndarray, axis: int, call: int = _CALL) -> np.ndarray:
    """With zeros along K up to what a call has."""
    missing = [(0, call - matrix.shape[axis] if axis == i else 0) for i in range(2)]
    return np.pad(matrix, missing)


def matmul_bf16(m1: int, k1: int, n1: int, seed: int) -> Operands:
    import npu

    rng = np.random.default_rng(seed)
    a = rng.standard_normal((4 * m1, 16 * k1)).astype(BFLOAT16)
    b = rng.standard_normal((16 * k1, 4 * n1)).astype(BFLOAT16)
    with npu.device("emu:npu1", arithmetic="silicon"):
        before = npu.matmul(a[:, : 8 * k1], b[: 8 * k1], out_dtype="float32")
        after = npu.matmul(a, b, out_dtype="float32")
    left, right = a[:, 8 * k1 :], b[8 * k1 :]
    return Operands(
        _tiled(left, 4, 8), _tiled(right, 8, 4), _tiled(before, 4, 4), _tiled(after, 4, 4)
    )


def matmul_bf16_square(
    m1: int, k1: int, n1: int, seed: int, a_across: bool, b_across: bool
) -> Operands:
    """Operands as they are stored: tiles of 4 x 8, whichever side runs along k."""
    from npu._npu import kernels

    rng, (m, k, n) = np.random.default_rng(seed), (4 * m1, 8 * k1, 4 * n1)
    a = _tiled(rng.standard_normal((k, m) if a_across else (m, k)).astype(BFLOAT16), 4, 8)
    b = _tiled(rng.standard_normal((k, n) if b_across else (n, k)).astype(BFLOAT16), 4, 8)
    c = rng.standard_normal((m1, n1, 4, 4)).astype(np.float32)
    arguments = [x.tobytes() for x in (a, b, c)]
    found = kernels.call(
        "matmul_bf16_f32_square", "npu1", [*arguments, m, k, n, a_across + 2 * b_across]
    )
    return Operands(a, b, c, np.frombuffer(found[2], np.float32).reshape(c.shape))


def matmul_bfp16(m1: int, k1: int, n1: int, seed: int) -> Operands:
    """With a and b in blocks of 9 bytes: values that BFP16 holds exactly,
    so that the C++ kernel, which takes bf16, converts them to these blocks."""
    import npu

    rng = np.random.default_rng(seed)
    left, a = _random_blocks(rng, 8 * m1, 16 * k1)
    right, b = _random_blocks(rng, 8 * n1, 16 * k1)
    with npu.device("emu:npu2", arithmetic="silicon", bf16="bfp16"):
        half = 8 * k1
        before = npu.matmul(a[:, :half], b[:, :half].T, out_dtype="float32")
        after = npu.matmul(a, b.T, out_dtype="float32")
    return Operands(
        _pairs(left[:, k1:]),
        _pairs(right[:, k1:]),
        _quads(_tiled(before, 8, 8)),
        _quads(_tiled(after, 8, 8)),
    )


def matmul_bfp16_tiles(m1: int, k1: int, n1: int, seed: int, out: str) -> Operands:
    """The same with tiles in rows of tiles."""
    import npu

    rng = np.random.default_rng(seed)
    (_, first), (left, a) = (_random_blocks(rng, 8 * m1, 8 * k1) for _ in range(2))
    (_, before), (right, b) = (_random_blocks(rng, 8 * n1, 8 * k1) for _ in range(2))
    rows = np.concatenate([_filled(first, 1), _filled(a, 1)], axis=1)
    columns = np.concatenate([_filled(before, 1), _filled(b, 1)], axis=1)
    sums = "narrow" if out == "bfloat16" else "wide"
    with npu.device("emu:npu2", arithmetic="silicon", bf16="bfp16", kernel="pipelined"):
        c, after = (
            npu.matmul(rows[:, :k], columns[:, :k].T, out_dtype=out, accumulate=sums)
            for k in (_CALL, 2 * _CALL)
        )
    return Operands(left, right, _tiled(c, 8, 8), _tiled(after, 8, 8))


def matmul_bf16_converting(
    m1: int, k1: int, n1: int, seed: int, out: str, b_layout: str
) -> Operands:
    from npu._npu import kernels

    rng = np.random.default_rng(seed)

    def random(*shape: int) -> np.ndarray:
        return np.ldexp(rng.standard_normal(shape), rng.integers(-6, 7, shape)).astype(BFLOAT16)

    a = random(m1, k1, 8, 8)
    b = random(*((k1, n1) if b_layout == "row" else (n1, k1)), 8, 8)
    dtype = BFLOAT16 if out == "bfloat16" else np.dtype(np.float32)
    c = rng.standard_normal((m1, n1, 8, 8)).astype(dtype)
    name = f"matmul_bf16bfp16_{'bf16' if out == 'bfloat16' else 'f32'}"
    name += "_bcol" if b_layout == "col" else ""
    sizes = (8 * m1, 8 * k1, 8 * n1)
    found = kernels.call(name, "npu2", [a.tobytes(), b.tobytes(), c.tobytes(), *sizes])
    return Operands(a, b, c, np.frombuffer(found[2], dtype).reshape(c.shape))


def matmul_bfp16_blocks(m1: int, k1: int, n1: int, seed: int) -> Operands:
    """C in blocks along n as well. The C++ kernel takes two steps at least, of zeros if need be."""
    from npu._npu import kernels

    rng = np.random.default_rng(seed)
    (a, _), (b, _) = (_random_blocks(rng, 8 * tiles, 8 * k1) for tiles in (m1, n1))
    c, _ = _random_blocks(rng, 8 * m1, 8 * n1)
    c[..., 0] += 5  # exponents as those of products
    more = [(0, 0), (0, max(0, 2 - k1)), (0, 0), (0, 0)]
    arguments = [np.pad(x, more).tobytes() for x in (a, b)]
    sizes = (8 * m1, 8 * max(2, k1), 8 * n1)
    found = kernels.call(
        "matmul_bfp16_bfp16_pipelined", "npu2", [*arguments, c.tobytes(), *sizes, 0]
    )
    return Operands(a, b, c, np.frombuffer(found[2], np.uint8).reshape(c.shape))


def prefill_multiply(m1: int, k1: int, n1: int, seed: int) -> Operands:
    """By `prefill_finish`, which multiplies by slices that have been expanded: one of 128 rows, two
    of 64. What it has beyond these sizes is zeros."""
    from npu._npu import kernels

    rng = np.random.default_rng(seed)
    slices, rows, blocks = k1 // 4, 16 if k1 == 4 else 8, -(-n1 // 4)
    (a, _), (w, _) = (_random_blocks(rng, 8 * tiles, 8 * k1) for tiles in (m1, n1))
    sums = rng.standard_normal((2, m1 // 2, n1, 8, 8)).astype(np.float32)
    a = np.ascontiguousarray(a.reshape(m1, slices, 4, 72).swapaxes(0, 1))
    pairs = w.reshape(n1 // 2, 2, slices, 4, 72).transpose(2, 0, 3, 1, 4)
    w = np.ascontiguousarray(pairs)
    wide_a = np.zeros((slices, rows, 4, 72), np.uint8)
    wide_a[:, :m1] = a
    wide_w = np.zeros((slices, 2 * blocks, 4, 2, 72), np.uint8)
    wide_w[:, : n1 // 2] = w
    halves = np.zeros((2, 4096), np.float32)
    tiles = halves[:, : rows // 2 * 4 * blocks * 64].reshape(2, rows // 2, 4 * blocks, 8, 8)
    tiles[:, : m1 // 2, :n1] = sums
    store, tail = halves.reshape(-1)[:6144], halves.reshape(-1)[6144:]
    work = np.zeros(12800, np.uint8)
    work[: tail.nbytes + wide_w.nbytes] = np.frombuffer(tail.tobytes() + wide_w.tobytes(), np.uint8)
    job = np.zeros(96, np.int32)
    job[64] = 6  # slices of a block of Q4NX before the two that are expanded last
    arguments = [x.tobytes() for x in (wide_a, store, work, job)]
    arguments[0] = arguments[0].ljust(4608, b"\0")
    found = kernels.call("prefill_finish", "npu2", [*arguments, 8 * rows, blocks, 0])
    left = np.frombuffer(found[1] + found[2][: tail.nbytes], np.float32).reshape(2, 4096)
    after = left[:, : tiles[0].size].reshape(tiles.shape)
    return Operands(a, w, sums, np.ascontiguousarray(after[:, : m1 // 2, :n1]))


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
