"""Anything thrown at npu.matmul ends in the right numbers or in a typed error before anything runs:
dtypes, shapes, strides, byte orders, containers, outputs (overlapping, read-only, wrong), shift,
alpha and bias, combined at random, against exact integers or float64; and single bad values.

The oracle (`Case.allowed`) decides for itself which combinations must work.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compare import FLOAT32_UNIT, OUTPUT_UNIT, bfp16_bound, round_bf16
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu.errors import ArgumentError, DtypeError, NpuError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float32), BF16, np.dtype(np.float16)]
INTS = [np.dtype(np.int8), np.dtype(np.int16)]
RESULTS = {np.dtype(np.int8): [np.dtype(t) for t in (np.int32, np.int16, np.int8)],
           np.dtype(np.int16): [np.dtype(np.int32)]} | {t: FLOATS for t in FLOATS}  # fmt: skip
STRANGE = [np.dtype(t) for t in ("f8", "u1", "i4", "i8", "?", "c8", "O")]
ANY = [*FLOATS, *INTS, *STRANGE, np.dtype(np.int32)]


class Named(np.ndarray):
    """A subclass that refuses to be computed with."""

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("operands are data, not objects with operations")


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "i" and dtype.itemsize <= 2:
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max + 1, shape), dtype)
    return np.asarray(rng.standard_normal(shape) * 4).astype(dtype)


def laid_out(array: np.ndarray, how: str) -> np.ndarray:
    """The same values with other strides."""
    if array.ndim < 2:
        return array
    if how == "transposed":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "reversed":
        return np.ascontiguousarray(array[..., ::-1, ::-1])[..., ::-1, ::-1]
    if how == "stepped":
        wide = np.zeros((*array.shape[:-1], 3 * array.shape[-1]), array.dtype)
        wide[..., ::3] = array
        return wide[..., ::3]
    if how == "repeated" and array.shape[-2]:
        return np.broadcast_to(array[..., :1, :], array.shape)
    return array


GOOD_CONTAINERS = ["array", "array", "named", "read-only", "swapped", "unaligned"]


def contained(array: np.ndarray, how: str) -> Any:
    if how == "named":
        return array.view(Named)
    if how == "read-only":
        array = array.copy()
        array.flags.writeable = False
    if how == "swapped" and array.dtype != BF16 and array.dtype.kind in "if":
        return array.astype(array.dtype.newbyteorder(">"))
    if how == "unaligned" and array.dtype != object:
        raw = np.zeros(array.nbytes + 1, np.uint8)
        moved = np.ndarray(array.shape, array.dtype, buffer=raw, offset=1)
        moved[...] = array
        return moved
    if how == "masked":
        return np.ma.masked_array(array)
    return array.tolist() if how == "list" else array


@dataclasses.dataclass
class Case:
    """One call; ``a`` and ``b`` are the values, ``operands`` what is passed for them."""

    a: np.ndarray
    b: np.ndarray
    operands: tuple[Any, Any]
    containers: tuple[str, str]
    options: dict[str, Any]
    out_kind: str | None

    @property
    def integer(self) -> bool:
        return self.a.dtype in INTS

    @property
    def shape(self) -> tuple[int, ...] | None:
        if self.a.ndim < 2 or self.b.ndim < 2 or self.a.shape[-1] != self.b.shape[-2]:
            return None
        try:
            batch = np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        except ValueError:
            return None
        return (*batch, self.a.shape[-2], self.b.shape[-1])

    @property
    def dtype(self) -> np.dtype:
        if (out := self.options.get("out")) is not None:
            return out.dtype
        if (given := self.options.get("out_dtype")) is not None:
            return np.dtype(given)
        default = self.a.dtype if self.a.dtype == self.b.dtype else np.dtype(np.float32)
        return np.dtype(np.int32) if self.integer else default

    def allowed(self) -> bool:
        a, b, o = self.a.dtype, self.b.dtype, self.options
        if self.shape is None or any(kind in ("masked", "list") for kind in self.containers):
            return False
        if not (a in FLOATS and b in FLOATS) and not (a in INTS and a == b):
            return False
        if self.dtype not in RESULTS[a] or self.out_kind not in (None, "good"):
            return False
        shift, alpha, bias = o["shift"], o["alpha"], o["bias"]
        narrow = self.integer and self.dtype.itemsize < 4
        if not 0 <= shift <= (31 if narrow else 0):
            return False
        if self.integer and (not isinstance(alpha, int) or abs(alpha) >= 1 << 31):
            return False
        if isinstance(alpha, str) or (o["bf16"] and self.integer):
            return False
        if bias is not None:
            integers = np.can_cast(bias.dtype, np.int32) and bias.dtype != np.bool_
            if not (integers if self.integer else bias.dtype in FLOATS):
                return False
            try:
                return np.broadcast_shapes(bias.shape, self.shape) == self.shape
            except ValueError:
                return False
        return True

    def check(self, c: np.ndarray) -> None:
        assert self.shape == c.shape and c.dtype == self.dtype
        bias = 0 if self.options["bias"] is None else self.options["bias"]
        alpha = self.options["alpha"]
        if self.integer:
            sums = np.matmul(self.a.astype(np.int64), self.b.astype(np.int64)).astype(np.int32)
            exact = sums.astype(object) * int(alpha) + np.asarray(bias).astype(object)
            np.testing.assert_array_equal(c, requantised(exact, self.options["shift"], c.dtype))
            return
        a, b = (round_bf16(x).astype(np.float64) for x in (self.a, self.b))
        products, steps = a @ b, a.shape[-1] + 4
        bound = steps * FLOAT32_UNIT * (np.abs(a) @ np.abs(b))
        if self.options["bf16"] != "native":
            bound += bound_of_blocks(a, b)
        wide = np.asarray(bias).astype(np.float64)
        exact = alpha * products + wide
        bound = abs(alpha) * bound + 2 * FLOAT32_UNIT * (np.abs(alpha * products) + np.abs(wide))
        bound += OUTPUT_UNIT[str(c.dtype)] * (np.abs(exact) + bound) + 2.0**-25
        found = c.astype(np.float64)
        # Half a step above float16's largest value rounds to infinity, of the sign that the error
        # leaves it.
        over = np.isinf(found) & (np.sign(found) * exact + bound >= 65520)
        close = np.abs(found - exact) <= bound
        assert (close | ((c.dtype == np.float16) & over)).all()


def bound_of_blocks(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return bfp16_bound(a, b) if a.shape[-1] else np.zeros(())


def requantised(exact: np.ndarray, shift: int, dtype: np.dtype) -> np.ndarray:
    """Exact integers to nearest (ties to even), saturated; int32 wraps around."""
    info = np.iinfo(dtype)

    def one(value: int) -> int:
        if dtype.itemsize == 4:
            return (value + 2**31) % 2**32 - 2**31
        return min(max(round(Fraction(value, 1 << shift)), info.min), info.max)

    out = np.empty(exact.shape, dtype)
    out.flat = [one(int(value)) for value in exact.flat]
    return out


FAULTS = ["dtype", "shape", "read-only", "fortran", "over a", "over bias", "swapped", "masked"]


def output(kind: str, case: Case) -> Any:
    """An ``out`` with that fault, or "good"; None where the case has no such thing."""
    shape, dtype = case.shape, case.dtype
    if shape is None or dtype not in (*FLOATS, *INTS, np.dtype(np.int32)):
        return None
    out: Any = np.full(shape, 77, dtype)
    if kind == "dtype":
        return out.astype(np.float64)
    if kind == "shape":
        return np.zeros((*shape[:-1], shape[-1] + 1), dtype)
    if kind == "read-only":
        out.flags.writeable = False
    if kind == "fortran":
        out = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
        return None if out.flags.c_contiguous else out
    if kind == "swapped":
        return None if dtype.itemsize == 1 or dtype == BF16 else out.astype(dtype.newbyteorder(">"))
    if kind == "masked":
        return np.ma.masked_array(out)
    if kind.startswith("over") and not out.size:
        return None
    if kind == "over a" and case.a.size > 0 and case.containers[0] == "array":
        memory = np.zeros(out.nbytes + case.a.nbytes, np.uint8)  # one byte of a is out's last
        a = np.ndarray(case.a.shape, case.a.dtype, memory.data, offset=out.nbytes - 1)
        a[...] = case.a
        case.operands = (a, case.operands[1])
        return np.ndarray(shape, dtype, memory.data)
    if kind == "over bias" and case.options["bias"] is not None and case.options["bias"].size:
        bias = case.options["bias"]
        memory = np.zeros(out.nbytes + bias.nbytes, np.uint8)
        near = np.ndarray(bias.shape, bias.dtype, memory.data, offset=out.nbytes - 1)
        near[...] = bias
        case.options["bias"] = near
        return np.ndarray(shape, dtype, memory.data)
    if kind.startswith("over"):
        return None
    return out


FAULTY = ["dtype", "shape", "container", "out_dtype", "shift", "alpha", "bias", "out", "bf16"]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Good calls, calls with one kind of fault, and calls where everything may be wrong."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    fault = draw(st.sampled_from(["none", "none", "none", "all", *FAULTY]))

    def pick(kind: str, good: list[Any], faulty: list[Any]) -> Any:
        return draw(st.sampled_from(good + faulty if fault in ("all", kind) else good))

    first = pick("dtype", [*FLOATS, *INTS], STRANGE)
    second = pick("dtype", FLOATS if first in FLOATS else [first], ANY)
    m, k, n = (draw(st.integers(0, 20)) for _ in range(3))
    batches = draw(st.sampled_from([((), ()), ((2,), ()), ((1,), (3,)), ((2,), (2, 1))]))
    wrong = pick("shape", [""], ["k", "vector", "number", "batch"])
    a_shape, b_shape = (*batches[0], m, k), (*batches[1], k + (wrong == "k"), n)
    if wrong in ("vector", "number"):
        a_shape = (k,) if wrong == "vector" else ()
    if wrong == "batch":
        a_shape, b_shape = (2, m, k), (3, k, n)
    layouts = st.sampled_from(["plain", "transposed", "reversed", "stepped", "repeated"])
    a = laid_out(values(rng, a_shape, first), draw(layouts))
    b = laid_out(values(rng, b_shape, second), draw(layouts))
    containers = (pick("container", GOOD_CONTAINERS, ["masked", "list"]),
                  pick("container", GOOD_CONTAINERS, ["masked", "list"]))  # fmt: skip
    operands = (contained(a, containers[0]), contained(b, containers[1]))
    integer = first in INTS
    options: dict[str, Any] = {
        "out_dtype": pick("out_dtype", [None, *RESULTS.get(first, FLOATS)], ANY),
        "shift": 0,
        "alpha": pick("alpha", [1, 1, -3, 0], ["2", 1 << 31, 0.5]),
        "bias": None,
        "bf16": pick("bf16", [None] if integer else [None, "native", "bfp16"], ["native"]),
    }
    case = Case(a, b, operands, containers, options, None)
    if integer and case.dtype in (np.dtype(np.int8), np.dtype(np.int16)):
        options["shift"] = draw(st.sampled_from([0, 1, 2, 3, 7, 12, 31]))
    options["shift"] = pick("shift", [options["shift"]], [1, 31, 32, -1])
    if draw(st.booleans()) or fault == "bias":
        kinds = [np.dtype(np.int32), np.dtype(np.int8)] if integer else FLOATS
        shape = pick("bias", [(n,), (m, 1), ()], [(n + 1,), (9, 9, 9, m, n)])
        bias_dtype = pick("bias", kinds, [*STRANGE, np.dtype(np.int32)])
        options["bias"] = values(rng, shape, bias_dtype)
    kind = pick("out", [None, "good"], FAULTS)
    if kind and (out := output(kind, case)) is not None:
        options["out"], case.out_kind = out, kind
        if kind in ("dtype", "swapped"):
            options["out_dtype"] = None
    return case


@settings(max_examples=400, deadline=None)
@given(cases(), st.sampled_from(DEVICES))
def test_right_numbers_or_a_typed_error(case: Case, device: str) -> None:
    options = dict(case.options)
    if "npu1" in device:
        case.options["bf16"] = "native" if case.options["bf16"] == "native" else None
        options = dict(case.options)
        case.options["bf16"] = "native"  # npu1 has no other way
    saved = [np.array(x) for x in case.operands] if "list" not in case.containers else None
    before = npu.stats().submissions
    try:
        c = npu.matmul(*case.operands, device=device, **options)
    except NpuError as error:
        case.options["bf16"] = options["bf16"]
        assert not case.allowed(), f"refused a good call: {error}"
        assert str(error).startswith("[matmul]"), error
        assert npu.stats().submissions == before, "ran before it was refused"
        return
    way, case.options["bf16"] = case.options["bf16"], options["bf16"]
    assert case.allowed(), "took a call that must be refused"
    case.options["bf16"] = way
    if "out" in options:
        assert c is options["out"]
    case.check(np.asarray(c))
    if saved is not None:
        for now, then in zip(case.operands, saved, strict=True):
            assert np.asarray(now).tobytes() == then.tobytes(), "changed an operand"


F, I8 = np.ones((4, 4), np.float32), np.ones((4, 4), np.int8)
NAN = float("nan")


class Refuses:
    """Cannot be a number of any kind."""

    def __index__(self) -> int:
        raise TypeError("no index")

    def __float__(self) -> float:
        raise ValueError("no number")


def spread(shape: tuple[int, ...], dtype: Any = np.int8) -> np.ndarray:
    return np.broadcast_to(np.ones((), dtype), shape)


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: npu.matmul(F, F, alpha="2"), DtypeError),
        (lambda: npu.matmul(F, F, alpha=10**400), ArgumentError),
        (lambda: npu.matmul(F, F, alpha=1j), DtypeError),
        (lambda: npu.matmul(F, F, alpha=Refuses()), DtypeError),
        (lambda: npu.matmul(I8, I8, alpha=Refuses()), DtypeError),
        (lambda: npu.matmul(I8, I8, alpha=10**400), ArgumentError),
        (lambda: npu.matmul(I8, I8, out_dtype=np.int8, shift=10**400), ArgumentError),
        (lambda: npu.matmul(I8, I8, out_dtype=np.int8, shift=NAN), DtypeError),
        (lambda: npu.matmul(I8, I8, out_dtype=("i4", (2**40,))), DtypeError),
        (lambda: npu.matmul(I8, I8, out_dtype="x", out=np.zeros((4, 4), np.int32)), DtypeError),
        (lambda: npu.matmul(F, F, bias=[[1], [2, 3]]), ArgumentError),
        (lambda: npu.matmul(F, F, bias=np.ma.ones(4, np.float32)), ArgumentError),
        (lambda: npu.matmul(F, F, bias=npu.pack(F)), DtypeError),
        (lambda: npu.matmul(F, F, bias=spread((2**40, 4, 4), np.float32)), ShapeError),
        (lambda: npu.matmul(F, F, out=np.ma.ones((4, 4), np.float32)), ArgumentError),
        (lambda: npu.matmul(F, F, out=spread((4, 4), np.float32)), ArgumentError),
        (lambda: npu.matmul(F, F, out=npu.pack(F)), ArgumentError),
        (lambda: npu.matmul(npu.pack(F), F), DtypeError),
        (lambda: npu.matmul(spread((2**30, 1, 4, 4)), spread((2**31, 4, 4))), ShapeError),
        (lambda: npu.matmul(spread((2**44, 4)), I8), MemoryError),
        (lambda: npu.matmul(spread((2**44, 4, 4)), I8), MemoryError),
        (lambda: npu.matmul(spread((1, 2**44)), spread((2**44, 1))), MemoryError),
    ],
)  # fmt: skip
def test_single_faults(call: Any, error: type[Exception]) -> None:
    before = npu.stats().submissions
    with pytest.raises(error) as caught:
        call()
    assert len(str(caught.value)) < 500
    assert error is MemoryError or str(caught.value).startswith("[matmul]")
    assert npu.stats().submissions == before


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bf16", ["native", "bfp16"])
def test_infinities_and_nan_come_without_warnings(bf16: str) -> None:
    """IEEE results of overflow in alpha, bias and the result's type."""
    big = np.full((4, 4), 1e30, np.float32)
    assert np.isposinf(npu.matmul(big, F, out_dtype=np.float16, bf16=bf16)).all()
    assert np.isposinf(npu.matmul(F, F, alpha=1e300, bf16=bf16)).all()
    assert np.isnan(npu.matmul(F, F, alpha=NAN, bf16=bf16)).all()
    assert np.isnan(npu.matmul(F, F, bias=np.float32(NAN), bf16=bf16)).all()
    assert np.isnan(npu.matmul(np.float32(NAN) * F, F, out_dtype=BF16, bf16=bf16)).all()
    empty = npu.matmul(F[:, :0], F[:0], bias=np.float32(np.inf), bf16=bf16)
    assert np.isposinf(empty).all()


