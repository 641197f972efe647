"""Q4NX weights as a bfloat16 matrix, expanded on the device: checks, then one runtime call.

The design is npu/designs/dequant.py (arXiv 2602.06063, section 3.1.1). Its output, W (N, K)
row-major, is the column-major right operand W^T of the GEMM design, which reads it in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npu.devices import Device
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.ops.gemv import BFLOAT16, BLOCK_COLUMNS, BLOCK_ROWS, BoundWeights, Weights, bound_weights


def dequantize(
    w: Weights, out: np.ndarray | None = None, device: str | Device | None = None
) -> np.ndarray:
    """The (N, K) bfloat16 values of Q4NX weights, computed on the current device.

    ``w``: a Q4NX tensor, (blocks, (N, K)), or ``npu.bind`` of one of these. Every value is
    ``m + d * code`` rounded once to float32 and then once to bfloat16, both to nearest even
    (``d * code`` is exact in float32). A tensor of the zero-point dialect is rejected: its formula
    differs.

    ``out``: a writable C-contiguous bfloat16 array (N, K), returned. With K a multiple of 256, N of
    32 and N >= 64 the device writes it directly; otherwise it writes a padded matrix of its own,
    from which the host copies. Raises ArgumentError, DtypeError, ShapeError, DeviceError.
    """
    weights = bound_weights(w, device, "dequantize")
    result = _result(out, weights.shape, w)
    run(weights, 0, -(-weights.shape[0] // BLOCK_ROWS), result, padded=False)
    return result


def padded_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """(N, K) rounded up to whole blocks."""
    n, k = shape
    return -(-n // BLOCK_ROWS) * BLOCK_ROWS, -(-k // BLOCK_COLUMNS) * BLOCK_COLUMNS


def run(weights: BoundWeights, first: int, count: int, out: np.ndarray, *, padded: bool) -> None:
    """Row-blocks [first, first + count) into ``out``, C-contiguous bfloat16.

    padded: with the rows and columns that fill up blocks; nothing is then copied on the host.
    """
    target = out.reshape(-1).view(np.uint8)
    weights.device.operation("dequant").run(weights.handle, first, count, target, padded)


def _result(out: np.ndarray | None, shape: tuple[int, int], w: Any) -> np.ndarray:
    if out is None:
        return np.empty(shape, BFLOAT16)
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"[dequantize] out is {type(out).__name__}; pass a NumPy array")
    if out.dtype != BFLOAT16:
        raise DtypeError(f"[dequantize] out has dtype {out.dtype}; it must be bfloat16")
    if out.shape != shape:
        raise ShapeError(f"[dequantize] out has shape {out.shape}, the matrix {shape}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        found = "read-only" if out.flags.c_contiguous else "not C-contiguous"
        raise ArgumentError(f"[dequantize] out is {found}; pass a writable C-contiguous array")
    blocks = w[0] if isinstance(w, tuple) else getattr(w, "blocks", None)
    if isinstance(blocks, np.ndarray) and np.may_share_memory(out, blocks):
        raise ArgumentError("[dequantize] out overlaps the blocks; pass an array of its own")
    return out
