"""Where the time of a simulated step of a prompt goes, and which resource binds it: parts of a
traced run of one step of the prefill configuration (npu.designs.prefill).

As in decode_split.py the memory's share of every instant belongs to what it moves: weights, keys
and values, activations (their writes, too). The rest belongs to the cores where one of them works,
then to the command processor, then to nobody (waiting). The parts add up to the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu.perf.ports import port_names
from npu.perf.timeline import KINDS

WORK = ("products", "attention", "rows")  # what cores do in a step
TERMS = ("weights", "kv", "activations", *WORK, "command processor", "waiting")
MOVED = ("weights", "kv", "activations read", "activations written")
RESOURCES = ("DRAM", "stream A", "stream B", "results", "core compute", "command processor")
_SEND, _RECEIVE, _KERNEL, _OPERATION = (
    KINDS.index(name) for name in ("send", "receive", "kernel", "operation")
)
# What streams A and B bring.
_BRINGS = {
    "products": ("activations read", "weights"),
    "attention": ("kv", "activations read"),
    "rows": ("activations read", "activations read"),
}
_MEMTILE_STREAMS = ("stream A", "stream B", "results", "results")  # by MM2S channel


def split(
    trace: Mapping[str, Any],
    events: NDArray[np.void],
    config: bytes,
    cycles: float,
    ceiling: float,
    work: str,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cycles of every part (TERMS) of a run of ``cycles`` whose cores do ``work``, and the bytes
    moved (MOVED). ceiling: of reads, bytes per cycle."""
    group = _groups(trace["tracks"], config)[events["track"]]
    kind = events["kind"]
    data = (kind == _SEND) & ~_to_cores(trace, events)
    brought = _BRINGS[work]
    masks = {name: np.zeros(len(events), bool) for name in MOVED}
    for port, name in zip("AB", brought, strict=True):
        masks[name] |= (group == port) & data
    masks["activations written"] = np.isin(group, ("C", "D")) & (kind == _RECEIVE)
    moved = np.array([float(events["bytes"][masks[name]].sum()) for name in MOVED])
    rates = [_rate(events[masks[name]], ceiling) for name in MOVED]
    working = _union(events[(group == "core") & (kind == _KERNEL)])
    command = _union(events[(group == "command") & (kind == _OPERATION)])
    edges = [times for times, _ in (*rates, working, command)]
    grid = np.unique(np.clip(np.concatenate([[0.0, cycles], *edges]), 0, cycles))
    length = np.diff(grid)
    weights, kv, read, written = (_values(rate, grid) for rate in rates)
    first = np.minimum(weights, 1)
    second = np.minimum(kv, 1 - first)
    third = np.minimum(read + written, 1 - first - second)
    left = length * (1 - first - second - third)
    busy = _values(working, grid) > 0.5
    commanded = ~busy & (_values(command, grid) > 0.5)
    parts = dict.fromkeys(TERMS, 0.0)
    parts["weights"], parts["kv"] = float(length @ first), float(length @ second)
    parts["activations"] = float(length @ third)
    parts[work] = float(left[busy].sum())
    parts["command processor"] = float(left[commanded].sum())
    parts["waiting"] = float(left[~busy & ~commanded].sum())
    return np.array(list(parts.values())), moved


def shares(timing: Mapping[str, Any]) -> NDArray[np.float64]:
    """The share of a run in which each of RESOURCES works: of streams the busiest channel from a
    memtile to cores or shim."""
    busy = dict.fromkeys(RESOURCES, 0.0)
    for name, cycles in timing["agents"].items():
        words = name.split()
        if words[0] == "memtile" and words[-2] == "MM2S":
            stream = _MEMTILE_STREAMS[int(words[-1])]
            busy[stream] = max(busy[stream], cycles / timing["cycles"])
    busy["DRAM"] = timing["dram_share"]
    busy["core compute"] = timing["compute_share"]
    busy["command processor"] = timing["command_share"]
    return np.array(list(busy.values()))


def _groups(tracks: Sequence[dict[str, Any]], config: bytes) -> NDArray[np.str_]:
    """What a track belongs to: the shim channels A to D; cores; the command processor."""
    ports = {channel: name.rstrip("0123456789") for channel, name in port_names(config).items()}
    groups = []
    for track in tracks:
        name = track["name"]
        core = "core" if name.startswith("core ") and track["col"] >= 0 else ""
        groups.append("command" if track["col"] < 0 else ports.get(name, core))
    return np.array(groups)


def _to_cores(trace: Mapping[str, Any], events: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether events that are sends go to cores: programs, not data, if the shim sends them."""
    names = [track["name"] for track in trace["tracks"]]
    cores = [any(names[i].startswith("core ") for i in route) for route in trace["routes"]]
    sends = events["kind"] == _SEND
    found: NDArray[np.bool_] = np.array([*cores, False])[
        np.where(sends, events["other"], len(cores))
    ]
    return found


_Edges = tuple[NDArray[np.float64], NDArray[np.float64]]  # times, changes


def _rate(events: NDArray[np.void], ceiling: float) -> _Edges:
    """Bytes per cycle of the transfers under way, as a share of the ceiling."""
    rates = events["bytes"] / np.maximum(events["end"] - events["start"], 1e-9) / ceiling
    return _ordered(events["start"], events["end"], rates)


def _union(events: NDArray[np.void]) -> _Edges:
    """When at least one of the events is under way."""
    if len(events) == 0:
        return np.zeros(0), np.zeros(0)
    order = np.argsort(events["start"], kind="stable")
    start, end = events["start"][order], np.maximum.accumulate(events["end"][order])
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    begins = start[first]
    return _ordered(begins, end[last], np.ones(len(begins)))


def _ordered(
    start: NDArray[np.float64], end: NDArray[np.float64], values: NDArray[np.float64]
) -> _Edges:
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    return times[order], np.concatenate([values, -values])[order]


def _values(edges: _Edges, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value in every interval of the grid, which has all times of the edges."""
    times, changes = edges
    sums = np.concatenate([[0.0], np.cumsum(changes)])
    found: NDArray[np.float64] = sums[np.searchsorted(times, grid[:-1], side="right")]
    return np.maximum(found, 0)
