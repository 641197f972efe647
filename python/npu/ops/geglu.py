"""GeGLU on the NPU: checks, padding, one runtime call. The design is npu/designs/geglu.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from npu.devices import Device, current_device
from npu.errors import ShapeError
from npu.ops.arrays import BFLOAT16, FLOATS, as_array, bytes_of, padded, round_up


def geglu(gate: ArrayLike, up: ArrayLike, *, device: str | Device | None = None) -> np.ndarray:
    """``gelu(gate) * up`` on the current device, with the tanh form of GELU.

    gelu(g) = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))). ``gate``, ``up``: bfloat16,
    float32 or float16 (rounded to bfloat16), of one shape, any strides: both may be views of one
    array. Returns bfloat16 of that shape. Computed in float32 and rounded once; docs/fidelity.md
    has the bound. A gate of -infinity gives NaN, as the formula does. Raises ArgumentError,
    DtypeError, ShapeError, DeviceError.
    """
    from npu.designs.geglu import CHUNK, CORES

    arrays = [as_array("geglu", value, n, FLOATS) for value, n in ((gate, "gate"), (up, "up"))]
    shape = arrays[0].shape
    if arrays[1].shape != shape:
        raise ShapeError(
            f"[geglu] gate has shape {shape} and up {arrays[1].shape}; they must be equal"
        )
    chosen, count = current_device(device), arrays[0].size
    if count == 0:
        return np.empty(shape, BFLOAT16)
    whole = (round_up(count, CORES * CHUNK),)
    result = np.empty(whole, BFLOAT16)
    operands = [padded(array.reshape(-1), whole, BFLOAT16) for array in arrays]
    chosen.operation("geglu").run(
        {"elements": whole[0]}, [bytes_of(array) for array in (*operands, result)]
    )
    return result[:count].reshape(shape)
