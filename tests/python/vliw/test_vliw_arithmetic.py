"""The multiply-accumulate of bit patterns: equal to the published silicon vectors, NaNs included,
and for random operands and accumulators to the rule stated in real numbers; BFP16's the same."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.errors import ScheduleError
from npu.vliw import conversions
from npu.vliw.arithmetic import multiply_bf16, multiply_bfp16, multiply_int8

VECTORS = Path(__file__).parents[2] / "golden/silicon/bf16_mac.json"


def test_silicon_vectors() -> None:
    found = json.loads(VECTORS.read_text())
    a = np.array(found["a_bf16"], np.uint16).reshape(54, 4, 8)
    b = np.array(found["b_bf16"], np.uint16).reshape(54, 8, 4)
    c = np.array(found["c_f32"], np.uint32).reshape(54, 4, 4)
    zero = np.zeros((4, 4), np.uint32)
    for x, y, z in zip(a, b, c, strict=True):
        np.testing.assert_array_equal(multiply_bf16(x, y, zero), z)


def fused(a: np.ndarray, b: np.ndarray, c: float) -> float:
    """One lane in real numbers: terms as multiples of a quantum, nearest even, summed exactly."""
    terms = [float(x) * float(y) for x, y in zip(a, b, strict=True)]
    tops = [field(x) + field(y) for x, y, t in zip(a, b, terms, strict=True) if t]
    tops += [field(c)] if c else []
    if not tops:
        return 0.0
    top = max(tops)
    total = sum(round(math.ldexp(term, 23 - top)) for term in (*terms, c))
    if total == 0:
        return 0.0
    lead = abs(total).bit_length() - 1
    value = math.ldexp(round(math.ldexp(total, 23 - lead)), lead + top - 46)
    if abs(value) >= 2.0**128:
        return math.copysign(math.inf, total)
    return value if abs(value) >= 2.0**-126 else 0.0


def field(value: float) -> int:
    """The exponent of a significand in [1, 2); of denormals, the least one."""
    return max(math.frexp(float(value))[1] - 1, -126)


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32 - 1), centre=st.integers(0, 250), width=st.integers(1, 40))
def test_random_operands_and_accumulators(seed: int, centre: int, width: int) -> None:
    rng = np.random.default_rng(seed)

    def numbers(shape: tuple[int, int], mantissa: int, middle: int) -> np.ndarray:
        exponent = np.clip(middle + rng.integers(-width, width + 1, shape), 0, 254)
        bits = rng.integers(0, 2, shape) << 8 | exponent
        return bits << mantissa | rng.integers(0, 1 << mantissa, shape)

    a = numbers((4, 8), 7, centre).astype(np.uint16)
    b = numbers((8, 4), 7, 127).astype(np.uint16)
    c = numbers((4, 4), 23, centre).astype(np.uint32)
    found = multiply_bf16(a, b, c).view(np.float32)
    real_a = (a.astype(np.uint32) << 16).view(np.float32)
    real_b = (b.astype(np.uint32) << 16).view(np.float32)
    for i in range(4):
        for j in range(4):
            expected = fused(real_a[i], real_b[:, j], float(c.view(np.float32)[i, j]))
            assert found[i, j] == expected, (i, j)


def test_a_nan_accumulator_stays_where_all_products_are_zero() -> None:
    zero = np.zeros((4, 8), np.uint16), np.zeros((8, 4), np.uint16)
    c = np.full((4, 4), 0xFFC12345, np.uint32)
    np.testing.assert_array_equal(multiply_bf16(*zero, c), c)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), spread=st.integers(0, 40))
def test_blocks_are_summed_exactly_and_added_once(seed: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-128, 128, (8, 8)).astype(np.int8) for _ in "ab")
    ea, eb = (rng.integers(127 - spread, 128 + spread, 8).astype(np.uint8) for _ in "ab")
    c = (rng.standard_normal((8, 8)) * 2.0 ** rng.integers(-spread - 1, spread + 1)).astype("f4")
    found = multiply_bfp16(a, ea, b, eb, c)
    for i in range(8):
        for j in range(8):
            values = [
                math.ldexp(int(x) * int(y), int(ea[i]) + int(eb[j]) - 2 * 133)
                for x, y in zip(a[i], b[j], strict=True)
            ]
            expected = np.float32(c[i, j] + np.float32(math.fsum(values)))
            assert found[i, j] == expected, (i, j)


def test_blocks_without_a_number() -> None:
    """Exponent 255 in a row of A makes NaN of that row of C, in a row of B of a column."""
    one, exponents = np.ones((8, 8), np.int8), np.full(8, 133, np.uint8)
    bad = exponents.copy()
    bad[3] = 255
    zero = np.zeros((8, 8), np.float32)
    expected = np.zeros((8, 8), bool)
    expected[3] = True
    np.testing.assert_array_equal(
        np.isnan(multiply_bfp16(one, bad, one, exponents, zero)), expected
    )
    found = np.isnan(multiply_bfp16(one, exponents, one, bad, zero))
    np.testing.assert_array_equal(found, expected.T)


def test_int8_products_wrap() -> None:
    a, b = np.full((8, 8), -128, np.int8), np.full((8, 8), -128, np.int8)
    c = np.full((8, 8), 2**31 - 1, np.int32)
    assert (multiply_int8(a, b, c) == 2**31 - 1 + 8 * 128 * 128 - 2**32).all()
    assert multiply_int8(a, b, c).dtype == np.int32


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("shift", [0, 1, 7, 31])
def test_shifts_of_accumulators(dtype: type, shift: int) -> None:
    """Against quotients in float64, which are exact, and Python's integers."""
    info, size = np.iinfo(dtype), np.dtype(dtype).itemsize
    rng = np.random.default_rng(shift)
    sums = rng.integers(-(2**31), 2**31, 4096).astype(np.int32)
    sums[:512] = rng.integers(-4 << shift, (4 << shift) + 1, 512).clip(-(2**31), 2**31 - 1)
    even = np.rint(sums / 2.0**shift)
    found = np.frombuffer(conversions.shifted_down(sums.tobytes(), size, shift, 12, 1), dtype)
    np.testing.assert_array_equal(found, even.clip(info.min, info.max))
    found = np.frombuffer(conversions.shifted_down(sums.tobytes(), size, shift, 12, 0), dtype)
    np.testing.assert_array_equal(found, even.astype(np.int64).astype(dtype))
    narrow = rng.integers(info.min, info.max + 1, 256).astype(dtype)
    found = np.frombuffer(conversions.shifted_up(narrow.tobytes(), size, shift, 1), np.int32)
    wide = [max(-(2**31), min(2**31 - 1, int(v) << shift)) for v in narrow]
    np.testing.assert_array_equal(found, wide)
    found = np.frombuffer(conversions.shifted_up(narrow.tobytes(), size, shift, 0), np.int32)
    np.testing.assert_array_equal(found, (narrow.astype(np.int64) << shift).astype(np.int32))


def test_bf16_on_its_way_into_accumulators_and_out() -> None:
    """Against ml_dtypes, NaNs by class."""
    bits = np.random.default_rng(5).integers(0, 2**32, 65536, np.uint32)
    bits[:4] = 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001  # ties, to infinity, a NaN
    found = np.frombuffer(conversions.to_bf16(bits.tobytes(), 12), ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        expected = bits.view(np.float32).astype(ml_dtypes.bfloat16)
    number = ~np.isnan(bits.view(np.float32))
    np.testing.assert_array_equal(found[number].view(np.uint16), expected[number].view(np.uint16))
    assert np.isnan(found[~number].astype(np.float32)).all()
    back = np.frombuffer(conversions.to_fp32(found.tobytes()), np.float32)
    np.testing.assert_array_equal(back[number], found[number].astype(np.float32))


def test_modes_that_are_not_simulated() -> None:
    with pytest.raises(ScheduleError, match="rounding mode 0 is not simulated; 12"):
        conversions.to_bf16(bytes(4), 0)
    with pytest.raises(ScheduleError, match=r"saturation mode 3 is not simulated; 0 .none. and 1"):
        conversions.shifted_up(bytes(1), 1, 0, 3)
