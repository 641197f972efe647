"""Products of fp32 lanes by their definition, for tests: six products of bf16 parts, each added
with one rounding to fp32, in extended precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
_ORDER = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0))


def parts(value: np.ndarray) -> list[np.ndarray]:
    """Three numbers of eight bits whose sum is the value."""
    found, rest = [], value.astype(np.float32)
    for _ in range(3):
        found.append(rest.astype(BF16).astype(np.float32))
        rest = rest - found[-1]
    assert not rest.any()
    return found


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c, rounded once; exact before where a and b have eight bits."""
    wide = (np.asarray(v).astype(np.longdouble) for v in (a, b, c))
    x, y, z = wide
    return (x * y + z).astype(np.float32)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of two vectors of fp32."""
    x, y = parts(a), parts(b)
    total = np.zeros(np.broadcast(a, b).shape, np.float32)
    for i, j in _ORDER:
        total = fused(x[i], y[j], total)
    return total


def nearest(wide: np.ndarray) -> np.ndarray:
    """bf16 of extended precision, as fp32; the second rounding sees whether the first was exact."""
    narrow = wide.astype(np.float32)
    bits = narrow.view(np.int32)
    above = np.abs(narrow) > np.abs(wide)
    odd = np.where(narrow == wide, bits, (bits - above) | 1).astype(np.int32)
    return odd.view(np.float32).astype(BF16).astype(np.float32)
