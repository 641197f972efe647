"""How long streams take on a device: the examples of every registered operation, run as they are,
without host code around them, beside the simulated time of the same streams."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

from npu.devices import Device
from npu.errors import DeviceError
from npu.ops.registry import operations
from npu.perf.execution import run_request, zeros_but


@dataclasses.dataclass(frozen=True)
class Case:
    """A request to an operation."""

    operation: str
    example: str
    request: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Seconds of all submissions of a request. ``first``: the first run, with whatever is done
    once; ``median`` and ``fastest`` of the others; from the submission to the end of the wait."""

    first: float
    median: float
    fastest: float
    runs: int


def cases() -> Iterator[Case]:
    """The examples of every operation."""
    for name, operation in operations().items():
        for example, request in operation.examples.items():
            yield Case(name, example, dict(request))


def measure(
    device: Device, case: Case, runs: int, timeout: float = 60.0, warm_up: float = 0.0
) -> Measurement:
    """Runs a case ``1 + runs`` times on zeros, with the control data its streams rely on, and after
    the first time as often as fits into ``warm_up`` seconds, in which the clock rises.

    Raises DeviceError for a run that does not end within ``timeout`` seconds, and what the device
    raises.
    """
    from npu import _npu

    operation = operations()[case.operation]
    config = operation.configuration(device.generation)
    device.handle.load(_npu.device.Configuration.parse(config))
    prepared = []
    for one in operation.submissions(config, case.request, device.handle):
        stream = device.handle.prepare(one.stream)
        arguments = [_buffer(device, argument) for argument in one.arguments]
        prepared.append((stream, arguments, one.count))
    seconds = functools.partial(_seconds, device, case, prepared, timeout)
    first = seconds()
    warm = time.perf_counter() + warm_up
    while time.perf_counter() < warm:
        seconds()
    later = [seconds() for _ in range(runs)] or [first]
    return Measurement(first, statistics.median(later), min(later), runs)


def _seconds(device: Device, case: Case, prepared: list[Any], timeout: float) -> float:
    """Of all submissions of a case, one after the other."""
    start = time.perf_counter()
    for stream, arguments, count in prepared:
        for _ in range(count):
            run = device.handle.submit(stream, arguments)
            if not run.wait(timeout):
                run.cancel()
                raise DeviceError(
                    f"[selftest] {case.operation} ({case.example}) has not ended within "
                    f"{timeout:g} s on {device.name}; `npu doctor` looks at the machine"
                )
    return time.perf_counter() - start


def _buffer(device: Device, argument: Mapping[str, Any]) -> Any:
    """An argument in memory of the device; None where the stream leaves it alone."""
    size = int(argument["bytes"])
    if size == 0:
        return None
    buffer = device.handle.allocate(size)
    buffer.array[:] = zeros_but(argument["contents"], size)
    buffer.sync_to_device(0, size)
    return buffer, 0, size, "write" if argument["written"] else "read"


def simulated_seconds(
    generation: str, case: Case, constants: Mapping[str, float] | None = None
) -> float:
    """The simulated time of a case on a generation, the host's dispatch included; constants: those
    that are not the table's."""
    config = operations()[case.operation].configuration(generation)
    return run_request(case.operation, config, case.request, constants or {}).timing["seconds"]
