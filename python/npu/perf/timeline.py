"""The recorded timeline of a simulated run: events, and the tracks they are on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

LOCKS_PER_TILE = 64
NOBODY = 0xFFFFFFFF
ROWS = 6

# emulator::TraceEvent. Times are cycles of the array clock since the first operation.
EVENT = np.dtype(
    {
        "names": ["start", "end", "memory_wait", "bytes", "track", "other", "bd", "kind"],
        "formats": ["f8", "f8", "f8", "u8", "u4", "u4", "i2", "u1"],
        "offsets": [0, 8, 16, 24, 32, 36, 40, 42],
        "itemsize": 48,
    }
)
# TraceEvent::Kind by number.
KINDS = (
    "kernel", "send", "receive", "task start", "wait lock", "wait data", "wait receiver",
    "wait arbiter", "operation", "wait token", "lock",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Track:
    """One core, DMA channel or the command processor.

    ``kind`` is "command", "core", "in" (S2MM) or "out" (MM2S); ``port`` names a shim channel's
    matrix ("A0"). ``cycles`` has the cycles per kind of event inside the window, never cut by the
    limit; "wait memory" is what reads from DRAM took beyond the time their stream port needs, at
    the shim and at its receiver; it is not in "send" and "receive".
    """

    name: str
    kind: str
    col: int
    row: int
    port: str
    cycles: dict[str, float]

    @property
    def used(self) -> bool:
        return any(self.cycles.values())


class TracedRun(Protocol):
    """What a timeline says about the whole run."""

    @property
    def seconds(self) -> float: ...
    @property
    def dispatch_seconds(self) -> float: ...
    @property
    def cycles(self) -> float: ...
    @property
    def bound(self) -> str: ...
    @property
    def kernels(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Who worked and who waited, in a window of a simulated run; see ``npu.GemmTrace``.

    ``rate``: name and value of the run's figure ("TOPS", 30.1); ``bars``: what the summary picture
    averages besides the channels inside the array, labels and the tracks that belong to them;
    ``machine``: the profile that was simulated.
    """

    simulation: TracedRun
    what: str
    rate: tuple[str, float]
    bars: tuple[tuple[str, Callable[[Track], bool]], ...] = dataclasses.field(repr=False)
    title: str
    design: str
    device: str
    machine: str
    clock_hz: float
    window: tuple[float, float]
    events: NDArray[np.void] = dataclasses.field(repr=False)
    tracks: list[Track] = dataclasses.field(repr=False)
    kernels: list[str] = dataclasses.field(repr=False)
    routes: list[list[int]] = dataclasses.field(repr=False)
    operations: list[str] = dataclasses.field(repr=False)
    left_out: int = 0
    left_out_from: float = math.inf

    def microseconds(self, cycles: Any) -> Any:
        """Time on the trace's axis of an array cycle (or an array of them)."""
        return (self.simulation.dispatch_seconds + cycles / self.clock_hz) * 1e6

    @property
    def window_cycles(self) -> float:
        """Length of the window, the dispatch left out."""
        array_begins = self.simulation.dispatch_seconds * 1e6
        length = self.window[1] - max(self.window[0], array_begins)
        return max(0.0, length) * self.clock_hz / 1e6
