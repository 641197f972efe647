"""A simulated GEMM as a timeline: who worked, who waited for what, and when.

``npu.trace_gemm`` runs the timed emulator as ``npu.simulate_gemm`` does and keeps what every core,
DMA channel and the command processor did. ``save`` writes a trace-event file that Perfetto
(https://ui.perfetto.dev) and chrome://tracing open, ``plot`` draws a summary. Every time is
simulated. Time 0 is the host's call: the dispatch comes first, then the array's first operation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npu import _npu
from npu.designs import gemm
from npu.designs.gemm import DesignPoint
from npu.errors import ArgumentError
from npu.perf.execution import constant, execute
from npu.perf.ports import port_names
from npu.perf.problem import Choices, gemm_problem
from npu.perf.simulate import SimulatedGemm, submissions, summary
from npu.perf.timeline import EVENT, KINDS, Timeline, TracedRun, Track

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_LIMIT = 1_000_000
MAX_LIMIT = 10_000_000  # 48 bytes each
_BARS: tuple[tuple[str, Callable[[Track], bool]], ...] = (
    ("cores", lambda t: t.kind == "core"),
    ("shim DMA, reads of A", lambda t: t.port.startswith("A")),
    ("shim DMA, reads of B", lambda t: t.port.startswith("B")),
    ("shim DMA, writes of C", lambda t: t.port.startswith("C")),
)


class Trace(Timeline):
    """The timeline of a simulated run, as file or picture; see ``GemmTrace``."""

    def save(self, path: str | Path) -> int:
        """Writes the trace-event file, compressed if the name ends in .gz; returns its bytes."""
        from npu.perf import trace_file

        return trace_file.save(self, path)

    def plot(self, path: str | Path) -> None:
        """Draws utilisation per tile and where the time goes, as PNG, SVG or PDF."""
        from npu.perf.plots import trace as plot

        plot.save(self, path)


class GemmTrace(Trace):
    """The timeline of a simulated GEMM.

    ``events`` are records (EVENT) in the order of their start, ``track`` and ``other`` are indices
    into ``tracks``, ``kernels``, ``routes`` or ``operations`` as ``kind`` (an index into KINDS)
    says. ``left_out`` events did not fit the limit; all that end before ``left_out_from``
    (microseconds) are there. ``window`` is in microseconds.
    ``microseconds(cycles)`` puts an array cycle on the trace's axis, ``save(path)`` writes the
    trace-event file, ``plot(path)`` draws the summary.
    """

    simulation: SimulatedGemm


def _microseconds(function: str, value: Any, name: str) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and value == value
    if not number or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"[{function}] {name} is {value!r}; it must be microseconds >= 0")
    return float(value)


def check_request(
    from_us: Any, to_us: Any, limit: Any, function: str = "trace_gemm"
) -> tuple[float, float, int]:
    """Window and limit, or an error before anything runs."""
    begin = _microseconds(function, from_us, "from_us")
    end = math.inf if to_us is None else _microseconds(function, to_us, "to_us")
    if end <= begin:
        raise ArgumentError(
            f"[{function}] the window is {begin:g} to {end:g} us; to_us must be after from_us"
        )
    whole = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
    if not whole or not 1 <= limit <= MAX_LIMIT:
        raise ArgumentError(
            f"[{function}] limit is {limit!r}; it must be a whole number, 1 to {MAX_LIMIT}"
        )
    return begin, end, int(limit)


def trace_gemm(
    device: str,
    M: int,
    K: int,
    N: int,
    *,
    from_us: float = 0,
    to_us: float | None = None,
    limit: int = DEFAULT_LIMIT,
    locks: bool = True,
    **choices: Unpack[Choices],
) -> GemmTrace:
    """The timeline of C[M, N] = A[M, K] B[K, N], simulated by the emulator; choices as of
    ``simulate_gemm``.

    from_us, to_us: keep what overlaps this window (microseconds; the dispatch is inside); limit:
    the largest number of events kept, from the beginning (48 bytes each); locks: keep lock values
    too. Of a problem that takes several submissions the first is traced, and the title says so.
    Raises what ``simulate_gemm`` raises.
    """
    begin, end, limit = check_request(from_us, to_us, limit)
    problem = gemm_problem("trace_gemm", device, (M, K, N), **choices)
    config = gemm.configuration_of(problem.design)
    traced, *others = submissions(problem)
    report, recorded = record(
        device, config, traced.stream, (begin, end, limit, bool(locks)), problem.constants,
        sizes=traced.sizes,
    )  # fmt: skip
    count = traced.count + sum(other.count for other in others)
    size = problem.size if count == 1 else traced.size
    simulation = summary(dataclasses.replace(problem, size=size), [(1, report)])
    note = "" if count == 1 else f" (submission 1 of {count}: {' x '.join(map(str, size))})"
    shared = members("trace_gemm", device, simulation, (begin, end), recorded, config)
    shared["machine"] = problem.constants.label
    types = f"{problem.design.a_dtype} to {problem.design.c_dtype}"
    return GemmTrace(
        what="Simulated GEMM",
        rate=("TOPS", simulation.tops),
        bars=_BARS,
        title=f"{device}, {types}, {M} x {K} x {N}{note}",
        design=_describe(problem.design),
        operations=operations_of(traced.stream),
        **shared,
    )


def record(
    device: str,
    config: bytes,
    stream: bytes,
    keep: tuple[float, float, int, bool],
    constants: Mapping[str, float],
    **operands: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report of a run and what was recorded of it. keep: (from, to) in microseconds, the
    largest number of events, whether locks count; operands: those of ``execute``."""
    begin, end, limit, locks = keep
    clock, dispatch = _clock(device), constant("dispatch", constants)
    first, last = ((us - dispatch) * clock / 1e6 for us in (begin, end))
    trace = max(0.0, first), last, limit, locks
    report = execute(config, stream, constants=constants, trace=trace, **operands)
    return report, report.pop("trace")


