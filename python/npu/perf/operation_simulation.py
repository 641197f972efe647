"""How long a request to any registered operation takes on the NPU, simulated (docs/timing.md): the
real configuration and command streams on the timed emulated array, no hardware."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from npu.errors import DeviceError
from npu.ops.registry import operation
from npu.perf.execution import execute, resource_shares, zeros_but
from npu.perf.problem import checked_constants


@dataclasses.dataclass(frozen=True)
class SimulatedOperation:
    """``seconds``: array time of all submissions, the completion tokens included, without
    ``dispatch_seconds``, the host's part. ``read_bytes``, ``write_bytes``: of DRAM. ``bound`` is
    the busiest resource, ``shares`` how much of the time each works."""

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
) -> SimulatedOperation:
    """The simulated time of a request (fields: ``npu inspect --operation NAME``) on "npu1" or
    "npu2" with the design's default configuration.

    constants: other values for constants of ``npu validate-model --constants``. Raises
    ArgumentError, DeviceError, ShapeError.
    """
    found = operation(name)
    if device not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_operation] device is {device!r}; use "npu1" or "npu2"')
    values = checked_constants("simulate_operation", constants)
    config = found.configuration(device)
    parts = []
    for one in found.submissions(config, request):
        # Control data, if there is any, makes the run depend on memory.
        if any(argument["contents"] for argument in one.arguments):
            data = [zeros_but(a["contents"], a["bytes"]) for a in one.arguments]
            report = execute(config, one.stream, data=data, constants=values)
        else:
            sizes = [argument["bytes"] for argument in one.arguments]
            report = execute(config, one.stream, sizes=sizes, constants=values)
        parts.append((one.count, report))
    return _summary(parts)


def _summary(parts: list[tuple[int, dict[str, Any]]]) -> SimulatedOperation:
    def total(value: Any) -> Any:
        return sum(count * value(report) for count, report in parts)

    seconds = total(lambda r: r["timing"]["seconds"] - r["timing"]["dispatch"])
    cycles = total(lambda r: r["timing"]["cycles"])
    all_shares = [
        (count * r["timing"]["cycles"] / cycles, resource_shares(r["timing"])) for count, r in parts
    ]
    shares = {
        name: sum(weight * one[name] for weight, one in all_shares) for name in all_shares[0][1]
    }
    return SimulatedOperation(
        seconds=seconds,
        dispatch_seconds=total(lambda r: r["timing"]["dispatch"]),
        submissions=sum(count for count, _ in parts),
        read_bytes=total(lambda r: r["bytes_moved"]["shim_read"]),
        write_bytes=total(lambda r: r["bytes_moved"]["shim_write"]),
        bound=max(shares, key=lambda name: shares[name]),
        shares=shares,
    )
