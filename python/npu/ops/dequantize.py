"""Weights in blocks as a bfloat16 matrix, expanded on the device: checks, then one runtime call.

The design is npu/designs/dequant.py (arXiv 2602.06063, section 3.1.1). Its output, W (N, K)
row-major, is the column-major right operand W^T of the GEMM design, which reads it in place.
"""

from __future__ import annotations

import numpy as np

from npu.devices import Device
from npu.errors import DtypeError
from npu.ops.arrays import BFLOAT16, bytes_of, result_array, round_up, wanted_dtype
from npu.ops.gemv import BLOCK_COLUMNS, BLOCK_ROWS, BoundWeights, Weights, blocks_in, bound_weights


def dequantize(
    w: Weights, out: np.ndarray | None = None, device: str | Device | None = None
) -> np.ndarray:
    """The (N, K) bfloat16 values of weights in blocks, computed on the current device.

    ``w``: a tensor in blocks (``npu.bind`` lists them), or ``npu.bind`` of one. A Q4NX value is
    ``m + d * code``, a q4_0 value ``d * (code - 8)``, a q8 or q8_0 value ``d * code``, rounded once
    to float32 and then once to bfloat16, both to nearest even; bf16 values stay as they are. A Q4NX
    tensor of the zero-point dialect is rejected: its formula differs.

    ``out``: a writable C-contiguous bfloat16 array (N, K), returned. With K a multiple of a block's
    columns, N of 32 and N >= 64 the device writes it directly; otherwise it writes a padded matrix
    of its own, from which the host copies. Raises ArgumentError, DtypeError, ShapeError,
    DeviceError.
    """
    weights = bound_weights(w, device, "dequantize")
    dtype = wanted_dtype("dequantize", None, out)
    if dtype not in (None, BFLOAT16):
        raise DtypeError(f"[dequantize] out has dtype {dtype}; it must be bfloat16")
    result = result_array("dequantize", out, weights.shape, BFLOAT16, [blocks_in(w)])
    run(weights, 0, -(-weights.shape[0] // BLOCK_ROWS), result, padded=False)
    return result


def padded_width(columns: int, format: str) -> int:
    """K rounded up to whole blocks."""
    return round_up(columns, BLOCK_COLUMNS[format])


def run(weights: BoundWeights, first: int, count: int, out: np.ndarray, *, padded: bool) -> None:
    """Row-blocks [first, first + count) into ``out``, C-contiguous bfloat16.

    padded: with the rows and columns that fill up blocks; nothing is then copied on the host.
    """
    operation = weights.device.operation("dequant", format=weights.format)
    operation.run(weights.handle, first, count, bytes_of(out), padded)
