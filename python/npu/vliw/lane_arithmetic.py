"""What the operations of lane_operations.py compute, on bytes of registers, as C++ kernels in
`silicon` have it (backend/kernels/host/aie_api)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from npu.vliw import conversions

_TO_EVEN = 12


def shifted_bytes(a: bytes, b: bytes, count: int) -> bytes:
    """64 bytes of the pair, lowest first, from byte ``count`` on."""
    return (a + b)[count : count + len(a)]


def lane(vector: bytes, index: int) -> int:
    """The bits of a lane of 32 bits."""
    return int(np.frombuffer(vector, np.uint32)[index % (len(vector) // 4)])


def integer(action: str, a: int, b: int) -> int:
    """Of scalar registers; shifts are to the left, negative ones to the right with the sign."""
    signed = a - (a >> 31 << 32)
    shift = b - (b >> 31 << 32)
    match action:
        case "subtract":
            signed -= shift
        case "mask":
            signed &= shift
        case _:
            signed = signed << shift if shift >= 0 else signed >> -shift
    return signed & 0xFFFFFFFF


def negative(lanes: bytes) -> bytes:
    """Lanes of bf16 with other signs."""
    return (np.frombuffer(lanes, np.uint16) ^ np.uint16(0x8000)).tobytes()


def paired(action: str, a: bytes, b: bytes) -> bytes:
    """Lanes of fp32, or bits."""
    if action in ("and", "or"):
        one, other = (np.frombuffer(v, np.uint32) for v in (a, b))
        return (one & other if action == "and" else one | other).tobytes()
    x, y = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return (x - y).tobytes()


def at_least(a: bytes, b: bytes) -> int:
    """A bit per lane of bf16: whether that of a is not below that of b."""
    x, y = (np.frombuffer(conversions.to_fp32(v), np.float32) for v in (a, b))
    return _mask(x >= y)


def below(a: bytes, b: bytes, lane_bytes: int) -> int:
    """A bit per lane of signed integers: whether that of a is less than that of b."""
    lanes = np.dtype(f"i{lane_bytes}")
    return _mask(np.frombuffer(a, lanes) < np.frombuffer(b, lanes))


def _mask(lanes: np.ndarray) -> int:
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")


def selected(a: bytes, b: bytes, mask: int, lane_bytes: int) -> bytes:
    """Lanes of b where the mask is set, else of a."""
    x, y = (np.frombuffer(v, np.uint8).reshape(-1, lane_bytes) for v in (a, b))
    chosen = np.array([mask >> lane & 1 for lane in range(len(x))], bool)
    return np.where(chosen[:, None], y, x).tobytes()


def inverse_root(bits: int) -> int:
    """Of one fp32 number, correctly rounded but for a second rounding from fp64."""
    value = float(np.array(bits, np.uint32).view(np.float32))
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.float32(1 / np.sqrt(np.float64(value)))
    return int(root.view(np.uint32))


def elementary(action: str, lanes: bytes) -> bytes:
    """2^x or tanh of fp32 lanes as the nearest bf16; powers below 2^-126 are 0."""
    function: Callable[[float], float] = math.tanh if action == "tangent" else _power
    wide = np.array([function(x) for x in np.frombuffer(lanes, np.float32).tolist()])
    return conversions.to_bf16(_to_odd(wide).tobytes(), _TO_EVEN)


def _power(x: float) -> float:
    if x >= 128:
        return math.inf
    return x if math.isnan(x) else 0.0 if x < -126 else 2.0**x


def _to_odd(wide: np.ndarray) -> np.ndarray:
    """fp64 to fp32 such that rounding again gives what rounding once gives."""
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    bits = narrow.view(np.int32)
    away = np.abs(narrow.astype(np.float64)) > np.abs(wide)
    inexact = (narrow.astype(np.float64) != wide) & np.isfinite(narrow)
    return np.where(inexact, (bits - away) | 1, bits).astype(np.int32).view(np.float32)
