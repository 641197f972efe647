"""Where the extension's operations write: results go to the array that was passed or the call is
refused; read-only, strided and otherwise typed memory, and memory of another argument, are typed
errors that leave every array as it was."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu
from npu.errors import ArgumentError

BF16 = np.dtype(ml_dtypes.bfloat16)
ROWS, WIDTH = 64, 1152
REQUEST = {"rows": ROWS, "width": WIDTH}
SIZE = ROWS * WIDTH * 2


def _device() -> Any:
    return npu.current_device("emu:npu2")


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _read_only(size: int) -> np.ndarray:
    array = np.zeros(size, np.uint8)
    array.flags.writeable = False
    return array


def _mapped(size: int) -> np.ndarray:
    """Pages that the operating system lets nobody write to."""
    return np.frombuffer(mmap.mmap(-1, size, prot=mmap.PROT_READ), np.uint8)


# What results cannot be written to, of a number of bytes.
UNFIT: dict[str, Callable[[int], Any]] = {
    "read-only": _read_only,
    "of bytes": lambda size: np.frombuffer(bytes(size), np.uint8),
    "mapped": _mapped,
    "strided": lambda size: np.zeros(2 * size, np.uint8)[::2],
    "int8": lambda size: np.zeros(size, np.int8),
    "float32": lambda size: np.zeros(size, np.float32),
    "matrix": lambda size: np.zeros((2, size // 2), np.uint8),
    "list": lambda size: [0] * size,
}


def _rms_norm(x: Any, weight: Any, y: Any) -> None:
    _device().operation("rms_norm").run(REQUEST, [x, weight, y])


def _operands() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(2).standard_normal((ROWS, WIDTH)).astype(BF16)
    return x, np.ones(WIDTH, np.float32)


def _normalised(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("name", UNFIT)
def test_plain_operations_write_where_they_were_told(name):
    x, weight = _operands()
    with pytest.raises(ArgumentError, match=r"^\[rms_norm\] .*uint8 array"):
        _rms_norm(_bytes(x), _bytes(weight), UNFIT[name](SIZE))


def test_inputs_of_plain_operations_may_be_read_only_and_strided():
    x, weight = _operands()
    y = np.zeros((ROWS, WIDTH), BF16)
    spread = np.zeros(2 * SIZE, np.uint8)
    spread[::2] = _bytes(x)
    _rms_norm(spread[::2], np.frombuffer(weight.tobytes(), np.uint8), _bytes(y))
    np.testing.assert_allclose(y.astype(np.float64), _normalised(x), rtol=2**-7)


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.bool_])
def test_inputs_of_plain_operations_are_not_converted(dtype):
    _, weight = _operands()
    y = np.full(SIZE, 7, np.uint8)
    with pytest.raises(ArgumentError, match=r"^\[rms_norm\] an argument is an array of"):
        _rms_norm(np.zeros(SIZE, dtype), _bytes(weight), y)
    assert np.all(y == 7)


@pytest.mark.parametrize("shift", [0, 2, SIZE - 2, -2, 2 - SIZE])
def test_results_of_plain_operations_share_no_memory(shift):
    x, weight = _operands()
    memory = np.zeros(3 * SIZE, np.uint8)
    memory[SIZE : 2 * SIZE] = _bytes(x)
    before = memory.copy()
    at = SIZE + shift
    with pytest.raises(ArgumentError, match=r"^\[rms_norm\] y .*shares memory with x"):
        _rms_norm(memory[SIZE : 2 * SIZE], _bytes(weight), memory[at : at + SIZE])
    np.testing.assert_array_equal(memory, before)
    _rms_norm(memory[SIZE : 2 * SIZE], _bytes(weight), memory[2 * SIZE :])
    found = memory[2 * SIZE :].view(BF16).reshape(ROWS, WIDTH).astype(np.float64)
    np.testing.assert_allclose(found, _normalised(x), rtol=2**-7)


@pytest.mark.parametrize("name", UNFIT)
def test_products_are_written_where_they_were_told(name):
    device = _device()
    gemm = device.gemm("int8", "int32")
    a, b = np.ones((4, 8), np.int8), np.ones((8, 16), np.int8)
    refused = pytest.raises(ArgumentError, match=r"^\[gemm\] c is .*uint8 array")
    with refused:
        gemm.run(a, "int8", b, "int8", UNFIT[name](4 * 16 * 4), 0)
    with refused:
        gemm.run_packed(a, "int8", gemm.pack(b, "int8"), UNFIT[name](4 * 16 * 4), 0)


def test_products_share_no_memory_with_operands():
    gemm = _device().gemm("int8", "int32")
    memory = np.ones(1024, np.uint8)
    a, b = np.ones((4, 8), np.int8), memory[:128].view(np.int8).reshape(8, 16)
    left, right = memory[:32].view(np.int8).reshape(4, 8), np.ones((8, 16), np.int8)
    with pytest.raises(ArgumentError, match=r"^\[gemm\] the result shares memory with b"):
        gemm.run(a, "int8", b, "int8", memory[127:383], 0)
    with pytest.raises(ArgumentError, match=r"^\[gemm\] the result shares memory with a"):
        gemm.run(left, "int8", right, "int8", memory[31:287], 0)
    gemm.run(a, "int8", b, "int8", memory[128:384], 0)
    np.testing.assert_array_equal(memory[128:384].view(np.int32), 8)


def test_a_product_may_lie_between_the_rows_of_an_operand():
    gemm = _device().gemm("int8", "int32")
    memory = np.ones((4, 256), np.uint8)
    a, b = memory[::2, :8].view(np.int8), np.ones((8, 16), np.int8)
    gemm.run(a, "int8", b, "int8", memory[1, :128], 0)
    np.testing.assert_array_equal(memory[1, :128].view(np.int32), 8)


def test_broadcast_operands_are_one_element():
    """However long: no search of 2^44 addresses, and the one there is may be the result's."""
    gemm = _device().gemm("int8", "int32")
    memory = np.ones(64, np.uint8)
    one, long = memory[60:61].view(np.int8), 1 << 44
    a, b = np.broadcast_to(one, (1, long)), np.broadcast_to(one, (long, 1))
    with pytest.raises(MemoryError):
        gemm.run(a, "int8", b, "int8", memory[:4], 0)
    with pytest.raises(ArgumentError, match=r"shares memory with a"):
        gemm.run(a, "int8", b, "int8", memory[60:64], 0)