def test_mapped_files_are_operands_and_results(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, c = (np.memmap(tmp_path / name, np.int32 if name == "c" else np.int8, "w+", shape=(70, 70))
            for name in "ac")  # fmt: skip
    a[...] = rng.integers(-128, 128, a.shape)
    assert npu.matmul(a, a, out=c) is c
    np.testing.assert_array_equal(c, a.astype(np.int32) @ a.astype(np.int32))
    with pytest.raises(ArgumentError, match="overlaps"):
        npu.matmul(a[:4, :4], a[:4, :4], out=np.ndarray((4, 4), np.int32, buffer=a.data))


def test_big_endian_bias() -> None:
    bias = np.array([1, 2, 3, 4], ">f4")
    np.testing.assert_array_equal(npu.matmul(F, F, bias=bias), 4 + bias * F)
    np.testing.assert_array_equal(npu.matmul(I8, I8, bias=bias.astype(">i2")), 4 + bias * F)


def test_errors_of_operations_are_no_emulator_errors() -> None:
    """The core's kinds for wrong arguments and sizes map to the package's classes."""
    from npu import errors

    for kind in ("argument", "shape", "dtype", "format", "device", "forbidden", "deadlock"):
        assert type(errors.make_error(kind, "[x] y")) is not errors.EmulatorError
    assert type(errors.make_error("out_of_range", "[x] y")) is errors.EmulatorError
