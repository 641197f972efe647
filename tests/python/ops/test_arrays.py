"""npu.ops.arrays: operands keep their values whatever their byte order and strides, dtypes and
kinds that an operation does not take are refused with the function's and argument's name, `out`
must fit and share no memory, padding is zero, numbers become float32."""

from __future__ import annotations

import numpy as np
import pytest

from npu.errors import ArgumentError, DtypeError, NpuError, ShapeError
from npu.ops import arrays
from npu.ops.arrays import BFLOAT16, FLOATS


def test_operands_keep_their_values():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    record = np.zeros((2, 3), [("flag", "u1"), ("value", "f4")])
    record["value"] = values
    for given in (values, values.astype(">f4"), record["value"], values[:, ::-1][:, ::-1]):
        found = arrays.as_array("f", given, "x", FLOATS)
        assert found.dtype == np.float32 and found.dtype.isnative
        assert not any(stride % 4 for stride in found.strides)
        np.testing.assert_array_equal(found, values)
    assert arrays.as_array("f", values, "x", FLOATS) is values


@pytest.mark.parametrize("value, error, words", [
    (np.ma.masked_array([1.0, 2.0]), ArgumentError, "masked"),
    ([[1.0], [2.0, 3.0]], ArgumentError, "cannot become an array"),
    ([1.0], DtypeError, "float64; supported are float32, bfloat16, float16"),
    (np.ones(2, np.int8), DtypeError, "int8"),
])  # fmt: skip
def test_other_operands_are_refused(value, error, words):
    with pytest.raises(error, match=rf"\[f\] x .*{words}"):
        arrays.as_array("f", value, "x", FLOATS)


def test_the_dtype_of_a_result():
    half = np.zeros(2, np.float16)
    assert arrays.wanted_dtype("f", None, None) is None
    assert arrays.wanted_dtype("f", ">f4", None) == np.float32
    assert arrays.wanted_dtype("f", np.float16, half) == np.float16 == half.dtype
    for dtype, out, error in (
        ("nonsense", None, DtypeError), (np.float32, half, DtypeError),
        (None, [1.0], ArgumentError), (None, np.ma.masked_array([1.0]), ArgumentError),
    ):  # fmt: skip
        with pytest.raises(error, match=r"\[f\] out"):
            arrays.wanted_dtype("f", dtype, out)


def test_out_must_fit_and_be_free():
    whole = np.zeros((4, 6), np.float32)
    arrays.check_out("f", whole[:2], (2, 6), [whole[2:], "no array", None])
    locked = np.zeros((2, 6))
    locked.flags.writeable = False
    for out, operands, error, words in (
        (whole, [], ShapeError, r"has shape \(4, 6\), the result \(2, 6\)"),
        (whole[:2], [whole[1:3]], ArgumentError, "overlaps"),
        (np.zeros((2, 12))[:, ::2], [], ArgumentError, "not C-contiguous"),
        (locked, [], ArgumentError, "read-only"),
    ):
        with pytest.raises(error, match=rf"\[f\] out .*{words}"):
            arrays.check_out("f", out, (2, 6), operands)


def test_results_are_out_or_new():
    out = np.zeros((2, 3), np.float32)
    assert arrays.result_array("f", out, (2, 3), out.dtype, []) is out
    new = arrays.result_array("f", None, (2, 3), BFLOAT16, [out])
    assert (new.shape, new.dtype) == ((2, 3), BFLOAT16)
    with pytest.raises(ArgumentError, match="overlaps"):
        arrays.result_array("f", out, (2, 3), out.dtype, [out])


def test_numbers():
    assert arrays.float_of("f", np.int8(3), "alpha") == 3
    assert arrays.float_of("f", -(10**60), "alpha") == -np.finfo(np.float32).max
    assert arrays.float_of("f", 0, "alpha", low=0).dtype == np.float32
    for value in (float("nan"), float("inf"), True, "1", None, 10 + 0j):
        with pytest.raises(ArgumentError, match=r"\[f\] alpha is"):
            arrays.float_of("f", value, "alpha")
    with pytest.raises(NpuError, match="at least 0"):
        arrays.float_of("f", -1e-9, "alpha", low=0)


def test_padding_is_zero():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = arrays.padded(x, (4, 5), BFLOAT16)
    assert found.dtype == BFLOAT16
    np.testing.assert_array_equal(found[:2, :3].astype(np.float32), x)
    assert np.count_nonzero(found) == 5  # of 0 to 5
    assert arrays.padded(x, (2, 3), np.float32) is x
    assert arrays.padded(x[:, ::-1], (2, 3), np.float32).flags.c_contiguous
    assert arrays.round_up(0, 8) == 0 and arrays.round_up(9, 8) == 16


def test_views_are_of_the_same_memory():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays.bytes_of(x)[:4] = np.frombuffer(np.float32(7).tobytes(), np.uint8)
    assert x[0, 0] == 7
    view, name = arrays.typed_view(x.T)
    assert (view.dtype, view.shape, name) == (np.uint32, (3, 2), "float32")
    view, name = arrays.typed_view(np.ones(2, np.float16))
    assert (view.dtype, name) == (np.uint32, "float32")
    view, name = arrays.typed_view(np.ones(2, BFLOAT16))
    assert (view.dtype, name) == (np.uint16, "bfloat16")
