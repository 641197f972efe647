"""Simulated time of a run on npu.emulator.Array: figures and timeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from npu import _npu
from npu.perf.machines import Constants
from npu.perf.timeline import EVENT
from npu.perf.trace import Trace, operations_of, tracks_of

__all__ = ["ArrayTrace", "Timing", "timing_of", "trace_of"]

_SHARES = {"compute": "compute", "stream": "stream", "DRAM": "dram", "command": "command"}


@dataclasses.dataclass(frozen=True)
class Timing:
    """How long a run would take by the model of docs/timing.md; no figure is of this machine.

    ``seconds`` includes ``dispatch_seconds`` (host to array and back); ``cycles`` are the array's;
    ``bound`` is the busiest resource, ``shares`` the share of the time in which each works;
    ``agents`` the cycles in which each core, DMA channel and the command processor worked;
    ``machine`` and ``kernels`` the profiles simulated.
    """

    machine: str
    kernels: str
    seconds: float
    dispatch_seconds: float
    cycles: float
    bound: str
    shares: dict[str, float]
    agents: dict[str, float] = dataclasses.field(repr=False)


class ArrayTrace(Trace):
    """The timeline of a run on ``npu.emulator.Array``, with the members of ``GemmTrace``; its
    ``simulation`` is a ``Timing``."""


def timing_of(found: Mapping[str, Any], constants: Constants) -> Timing:
    shares = {name: found[f"{key}_share"] for name, key in _SHARES.items()}
    return Timing(
        machine=constants.label,
        kernels=constants.kernels(found["kernels"]),
        seconds=found["seconds"],
        dispatch_seconds=found["dispatch"],
        cycles=found["cycles"],
        bound=max(shares, key=lambda name: shares[name]),
        shares=shares,
        agents=found["agents"],
    )


def trace_of(
    device: str,
    timing: Timing,
    recorded: Mapping[str, Any],
    insts: bytes,
    moved: Mapping[str, int],
    names: Mapping[str, str],
) -> ArrayTrace:
    """``names``: of kernels, where the recording has others."""
    clock = float(_npu.arch.device_geometry(device)["clock_hz"])
    events = recorded["events"].view(EVENT)
    through = moved["shim_read"] + moved["shim_write"]
    return ArrayTrace(
        simulation=timing,
        what="Simulated program",
        rate=("GB/s", through / timing.seconds / 1e9),
        bars=(("cores", lambda t: t.kind == "core"), ("shim DMA", lambda t: t.row == 0)),
        title=device,
        design=f"{len(operations_of(insts))} operations",
        device=device,
        machine=timing.machine,
        clock_hz=clock,
        window=(0, timing.seconds * 1e6),
        events=events[np.argsort(events["start"], kind="stable")],
        tracks=tracks_of(recorded["tracks"], {}),
        kernels=[names.get(kernel, kernel) for kernel in recorded["kernels"]],
        routes=recorded["routes"],
        operations=operations_of(insts),
        left_out=recorded["left_out"],
        left_out_from=(timing.dispatch_seconds + recorded["first_left_out"] / clock) * 1e6,
    )
