"""One multiplication on bit patterns, as C++ kernels in `silicon` have it; tests hold both
together.

XDNA1, bf16 (docs/reference/arithmetic.md, section 3): products and accumulator aligned to the
largest exponent, each rounded to 23 fraction bits, summed exactly, rounded once; published vectors
confirm it. XDNA2, BFP16: a model that nothing public confirms (docs/fidelity.md).
"""

from __future__ import annotations

import numpy as np

_BF16_INFINITY, _FP32_INFINITY = 0x7F80, 0x7F800000


def multiply_bf16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b for uint16 a (4, 8) and b (8, 4), uint32 c (4, 4): bits of bf16 and fp32."""
    rows, steps, columns = len(a), len(b), b.shape[1]
    shape = (rows, columns, steps)
    x = np.broadcast_to(a[:, None, :], shape).reshape(-1, steps)
    y = np.broadcast_to(b.T[None, :, :], shape).reshape(-1, steps)
    return fused_products(x, y, c.reshape(-1)).reshape(rows, columns)


def fused_products(a: np.ndarray, b: np.ndarray, *sums: np.ndarray) -> np.ndarray:
    """The sums of the rows of a b and of ``sums``, as one operation: uint16 a and b (lanes,
    products), uint32 sums (lanes)."""
    x, y = a.astype(np.int64), b.astype(np.int64)
    q = np.stack(sums, axis=1).astype(np.int64)
    terms, exponents = _products(x, y)
    own = (q & 0x7FFFFF) | np.where((q & _FP32_INFINITY) != 0, 1 << 23, 0)
    own_exponents = np.where(own != 0, np.maximum(q >> 23 & 0xFF, 1) + 128, 0)
    own = np.where(q >> 31 & 1, -own, own)
    largest = exponents.max(axis=1)
    top = np.maximum(largest, own_exponents.max(axis=1))
    total = rounded_shift(terms << 9, top[:, None] - exponents).sum(axis=1)
    total += rounded_shift(own, top[:, None] - own_exponents).sum(axis=1)
    nan, infinity = _special(x, y, q)
    result = np.where(infinity != 0, infinity, _normalise(total, top, nan))
    kept = nan & (largest == 0) & ((q[:, 0] & 0x7FFFFFFF) > _FP32_INFINITY)
    return np.where(kept, q[:, 0], result).astype(np.uint32)


def multiply_int8(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b for int8 a and b, int32 c, modulo 2^32."""
    with np.errstate(over="ignore"):
        return c + a.astype(np.int32) @ b.astype(np.int32)


def multiply_int16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b for int16 a and b, int64 c, modulo 2^64."""
    with np.errstate(over="ignore"):
        return c + a.astype(np.int64) @ b.astype(np.int64)


def multiply_bfp16(
    a: np.ndarray, a_exponents: np.ndarray, b: np.ndarray, b_exponents: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """c + a @ b.T in float32 for int8 mantissas (8, 8), a block and its exponent per row: sums of a
    block exact, rounded once, then one addition. Exponent 255 makes NaN."""
    sums = a.astype(np.int64) @ b.astype(np.int64).T
    scale = a_exponents.astype(np.int64)[:, None] + b_exponents.astype(np.int64)[None, :] - 266
    with np.errstate(over="ignore", invalid="ignore"):
        products = np.ldexp(sums.astype(np.float64), scale).astype(np.float32)
        nan = (a_exponents == 255)[:, None] | (b_exponents == 255)[None, :]
        products[nan] = np.nan
        return c.reshape(8, 8) + products


def _special(x: np.ndarray, y: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the sum is a NaN, and the bits of the infinity where it is one (else 0)."""
    x_size, y_size, q_size = x & 0x7FFF, y & 0x7FFF, q & 0x7FFFFFFF
    infinite = (x_size == _BF16_INFINITY) | (y_size == _BF16_INFINITY)
    nan = (x_size > _BF16_INFINITY) | (y_size > _BF16_INFINITY)
    nan |= infinite & ((x_size == 0) | (y_size == 0))
    negative = (infinite & ((x ^ y) & 0x8000 != 0)).any(axis=1)
    positive = (infinite & ((x ^ y) & 0x8000 == 0)).any(axis=1)
    own = q_size == _FP32_INFINITY
    negative |= (own & (q >> 31 == 1)).any(axis=1)
    positive |= (own & (q >> 31 == 0)).any(axis=1)
    is_nan = nan.any(axis=1) | (q_size > _FP32_INFINITY).any(axis=1) | (positive & negative)
    bits = np.where(negative, 1 << 31 | _FP32_INFINITY, _FP32_INFINITY)
    return is_nan, np.where((positive ^ negative) & ~is_nan, bits, 0)


def _products(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signed significands of 16 bits and biased exponents of all products; exponent 0 for 0."""
    significands = [(v & 0x7F) | np.where((v & _BF16_INFINITY) != 0, 0x80, 0) for v in (x, y)]
    product = significands[0] * significands[1]
    exponent = np.maximum(x >> 7 & 0xFF, 1) + np.maximum(y >> 7 & 0xFF, 1) + 1
    sign = (x ^ y) >> 15 & 1
    return np.where(sign == 1, -product, product), np.where(product != 0, exponent, 0)


def rounded_shift(values: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """values / 2^shift to the nearest integer, ties to even; int64."""
    shift = np.minimum(shift, 60)
    floor = values >> shift
    rest = values - (floor << shift)
    half = (np.int64(1) << shift) >> 1
    up = (rest > half) | ((rest == half) & (floor & 1 == 1))
    return floor + (up & (shift > 0))


def _normalise(total: np.ndarray, top: np.ndarray, nan: np.ndarray) -> np.ndarray:
    """total * 2^(top - 278) as bits of fp32; of a NaN, the one that the sum gives."""
    magnitude = np.abs(total)
    # frexp is exact for integers below 2^53.
    lead = np.frexp(magnitude.astype(np.float64))[1].astype(np.int64) - 1
    mantissa = rounded_shift(magnitude, np.maximum(lead - 23, 0)) << np.maximum(23 - lead, 0)
    carry = mantissa >> 24
    exponent = top + lead - 23 - 128 + carry
    mantissa = mantissa >> carry & 0x7FFFFF
    sign = (total < 0).astype(np.int64) << 31
    finite = (exponent > 0) & (exponent < 255)
    bits = np.where(exponent >= 255, sign | _FP32_INFINITY, sign | exponent << 23 | mantissa)
    bits = np.where(exponent <= 0, 0, bits)
    bits = np.where(nan, sign | _FP32_INFINITY | 1 | np.where(finite, mantissa, 0), bits)
    return np.where(total == 0, np.where(nan, _FP32_INFINITY | 1, 0), bits)
