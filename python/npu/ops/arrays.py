"""Arrays as operations take and return them: one set of checks, views and paddings for all.

``function`` is the public function that was called, for messages; ``name`` its argument.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from npu.errors import ArgumentError, DtypeError, ShapeError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (np.dtype(np.float32), BFLOAT16, np.dtype(np.float16))


def as_array(
    function: str, value: ArrayLike, name: str, dtypes: Collection[np.dtype]
) -> np.ndarray:
    """An operand of one of ``dtypes``, in native byte order and with strides of whole elements."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            f"[{function}] {name} is a masked array, whose mask would be ignored; fill it first, "
            "for example with .filled(0)"
        )
    only_dlpack = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
    try:
        array = np.from_dlpack(value) if only_dlpack else np.asarray(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        of_torch = type(value).__module__.partition(".")[0] == "torch"
        instead = "; npu.torch has functions for tensors of torch" if of_torch else ""
        raise ArgumentError(
            f"[{function}] {name} cannot become an array: {error}{instead}"
        ) from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in dtypes:
        raise DtypeError(
            f"[{function}] {name} has dtype {array.dtype}; supported are "
            f"{', '.join(map(str, dtypes))}: convert it with astype"
        )
    if any(stride % array.itemsize for stride in array.strides):
        return array.copy()  # a field of a packed record
    return array


def wanted_dtype(
    function: str, out_dtype: DTypeLike | None, out: np.ndarray | None
) -> np.dtype | None:
    """What ``out_dtype`` or ``out`` ask for; None: nothing. Of ``out`` only the kind is checked."""
    wanted = None
    if out_dtype is not None:
        try:
            wanted = np.dtype(out_dtype)
        except (TypeError, ValueError) as error:
            raise DtypeError(
                f"[{function}] out_dtype {out_dtype!r} is not a valid dtype: {error}"
            ) from error
    if out is None:
        return wanted if wanted is None else wanted.newbyteorder("=")
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"[{function}] out is {type(out).__name__}; pass a NumPy array")
    if isinstance(out, np.ma.MaskedArray):
        raise ArgumentError(
            f"[{function}] out is a masked array, whose mask would hide results; pass its .data"
        )
    if wanted is not None and wanted != out.dtype:
        raise DtypeError(
            f"[{function}] out_dtype is {wanted} and out has dtype {out.dtype}; leave one of them "
            "out"
        )
    return out.dtype


def check_out(
    function: str, out: np.ndarray, shape: tuple[int, ...], operands: Iterable[Any]
) -> None:
    """An ``out`` that the result fits and that shares no memory with the operands."""
    if out.shape != shape:
        raise ShapeError(f"[{function}] out has shape {out.shape}, the result {shape}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        found = "read-only" if out.flags.c_contiguous else "not C-contiguous"
        raise ArgumentError(f"[{function}] out is {found}; pass a writable C-contiguous array")
    for array in (value for value in operands if isinstance(value, np.ndarray)):
        try:
            overlaps = np.shares_memory(out, array, max_work=1000)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            overlaps = True
        if overlaps:
            raise ArgumentError(f"[{function}] out overlaps an operand; pass an array of its own")


def result_array(
    function: str,
    out: np.ndarray | None,
    shape: tuple[int, ...],
    dtype: np.dtype,
    operands: Iterable[Any],
) -> np.ndarray:
    """``out``, checked, or a new array."""
    if out is None:
        return np.empty(shape, dtype)
    check_out(function, out, shape, operands)
    return out


def float_of(function: str, value: Any, name: str, low: float | None = None) -> np.float32:
    """A finite number, at least ``low``, as float32; beyond float32's range, its largest."""
    number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, bool) or not number or not -math.inf < value < math.inf:
        raise ArgumentError(f"[{function}] {name} is {value!r}; it must be a finite number")
    if low is not None and value < low:
        raise ArgumentError(f"[{function}] {name} is {value!r}; it must be at least {low}")
    largest = float(np.finfo(np.float32).max)
    return np.float32(min(max(value, -largest), largest))


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


def padded(array: np.ndarray, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """The array with zeros behind every dimension, C-contiguous; itself if it is that already."""
    if array.shape == shape:
        return np.ascontiguousarray(array, dtype)
    out = np.zeros(shape, dtype)
    out[tuple(map(slice, array.shape))] = array
    return out


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The memory of a C-contiguous array as the extension takes results and plain operands."""
    return array.reshape(-1).view(np.uint8)


def typed_view(array: np.ndarray) -> tuple[np.ndarray, str]:
    """An array as the extension takes operands of any strides: an unsigned view and its dtype."""
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    return array.view(f"u{array.dtype.itemsize}"), str(array.dtype)
