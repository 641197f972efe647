"""Rotary embedding on the NPU: checks, tables, padding, one runtime call.

The design is npu/designs/rope.py; the layout of the tables is stated in backend/ops/rope/rope.cpp.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from npu.devices import Device, current_device
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.ops.arrays import BFLOAT16, FLOATS, as_array, bytes_of, float_of, padded

_POSITIONS = 1 << 24  # their angles are exact to 2^-27 in float64


def rope(
    x: ArrayLike,
    positions: ArrayLike | int,
    *,
    base: float = 10000.0,
    factor: float = 1.0,
    norm_weight: ArrayLike | None = None,
    epsilon: float = 1e-6,
    device: str | Device | None = None,
) -> np.ndarray:
    """Rotary position embedding on the current device, after RMSNorm if it has weights.

    ``x``: (..., T, heads, d), bfloat16, float32 or float16 (rounded to bfloat16), d 64, 128 or
    256, any strides. Element i and element i + d / 2 of a vector are rotated by the angle
    ``position / factor * base ** (-2 i / d)`` (NEOX pairing). ``positions``: T integers from 0 to
    2^24 - 1, or one, the position of the first token. ``norm_weight``: (d,) floats, float32 on
    the device; every vector is first divided by the root of its mean square plus ``epsilon`` and
    multiplied by them (QK-norm; Gemma's ``1 + w``: pass the sum).

    Returns bfloat16 of the shape of x. Cosines and sines are made in float64 and rounded to
    float32, everything else is float32 and rounded once (docs/fidelity.md has the bound). Raises
    ArgumentError, DtypeError, ShapeError, DeviceError.
    """
    from npu.designs.rope import CORES, ELEMENTS, WIDTHS

    array = as_array("rope", x, "x", FLOATS)
    if array.ndim < 3 or array.shape[-1] not in WIDTHS:
        raise ShapeError(
            f"[rope] x has shape {array.shape}; it must be (..., tokens, heads, d) with d one of "
            f"{', '.join(map(str, WIDTHS))}"
        )
    tokens, heads, width = array.shape[-3:]
    places = _positions(positions, tokens)
    scales = [float_of("rope", v, n) for v, n in ((base, "base"), (factor, "factor"))]
    if min(scales) <= 0:
        raise ArgumentError(f"[rope] base is {base!r} and factor {factor!r}; both must be above 0")
    weight = np.ones(width, np.float32)
    if norm_weight is not None:
        weight = as_array("rope", norm_weight, "norm_weight", FLOATS)
        if weight.shape != (width,):
            raise ShapeError(f"[rope] norm_weight has shape {weight.shape}; expected ({width},)")
    bits = int(abs(float_of("rope", epsilon, "epsilon", low=0)).view(np.int32))
    chosen = current_device(device)
    if array.size == 0:
        return np.empty(array.shape, BFLOAT16)
    lead = math.prod(array.shape[:-3])
    count = max(lead * tokens, CORES * ELEMENTS // width)
    tables = np.zeros(ELEMENTS + count * width, np.float32)
    tables[:width] = weight
    rows = tables[ELEMENTS:].reshape(count, 2, width // 2)[: lead * tokens]
    angles = np.tile(_angles(places, width, float(base), float(factor)), (lead, 1))
    np.cos(angles, out=rows[:, 0], casting="same_kind")
    np.sin(angles, out=rows[:, 1], casting="same_kind")
    shape = count, heads, width
    source = padded(array.reshape(lead * tokens, heads, width), shape, BFLOAT16)
    result = np.empty(shape, BFLOAT16)
    request = dict(tokens=count, heads=heads, width=width, epsilon=bits)
    request["normed"] = int(norm_weight is not None)
    chosen.operation("rope").run(request, [bytes_of(part) for part in (source, tables, result)])
    return result[: lead * tokens].reshape(array.shape)


def _positions(positions: ArrayLike | int, tokens: int) -> np.ndarray:
    """The position of every token, int64."""
    try:
        places = np.asarray(positions)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"[rope] positions cannot become an array: {error}") from error
    if places.dtype.kind not in "iu" and places.size:
        raise DtypeError(f"[rope] positions have dtype {places.dtype}; they must be integers")
    if places.ndim == 0:
        first = min(max(int(places), -1), _POSITIONS)  # what is out of range stays so
        places = first + np.arange(tokens)
    if places.shape != (tokens,):
        raise ShapeError(
            f"[rope] positions have shape {places.shape}; x has {tokens} tokens: give one position "
            "each, or the first alone"
        )
    if places.size and not (places.min() >= 0 and places.max() < _POSITIONS):
        raise ArgumentError(
            f"[rope] positions are {places.min()} to {places.max()}; they must be 0 to 2^24 - 1"
        )
    return places.astype(np.int64)


def _angles(places: np.ndarray, width: int, base: float, factor: float) -> np.ndarray:
    """In radians, (tokens, width / 2), float64."""
    inverse = base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    return (places / factor)[:, None] * inverse
