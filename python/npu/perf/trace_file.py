"""Trace-event JSON of a recorded run: one process per tile, one thread per core or DMA channel.

The format is the Chrome trace-event format: "X" slices (ts and dur in microseconds), "C" counters
for lock values, "M" names, "i" where events were left out. It is written in pieces, to a temporary
file that replaces the named one when it is complete.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from npu.formats.atomic_file import check_writable, replacing
from npu.perf.timeline import KINDS, LOCKS_PER_TILE, NOBODY, ROWS, Timeline, Track

_PIECE = 1 << 15  # events
_COMMAND_PID, _HOST_TID, _FIRST_TID = 1, 1, 10
_TILE_NAMES = {0: "shim", 1: "memtile"}
_TITLES = {  # of slices; the rest is made from what the event names
    "task start": "start of BD {bd}",
    "wait data": "wait: data",
    "wait receiver": "wait: receiver",
    "wait arbiter": "wait: arbiter",
}


def tile_name(col: int, row: int) -> str:
    return f"{_TILE_NAMES.get(row, 'core')} ({col},{row})"


def save(trace: Timeline, path: str | Path) -> int:
    """Writes the file and returns its size in bytes."""
    path = check_writable(path, "trace")
    written = 0
    with replacing(path, "trace") as file:
        with _packed(file) if path.suffix == ".gz" else contextlib.nullcontext(file) as out:
            for piece in _pieces(trace):
                out.write(piece.encode())
        with contextlib.suppress(OSError):  # a pipe has no position
            written = file.tell()
    return written


def _packed(file: IO[bytes]) -> gzip.GzipFile:
    # No name and no time in it: the same trace gives the same file.
    return gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=file, mtime=0)


def metadata(trace: Timeline) -> dict[str, Any]:
    s = trace.simulation
    found: dict[str, Any] = {
        "simulated": "all times are of a modelled NPU, none was measured on hardware",
        "machine": trace.machine,
        "kernels": s.kernels,
        "what": trace.title,
        "design": trace.design,
        "seconds": s.seconds,
        "dispatch_seconds": s.dispatch_seconds,
        "cycles": s.cycles,
        "clock_hz": trace.clock_hz,
        trace.rate[0].lower().replace(" ", "_"): trace.rate[1],
        "bound": s.bound,
        "window_us": list(trace.window),
        "events": len(trace.events),
        "events_left_out": trace.left_out,
    }
    if trace.left_out:
        found["left_out_from_us"] = trace.left_out_from
    return found


def _pieces(trace: Timeline) -> Iterator[str]:
    head = json.dumps({"displayTimeUnit": "ns", "otherData": metadata(trace)})
    names = [*_names(trace), *_marks(trace)]
    yield head[:-1] + ', "traceEvents": [\n' + ",\n".join(map(json.dumps, names))
    writer = _Writer(trace)
    for first in range(0, len(trace.events), _PIECE):
        yield ",\n" + ",\n".join(writer.lines(first, first + _PIECE))
    yield "\n]}\n"


def _pid(col: int, row: int) -> int:
    return _COMMAND_PID if col < 0 else 100 * (row + 1) + col


def _thread_label(track: Track) -> str:
    if track.kind == "command":
        return track.name
    if track.kind == "core":
        return "core"
    label = " ".join(track.name.split()[-2:])
    return f"{label} ({track.port})" if track.port else label


def _names(trace: Timeline) -> list[dict[str, Any]]:
    """Processes and threads, in the order in which they are to be shown."""
    found: list[dict[str, Any]] = []

    def name(kind: str, pid: int, tid: int, value: Any) -> None:
        key = "sort_index" if kind.endswith("index") else "name"
        found.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {key: value}})

    name("process_name", _COMMAND_PID, 0, f"NPU, simulated: {trace.title}")
    name("process_sort_index", _COMMAND_PID, 0, 0)
    name("thread_name", _COMMAND_PID, _HOST_TID, "host")
    tiles = set()
    for index, track in enumerate(trace.tracks):
        if not track.used:
            continue
        pid, tid = _pid(track.col, track.row), _FIRST_TID + index
        if pid not in tiles and track.col >= 0:
            name("process_name", pid, 0, tile_name(track.col, track.row))
            name("process_sort_index", pid, 0, pid)
        tiles.add(pid)
        name("thread_name", pid, tid, _thread_label(track))
        name("thread_sort_index", pid, tid, tid)
    return found


def _marks(trace: Timeline) -> list[dict[str, Any]]:
    marks: list[dict[str, Any]] = []
    dispatch = trace.simulation.dispatch_seconds * 1e6
    place = {"pid": _COMMAND_PID, "tid": _HOST_TID}
    if trace.window[0] < dispatch:
        name = "dispatch (host to array and back)"
        times = {"ts": 0, "dur": round(dispatch, 4)}
        marks.append({"ph": "X", "name": name, "cat": "host", **place, **times})
    if trace.left_out and math.isfinite(trace.left_out_from):
        name = f"from here on {trace.left_out} events are missing (limit)"
        time = {"ts": round(trace.left_out_from, 4)}
        marks.append({"ph": "i", "s": "g", "name": name, "cat": "limit", **place, **time})
    return marks


class _Writer:
    """Events as JSON lines. Everything but the times repeats and is kept."""

    def __init__(self, trace: Timeline) -> None:
        self.trace = trace
        self.kept: dict[tuple[int, ...], str] = {}
        self.ids = [(_pid(t.col, t.row), _FIRST_TID + i) for i, t in enumerate(trace.tracks)]

    def lines(self, first: int, last: int) -> Iterator[str]:
        e = self.trace.events[first:last]
        start, end = (self.trace.microseconds(e[name]).tolist() for name in ("start", "end"))
        what = (e[name].tolist() for name in ("kind", "track", "other", "bd", "bytes"))
        wait = (e["memory_wait"] * (1e6 / self.trace.clock_hz)).tolist()
        for begin, finish, stalled, *key in zip(start, end, wait, *what, strict=True):
            head = self.kept.get(tuple(key))
            if head is None:
                head = self._head(*key)
                if KINDS[key[0]] != "operation":  # each happens once
                    self.kept[tuple(key)] = head
            begin = round(begin, 4)
            if KINDS[key[0]] == "lock":
                yield f'{head}"ts":{begin:.4f}}}'
                continue
            if stalled:
                head = f'{head[:-2]},"wait_for_memory_us":{stalled:.4f}}},'
            # Rounded so that neighbours still touch: no slice overlaps the next.
            yield f'{head}"ts":{begin:.4f},"dur":{round(finish, 4) - begin:.4f}}}'

    def _head(self, kind: int, track: int, other: int, bd: int, size: int) -> str:
        name = KINDS[kind]
        if name == "lock":
            tile, lock = divmod(other, LOCKS_PER_TILE)
            event = {
                "ph": "C", "name": f"lock {lock}", "pid": _pid(*divmod(tile, ROWS)), "tid": 0,
                "args": {"value": size},
            }  # fmt: skip
            return json.dumps(event, separators=(",", ":"))[:-1] + ","
        title, details = self._slice(name, track, other, bd, size)
        pid, tid = self.ids[track]
        event = {"ph": "X", "name": title, "cat": name, "pid": pid, "tid": tid, "args": details}
        return json.dumps(event, separators=(",", ":"))[:-1] + ","

    def _slice(
        self, name: str, track: int, other: int, bd: int, size: int
    ) -> tuple[str, dict[str, Any]]:
        trace = self.trace
        if name == "kernel":
            return trace.kernels[other], {}
        if name in ("operation", "wait token"):
            text = trace.operations[other]
            words = text.split(" ")
            short = " ".join(words[: 4 if words[0] == "task" else 3])
            wait = "wait: " if name == "wait token" else ""
            return wait + short, {"operation": other, "text": text}
        if name == "wait lock":
            tile, lock = divmod(other, LOCKS_PER_TILE)
            return f"wait: lock {lock}", {"of": tile_name(*divmod(tile, ROWS)), "bd": bd}
        if name == "send":
            receivers = [trace.tracks[i].name for i in trace.routes[other]]
            return f"BD {bd}", {"bd": bd, "bytes": size, "to": receivers}
        if name == "receive":
            return f"BD {bd}", {"bd": bd, "bytes": size, "from": trace.tracks[other].name}
        details: dict[str, Any] = {"bd": bd}
        if other != NOBODY:
            details["of"] = trace.tracks[other].name
        return _TITLES[name].format(bd=bd), details
