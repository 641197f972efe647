"""NumPy versions of the GEMM kernels, written from their contract, for emulated cores.

`kernels(generation)` gives callables for npu.emulator.Array.attach: buffers arrive as memoryviews
from their address to the end of the core's memory, integers as ints. Layouts: A [m/r][k/s][r][s],
row-major B [k/s][n/t][s][t], column-major B [n/t][k/s][t][s], C [m/r][n/t][r][t].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np

SHORT = {
    "bfloat16": "bf16",
    "float32": "f32",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
}
DTYPES = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
}
MMUL = {
    ("npu1", "bf16"): (4, 8, 4), ("npu1", "i8"): (4, 8, 8), ("npu1", "i16"): (4, 4, 4),
    ("npu2", "bf16"): (8, 8, 8), ("npu2", "i8"): (8, 8, 8), ("npu2", "i16"): (4, 4, 8),
}  # fmt: skip


def shift_round_saturate(values: np.ndarray, shift: int, dtype: np.dtype) -> np.ndarray:
    """The array's SRS: values / 2^shift to the nearest integer, ties to even, saturated.

    Exact: np.rint of a float64 quotient by a power of two, for |values| < 2^53.
    """
    info = np.iinfo(dtype)
    return np.rint(values.astype(np.float64) / 2.0**shift).clip(info.min, info.max).astype(dtype)


def _untile(flat: np.ndarray, rows: int, cols: int, r: int, c: int) -> np.ndarray:
    """[rows/r][cols/c][r][c] -> row-major."""
    return flat.reshape(rows // r, cols // c, r, c).transpose(0, 2, 1, 3).reshape(rows, cols)


def _tile(matrix: np.ndarray, r: int, c: int) -> np.ndarray:
    rows, cols = matrix.shape
    return matrix.reshape(rows // r, r, cols // c, c).transpose(0, 2, 1, 3).ravel()


def _view(buffer: memoryview, dtype: np.dtype, count: int) -> np.ndarray:
    return np.frombuffer(buffer, dtype, count)


def _matmul(
    block: tuple[int, int, int],
    inp: str,
    out: str,
    col: bool,
    a: memoryview,
    b: memoryview,
    c: memoryview,
    m: int,
    k: int,
    n: int,
    shift: int = 0,
) -> None:
    r, s, t = block
    x = _untile(_view(a, DTYPES[inp], m * k), m, k, r, s)
    flat = _view(b, DTYPES[inp], k * n)
    y = _untile(flat, n, k, t, s).T if col else _untile(flat, k, n, s, t)
    sums = _view(c, DTYPES[out], m * n)
    old = _untile(sums, m, n, r, t)
    if inp == "bf16":
        new = old.astype(np.float32) + x.astype(np.float32) @ y.astype(np.float32)
        sums[:] = _tile(new.astype(DTYPES[out]), r, t)
        return
    new = (old.astype(np.int64) << shift) + x.astype(np.int64) @ y.astype(np.int64)
    narrow = out in ("i8", "i16")
    sums[:] = _tile(shift_round_saturate(new, shift, DTYPES[out]) if narrow else new, r, t)


def _zero(out: str, c: memoryview, count: int) -> None:
    _view(c, DTYPES[out], count)[:] = 0


def _narrow(out: str, src: memoryview, dst: memoryview, count: int, shift: int) -> None:
    wide = _view(src, DTYPES["i32"], count)
    _view(dst, DTYPES[out], count)[:] = shift_round_saturate(wide, shift, DTYPES[out])


def _convert(src: memoryview, dst: memoryview, count: int) -> None:
    _view(dst, DTYPES["bf16"], count)[:] = _view(src, DTYPES["f32"], count)


def kernels(generation: str) -> dict[str, Callable[..., None]]:
    """Every kernel a GEMM design may call."""
    out: dict[str, Callable[..., None]] = {"convert_f32_bf16": _convert}
    for name in DTYPES:
        out[f"zero_{name}"] = partial(_zero, name)
    for name in ("i8", "i16"):
        out[f"narrow_i32_{name}"] = partial(_narrow, name)
    pairs = [("bf16", "f32"), ("bf16", "bf16"), ("i8", "i32"), ("i8", "i16"), ("i8", "i8"),
             ("i16", "i32")]  # fmt: skip
    for inp, c in pairs:
        for col in (False, True):
            name = f"matmul_{inp}_{c}" + ("_bcol" if col else "")
            out[name] = partial(_matmul, MMUL[generation, inp], inp, c, col)
    return out
