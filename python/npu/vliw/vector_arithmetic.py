"""What the operations of vector_operations.py compute, on bytes of registers, as C++ kernels in
`silicon` have it (backend/kernels/host/aie_api; docs/fidelity.md, arithmetic).

Products of bf16 lanes: XDNA1 sums its two products and the accumulators by the rule of its matrix
product, XDNA2 rounds the exact sum of product and accumulators once. Sums of accumulators alone are
one fp32 addition on both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npu.errors import ScheduleError
from npu.vliw.arithmetic import fused_products
from npu.vliw.vector_operations import LANES, SHUFFLES

# Of the first operand alone: bytes, and rows and columns of 16 bits.
_TRANSPOSED_8X8, _TRANSPOSED = 35, {28: (4, 8), 29: (8, 4)}
_SHAPES = {
    mode: (name[-2:] == "hi", *(int(n) for n in name[1:-3].replace("_", "x").split("x")))
    for name, mode in SHUFFLES.items()
}
_INTEGERS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def shuffled(a: bytes, b: bytes, mode: int) -> bytes:
    """a and b as one matrix, transposed; half of it."""
    if mode == _TRANSPOSED_8X8:
        return np.frombuffer(a, np.uint8).reshape(8, 8).T.tobytes()
    if mode in _TRANSPOSED:
        return np.frombuffer(a, np.uint16).reshape(_TRANSPOSED[mode]).T.tobytes()
    if mode not in _SHAPES:
        raise ScheduleError(f"[simulate] mode {mode} of vshuffle is not simulated")
    upper, bits, rows, columns = _SHAPES[mode]
    pair = np.frombuffer(a + b, np.uint8).reshape(rows, columns, bits // 8)
    turned = pair.swapaxes(0, 1).tobytes()
    return turned[len(a) :] if upper else turned[: len(a)]


def unpacked(data: bytes) -> bytes:
    """4-bit codes to bytes, the lower one of each first."""
    packed = np.frombuffer(data, np.uint8)
    return np.stack([packed & 15, packed >> 4], axis=1).tobytes()


def broadcast(value: int, lane_bytes: int, size: int) -> bytes:
    """The lower bits of a scalar in every lane."""
    return (value & ((1 << (8 * lane_bytes)) - 1)).to_bytes(lane_bytes, "little") * (
        size // lane_bytes
    )


def extracted(data: bytes, index: int, lane_bytes: int) -> bytes:
    """One lane in every lane."""
    lanes = len(data) // lane_bytes
    at = index % lanes * lane_bytes
    return data[at : at + lane_bytes] * lanes


def multiplied(
    generation: str, totals: Sequence[bytes], a: bytes, b: bytes, configuration: int
) -> bytes:
    """The accumulators (one or two) + a b of bf16 lanes. XDNA1: lane i has the products i and
    i + 16. XDNA2: what is above 32 lanes stays as the first one has it."""
    if configuration != LANES:
        raise ScheduleError(
            f"[simulate] configuration {configuration} of a product of lanes; only {LANES} is "
            "simulated"
        )
    x, y = (np.frombuffer(v, np.uint16) for v in (a, b))
    if generation == "npu1":
        sums = (np.frombuffer(total, np.uint32) for total in totals)
        return fused_products(x.reshape(2, -1).T, y.reshape(2, -1).T, *sums).tobytes()
    lanes = len(x)
    own = [np.frombuffer(total, np.float32, lanes) for total in totals]
    return _fma(_floats(x), _floats(y), *own).tobytes() + totals[0][4 * lanes :]


def added(a: bytes, b: bytes) -> bytes:
    """Sums of fp32 lanes."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.frombuffer(a, np.float32) + np.frombuffer(b, np.float32)).tobytes()


def added_integers(a: bytes, b: bytes, lane_bytes: int) -> bytes:
    """Sums of lanes of integers, which wrap."""
    x, y = (np.frombuffer(v, _INTEGERS[lane_bytes]) for v in (a, b))
    return (x + y).tobytes()


def _floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _fma(x: np.ndarray, y: np.ndarray, c: np.ndarray, d: np.ndarray | None = None) -> np.ndarray:
    """x y + c + d of bf16 factors, rounded once: the product has 16 bits, so that a double holds
    it, and the sums are rounded to odd there before they are rounded to fp32. With d the first of
    them is exact where c is at most some 2^36 times as large or small as the product."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = _to_odd(x.astype(np.float64) * y, c.astype(np.float64))
        if d is not None:
            total = _to_odd(total, d.astype(np.float64))
        return total.astype(np.float32)


def _to_odd(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Sums rounded to odd: where one is not exact, its last bit is set, towards the exact sum."""
    total = first + second
    big = np.where(np.abs(first) > np.abs(second), first, second)
    small = np.where(np.abs(first) > np.abs(second), second, first)
    rest = small - (total - big)
    bits = total.view(np.int64)
    towards_zero = (rest != 0) & ((rest > 0) != (total > 0)) & np.isfinite(rest)
    bits = np.where(towards_zero, bits - 1, bits)
    return np.where((rest != 0) & np.isfinite(rest), bits | 1, bits).view(np.float64)
