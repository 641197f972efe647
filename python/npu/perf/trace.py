"""A simulated GEMM as a timeline: who worked, who waited for what, and when.

``npu.trace_gemm`` runs the timed emulator as ``npu.simulate_gemm`` does and keeps what every core,
DMA channel and the command processor did. ``save`` writes a trace-event file that Perfetto
(https://ui.perfetto.dev) and chrome://tracing open, ``plot`` draws a summary. Every time is
simulated. Time 0 is the host's call: the dispatch comes first, then the array's first operation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from npu import _npu
from npu.errors import ArgumentError
from npu.perf import simulate as sim
from npu.perf.simulate import SimulatedGemm, Tile

DEFAULT_LIMIT = 1_000_000
MAX_LIMIT = 10_000_000  # 48 bytes each
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


@dataclasses.dataclass(frozen=True)
class GemmTrace:
    """The timeline of a simulated GEMM.

    ``events`` are records (EVENT) in the order of their start, ``track`` and ``other`` are indices
    into ``tracks``, ``kernels``, ``routes`` or ``operations`` as ``kind`` (an index into KINDS)
    says. ``left_out`` events did not fit the limit; all that end before ``left_out_from``
    (microseconds) are there. ``window`` is in microseconds.
    """

    simulation: SimulatedGemm
    title: str
    design: str
    device: str
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

    def save(self, path: str | Path) -> int:
        """Writes the trace-event file, compressed if the name ends in .gz; returns its bytes."""
        from npu.perf import trace_file

        return trace_file.save(self, path)

    def plot(self, path: str | Path) -> None:
        """Draws utilisation per tile and where the time goes, as PNG, SVG or PDF."""
        from npu.perf.plots import trace as plot

        plot.save(self, path)


def _microseconds(value: Any, name: str) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and value == value
    if not number or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"[trace_gemm] {name} is {value!r}; it must be microseconds >= 0")
    return float(value)


def check_request(from_us: Any, to_us: Any, limit: Any) -> tuple[float, float, int]:
    """Window and limit, or an error before anything runs."""
    begin = _microseconds(from_us, "from_us")
    end = math.inf if to_us is None else _microseconds(to_us, "to_us")
    if end <= begin:
        raise ArgumentError(
            f"[trace_gemm] the window is {begin:g} to {end:g} us; to_us must be after from_us"
        )
    whole = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
    if not whole or not 1 <= limit <= MAX_LIMIT:
        raise ArgumentError(
            f"[trace_gemm] limit is {limit!r}; it must be a whole number, 1 to {MAX_LIMIT}"
        )
    return begin, end, int(limit)


def trace_gemm(
    device: str,
    M: int,
    K: int,
    N: int,
    *,
    dtype_in: DTypeLike = "int8",
    dtype_out: DTypeLike = "int32",
    tile: Tile | None = None,
    k_mt: int | None = None,
    b_layout: str = "col",
    c_buffers: int = 1,
    overlap_bds: bool = True,
    bf16: str = "bfp16",
    kernel: str = "published",
    a_parts: int = 1,
    model: str = "emulator",
    stream_bytes: int | None = None,
    constants: Mapping[str, float] | None = None,
    from_us: float = 0,
    to_us: float | None = None,
    limit: int = DEFAULT_LIMIT,
    locks: bool = True,
) -> GemmTrace:
    """The timeline of C[M, N] = A[M, K] B[K, N], simulated; arguments as of ``simulate_gemm``.

    from_us, to_us: keep what overlaps this window (microseconds; the dispatch is inside); limit:
    the most events kept, from the beginning (48 bytes each); locks: keep lock values too. Of a
    problem that takes several submissions the first is traced, and the title says so. Raises what
    ``simulate_gemm`` raises.
    """
    if model != "emulator":
        raise ArgumentError(
            f'[trace_gemm] model is {model!r}; only "emulator" executes anything to trace'
        )
    begin, end, limit = check_request(from_us, to_us, limit)
    design, size = sim.check_problem(
        (M, K, N),
        (device, dtype_in, dtype_out, tile, k_mt, b_layout, c_buffers, bf16, kernel, a_parts),
    )
    values = sim.overrides(device, stream_bytes, constants)
    blocks = sim.submissions(design, size)
    block = next(iter(blocks))
    config, stream = sim.lowered(design, block, bool(overlap_bds))
    clock = float(_npu.arch.device_model(device)["clock_hz"])
    dispatch = sim.constant("dispatch", values)
    cycles = [(us - dispatch) * clock / 1e6 for us in (begin, end)]
    request = (max(0.0, cycles[0]), cycles[1], limit, bool(locks))
    report = sim.execute(design, block, config, stream, values, request)
    recorded = report.pop("trace")
    count = sum(blocks.values())
    simulation = sim.summary(design, size if count == 1 else block, [(1, report)])
    note = "" if count == 1 else f" (submission 1 of {count}: {' x '.join(map(str, block))})"
    total = simulation.seconds * 1e6
    if begin >= total:
        raise ArgumentError(
            f"[trace_gemm] the window begins at {begin:g} us, the run ends at {total:g} us; "
            "use a smaller from_us"
        )
    events = recorded["events"].view(EVENT)
    first = recorded["first_left_out"]
    m, k, n = design.tile
    return GemmTrace(
        simulation=simulation,
        title=f"{device}, {design.dtype_in} to {design.dtype_out}, {M} x {K} x {N}{note}",
        design=f"tile {m} x {k} x {n}, k_mt {design.k_mt}, B {design.b_layout}-major, "
        f"{design.c_buffers} C buffer{'s' if design.c_buffers > 1 else ''} per core, "
        f"{kernel} kernels",
        device=device,
        clock_hz=clock,
        window=(begin, min(end, total)),
        events=events[np.argsort(events["start"], kind="stable")],
        tracks=_tracks(recorded["tracks"], config),
        kernels=recorded["kernels"],
        routes=recorded["routes"],
        operations=_operations(stream),
        left_out=recorded["left_out"],
        left_out_from=(simulation.dispatch_seconds + first / clock) * 1e6,
    )


def _tracks(found: list[dict[str, Any]], config: bytes) -> list[Track]:
    ports = {
        (col, direction.upper(), channel): name
        for name, col, direction, channel in _npu.device.parse_configuration(config)["ports"]
    }
    tracks = []
    for track in found:
        name, col, row = track["name"], track["col"], track["row"]
        direction, number = name.split()[-2:]
        kind = {"S2MM": "in", "MM2S": "out"}.get(direction, "core" if col >= 0 else "command")
        port = ports.get((col, direction, int(number)), "") if row == 0 else ""
        cycles = dict(zip(KINDS, track["cycles"], strict=True))
        del cycles["lock"]
        cycles["wait memory"] = track["memory_wait"]
        cycles["receive" if kind == "in" else "send"] -= track["memory_wait"]
        tracks.append(Track(name, kind, col, row, port, cycles))
    return tracks


def _operations(stream: bytes) -> list[str]:
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
