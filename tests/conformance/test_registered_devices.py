"""Devices registered from Python: a factory may use the package, is called once however many
threads and choices open the device, and the device's arithmetic is its own."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import python_relay

import npu
from npu.errors import DeviceError

_numbers = itertools.count()


def _registered(factory: Callable[[], Any]) -> str:
    name = f"python:registered-{next(_numbers)}"
    npu.register_device(name, factory)
    return name


def _opened(name: str, **choices: Any) -> npu.Device:
    with npu.device(name, **choices) as device:
        return device


def _within(seconds: float, call: Callable[[], Any]) -> list[Any]:
    """What the call returned; empty if it has not come back."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found


def test_a_factory_may_use_the_package():
    def factory() -> Any:
        assert npu.current_device("emu:npu1").generation == "npu1"
        assert npu.stats().submissions >= 0
        npu.register_device(f"python:inner-{next(_numbers)}", python_relay.Relay)
        return python_relay.Relay()

    name = _registered(factory)
    assert _within(60, lambda: _opened(name).generation) == ["npu2"]


def test_a_factory_that_opens_its_own_device_is_told_so():
    name = _registered(lambda: _opened(name))
    with pytest.raises(DeviceError, match=rf"^\[device\] {name} is opened by its own factory"):
        _opened(name)


def test_a_factory_is_called_once_for_all_choices_and_threads():
    calls: list[int] = []
    barrier = threading.Barrier(4)

    def factory() -> Any:
        calls.append(1)
        return python_relay.Relay()

    name = _registered(factory)
    devices: list[npu.Device] = []

    def open_one() -> None:
        barrier.wait(30)
        devices.append(_opened(name))

    threads = [threading.Thread(target=open_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(devices) == 4 and all(one is devices[0] for one in devices)
    views = [_opened(name, bf16="native"), _opened(name, designs="array")]
    assert len(calls) == 1
    assert views[0].bf16 == "native" and views[1].prefers == "array"


def test_a_factory_that_raised_is_called_again():
    answers = [ValueError("not yet"), None]

    def factory() -> Any:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return python_relay.Relay()

    name = _registered(factory)
    with pytest.raises(ValueError, match="not yet"):
        _opened(name)
    assert _opened(name).generation == "npu2"


def test_views_of_one_backend_are_counted_once():
    name = _registered(python_relay.Relay)
    a, b = np.ones((4, 8), np.int8), np.ones((8, 4), np.int8)
    before = npu.stats()
    for choices in ({}, {"bf16": "native"}, {"designs": "array"}):
        with npu.device(name, **choices):
            np.testing.assert_array_equal(npu.matmul(a, b), np.full((4, 4), 8))
    done = npu.stats() - before
    assert done.submissions == _opened(name).counters()["submissions"] == 3
    assert done.streams_built + done.stream_hits == 3


@pytest.mark.parametrize("arithmetic", ["silicon", "exact", "hardware"])
def test_another_arithmetic_than_the_devices_is_refused(arithmetic):
    name = _registered(python_relay.Relay)
    with pytest.raises(DeviceError, match=rf'^\[device\] {name} with arithmetic="{arithmetic}"'):
        _opened(name, arithmetic=arithmetic)
    assert _opened(name, arithmetic="fast").arithmetic == _opened(name).arithmetic == "fast"


def test_the_default_arithmetic_is_the_devices(monkeypatch):
    class Hardware(python_relay.Relay):
        def info(self) -> dict[str, Any]:
            return {**super().info(), "arithmetic": "hardware"}

    name = _registered(Hardware)
    monkeypatch.setenv("NPU_ARITHMETIC", "silicon")
    assert _opened(name).arithmetic == "hardware"
    with pytest.raises(DeviceError, match="arithmetic"):
        _opened(name, arithmetic="fast")