def members(
    function: str,
    device: str,
    run: TracedRun,
    window: tuple[float, float],
    recorded: Mapping[str, Any],
    config: bytes,
) -> dict[str, Any]:
    """The members of a ``Trace`` that follow from the run and what was recorded of it. Raises
    ArgumentError for a window behind the run."""
    clock, (begin, end), total = _clock(device), window, run.seconds * 1e6
    if begin >= total:
        raise ArgumentError(
            f"[{function}] the window begins at {begin:g} us, the run ends at {total:g} us; "
            "use a smaller from_us"
        )
    events = recorded["events"].view(EVENT)
    return {
        "simulation": run,
        "device": device,
        "clock_hz": clock,
        "window": (begin, min(end, total)),
        "events": events[np.argsort(events["start"], kind="stable")],
        "tracks": tracks_of(recorded["tracks"], port_names(config)),
        "kernels": recorded["kernels"],
        "routes": recorded["routes"],
        "left_out": recorded["left_out"],
        "left_out_from": (run.dispatch_seconds + recorded["first_left_out"] / clock) * 1e6,
    }


def _clock(device: str) -> float:
    return float(_npu.arch.device_geometry(device)["clock_hz"])


def _describe(design: DesignPoint) -> str:
    tile = " x ".join(map(str, design.tile))
    buffers = f"{design.c_buffers} C buffer{'s' if design.c_buffers > 1 else ''} per core"
    return (
        f"tile {tile}, k_mt {design.k_mt}, B {design.b_layout}-major, {buffers}, "
        f"{design.kernel} kernels"
    )


def tracks_of(found: list[dict[str, Any]], ports: Mapping[str, str]) -> list[Track]:
    """ports: names of shim channels, as ``port_names`` has them."""
    tracks = []
    for track in found:
        name, col, row = track["name"], track["col"], track["row"]
        kind = _kind(name, "core" if col >= 0 else "command")
        port = ports.get(name, "")
        cycles = dict(zip(KINDS, track["cycles"], strict=True))
        del cycles["lock"]
        cycles["wait memory"] = track["memory_wait"]
        cycles["receive" if kind == "in" else "send"] -= track["memory_wait"]
        tracks.append(Track(name, kind, col, row, port, cycles))
    return tracks


def _kind(name: str, otherwise: str) -> str:
    """Of a track: "core (0,2) S2MM 0", "core (0,2) stream input"."""
    for end in name.split()[-2:]:
        if end in ("S2MM", "input"):
            return "in"
        if end in ("MM2S", "output"):
            return "out"
    return otherwise


def operations_of(stream: bytes) -> list[str]:
    """What each operation does, from the disassembly: "task push shim(0,0).mm2s[0] bd[1] ..."."""
    names = []
    for line in _npu.stream.disassemble(stream).splitlines()[1:]:
        _, _, opcode, *rest = line.split(None, 3)
        text = rest[0] if rest else ""
        target = text.split(" ", 1)[0]
        if opcode == "BLOCKWRITE" and ".bd[" in target:
            text = f"BD write {text}"
        elif opcode == "WRITE" and target.endswith(".queue"):
            text = f"task push {text.replace('.queue push', '')}"
        elif opcode == "WRITE" and ".lock[" in target:
            text = f"lock write {text}"
        elif opcode == "WRITE" and ".memory[" in target:
            text = f"RTP write {text}"
        else:
            text = f"{opcode.lower().replace('_', ' ')} {text}".rstrip()
        names.append(text)
    return names
