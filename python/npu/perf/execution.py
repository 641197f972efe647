"""Runs a command stream on a timed emulated array: the one place where simulations meet a device.

Nothing is computed unless arrays are passed: timing does not depend on data, except where loop
counts of the cores travel with it (GEMV).
"""

from __future__ import annotations

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
) -> dict[str, Any]:
    """The report of a run. ``sizes``: bytes of the arguments of a run without data; ``data``: byte
    arrays to run on; ``trace``: (from, to) in cycles, the largest number of events and whether to
    record locks."""
    report: dict[str, Any] = _npu.perf.simulate(
        config, stream, list(sizes), list(data), timed, dict(constants or {}), trace
    )
    return report


def zeros_but(contents: bytes, size: int) -> np.ndarray:
    """An argument of ``size`` bytes that begins with the control data its stream relies on."""
    data = np.zeros(size, np.uint8)
    data[: len(contents)] = np.frombuffer(contents, np.uint8)
    return data


def resource_shares(timing: Mapping[str, float]) -> dict[str, float]:
    """The share of the time that each resource of a timed run works; the busiest is its bound."""
    names = {"compute": "compute", "stream": "stream", "DRAM": "dram", "command": "command"}
    return {name: timing[f"{key}_share"] for name, key in names.items()}


def constant(name: str, overridden: Mapping[str, float] | None = None) -> float:
    """A timing constant, unless ``overridden`` names another value."""
    if overridden and name in overridden:
        return overridden[name]
    return next(float(c["value"]) for c in _npu.perf.constants() if c["name"] == name)
