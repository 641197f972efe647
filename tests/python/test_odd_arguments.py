"""What callers pass by mistake: every wrong value of npu.matmul, npu.pack, npu.device and
npu.emulator ends in one of npu.errors (or Python's MemoryError), and odd but valid ones in the
right numbers. Nothing here may crash the interpreter or allocate what a wrong size asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu
from npu import emulator, stream
from npu.errors import ArgumentError, DeviceError, DtypeError, FormatError, NpuError, ShapeError

ONES = np.ones((4, 3), np.float32)


def spread(*shape: int) -> np.ndarray:
    """A matrix of any size that takes four bytes."""
    return np.broadcast_to(np.float32(1), shape)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: npu.matmul([[1, 2], [3]], ONES), ArgumentError, "a cannot become an array"),
        (lambda: npu.matmul([[1.0, 2.0]], ONES), DtypeError, "float64"),
        (lambda: npu.matmul("text", ONES), DtypeError, "<U4"),
        (lambda: npu.matmul(ONES.astype(object), ONES.T), DtypeError, "object"),
        (lambda: npu.matmul(np.zeros((2, 2), [("x", "f4")]), ONES), DtypeError, "x"),
        (lambda: npu.matmul(np.float32(1), ONES), ShapeError, "two dimensions"),
        (lambda: npu.matmul(np.ma.ones((4, 3)), ONES.T), ArgumentError, "masked"),
        (lambda: npu.matmul(ONES, ONES.T, out_dtype="number"), DtypeError,
         "'number' is not a valid dtype"),
        (lambda: npu.matmul(ONES, ONES.T, out_dtype=3), DtypeError, "3 is not a valid dtype"),
        (lambda: npu.matmul(spread(1, 2**60), spread(2**60, 1)), ShapeError, "addressed"),
        (lambda: npu.matmul(spread(2**40, 3), spread(3, 2**40)), ShapeError, "addressed"),
        (lambda: npu.matmul(spread(2**40, 0), spread(0, 2**40)), ShapeError, "addressed"),
        (lambda: npu.matmul(spread(2**45, 3), ONES.T), MemoryError, None),
        (lambda: npu.matmul(spread(1, 2**45), spread(2**45, 1)), MemoryError, None),
        (lambda: npu.pack(spread(2**31, 2**29)), ShapeError, r"\[pack\].*addressed"),
        (lambda: npu.pack(ONES[0]), ShapeError, r"\[pack\]"),
        (lambda: npu.pack(ONES.astype(float)), DtypeError, r"\[pack\]"),
        (lambda: npu.matmul(np.ones((1,) * 50 + (4, 3), np.float32), ONES.T), ShapeError, None),
        (lambda: npu.device(3).__enter__(), DeviceError, "int"),
        (lambda: npu.device(None).__enter__(), DeviceError, "NoneType"),
        (lambda: npu.device([]).__enter__(), DeviceError, "list"),
        (lambda: npu.device("emu:npu1", arithmetic=3).__enter__(), DeviceError, "int"),
    ],
)  # fmt: skip
def test_wrong_operands(call: Callable[[], Any], error: type[Exception], words: str | None) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=str)
def test_a_field_of_packed_records_is_an_operand(dtype: Any) -> None:
    """Its elements are no whole number of elements apart."""
    records = np.zeros((70, 90), [("flag", "i1"), ("value", dtype)])
    records["value"] = np.random.default_rng(0).integers(-50, 50, (70, 90))
    c = npu.matmul(records["value"], np.eye(90, dtype=np.float32), out_dtype=np.float32)
    np.testing.assert_array_equal(c, records["value"].astype(np.float32))


def test_result_dtype_is_native() -> None:
    assert npu.matmul(ONES, ONES.T, out_dtype=">f4").dtype == np.dtype("=f4")


def test_errors_raised_in_python_carry_their_kind() -> None:
    for error, kind in [(ArgumentError, "argument"), (ShapeError, "shape"), (DtypeError, "dtype"),
                        (FormatError, "format"), (DeviceError, "device")]:  # fmt: skip
        assert error("x").kind == kind


@pytest.fixture
def array() -> emulator.Array:
    opened = emulator.Array("npu1")
    opened.configure(stream.Builder("npu1", 4).finish())
    return opened


@pytest.mark.parametrize("wrong", [None, 5, 10**12, -1, "text", [3, 4], b"", b"x" * 16])
def test_wrong_stream_bytes(array: emulator.Array, wrong: Any) -> None:
    for function in (array.configure, array.submit):
        with pytest.raises((ArgumentError, FormatError)):
            function(wrong)


WAIT = ["acquire_ge", 1, 1]


@pytest.mark.parametrize(
    ("col", "row", "ops", "functions"),
    [
        (0, 0, [WAIT], {}),
        (0, 1, [WAIT], {}),
        (-1, 2, [WAIT], {}),
        (9, 2, [WAIT], {}),
        (2**40, 2, [WAIT], {}),
        (0.5, 2, [WAIT], {}),
        ("0", 2, [WAIT], {}),
        (0, 2, None, {}),
        (0, 2, [WAIT], None),
        (0, 2, [WAIT], ["f"]),
        (0, 2, "abc", {}),
        (0, 2, [None], {}),
        (0, 2, [[]], {}),
        (0, 2, [["jump", 1]], {}),
        (0, 2, [["acquire_ge", 16, 1]], {}),
        (0, 2, [["acquire_ge", 1.5, 1]], {}),
        (0, 2, [["acquire_ge", "1", 1]], {}),
        (0, 2, [["acquire_ge", 1]], {}),
        (0, 2, [["release", 1, -1]], {}),
        (0, 2, [WAIT, ["call", "f", []]], {}),
        (0, 2, [WAIT, ["call", "f", []]], {"f": 3}),
        (0, 2, [WAIT, ["call", ["f"], []]], {"f": print}),
        (0, 2, [WAIT, ["call", "f"]], {"f": print}),
        (0, 2, [WAIT, ["call", "f", None]], {"f": print}),
        (0, 2, [WAIT, ["call", "f", [1.5]]], {"f": print}),
        (0, 2, [WAIT, ["call", "f", [2**40]]], {"f": print}),
        (0, 2, [WAIT, ["call", "f", [{"buffer": 65536}]]], {"f": print}),
        (0, 2, [WAIT, ["call", "f", [{"buffer": "0"}]]], {"f": print}),
        (0, 2, [WAIT, ["call", "f", [{"address": 0}]]], {"f": print}),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_programs(
    array: emulator.Array, col: Any, row: Any, ops: Any, functions: Any
) -> None:
    with pytest.raises(NpuError) as caught:
        array.attach(col, row, ops, functions)
    assert str(caught.value).startswith("[")
    assert caught.value.kind != "error"


def test_numpy_integers_and_tuples_make_a_program(array: emulator.Array) -> None:
    ops = (("acquire_ge", np.int64(1), np.int8(1)), ("call", "f", ({"buffer": np.uint16(8)}, 7)))
    array.attach(np.int64(0), np.int32(2), iter(ops), {"f": print, "unused": None})


def read_stream(words: int) -> bytes:
    """Shim (0,0) takes ``words`` of argument 0 into a BD; nothing runs it."""
    builder = stream.Builder("npu1", 4)
    address = stream.tile_address(0, 0, stream.tile_geometry("shim")["bd_base"])
    builder.block_write(address, stream.encode_bd("shim", {"length": words}))
    builder.address_patch(address + 4, 0, 0)
    return builder.finish()


@pytest.mark.parametrize(
    "wrong",
    [None, 3, ["list"], [b"bytes"], [np.zeros(8, object)], [np.zeros((8, 8))[:, ::2]],
     [np.asfortranarray(np.zeros((8, 8)))], {0: np.zeros(8)}],
)  # fmt: skip
def test_wrong_buffers(array: emulator.Array, wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[submit\]"):
        array.submit(read_stream(4), wrong)


@pytest.mark.parametrize(
    "buffer",
    [np.zeros((8, 2), np.int16), np.zeros((2, 4), ml_dtypes.bfloat16), np.ma.zeros(4),
     np.zeros(3, [("a", "i2"), ("b", "i8")]), np.array(1 + 2j), np.zeros(4, ">i4"),
     np.zeros((2, 2)).view(np.matrix), np.frombuffer(bytearray(33), np.uint8)[1:]],
    ids=lambda buffer: f"{type(buffer).__name__} {buffer.dtype}",
)  # fmt: skip
def test_any_contiguous_array_is_a_buffer(array: emulator.Array, buffer: np.ndarray) -> None:
    assert array.submit(read_stream(4), [buffer]).operations == 2


def test_wrong_places_to_read(array: emulator.Array) -> None:
    for address in (-1, 1 << 32):
        with pytest.raises(ArgumentError, match=r"\[read_register\]"):
            array.read_register(address)
    for where in [(0, 2, -1, 4), (0, 2, 65536, 4), (9, 2, 0, 4), (0, 0, 0, 4), (0, 2, 0, 1 << 40),
                  (0, 2.5, 0, 4)]:  # fmt: skip
        with pytest.raises(NpuError):
            array.read_memory(*where)
    for name in ("emu:npu2", 2, None):
        with pytest.raises(NpuError):
            emulator.Array(name)
