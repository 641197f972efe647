"""RMSNorm on the NPU: checks, padding, one runtime call. The design is npu/designs/rms_norm.py."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from npu.devices import Device, current_device
from npu.errors import ArgumentError, DtypeError, ShapeError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = (np.dtype(np.float32), BFLOAT16, np.dtype(np.float16))


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    epsilon: float = 1e-6,
    device: str | Device | None = None,
) -> np.ndarray:
    """``x / sqrt(mean(x**2) + epsilon) * weight`` over the last dimension, on the current device.

    ``x``: (..., width), bfloat16, float32 or float16 (rounded to bfloat16), width 1 to 16384, any
    strides. ``weight``: (width,) floats, float32 on the device (Gemma's ``1 + w``: pass the sum);
    None: ones. Returns bfloat16 of the shape of x. Squares are summed and products made in
    float32, the result is rounded once (docs/fidelity.md has the bound). ``epsilon``: at least 0.
    Raises ArgumentError, DtypeError, ShapeError, DeviceError.
    """
    from npu.designs.rms_norm import CHUNK, CORES, MAX_WIDTH

    rows = _floats(x, "x").astype(BFLOAT16, copy=False)
    if rows.ndim < 1 or not 1 <= rows.shape[-1] <= MAX_WIDTH:
        raise ShapeError(
            f"[rms_norm] x has shape {rows.shape}; the last dimension must be 1 to {MAX_WIDTH}"
        )
    width = rows.shape[-1]
    factors = np.ones(width) if weight is None else _floats(weight, "weight")
    if factors.shape != (width,):
        raise ShapeError(f"[rms_norm] weight has shape {factors.shape}; expected ({width},)")
    if (
        isinstance(epsilon, bool)
        or not isinstance(epsilon, (int, float, np.number))
        or not (0 <= epsilon < math.inf)
    ):
        raise ArgumentError(f"[rms_norm] epsilon is {epsilon!r}; it must be a number of at least 0")
    chosen = current_device(device)
    count = math.prod(rows.shape[:-1])
    if count == 0:
        return np.empty(rows.shape, BFLOAT16)
    shape = max(count, CORES), -(-width // CHUNK) * CHUNK
    source, scale = _padded(rows.reshape(count, width), shape), np.zeros(shape[1], np.float32)
    scale[:width] = factors
    result = np.empty(shape, BFLOAT16)
    request = {
        "rows": shape[0], "width": shape[1], "mean_width": width,
        "epsilon": int(np.float32(epsilon).view(np.uint32)),
    }  # fmt: skip
    arrays = [array.reshape(-1).view(np.uint8) for array in (source, scale, result)]
    chosen.operation("rms_norm").run(request, arrays)
    return np.ascontiguousarray(result[:count, :width]).reshape(rows.shape)


def _floats(value: ArrayLike, name: str) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"[rms_norm] {name} is a masked array; fill it first")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"[rms_norm] {name} cannot become an array: {error}") from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype not in _FLOATS:
        raise DtypeError(
            f"[rms_norm] {name} has dtype {array.dtype}; supported are float32, bfloat16 and "
            "float16: convert it with astype"
        )
    return array


def _padded(rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Rows as the array takes them; what is added is zero."""
    if rows.shape == shape:
        return np.ascontiguousarray(rows)
    out = np.zeros(shape, BFLOAT16)
    out[: rows.shape[0], : rows.shape[1]] = rows
    return out
