"""Matrix multiplication on the NPU: dtype and shape rules, then one call into the runtime.

The device computes C = A @ B on bfloat16 inputs with float32 accumulation, or on int8 inputs with
int32 accumulation, in the output-stationary GEMM design (arXiv 2512.13282, section 4).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from npu.devices import Device, current_device
from npu.errors import ArgumentError, DtypeError, ShapeError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT_INPUTS = (np.dtype(np.float32), BFLOAT16, np.dtype(np.float16))
_INT8 = np.dtype(np.int8)
_INT32 = np.dtype(np.int32)
_SUPPORTED = "float32, bfloat16, float16 (computed as bfloat16) or int8"
_PADDING = 1024  # no native size is larger in any dimension
_MAX_BYTES = 1 << 62


class PackedMatrix:
    """A right-hand operand in device memory in the layout the array reads; see ``npu.pack``."""

    def __init__(self, handle: Any, dtype: np.dtype, device: Device) -> None:
        self.handle = handle
        self.dtype = dtype
        self.device = device
        self.shape: tuple[int, int] = (handle.k, handle.n)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory, padding included."""
        return self.handle.nbytes

    def __repr__(self) -> str:
        return f"<npu.PackedMatrix {self.shape} {self.dtype} on {self.device.name}>"


def _as_array(value: ArrayLike, name: str, function: str = "matmul") -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"[{function}] {name} is a masked array, whose mask would be ignored; fill it first, "
            "for example with .filled(0)"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"[{function}] {name} cannot become an array: {error}") from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in _FLOAT_INPUTS and array.dtype != _INT8:
        raise DtypeError(
            f"[{function}] {name} has dtype {array.dtype}; supported are {_SUPPORTED}: convert it "
            "with astype"
        )
    if array.ndim < 2:
        raise ShapeError(
            f"[{function}] {name} has shape {array.shape}; at least two dimensions are needed: "
            "reshape vectors to (1, K) or (K, 1)"
        )
    if any(stride % array.itemsize for stride in array.strides):
        return array.copy()  # a field of a packed record: no whole number of elements apart
    return array


def _check_size(function: str, *sides: int) -> None:
    """Refuses sizes whose padded matrices no 64-bit offset reaches; sides: M, K, N or K, N."""
    padded = [side + _PADDING for side in sides]
    if any(4 * a * b > _MAX_BYTES for a, b in itertools.combinations(padded, 2)):
        raise ShapeError(
            f"[{function}] {' x '.join(map(str, sides))} is more than can be addressed; split it"
        )


def _device_view(array: np.ndarray) -> tuple[np.ndarray, str]:
    """The array as the extension takes it: an integer view and the element type's name."""
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    if array.dtype == BFLOAT16:
        return array.view(np.uint16), "bfloat16"
    return array.view(np.uint8 if array.dtype == _INT8 else np.uint32), str(array.dtype)


def _result_dtype(a: np.dtype, b: np.dtype, out_dtype: DTypeLike | None) -> np.dtype:
    if (a == _INT8) != (b == _INT8):
        raise DtypeError(
            f"[matmul] operands are {a} and {b}; either both are int8 or both are floating point"
        )
    allowed = (_INT32,) if a == _INT8 else _FLOAT_INPUTS
    if out_dtype is None:
        if a == _INT8:
            return _INT32
        return a if a == b else np.dtype(np.float32)
    try:
        wanted = np.dtype(out_dtype).newbyteorder("=")
    except TypeError as error:
        raise DtypeError(f"[matmul] out_dtype {out_dtype!r} is no dtype: {error}") from error
    if wanted not in allowed:
        raise DtypeError(
            f"[matmul] out_dtype {wanted} is not available for {a} operands; use "
            f"{' or '.join(str(dtype) for dtype in allowed)}"
        )
    return wanted


def _device_output(dtype: np.dtype) -> str:
    """The element type the array writes for a result dtype (float16 is converted from float32)."""
    return "float32" if dtype == np.float16 else str(dtype)


def pack(b: ArrayLike, *, device: str | Device | None = None) -> PackedMatrix:
    """Converts and packs a right-hand operand once, for many multiplications.

    ``b``: (K, N), float32/bfloat16/float16 (rounded to bfloat16, nearest even) or int8, any
    strides, so ``npu.pack(weight.T)`` makes no extra copy. The result is tied to the device it was
    packed for. Raises ArgumentError, DtypeError, ShapeError, DeviceError.
    """
    array = _as_array(b, "b", "pack")
    if array.ndim != 2 or 0 in array.shape:
        raise ShapeError(f"[pack] b has shape {array.shape}; expected (K, N) with K, N >= 1")
    _check_size("pack", *array.shape)
    chosen = current_device(device)
    is_int8 = array.dtype == _INT8
    gemm = chosen.gemm("int8" if is_int8 else "bfloat16", "int32" if is_int8 else "float32")
    view, name = _device_view(array)
    return PackedMatrix(gemm.pack(view, name), _INT8 if is_int8 else BFLOAT16, chosen)


