"""A device written in Python that hands everything on to an emulated NPU, with memory of its own.

It reaches no host memory, so every operand is copied; buffers have a host side and a device side,
which only sync_to_device() and sync_from_device() make equal: an operation that forgets one
computes with stale data. Runs make progress in wait() and are reported as the emulated ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npu import _npu
from npu.device_contract import Argument, DeviceBackend, DeviceBuffer, DeviceRun


class Memory(DeviceBuffer):
    def __init__(self, target: Any, size: int) -> None:
        self.memory = np.full(size, 0xA5, np.uint8)
        self.device_side = target.allocate(size)
        self.device_side.array[:] = 0x5A

    def sync_to_device(self, offset: int, size: int) -> None:
        end = offset + size
        self.device_side.array[offset:end] = self.memory[offset:end]

    def sync_from_device(self, offset: int, size: int) -> None:
        end = offset + size
        self.memory[offset:end] = self.device_side.array[offset:end]


class RelayRun(DeviceRun):
    def __init__(self, run: Any) -> None:
        self._run = run

    def wait(self, timeout: float | None) -> bool:
        return bool(self._run.wait(timeout))

    def report(self) -> dict[str, int]:
        found = self._run.report()
        moved = found["bytes_moved"]
        return {
            "operations": found["operations"], "kernel_calls": found["kernel_calls"],
            "shim_read": moved["shim_read"], "shim_write": moved["shim_write"],
        }  # fmt: skip

    def cancel(self) -> None:
        self._run.cancel()


class Relay(DeviceBackend):
    def __init__(self) -> None:
        self._target = _npu.device.open("emu:npu2", "fast")

    def info(self) -> dict[str, Any]:
        return {
            "name": "python:relay", "generation": "npu2", "emulated": True, "arithmetic": "fast",
        }  # fmt: skip

    def allocate(self, size: int) -> Memory:
        return Memory(self._target, size)

    def load(self, configuration: Any) -> None:
        self._target.load(configuration)

    def prepare(self, stream: bytes) -> Any:
        return self._target.prepare(stream)

    def patch(self, prepared: Any, patches: np.ndarray) -> bool:
        return bool(self._target.patch(prepared, patches.tolist()))

    def overlay_image(self, configuration: Any, overlay: str) -> bytes:
        return bytes(self._target.overlay_image(configuration, overlay))

    def submit(self, prepared: Any, arguments: Sequence[Argument]) -> RelayRun:
        refs = [
            None
            if one is None
            else (one[0].device_side, one[1], one[2], "write" if one[3] else "read")
            for one in arguments
        ]
        return RelayRun(self._target.submit(prepared, refs))
