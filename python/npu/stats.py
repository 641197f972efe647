"""Counters that show what the runtime did: above all that a new size loads no configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

from npu.devices import all_open_devices


@dataclasses.dataclass(frozen=True)
class Stats:
    """Totals over all devices since the process started.

    ``configuration_loads`` times an array was configured; ``streams_built`` runtime streams built
    for a new problem; ``stream_hits`` times a cached one was reused; ``submissions`` streams run;
    ``host_copy_bytes`` bytes of operands packed and results copied by the host, padding included;
    ``submit_overhead_ns`` host nanoseconds in submissions apart from the array's own time and the
    building of new streams; ``stream_build_ns`` those spent on building, parsing and checking new
    streams. ``pack_ns``, ``transpose_ns`` and ``result_copy_ns``: host nanoseconds of copies of
    products, of operands in the order in which they lie in memory, of operands read across it, and
    of results. ``replays`` submissions in which an emulated NPU repeated a recorded run, and
    ``replay_bytes`` what its recordings hold now, up to 512 MiB, and copies of the array's
    memory for several sequences at once, 6 MB each (docs/architecture.md).
    The difference of two snapshots counts what happened in between.
    """

    configuration_loads: int = 0
    streams_built: int = 0
    stream_hits: int = 0
    submissions: int = 0
    host_copy_bytes: int = 0
    submit_overhead_ns: int = 0
    stream_build_ns: int = 0
    pack_ns: int = 0
    transpose_ns: int = 0
    result_copy_ns: int = 0
    replays: int = 0
    replay_bytes: int = 0

    def __sub__(self, other: Stats) -> Stats:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Stats(*(a - b for a, b in zip(mine, theirs, strict=True)))


def stats() -> Stats:
    """A snapshot of the counters."""
    total = Stats()
    handles: list[Any] = []
    for device in all_open_devices():
        counters = device.counters()
        if any(device.handle is other for other in handles):
            counters |= dict.fromkeys(device.handle.counters(), 0)  # counted with the first view
        handles.append(device.handle)
        total = Stats(
            **{
                field.name: getattr(total, field.name) + counters[field.name]
                for field in dataclasses.fields(Stats)
            }
        )
    return total
