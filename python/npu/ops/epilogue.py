"""What follows a product on the host: alpha, bias, and the rounding to the result's dtype.

Integers are exact throughout: the result is saturate(round((alpha * (a @ b) + bias) / 2**shift)),
rounded to nearest with ties to even as the array's own requantisation does; int32 results wrap.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike

from npu.errors import ArgumentError, DtypeError, ShapeError

_INT32 = np.dtype(np.int32)
_FLOAT32 = np.dtype(np.float32)
_BIAS_FLOATS = (_FLOAT32, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
_MAX_SHIFT = 31


def shift_right(values: np.ndarray, shift: int, dtype: np.dtype) -> np.ndarray:
    """int64 values / 2**shift, rounded to nearest (ties to even), saturated to ``dtype``."""
    quotient = values >> shift
    if shift:
        rest, half = values - (quotient << shift), 1 << (shift - 1)
        quotient += (rest > half) | ((rest == half) & (quotient & 1 == 1))
    limits = np.iinfo(dtype)
    return quotient.clip(limits.min, limits.max).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """How products become the result; see the module."""

    dtype: np.dtype  # of the result
    integer: bool
    shift: int
    alpha: float
    bias: np.ndarray | None

    @classmethod
    def of(
        cls,
        dtype: np.dtype,
        integer: bool,
        shift: int,
        alpha: float,
        bias: ArrayLike | None,
        shape: tuple[int, ...],
    ) -> Epilogue:
        """Checks the arguments of ``npu.matmul`` for a result of this dtype and shape."""
        return cls(
            dtype,
            integer,
            _checked_shift(shift, dtype, integer),
            _checked_alpha(alpha, integer),
            None if bias is None else _checked_bias(bias, integer, shape),
        )

    @property
    def scaled(self) -> bool:
        return self.alpha != 1 or self.bias is not None

    @property
    def product_dtype(self) -> np.dtype:
        """What the array writes: the result itself where it can."""
        if self.scaled or self.dtype == np.float16:
            return _INT32 if self.integer else _FLOAT32
        return self.dtype

    @property
    def trivial(self) -> bool:
        return self.product_dtype == self.dtype and not self.scaled

    @property
    def device_shift(self) -> int:
        return 0 if self.scaled else self.shift

    def apply(self, product: np.ndarray) -> np.ndarray:
        """The result from products of ``product_dtype``; floats overflow to infinity silently."""
        with np.errstate(all="ignore"):
            return self._apply(product)

    def _apply(self, product: np.ndarray) -> np.ndarray:
        if not self.scaled:
            return product.astype(self.dtype)
        wide = product.astype(np.int64) if self.integer else product
        wide = wide * (self.alpha if self.integer else np.float32(self.alpha))
        if self.bias is not None:
            wide += self.bias.astype(wide.dtype)
        if self.integer and self.dtype != _INT32:
            return shift_right(wide, self.shift, self.dtype)
        return wide.astype(self.dtype)


def _checked_shift(shift: int, dtype: np.dtype, integer: bool) -> int:
    try:
        value = operator.index(shift)
    except TypeError as error:
        raise DtypeError(f"[matmul] shift is {shift!r}; expected an integer") from error
    if not 0 <= value <= _MAX_SHIFT:
        raise ArgumentError(f"[matmul] shift is {reprlib.repr(value)}; use 0 to {_MAX_SHIFT}")
    if value and (not integer or dtype == _INT32):
        raise ArgumentError(
            f"[matmul] shift is {value} and the result is {dtype}; a shift belongs to int8 or "
            "int16 results (out_dtype)"
        )
    return value


def _checked_alpha(alpha: float, integer: bool) -> float:
    if integer:
        try:
            value = operator.index(alpha)  # type: ignore[arg-type]
        except TypeError as error:
            raise DtypeError(
                f"[matmul] alpha is {alpha!r}; integer operands need an integer"
            ) from error
        if abs(value) >= 1 << 31:
            raise ArgumentError(f"[matmul] alpha is {reprlib.repr(value)}; it must fit int32")
        return value
    try:
        if not isinstance(alpha, (str, bytes, bytearray)):  # float() would read these
            return float(alpha)
    except OverflowError as error:
        raise ArgumentError(
            f"[matmul] alpha is {reprlib.repr(alpha)}; it is not a floating-point number"
        ) from error
    except (TypeError, ValueError) as error:
        raise DtypeError(f"[matmul] alpha is {alpha!r}; expected a number") from error
    raise DtypeError(f"[matmul] alpha is {alpha!r}; expected a number")


def _checked_bias(bias: ArrayLike, integer: bool, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(bias, np.ma.MaskedArray):
        raise ArgumentError("[matmul] bias is a masked array; fill it first, e.g. with .filled(0)")
    try:
        array = np.asarray(bias)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"[matmul] bias cannot become an array: {error}") from error
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    accepted = np.can_cast(array.dtype, _INT32) if integer else array.dtype in _BIAS_FLOATS
    if not accepted or array.dtype == np.bool_:
        wanted = "int8, int16 or int32" if integer else "float32, bfloat16 or float16"
        raise DtypeError(
            f"[matmul] bias has dtype {array.dtype}; use {wanted}: convert it with astype"
        )
    try:
        fits = np.broadcast_shapes(array.shape, shape) == shape
    except (ValueError, RuntimeError):  # RuntimeError: more dimensions than NumPy has
        fits = False
    if not fits:
        raise ShapeError(
            f"[matmul] bias has shape {array.shape}, which does not broadcast to the result {shape}"
        )
    return array
