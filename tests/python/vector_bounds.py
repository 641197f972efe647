"""What npu.rms_norm, npu.rope and npu.geglu may differ from float64 by, on both generations and in
both arithmetics (docs/fidelity.md states the same), and the float64 formulas.

Operands are taken as the device has them: x in bfloat16, weights in float32.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
BF16_UNIT = 2.0**-8  # largest relative error of rounding to nearest
FLOAT_UNIT = 2.0**-24
PRODUCT_UNIT = 5.6 * FLOAT_UNIT  # of two fp32 numbers: docs/fidelity.md, products of fp32 lanes
TINY = 2.0**-133  # the least denormal: of the result, and of products of denormals before it


def wide(x: np.ndarray) -> np.ndarray:
    """float64 values of what the device gets for bfloat16 operands."""
    with np.errstate(invalid="ignore"):
        return x.astype(BF16).astype(np.float64)


def rounded_once(exact: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Bound of a result with error ``before`` that is then rounded to bfloat16."""
    return np.abs(exact) * BF16_UNIT + before * (1 + BF16_UNIT) + TINY


def norm_unit(width: int) -> float:
    """Relative error of RMSNorm in fp32: additions of a lane and five across lanes, halved by the
    root; the mean, the root itself and two products, together 14 units."""
    return ((-(-width // 32) + 5) / 2 + 14) * FLOAT_UNIT


def norm(x: np.ndarray, weight: np.ndarray | None, epsilon: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""
    mean = (wide(x) ** 2).mean(-1, keepdims=True)
    exact = wide(x) / np.sqrt(mean + np.float64(np.float32(epsilon)))
    return exact if weight is None else exact * weight.astype(np.float32)


def check_rms_norm(
    found: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    epsilon: float,
    residual: np.ndarray | None = None,
) -> None:
    """The norm's error, and with a residual one fp32 addition."""
    exact = norm(x, weight, epsilon)
    before = np.abs(exact) * norm_unit(x.shape[-1])
    if residual is not None:
        exact = exact + wide(residual)
        before = before * (1 + FLOAT_UNIT) + np.abs(exact) * FLOAT_UNIT
    assert found.dtype == BF16 and found.shape == x.shape
    assert np.all(np.abs(found.astype(np.float64) - exact) <= rounded_once(exact, before))


def rotated(
    x: np.ndarray, positions: np.ndarray, base: float, factor: float
) -> tuple[np.ndarray, np.ndarray]:
    """x (..., T, heads, d) in float64 rotated with pairs (i, i + d / 2), and for each element
    the sum of the magnitudes of its pair."""
    half = x.shape[-1] // 2
    out, sizes = np.empty_like(x), np.empty_like(x)
    for i in range(half):
        angle = (positions / factor * base ** (-2 * i / x.shape[-1]))[:, None]
        low, high = x[..., i], x[..., half + i]
        out[..., i] = low * np.cos(angle) - high * np.sin(angle)
        out[..., half + i] = low * np.sin(angle) + high * np.cos(angle)
        sizes[..., i] = sizes[..., half + i] = np.abs(low) + np.abs(high)
    return out, sizes


def check_rope(
    found: np.ndarray,
    x: np.ndarray,
    positions: np.ndarray,
    base: float,
    factor: float,
    weight: np.ndarray | None = None,
    epsilon: float = 1e-6,
) -> None:
    """Fifteen units of the pair's magnitudes: a table's entry, of which the angle's float64 error
    is a small part, two products and the sum of three; before them those of the norm, if there is
    one."""
    before = wide(x) if weight is None else norm(x, weight, epsilon)
    unit = 15 * FLOAT_UNIT + (0 if weight is None else norm_unit(x.shape[-1]))
    exact, sizes = rotated(before, positions, base, factor)
    assert found.dtype == BF16 and found.shape == x.shape
    assert np.all(np.abs(found.astype(np.float64) - exact) <= rounded_once(exact, sizes * unit))


def half_tanh(gate: np.ndarray) -> np.ndarray:
    """(1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (g + 0.044715 g^3), in float64."""
    u = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    return np.where(u < 0, np.exp(2 * u) / (1 + np.exp(2 * u)), 1 / (1 + np.exp(-2 * u)))


def gelu_unit(gate: np.ndarray, generation: str) -> np.ndarray:
    """Relative error of half_tanh. npu2: 2^v (v < 0 only) and tanh rounded to bfloat16, the latter
    to a multiple of 2^-8 that is added to at least 1.5, or better; ten fp32 roundings, and v, up to
    127, made of three products. npu1: two polynomials; all gates are looked at in
    tests/cpp/kernels/test_vector_headers.cpp."""
    if generation == "npu1":
        return np.full(gate.shape, 1.9e-4)
    arithmetic = 10 * FLOAT_UNIT + 127 * np.log(2) * 3 * PRODUCT_UNIT
    return np.where(gate < 0, BF16_UNIT, 0) + BF16_UNIT / 3 + arithmetic


def check_geglu(found: np.ndarray, gate: np.ndarray, up: np.ndarray, generation: str) -> None:
    """The errors of half_tanh and two fp32 products; h below 2^-125 may count as 0, and products
    may be denormal. Infinite and NaN operands are not looked at, results beyond bfloat16 hardly."""
    g, u = wide(gate), wide(up)
    assert found.dtype == BF16 and found.shape == gate.shape
    with np.errstate(all="ignore"):
        exact = g * half_tanh(g) * u
        unit = gelu_unit(g, generation) * (1 + BF16_UNIT) + 2 * PRODUCT_UNIT
        floor = np.abs(g * u) * 2.0**-125 + np.abs(u) * 2.0**-148
        bound = rounded_once(exact, np.abs(exact) * unit + floor)
        error = np.abs(found.astype(np.float64) - exact)
        usual = np.isfinite(g) & np.isfinite(u)
        fits = np.abs(exact) * (1 + 2 * BF16_UNIT) < float(ml_dtypes.finfo(BF16).max)
        assert np.all(error[usual & fits] <= bound[usual & fits])
        large = usual & ~fits
        assert np.all(found[large].astype(np.float64) * np.sign(exact[large]) > 3.3e38)
