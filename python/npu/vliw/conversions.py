"""What loads and stores do to lanes on their way into accumulators and out of them, as C++ kernels
in `silicon` have it (docs/reference/arithmetic.md, section 4), in the modes that kernels here set.
"""

from __future__ import annotations

import numpy as np

from npu.errors import ScheduleError
from npu.vliw.aie2p import SATURATE, TO_EVEN
from npu.vliw.arithmetic import rounded_shift

_INTEGERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


def shifted_up(
    data: bytes, lane_bytes: int, shift: int, saturation: int, sum_bytes: int = 4
) -> bytes:
    """Integers to sums of 4 or 8 bytes, shifted left and cut or saturated."""
    values = np.frombuffer(data, _INTEGERS[lane_bytes]).astype(np.int64) << shift
    return _fitted(values, sum_bytes, saturation)


def shifted_down(
    data: bytes, lane_bytes: int, shift: int, rounding: int, saturation: int, sum_bytes: int = 4
) -> bytes:
    """Sums of 4 or 8 bytes to narrower integers: shifted right, rounded, cut or saturated."""
    _check_rounding(rounding)
    values = np.frombuffer(data, _INTEGERS[sum_bytes]).astype(np.int64)
    return _fitted(rounded_shift(values, np.array(shift)), lane_bytes, saturation)


def to_fp32(data: bytes) -> bytes:
    """bf16 to fp32, exactly."""
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).tobytes()


def to_bf16(data: bytes, rounding: int) -> bytes:
    """fp32 to bf16. A NaN keeps its upper bits, or gets one."""
    _check_rounding(rounding)
    bits = np.frombuffer(data, np.uint32).astype(np.uint64)
    rounded, kept = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16, bits >> 16
    nan = kept | (kept & 0x7F == 0)
    return np.where(bits & 0x7FFFFFFF > 0x7F800000, nan, rounded).astype(np.uint16).tobytes()


def to_bfp16(data: bytes, rounding: int) -> bytes:
    """fp32 to blocks of 8 that share the largest exponent: that and then mantissas, in bytes."""
    _check_rounding(rounding)
    bits = np.frombuffer(data, np.uint32).astype(np.int64).reshape(-1, 8)
    exponents, fractions = bits >> 23 & 0xFF, bits & 0x7FFFFF
    top = exponents.max(axis=1, keepdims=True)
    values = np.where(bits >> 31 == 1, -1, 1) * (fractions | (exponents > 0).astype(np.int64) << 23)
    # Of 24 bits seven stay; beyond 60 nothing is left of any.
    dropped = np.minimum(17 + top - np.maximum(exponents, 1), 60)
    mantissas = rounded_shift(values, dropped).clip(-128, 127)
    return np.concatenate([top, mantissas & 0xFF], axis=1).astype(np.uint8).tobytes()


def _fitted(values: np.ndarray, lane_bytes: int, saturation: int) -> bytes:
    dtype = _INTEGERS[lane_bytes]
    if saturation not in (0, SATURATE):
        raise ScheduleError(
            f"[simulate] saturation mode {saturation} is not simulated; 0 (none) and {SATURATE} are"
        )
    if saturation == SATURATE:
        values = values.clip(np.iinfo(dtype).min, np.iinfo(dtype).max)
    return values.astype(dtype).tobytes()


def _check_rounding(mode: int) -> None:
    if mode != TO_EVEN:
        raise ScheduleError(
            f"[simulate] rounding mode {mode} is not simulated; {TO_EVEN} (to even) is"
        )