def matmul(
    a: ArrayLike,
    b: ArrayLike | PackedMatrix,
    *,
    out_dtype: DTypeLike | None = None,
    device: str | Device | None = None,
) -> np.ndarray:
    """``a @ b`` on the current device (in this version always an emulated NPU).

    a: (..., M, K), b: (..., K, N) or a ``PackedMatrix``; leading dimensions broadcast as in
    ``numpy.matmul``; any strides; any M, K, N including 0 (an empty sum is 0, as in NumPy).
    dtypes: float32, bfloat16 and float16 are rounded to bfloat16 (to nearest even) and accumulated
    in float32; int8 is accumulated in int32 and wraps around like int32.
    ``out_dtype``: float32, bfloat16 or float16 for floats (default: the common input dtype, float32
    when they differ), int32 for int8.
    NaN and infinities propagate as in IEEE arithmetic; float32 values beyond bfloat16's largest
    become infinite; ``fast`` arithmetic may count denormals as 0 (docs/fidelity.md).
    Masked arrays are refused. Raises ArgumentError, DtypeError, ShapeError, DeviceError, and
    MemoryError when an operand or the result does not fit memory.
    """
    left = _as_array(a, "a")
    if isinstance(b, PackedMatrix):
        return _matmul_packed(left, b, out_dtype, current_device(device or b.device))
    chosen = current_device(device)
    right = _as_array(b, "b")
    dtype = _result_dtype(left.dtype, right.dtype, out_dtype)
    m, k = left.shape[-2:]
    n = right.shape[-1]
    if right.shape[-2] != k:
        raise ShapeError(
            f"[matmul] a is {left.shape} and b is {right.shape}; the last dimension of a ({k}) "
            f"must equal the second last of b ({right.shape[-2]})"
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except (ValueError, RuntimeError) as error:  # RuntimeError: more than 32 dimensions
        raise ShapeError(
            f"[matmul] leading dimensions {left.shape[:-2]} and {right.shape[:-2]} do not broadcast"
        ) from error
    shape = (*batch, m, n)
    _check_size("matmul", math.prod(batch) * m, k, n)
    if 0 in shape or k == 0:
        return np.zeros(shape, dtype)
    if math.prod(right.shape[:-2]) == 1:  # one b: the batch of a is more rows
        rows = left.reshape(-1, k)
        return _multiply(rows, right.reshape(k, n), dtype, chosen).reshape(shape)
    out = np.empty(shape, dtype)
    left = np.broadcast_to(left, (*batch, m, k))
    right = np.broadcast_to(right, (*batch, k, n))
    for index in np.ndindex(*batch):
        out[index] = _multiply(left[index], right[index], dtype, chosen)
    return out


def _multiply(a: np.ndarray, b: np.ndarray, dtype: np.dtype, device: Device) -> np.ndarray:
    """Two non-empty matrices of checked dtypes."""
    kind = _device_output(dtype)
    gemm = device.gemm("int8" if a.dtype == _INT8 else "bfloat16", kind)
    out = np.empty((a.shape[0], b.shape[1]), BFLOAT16 if kind == "bfloat16" else np.dtype(kind))
    gemm.run(*_device_view(a), *_device_view(b), out.reshape(-1).view(np.uint8))
    return out if out.dtype == dtype else out.astype(dtype)


def _matmul_packed(
    a: np.ndarray, b: PackedMatrix, out_dtype: DTypeLike | None, device: Device
) -> np.ndarray:
    if device is not b.device:
        raise ArgumentError(
            f"[matmul] b was packed for {b.device!r}, the multiplication is on {device!r}; pack it "
            "for that device"
        )
    k, n = b.shape
    if a.shape[-1] != k:
        raise ShapeError(
            f"[matmul] a is {a.shape} and b is packed {b.shape}; a's last dimension must be {k}"
        )
    if (a.dtype == _INT8) != (b.dtype == _INT8):
        raise DtypeError(
            f"[matmul] a is {a.dtype} and b is packed {b.dtype}; pack b from {a.dtype}"
        )
    dtype = _result_dtype(a.dtype, a.dtype if out_dtype is None else b.dtype, out_dtype)
    shape = (*a.shape[:-1], n)
    rows = a.reshape(-1, k)
    _check_size("matmul", rows.shape[0], k, n)
    if 0 in shape:
        return np.zeros(shape, dtype)
    kind = _device_output(dtype)
    gemm = device.gemm("int8" if a.dtype == _INT8 else "bfloat16", kind)
    out = np.empty((rows.shape[0], n), BFLOAT16 if kind == "bfloat16" else np.dtype(kind))
    gemm.run_packed(*_device_view(rows), b.handle, out.reshape(-1).view(np.uint8))
    return (out if out.dtype == dtype else out.astype(dtype)).reshape(shape)
