"""Where the time of a simulated token goes: parts of a traced run of the decode configuration.

At every instant the memory delivers a share of its read ceiling. That share of the time belongs to
what it delivers; the rest to the first of what runs at that instant: attention, small operations
(the vector core), products (weights are read or multiplied), the command processor, nothing. So the
parts add up to the run, and weights and kv are bytes / ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu.perf.ports import port_names
from npu.perf.timeline import KINDS

TERMS = (
    "weights", "kv", "products", "attention", "small operations", "command processor", "waiting",
)  # fmt: skip
_ATTENTION_ROWS = (4, 5)
_GEMV_ROWS = (2, 3)
_SEND, _KERNEL, _OPERATION = (KINDS.index(name) for name in ("send", "kernel", "operation"))
_Edges = tuple[NDArray[np.float64], NDArray[np.float64]]  # times, changes


def split(
    events: NDArray[np.void],
    tracks: Sequence[dict[str, Any]],
    config: bytes,
    cycles: float,
    ceiling: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cycles of every part (TERMS) of a run of ``cycles``, and the bytes of weights and of keys and
    values read. ceiling: of reads, bytes per cycle."""
    group = _groups(tracks, config)[events["track"]]
    kind = events["kind"]
    reads = {name: (group == name) & (kind == _SEND) for name in ("W", "KV", "X")}
    moved = {name: float(events["bytes"][mask].sum()) for name, mask in reads.items()}
    rate = _steps(
        events, reads["W"] | reads["KV"] | reads["X"],
        lambda e: e["bytes"] / np.maximum(e["end"] - e["start"], 1e-9) / ceiling,
    )  # fmt: skip
    working = [
        _active(events, ((group == "attention") & (kind == _KERNEL)) | reads["KV"]),
        _active(events, ((group == "vector") & (kind == _KERNEL)) | reads["X"]),
        _active(events, ((group == "gemv") & (kind == _KERNEL)) | reads["W"]),
        _active(events, (group == "command") & (kind == _OPERATION)),
    ]
    all_times = [times for times, _ in (rate, *working)]
    grid = np.unique(np.concatenate([np.array([0.0, cycles]), *all_times]))
    length = np.diff(grid)
    idle = length * (1 - _values(rate, grid))
    parts = []
    left = np.ones(len(length), bool)
    for one in working:
        here = left & (_values(one, grid) > 0.5)
        parts.append(float(idle[here].sum()))
        left &= ~here
    attention, small, products, command = parts
    small += moved["X"] / ceiling
    weights, kv = moved["W"] / ceiling, moved["KV"] / ceiling
    waiting = cycles - weights - kv - sum(parts) - moved["X"] / ceiling
    return (
        np.array([weights, kv, products, attention, small, command, waiting]),
        np.array([moved["W"], moved["KV"]]),
    )


def _groups(tracks: Sequence[dict[str, Any]], config: bytes) -> NDArray[np.str_]:
    """What a track belongs to: the channels W, KV, X; cores; the command processor."""
    ports = {channel: name.rstrip("0123456789") for channel, name in port_names(config).items()}
    last = max(track["col"] for track in tracks)
    groups = []
    for track in tracks:
        name, col, row = track["name"], track["col"], track["row"]
        group = ports.get(name, "")
        if col < 0:
            group = "command"
        elif name == f"core ({col},{row})":
            if row in _GEMV_ROWS:
                group = "gemv"
            elif row in _ATTENTION_ROWS:
                group = "vector" if col == last else "attention"
        groups.append(group)
    return np.array(groups)


def _steps(events: NDArray[np.void], mask: NDArray[np.bool_], value: Any) -> _Edges:
    """The sum of values of the events under way, as changes over time."""
    chosen = events[mask]
    values = np.asarray(value(chosen), np.float64)
    times = np.concatenate([chosen["start"], chosen["end"]])
    order = np.argsort(times, kind="stable")
    return times[order], np.concatenate([values, -values])[order]


def _active(events: NDArray[np.void], mask: NDArray[np.bool_]) -> _Edges:
    return _steps(events, mask, lambda e: np.ones(len(e)))


def _values(edges: _Edges, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value in every interval of the grid, which has all times of the edges."""
    times, changes = edges
    sums = np.concatenate([[0.0], np.cumsum(changes)])
    return sums[np.searchsorted(times, grid[:-1], side="right")]
