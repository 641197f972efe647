"""Devices registered from Python: a factory may use the package, is called once however many
threads and choices open the device, and the device's arithmetic is its own."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import python_relay

import npu
from npu.errors import DeviceError
from npu.ops.registry import operation

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


def test_an_operation_may_end_while_its_device_is_called():
    """Python collects garbage at any time; what an operation did is counted as its owner ends."""

    class Owner:
        pass

    class Ending(python_relay.Relay):
        owners: ClassVar[list[Any]] = []

        def submit(self, prepared: Any, arguments: Any) -> Any:
            self.owners.clear()
            return super().submit(prepared, arguments)

    device = _opened(_registered(Ending))
    chosen = operation("prefill")
    owner = Owner()
    device.attach(owner, chosen.open(device.handle, chosen.configuration("npu2")))
    Ending.owners.append(owner)
    del owner
    found = _within(60, lambda: npu.rms_norm(np.ones((4, 128), np.float32), device=device))
    assert len(found) == 1 and not Ending.owners


def test_an_operation_is_opened_while_a_model_ends_in_a_device_written_in_python():
    """Whoever opens an operation waits for the device, under which finalizers may run."""

    class Owner:
        pass

    opening, ended = threading.Event(), threading.Event()

    class Ending(python_relay.Relay):
        owners: ClassVar[list[Any]] = []

        def overlay_image(self, configuration: Any, overlay: str) -> bytes:
            if self.owners and threading.current_thread().name == "opens":
                opening.set()  # its thread holds what opening an operation takes
                assert ended.wait(30)
            return super().overlay_image(configuration, overlay)

    device = _opened(_registered(Ending))
    chosen = operation("copy")
    owner = Owner()
    device.attach(owner, chosen.open(device.handle, chosen.configuration("npu2")))
    Ending.owners.append(owner)
    del owner
    opens = threading.Thread(target=lambda: device.operation("prefill"), name="opens", daemon=True)
    opens.start()
    assert opening.wait(60)

    def end() -> None:
        Ending.owners.clear()
        ended.set()

    assert _within(20, end)
    opens.join(60)


def test_what_an_operation_did_is_counted_once_after_its_owner():
    class Owner:
        pass

    device = _opened(_registered(python_relay.Relay))
    chosen = operation("rms_norm")
    native = chosen.open(device.handle, chosen.configuration("npu2"))
    owner = Owner()
    device.attach(owner, native)
    arrays = [np.zeros(size, np.uint8) for size in (4 * 256, 4 * 128, 4 * 256)]
    native.run({"rows": 4, "width": 128}, arrays)
    assert device.counters()["streams_built"] == 1
    del owner
    assert not device._attached  # nothing keeps a model's memory until somebody asks
    for _ in range(2):
        assert device.counters()["streams_built"] == 1


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
