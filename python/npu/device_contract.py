"""A device in Python: what to implement so that every operation runs on it.

The contract is that of C++ devices (backend/runtime/device.h). The runtime has checked what it
hands over: configurations are of the device's generation, streams touch only what they may,
arguments lie inside their buffers. It calls a device from one thread at a time. Errors are raised
as npu.errors classes and reach the user as they are; after a run that raised, the configuration is
loaded again before the next one. What methods return is checked: another type is a DeviceError that
names the device, the method and the field.

``npu.register_device("name", factory)`` makes such a device available to ``npu.device("name")``;
tests/conformance/ is its test suite.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

# An argument of a stream: its buffer, the bytes (offset, count) in it, whether the stream writes
# them. None: the stream leaves the argument alone.
Argument = tuple["DeviceBuffer", int, int, bool] | None


class DeviceBuffer(abc.ABC):
    """Memory that the device reaches and the host sees as ``memory``."""

    memory: np.ndarray
    """uint8, C-contiguous; at the same address as long as the buffer lives."""

    def sync_to_device(self, offset: int, size: int) -> None:  # noqa: B027
        """Makes what the host wrote to these bytes visible to the device."""

    def sync_from_device(self, offset: int, size: int) -> None:  # noqa: B027
        """Makes what the device wrote to these bytes visible to the host."""


class DeviceRun(abc.ABC):
    """One execution of a stream, under way since ``DeviceBackend.submit`` returned it."""

    @abc.abstractmethod
    def wait(self, timeout: float | None) -> bool:
        """Whether the run has ended within ``timeout`` seconds (None: waits for the end)."""

    def report(self) -> dict[str, int]:
        """Counts of a run that has ended; any of operations, kernel_calls, shim_read and shim_write
        (bytes), array_ns (nanoseconds in which the device worked)."""
        return {}

    def cancel(self) -> None:  # noqa: B027
        """Gives a run up that has not ended; the device writes to no argument afterwards. Called
        where ``wait`` raised what is not an NpuError (KeyboardInterrupt), too."""


class DeviceBackend(abc.ABC):
    """What a device does."""

    @abc.abstractmethod
    def info(self) -> dict[str, Any]:
        """name, generation ("npu1", "npu2"), emulated (bool), arithmetic ("hardware", ...); if it
        matters, max_arguments of a stream (default 16; more are refused) and computes=False for one
        that returns no results."""

    @abc.abstractmethod
    def allocate(self, size: int) -> DeviceBuffer:
        """Memory of ``size`` bytes."""

    def wrap(self, array: np.ndarray, writable: bool) -> DeviceBuffer | None:
        """The host memory of a uint8 array as a buffer; None where it must be copied."""
        return None

    def overlay_image(self, configuration: Any, overlay: str) -> bytes | None:
        """What program memory holds of an overlay of a configuration (docs/prefill.md#programs):
        as many bytes as ``configuration.as_dict()["overlays"]`` says. Streams write it there.
        None: the stand-in, which only an emulated NPU runs. Called once per operation that is
        opened, loaded or not."""
        return None

    @abc.abstractmethod
    def load(self, configuration: Any) -> None:
        """Configures the array (``npu._npu.device.Configuration``: name, generation, source,
        artefact: the name of its hardware build, as_dict())."""

    def prepare(self, stream: bytes) -> Any:
        """Whatever ``submit`` needs for this stream, done once."""
        return stream

    def patch(self, prepared: Any, patches: np.ndarray) -> bool:
        """Changes words of a prepared stream that no run uses: uint32 pairs (number of the word,
        its new value), of BLOCKWRITE data and ADDRESS_PATCH offsets only. False: it cannot, and
        another stream is prepared. A patch that raises changes nothing."""
        return False

    @abc.abstractmethod
    def submit(self, prepared: Any, arguments: Sequence[Argument]) -> DeviceRun:
        """Starts a prepared stream of the loaded configuration."""
