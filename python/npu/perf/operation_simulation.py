"""How long a request to any registered operation takes on the NPU, simulated (docs/timing.md): the
real configuration and command streams on the timed emulated array, no hardware."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from npu.errors import DeviceError
from npu.ops.registry import operation
from npu.perf.execution import run_request
from npu.perf.machines import constants_of
from npu.perf.problem import checked_constants


@dataclasses.dataclass(frozen=True)
class SimulatedOperation:
    """``seconds``: array time of all submissions, the completion tokens included, without
    ``dispatch_seconds``, the host's part. ``read_bytes``, ``write_bytes``: of DRAM. ``bound`` is
    the busiest resource, ``shares`` how much of the time each works; ``machine`` and
    ``kernels`` the profiles simulated."""

    machine: str
    kernels: str
    seconds: float
    dispatch_seconds: float
    submissions: int
    read_bytes: int
    write_bytes: int
    bound: str
    shares: dict[str, float]


def simulate_operation(
    name: str,
    device: str,
    request: Mapping[str, int],
    *,
    constants: Mapping[str, float] | None = None,
    machine: str | None = None,
    kernels: str | None = None,
) -> SimulatedOperation:
    """The simulated time of a request (fields: ``npu inspect --operation NAME``) on "npu1" or
    "npu2" with the design's default configuration for them.

    constants: other values for constants of ``npu validate-model --constants``; machine: a profile
    of ``npu validate-model --machines``, by default that of the generation. Raises ArgumentError,
    DeviceError, ShapeError.
    """
    found = operation(name)
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_operation] device is {device!r}; use "npu1" or "npu2"')
    changed = checked_constants("simulate_operation", constants)
    values = constants_of("simulate_operation", device, machine, changed, kernels)
    config = found.configuration(device, **found.choices_for(request))
    totals = run_request(name, config, request, values)
    return SimulatedOperation(
        machine=values.label,
        kernels=values.kernels(totals.kernels),
        seconds=totals.array_seconds,
        dispatch_seconds=totals.timing["dispatch"],
        submissions=totals.submissions,
        read_bytes=totals.moved["shim_read"],
        write_bytes=totals.moved["shim_write"],
        bound=totals.bound,
        shares=totals.shares,
    )
