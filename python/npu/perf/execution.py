"""Runs a command stream on a timed emulated array: the one place where simulations meet a device.

Nothing is computed unless arrays are passed: timing does not depend on data, except where loop
counts of the cores travel with it (GEMV).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npu import _npu


def execute(
    config: bytes,
    stream: bytes,
    *,
    sizes: Sequence[int] = (),
    data: Sequence[np.ndarray] = (),
    constants: Mapping[str, float] | None = None,
    timed: bool = True,
    trace: tuple[float, float, int, bool] | None = None,
    kernels: Sequence[str] = (),
) -> dict[str, Any]:
    """The report of a run. ``sizes``: bytes of the arguments of a run without data; ``data``: byte
    arrays to run on; ``trace``: (from, to) in cycles, the largest number of events and whether to
    record locks; ``kernels``: with data, those that compute, while all others only take their time
    (none: all compute)."""
    report: dict[str, Any] = _npu.perf.simulate(
        config, stream, list(sizes), list(data), timed, dict(constants or {}), trace, list(kernels)
    )
    return report


def run_request(
    name: str, config: bytes, request: Mapping[str, int], constants: Mapping[str, float]
) -> Totals:
    """All submissions of a request to a registered operation, one after the other."""
    parts = []
    for one in _npu.operations.submissions(name, config, dict(request)):
        arguments = one["arguments"]
        # Control data, if there is any, makes the run depend on memory.
        moves = any(argument["contents"] for argument in arguments)
        data = [zeros_but(a["contents"], a["bytes"]) for a in arguments] if moves else []
        sizes = [] if moves else [argument["bytes"] for argument in arguments]
        report = execute(config, one["stream"], sizes=sizes, data=data, constants=constants)
        parts.append((one["count"], report))
    return Totals.of(parts)


@dataclasses.dataclass(frozen=True)
class Totals:
    """What timed runs say, one after the other: sums of their ``timing`` (its shares: of all
    cycles), the cycles in which each agent worked, and the bytes moved."""

    timing: dict[str, float]
    agents: dict[str, float]
    moved: dict[str, int]
    submissions: int
    kernels: dict[str, str]  # what the cycles of those that ran are (kernel_profile.py)

    @staticmethod
    def of(parts: Sequence[tuple[int, Mapping[str, Any]]]) -> Totals:
        """parts: reports of ``execute``, each with how often its submission occurs."""
        cycles = sum(count * report["timing"]["cycles"] for count, report in parts)
        timing: dict[str, float] = {}
        agents: dict[str, float] = {}
        moved: dict[str, int] = {}
        kernels: dict[str, str] = {}
        for count, report in parts:
            times = report["timing"]
            for name, value in times["agents"].items():
                agents[name] = agents.get(name, 0) + count * value
            for name, value in report["bytes_moved"].items():
                moved[name] = moved.get(name, 0) + count * value
            kernels |= times["kernels"]
            for name, value in times.items():
                if name not in ("agents", "kernels"):
                    share = times["cycles"] / cycles if name.endswith("_share") else 1
                    timing[name] = timing.get(name, 0) + count * share * value
        return Totals(timing, agents, moved, sum(count for count, _ in parts), kernels)

    @property
    def array_seconds(self) -> float:
        """Without the host's part."""
        return self.timing["seconds"] - self.timing["dispatch"]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the time that each resource works."""
        names = {"compute": "compute", "stream": "stream", "DRAM": "dram", "command": "command"}
        return {name: self.timing[f"{key}_share"] for name, key in names.items()}

    @property
    def bound(self) -> str:
        """The busiest resource."""
        shares = self.shares
        return max(shares, key=lambda name: shares[name])

    @property
    def details(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.timing.items()}


def zeros_but(contents: bytes, size: int) -> np.ndarray:
    """An argument of ``size`` bytes that begins with the control data its stream relies on."""
    data = np.zeros(size, np.uint8)
    data[: len(contents)] = np.frombuffer(contents, np.uint8)
    return data


def constant(name: str, overridden: Mapping[str, float] | None = None) -> float:
    """A timing constant, unless ``overridden`` names another value."""
    if overridden and name in overridden:
        return overridden[name]
    return next(float(c["value"]) for c in _npu.perf.constants() if c["name"] == name)
