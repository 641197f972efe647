"""Products of fp32 lanes by their definition, for tests: six products of bf16 parts, largest parts
last, added in extended precision. A generation's ``added`` rounds one operation."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
ORDER = ((0, 2), (1, 1), (2, 0), (1, 0), (0, 1))


def added(device: str, a: np.ndarray, b: np.ndarray, *sums: np.ndarray) -> np.ndarray:
    """a b of bf16 numbers and fp32 sums. XDNA2: the exact sum, rounded once. XDNA1: every term is
    first rounded to a multiple of 2^-23 of the power of two that the largest one reaches, where a
    product counts as one of the powers that its factors reach."""
    x, y, *wide = (np.asarray(v).astype(np.longdouble) for v in (a, b, *sums))
    terms = [x * y, *wide]
    if device == "npu1":
        with np.errstate(divide="ignore", invalid="ignore"):
            powers = [_power(x) + _power(y), *(_power(v) for v in wide)]
        grid = np.exp2(np.maximum.reduce(np.broadcast_arrays(*powers)) - 23)
        terms = [np.rint(term / grid) * grid for term in terms]
    return sum(terms[1:], terms[0]).astype(np.float32)  # type: ignore[no-any-return]


def _power(value: np.ndarray) -> np.ndarray:
    return np.where(value == 0, -200, np.floor(np.log2(np.abs(value)))).astype(np.longdouble)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c, rounded once; exact before where a and b have eight bits."""
    return added("npu2", a, b, c)


def parts(value: np.ndarray, device: str = "npu2") -> list[np.ndarray]:
    """Three numbers of eight bits: each is what the ones before leave. Their sum is the value, but
    on XDNA1 where the first one is a power of two above it."""
    found, rest = [], np.asarray(value).astype(np.float32)
    for _ in range(3):
        found.append(rest.astype(BF16).astype(np.float32))
        rest = added(device, -found[-1], np.float32(1), rest)
    return found


def product(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | float = 0,
    device: str = "npu2",
    order: tuple[tuple[int, int], ...] = ORDER,
) -> np.ndarray:
    """c + a b of fp32."""
    x, y = parts(a, device), parts(b, device)
    below: np.ndarray = np.zeros(np.broadcast(a, b).shape, np.float32)
    for i, j in order:
        below = added(device, x[i], y[j], below)
    return added(device, x[0], y[0], below, np.asarray(c, np.float32))


def nearest(wide: np.ndarray) -> np.ndarray:
    """bf16 of extended precision, as fp32; the second rounding sees whether the first was exact."""
    narrow = wide.astype(np.float32)
    bits = narrow.view(np.int32)
    above = np.abs(narrow) > np.abs(wide)
    odd = np.where(narrow == wide, bits, (bits - above) | 1).astype(np.int32)
    return odd.view(np.float32).astype(BF16).astype(np.float32)