@pytest.mark.parametrize("name", UNFIT)
def test_products_with_q4nx_weights_are_written_where_they_were_told(name):
    device = _device()
    gemv, dequant = device.operation("gemv"), device.operation("dequant")
    blocks = np.zeros(5120, np.uint8)
    bound = gemv.bind(blocks, 32, 256)
    x = np.ones((1, 256), np.float32)
    unfit = UNFIT[name]
    with pytest.raises(ArgumentError, match=r"^\[gemv\] y is .*uint8 array"):
        gemv.run(bound, x, "float32", unfit(128), "float32")
    values, rows = np.zeros(8, np.uint8), np.zeros(16, np.uint8)
    with pytest.raises(ArgumentError, match=r"^\[gemv_top\] values is .*uint8 array"):
        gemv.top(bound, x, "float32", 2, unfit(8), rows)
    with pytest.raises(ArgumentError, match=r"^\[gemv_top\] rows is .*uint8 array"):
        gemv.top(bound, x, "float32", 2, values, unfit(16))
    with pytest.raises(ArgumentError, match=r"^\[dequantize\] out is .*uint8 array"):
        dequant.run(bound, 0, 1, unfit(32 * 256 * 2), False)


def test_results_share_no_memory_with_q4nx_weights_and_vectors():
    device = _device()
    gemv = device.operation("gemv")
    memory = np.zeros(40000, np.uint8)
    bound = gemv.bind(memory[:5120], 32, 256)
    x = memory[6000:7024].view(np.float32).reshape(1, 256)
    for start, other in ((5119, "the weights"), (6900, "x")):
        with pytest.raises(ArgumentError, match=rf"shares memory with {other}"):
            gemv.run(bound, x, "float32", memory[start : start + 128], "float32")
    with pytest.raises(ArgumentError, match=r"shares memory with the other"):
        gemv.top(bound, x, "float32", 2, memory[8000:8008], memory[8004:8020])
    with pytest.raises(ArgumentError, match=r"shares memory with the weights"):
        device.operation("dequant").run(bound, 0, 1, memory[5000 : 5000 + 16384], False)


@pytest.mark.parametrize("access", ["read", "write", "readwrite"])
@pytest.mark.parametrize("name", UNFIT)
def test_only_memory_itself_is_wrapped(name, access):
    array = UNFIT[name](64)
    handle = _device().handle
    if access == "read" and name in ("read-only", "of bytes", "mapped"):
        assert handle.wrap(array, access).nbytes == 64
        return
    with pytest.raises(ArgumentError, match=r"^\[wrap\] the array is .*uint8 array"):
        handle.wrap(array, access)
