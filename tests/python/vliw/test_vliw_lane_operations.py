"""Operations on lanes that normalising, rotating and exponentiating kernels need: what they
compute against extended precision and NumPy, their edges among it, on a simulated core.
"""

from __future__ import annotations

import numpy as np
import pytest
from lane_products import BF16, nearest
from vliw_programs import run

from npu.vliw import lane_arithmetic as arithmetic
from npu.vliw.aie2p import AIE2P


def as_bf16(found: bytes) -> np.ndarray:
    return np.frombuffer(found, BF16).astype(np.float32)


def near_ties(function, inverse) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Numbers whose results are near the middle between two bf16 numbers of [1/2, 1)."""
    ties = (np.arange(257, 511, 2) / 512).astype(np.longdouble)
    middle = inverse(ties).astype(np.float32)
    found = np.concatenate([middle, np.nextafter(middle, -9), np.nextafter(middle, 9)])
    narrow = function(found.astype(np.longdouble)).astype(np.float32)
    assert np.isin(narrow, ties.astype(np.float32)).sum() > 20  # rounding to fp32 first would err
    return found


def test_powers_of_two() -> None:
    x = np.concatenate([near_ties(np.exp2, np.log2), np.linspace(-140, 130, 999)])
    x = np.append(x, [-126, np.nextafter(np.float32(-126), np.float32(-200)), -125.5, 0, 127.99])
    x = x.astype(np.float32)
    found = as_bf16(arithmetic.elementary("power of two", x.tobytes()))
    with np.errstate(over="ignore"):
        exact = nearest(np.exp2(x.astype(np.longdouble)))
    np.testing.assert_array_equal(found, np.where(x < -126, 0, exact))
    edges = np.array([128, 1e30, np.inf, -np.inf, np.nan], np.float32)
    found = as_bf16(arithmetic.elementary("power of two", edges.tobytes()))
    np.testing.assert_array_equal(found, [np.inf, np.inf, np.inf, 0, np.nan])


def test_tangents() -> None:
    x = np.concatenate([near_ties(np.tanh, np.arctanh), np.linspace(-12, 12, 999)])
    x = np.append(x, [1e-30, 1e-38, np.inf]).astype(np.float32)
    found = as_bf16(arithmetic.elementary("tangent", x.tobytes()))
    np.testing.assert_array_equal(found, nearest(np.tanh(x.astype(np.longdouble))))
    other = as_bf16(arithmetic.elementary("tangent", (-x).tobytes()))
    np.testing.assert_array_equal(other, -found)


def test_inverse_roots() -> None:
    x = (np.random.default_rng(1).random(500) * 2.0 ** np.arange(-125, 125, 0.5)).astype(np.float32)
    found = [arithmetic.inverse_root(int(bits)) for bits in x.view(np.uint32)]
    exact = (1 / np.sqrt(x.astype(np.longdouble))).astype(np.float32)
    np.testing.assert_array_equal(np.array(found, np.uint32).view(np.float32), exact)


def test_comparisons_and_choices() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 3, 32).astype(BF16) for _ in range(2))
    mask = arithmetic.at_least(a.tobytes(), b.tobytes())
    assert [mask >> lane & 1 for lane in range(32)] == (a >= b).tolist() and mask >> 32 == 0
    chosen = arithmetic.selected(a.tobytes(), b.tobytes(), mask, 2)
    np.testing.assert_array_equal(np.frombuffer(chosen, BF16), np.where(a >= b, b, a))
    assert arithmetic.at_least(np.full(1, np.nan, BF16).tobytes(), bytes(2)) == 0
    x = np.array([-1, 0, 5, -(2**31)], np.int32)
    assert arithmetic.below(x.tobytes(), bytes(16), 4) == 0b1001
    assert arithmetic.below(x.astype(np.int16).tobytes(), bytes(8), 2) == 0b0001
    # The sign of a difference of fp32 numbers, read as an integer.
    assert arithmetic.below(np.array([-0.5, 0.5], np.float32).tobytes(), bytes(8), 4) == 1


def test_bits() -> None:
    a, b = (np.array(v, np.uint32).tobytes() for v in ([12, 0x80000000], [10, 1]))
    assert np.frombuffer(arithmetic.paired("and", a, b), np.uint32).tolist() == [8, 0]
    assert np.frombuffer(arithmetic.paired("or", a, b), np.uint32).tolist() == [14, 0x80000001]


def test_moves_between_lanes() -> None:
    a, b = bytes(range(64)), bytes(range(64, 128))
    assert arithmetic.shifted_bytes(a, b, 4) == bytes(range(4, 68))
    assert arithmetic.lane(a, 2) == 0x0B0A0908
    two = np.array([1.5, -2], BF16)
    assert np.frombuffer(arithmetic.negative(two.tobytes()), BF16).tolist() == [-1.5, 2]


def test_on_a_core() -> None:
    """From an accumulator to a scalar and back: moves take 2 cycles, the root 4."""
    text = (
        "vmov x1, bmll0\nnop\nvextract.32 r2, x1, r1, vaddsign1\nnop\ninvsqrt r3, r2\n"
        + "nop\n" * 3
        + "vbcst.32 x2, r3\nnop"
    )
    registers = {"bmll0": np.full(16, 4, np.float32).tobytes(), "r1": 3}
    core, _ = run(text, None, AIE2P, **registers)
    value = core.value("x2")
    assert isinstance(value, bytes)
    assert np.frombuffer(value, np.float32).tolist() == [0.5] * 16
    core, _ = run(text.replace("nop\n" * 3, "nop\n" * 2), None, AIE2P, r3=0, **registers)
    assert core.value("x2") == bytes(64)  # too early: what was there before


@pytest.mark.parametrize("form", ["vmsc.f", "vsub.f", "vadd.f"])
def test_signs(form: str) -> None:
    operands = "x0, x1, r0" if form == "vmsc.f" else "dm1, r0"
    text = f"{form} dm0, dm0, {operands}" + "\nnop" * 6
    c, b = (np.full(64, v, np.float32).tobytes() for v in (10, 3))
    narrow = {f"x{n}": np.full(32, v, BF16).tobytes() for n, v in enumerate((2, 3))}
    registers = {"dm0": c, "dm1": b, "r0": 60} | narrow
    core, _ = run(text, None, AIE2P, **registers)
    value = core.value("dm0")
    assert isinstance(value, bytes)
    expected = {"vmsc.f": 4, "vsub.f": 7, "vadd.f": 13}[form]
    assert np.frombuffer(value, np.float32)[:32].tolist() == [expected] * 32
