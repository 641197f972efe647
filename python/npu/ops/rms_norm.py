"""RMSNorm on the NPU: checks, padding, one runtime call. The design is npu/designs/rms_norm.py."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from npu.devices import Device, current_device
from npu.errors import ShapeError
from npu.ops.arrays import BFLOAT16, FLOATS, as_array, bytes_of, float_of, padded, round_up


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    residual: ArrayLike | None = None,
    epsilon: float = 1e-6,
    device: str | Device | None = None,
) -> np.ndarray:
    """``x / sqrt(mean(x**2) + epsilon) * weight`` over the last dimension, on the current device.

    ``x``: (..., width), bfloat16, float32 or float16 (rounded to bfloat16), width 1 to 16384, any
    strides. ``weight``: (width,) floats, float32 on the device (Gemma's ``1 + w``: pass the sum);
    None: ones. ``residual``: of the shape of x, floats (rounded to bfloat16); it is added to the
    normalised x, as after a sublayer of Gemma. Returns bfloat16 of the shape of x. Squares are
    summed and products and sum made in float32, the result is rounded once (docs/fidelity.md has
    the bound). ``epsilon``: at least 0. Raises ArgumentError, DtypeError, ShapeError, DeviceError.
    """
    from npu.designs.rms_norm import CHUNK, CORES, MAX_WIDTH

    rows = as_array("rms_norm", x, "x", FLOATS)
    if rows.ndim < 1 or not 1 <= rows.shape[-1] <= MAX_WIDTH:
        raise ShapeError(
            f"[rms_norm] x has shape {rows.shape}; the last dimension must be 1 to {MAX_WIDTH}"
        )
    width, count = rows.shape[-1], math.prod(rows.shape[:-1])
    ones = np.ones(width, np.float32)
    factors = ones if weight is None else as_array("rms_norm", weight, "weight", FLOATS)
    if factors.shape != (width,):
        raise ShapeError(f"[rms_norm] weight has shape {factors.shape}; expected ({width},)")
    addend = None if residual is None else as_array("rms_norm", residual, "residual", FLOATS)
    if addend is not None and addend.shape != rows.shape:
        raise ShapeError(
            f"[rms_norm] residual has shape {addend.shape}; expected that of x, {rows.shape}"
        )
    bits = int(abs(float_of("rms_norm", epsilon, "epsilon", low=0)).view(np.int32))
    chosen = current_device(device)
    if count == 0:
        return np.empty(rows.shape, BFLOAT16)
    shape = max(count, CORES), round_up(width, CHUNK)
    request = dict(rows=shape[0], width=shape[1], mean_width=width, epsilon=bits)
    result = np.empty(shape, BFLOAT16)
    arrays = [padded(rows.reshape(count, width), shape, BFLOAT16)]
    arrays += [padded(factors, shape[1:], np.float32), result]
    if addend is not None:
        request["residual"] = 1
        arrays.append(padded(addend.reshape(count, width), shape, BFLOAT16))
    chosen.operation("rms_norm").run(request, [bytes_of(array) for array in arrays])
    return np.ascontiguousarray(result[:count, :width]).reshape(rows.shape)
