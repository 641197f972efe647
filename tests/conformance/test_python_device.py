"""Devices written in Python that break the contract: what each method may return is checked, the
error says which device, method and field, and a run that is given up is cancelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import python_relay

from npu import _npu
from npu.device_contract import DeviceBuffer
from npu.errors import DeviceError


class Returning(python_relay.Relay):
    """`allocate` and `wrap` return what they are told."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def allocate(self, size: int) -> Any:
        return self.value

    def wrap(self, array: np.ndarray, writable: bool) -> Any:
        return self.value


class Buffer(DeviceBuffer):
    def __init__(self, memory: Any) -> None:
        self.memory = memory


def _read_only() -> np.ndarray:
    return np.frombuffer(bytes(64), np.uint8)


BAD_BUFFERS = {
    "object": object(),
    "number": 7,
    "no memory": Buffer(None),
    "float32": Buffer(np.zeros(64, np.float32)),
    "int8": Buffer(np.zeros(64, np.int8)),
    "strided": Buffer(np.zeros(128, np.uint8)[::2]),
    "matrix": Buffer(np.zeros((8, 8), np.uint8)),
    "short": Buffer(np.zeros(63, np.uint8)),
    "read-only": Buffer(_read_only()),
}


@pytest.mark.parametrize("name", BAD_BUFFERS)
def test_buffers_are_checked(name):
    handle = _npu.device.open_python(Returning(BAD_BUFFERS[name]))
    with pytest.raises(DeviceError, match=r"^\[device\] python:relay: allocate\(\).*; return a"):
        handle.allocate(64)
    with pytest.raises(DeviceError, match=r"^\[device\] python:relay: wrap\(\).*; return a"):
        handle.wrap(np.zeros(64, np.uint8), "readwrite")


def test_no_buffer_is_a_buffer_only_where_memory_is_copied_instead():
    handle = _npu.device.open_python(Returning(None))
    assert handle.wrap(np.zeros(64, np.uint8), "read") is None
    with pytest.raises(DeviceError, match=r"allocate\(\) is None"):
        handle.allocate(64)


def test_read_only_memory_is_a_buffer_that_is_only_read():
    handle = _npu.device.open_python(Returning(Buffer(_read_only())))
    assert handle.wrap(np.zeros(64, np.uint8), "read").nbytes == 64


def test_memory_outlives_a_property_that_makes_it():
    class Fresh(DeviceBuffer):
        @property
        def memory(self) -> np.ndarray:  # type: ignore[override]
            array = np.zeros(1 << 20, np.uint8).view(Counted)
            return array

    class Counted(np.ndarray):
        alive = 0

        def __array_finalize__(self, parent: Any) -> None:
            Counted.alive += 1

        def __del__(self) -> None:
            Counted.alive -= 1

    handle = _npu.device.open_python(Returning(Fresh()))
    buffer = handle.allocate(1 << 20)
    assert Counted.alive > 0
    buffer.array[:] = 3
    assert np.all(buffer.array == 3)
    del buffer
    assert Counted.alive == 0
