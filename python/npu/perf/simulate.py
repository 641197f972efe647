"""How long a GEMM takes on the NPU, simulated: no hardware is involved and nothing is computed.

``npu.simulate_gemm`` has two models. "emulator" lowers the real configuration, builds the real
command stream and executes it on the emulated array with timing and without data. "closed-form"
evaluates equations (docs/timing.md) and is fast enough to search over tiles.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from npu import _npu
from npu.designs import gemm
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError, ShapeError

Tile = tuple[int, int, int]
MODELS = ("emulator", "closed-form")
ROWS = 4
MAX_SIZE = 1 << 24
_L1_BYTES = 63 * 1024  # of 64 KiB, 1 KiB is the stack's
_L2_BYTES = 512 * 1024
_MAX_ROUNDS = 2048  # of output tiles in a submission, as in npu.matmul
_MAX_ROW_BYTES = 4 << 20  # between rows that a shim BD steps over: 2^20 words
_DEPTH = 448  # elements: the deepest of the published designs
_RUN_BYTES = 448  # of a default k_mt: where the published k_mt curves level off
_BYTES = {"int8": 1, "int16": 2, "int32": 4, "bfloat16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class SimulatedGemm:
    """A simulated GEMM: times are of the modelled NPU, not of this machine.

    ``seconds`` includes ``dispatch_seconds`` (host to array and back); ``tops`` counts 2 M K N
    operations of the unpadded problem; ``bound`` is the resource that is busiest; ``shares`` is the
    share of the time each resource works (emulator) or would need (closed form); ``bytes`` counts
    what crossed DRAM (L3), memtiles (L2) and cores (L1); ``details`` has the model's own figures;
    ``agents`` (emulator) the cycles in which each core, DMA channel and the command processor
    worked, out of ``cycles``.
    """

    model: str
    seconds: float
    tops: float
    bound: str
    macs_per_cycle: float
    bytes: dict[str, int]
    dispatch_seconds: float
    cycles: float
    padded: tuple[int, int, int]
    shares: dict[str, float]
    details: dict[str, float] = dataclasses.field(repr=False)
    agents: dict[str, float] = dataclasses.field(default_factory=dict, repr=False)


@dataclasses.dataclass(frozen=True)
class GemmDesign:
    """A checked design point: what one configuration fixes."""

    generation: str
    dtype_in: str
    dtype_out: str
    tile: Tile
    k_mt: int
    b_layout: str
    c_buffers: int
    bf16: str = "bfp16"  # how npu2 multiplies bfloat16: "bfp16" or "native"
    kernel: str = "published"  # or "pipelined", see npu.designs.gemm.Choices
    a_parts: int = 1
    accumulate: str = "narrow"  # or "wide"

    @property
    def columns(self) -> int:
        return int(_npu.arch.device_model(self.generation)["columns"])

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of npu.designs.gemm for this design."""
        return {
            "tile": self.tile,
            "k_mt": self.k_mt,
            "b_layout": self.b_layout,
            "c_buffers": self.c_buffers,
            "accumulate": self.accumulate,
            "bf16": self.bf16,
            "kernel": self.kernel,
            "a_parts": self.a_parts,
        }

    @property
    def l1_bytes(self) -> int:
        """Data memory that a core's tiles take: inputs twice, or once beside their BFP16 copies."""
        (m, k, n), a, c = self.tile, _BYTES[self.dtype_in], _BYTES[self.dtype_out]
        inputs = m // self.a_parts * k + k * n
        copies = self.kernel == "pipelined" and self.dtype_in == "bfloat16"
        sums = m * n * 4 if self.accumulate == "wide" and c < 4 else 0
        return (inputs * a + inputs * 9 // 8 if copies else 2 * inputs * a) + (
            self.c_buffers * m * n * c + sums
        )

    @property
    def native(self) -> Tile:
        """Sizes are padded to multiples of this."""
        m, _, n = self.tile
        return ROWS * m, self.k_mt, self.columns * n

    def padded(self, size: Tile) -> Tile:
        m, k, n = (math.ceil(s / unit) * unit for s, unit in zip(size, self.native, strict=True))
        return m, k, n


def _dtype(value: DTypeLike, argument: str) -> str:
    try:
        name = np.dtype(value).name if not isinstance(value, str) else value
    except TypeError:
        name = str(value)
    if name not in _BYTES:
        raise DtypeError(f"[simulate_gemm] {argument} is {value!r}; use one of {', '.join(_BYTES)}")
    return name


def whole(function: str, value: Any, name: str, most: int, least: int = 1) -> int:
    """A size that was passed to ``function``, or the error that says what it must be."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"[{function}] {name} is {value!r}; it must be a whole number")
    if not least <= value <= most:
        raise ShapeError(f"[{function}] {name} is {value}; it must be {least} to {most}")
    return int(value)


def _whole(value: Any, name: str) -> int:
    return whole("simulate_gemm", value, name, MAX_SIZE)


def _default_depth(k: int, element_bytes: int) -> int:
    """The deepest k_mt whose runs are not longer than the published designs' of int8."""
    return k * max(1, _RUN_BYTES // (k * element_bytes))


def check_design(
    generation: str,
    dtype_in: DTypeLike,
    dtype_out: DTypeLike,
    tile: Tile | None,
    k_mt: int | None,
    b_layout: str,
    c_buffers: int,
    bf16: str = "bfp16",
    kernel: str = "published",
    a_parts: int = 1,
    accumulate: str = "narrow",
) -> GemmDesign:
    """The design point, or the error that names the limit it violates."""
    if generation not in ("npu1", "npu2"):
        raise DeviceError(f'[simulate_gemm] device is {generation!r}; use "npu1" or "npu2"')
    a, c = _dtype(dtype_in, "dtype_in"), _dtype(dtype_out, "dtype_out")
    if (a, c) not in gemm.PAIRS:
        pairs = ", ".join(f"{x} -> {y}" for x, y in gemm.PAIRS)
        raise DtypeError(f"[simulate_gemm] {a} -> {c} is not supported; there are {pairs}")
    if tile is not None and (not isinstance(tile, (tuple, list)) or len(tile) != 3):
        raise ArgumentError(f"[simulate_gemm] tile is {tile!r}; it must be (m, k, n)")
    chosen = tile or gemm.default_tile(a, kernel)
    m, k, n = (_whole(v, f"tile {label}") for v, label in zip(chosen, "mkn", strict=True))
    depth = _default_depth(k, _BYTES[a]) if k_mt is None else _whole(k_mt, "k_mt")
    if bf16 not in ("bfp16", "native"):
        raise ArgumentError(f'[simulate_gemm] bf16 is {bf16!r}; use "bfp16" or "native"')
    if a != "bfloat16" or generation == "npu1":
        bf16 = "native"
    design = GemmDesign(
        generation, a, c, (m, k, n), depth, b_layout, c_buffers, bf16, kernel, a_parts, accumulate
    )
    checked = gemm.options(generation, a, c, **design.options)
    design = dataclasses.replace(design, c_buffers=checked.c_buffers, a_parts=checked.a_parts)
    _check_memory(design)
    return design


def check_problem(size: tuple[Any, Any, Any], choices: tuple[Any, ...]) -> tuple[GemmDesign, Tile]:
    """The design of ``choices`` (arguments of ``check_design``) and the checked M, K, N; a k_mt
    left out is chosen for K."""
    design = check_design(*choices)
    m, k, n = (_whole(value, name) for value, name in zip(size, "MKN", strict=True))
    return (_with_depth_for(design, k) if choices[4] is None else design), (m, k, n)


def _with_depth_for(design: GemmDesign, k_size: int) -> GemmDesign:
    """The deepest k_mt of up to _DEPTH elements that fits L2 and pads K by at most 1 % more than
    the shallowest does."""
    k, fitting = design.tile[1], []
    for depth in range(k, max(_DEPTH, k) + 1, k):
        other = dataclasses.replace(design, k_mt=depth)
        try:
            gemm.options(design.generation, design.dtype_in, design.dtype_out, **other.options)
            _check_memory(other)
        except DesignError:
            break
        fitting.append(other)
    least = -(-k_size // k) * k
    good = [x for x in fitting if -(-k_size // x.k_mt) * x.k_mt <= 1.01 * least]
    return good[-1] if good else design


def _check_memory(design: GemmDesign) -> None:
    (m, k, n), a, c = design.tile, _BYTES[design.dtype_in], _BYTES[design.dtype_out]
    l1 = design.l1_bytes
    if l1 > _L1_BYTES:
        raise DesignError(
            f"[simulate_gemm] tile {m} x {k} x {n} with {design.c_buffers} C buffer(s) needs {l1} "
            f"bytes of L1; a core has {_L1_BYTES}: use a smaller tile"
        )
    b_depth = design.k_mt if design.b_layout == "col" else k
    l2 = 2 * a * (ROWS * m * design.k_mt + design.columns * n * b_depth)
    l2 += ROWS * design.columns * m * n * c
    if l2 > design.columns * _L2_BYTES:
        raise DesignError(
            f"[simulate_gemm] tile {m} x {k} x {n} with k_mt {design.k_mt} needs {l2} bytes of L2; "
            f"{design.columns} memtiles have {design.columns * _L2_BYTES}: use a smaller k_mt"
        )


def checked_constants(function: str, constants: Any) -> dict[str, float]:
    """The ``constants`` passed to ``function`` as floats; the model checks names and signs."""
    if constants is not None and not isinstance(constants, Mapping):
        raise ArgumentError(f"[{function}] constants is {constants!r}; it must be a mapping")
    values: dict[str, float] = {}
    for name, value in (constants or {}).items():
        number = isinstance(value, (int, float, np.integer, np.floating))
        if not isinstance(name, str) or not number or isinstance(value, bool):
            raise ArgumentError(f"[{function}] constant {name!r} = {value!r}; it needs a number")
        try:
            values[name] = float(value)
        except OverflowError:
            raise ArgumentError(f"[{function}] constant {name!r} is larger than any") from None
    return values


def overrides(
    generation: str, stream_bytes: float | None, constants: Mapping[str, float] | None
) -> dict[str, float]:
    values = checked_constants("simulate_gemm", constants)
    if stream_bytes is not None:
        if stream_bytes not in (4, 8):
            raise ArgumentError(
                f"[simulate_gemm] stream_bytes is {stream_bytes!r}; use 4 or 8 (bytes per cycle)"
            )
        values[f"stream_{generation}"] = float(stream_bytes)
    return values


def simulate_gemm(
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
    accumulate: str = "narrow",
    model: str = "emulator",
    stream_bytes: int | None = None,
    constants: Mapping[str, float] | None = None,
) -> SimulatedGemm:
    """The simulated time of C[M, N] = A[M, K] B[K, N] on a whole NPU ("npu1" or "npu2").

    tile: (m, k, n) of one core; k_mt: depth of a memtile's tiles, a multiple of k (default: up to
    448, as fits L2 and pads K little); b_layout: "col" or "row" (major); c_buffers: C tiles per
    core, 1 or 2; overlap_bds: False waits for each round of outputs before it writes the next BDs;
    bf16: how npu2 multiplies bfloat16, "bfp16" or "native"; kernel: "published" or "pipelined" and
    a_parts: see ``npu.designs.gemm.Choices`` (defaults: the published designs); accumulate:
    "narrow" keeps sums in C's type in L1, as the published designs do, "wide" in 32 bits; with the
    latter c_buffers may be 0, which narrows them where they lie. stream_bytes: bytes per cycle of a
    stream port, 4 or 8 (default: the constant of that generation). constants: other values for
    constants of ``npu validate-model --constants``.
    Raises DeviceError, DtypeError, ShapeError, ArgumentError; DesignError names the limit that an
    illegal tile violates.
    """
    if model not in MODELS:
        raise ArgumentError(f"[simulate_gemm] model is {model!r}; use one of {MODELS}")
    design, size = check_problem(
        (M, K, N),
        (
            device, dtype_in, dtype_out, tile, k_mt, b_layout, c_buffers, bf16, kernel, a_parts,
            accumulate,
        ),
    )  # fmt: skip
    values = overrides(device, stream_bytes, constants)
    run = _emulate if model == "emulator" else _estimate
    return run(design, size, bool(overlap_bds), values)


def _tops(size: Tile, seconds: float) -> float:
    return 2 * math.prod(size) / seconds / 1e12


def _estimate(
    design: GemmDesign, size: Tile, overlap: bool, constants: dict[str, float]
) -> SimulatedGemm:
    m, k, n = design.tile
    e: dict[str, Any] = _npu.model.estimate(
        design.generation, design.dtype_in, design.dtype_out, [m, k, n], list(size), design.k_mt,
        design.b_layout == "col", design.c_buffers, overlap, design.bf16 == "native",
        design.kernel == "pipelined", design.a_parts, constants, wide=design.accumulate == "wide",
    )  # fmt: skip
    resources = {
        "compute": e["compute"],
        "stream": e["stream"],
        "DRAM": max(e["read"], e["memory"]),
        "command": e["command"],
    }
    array = e["seconds"] - e["dispatch"]
    clock = float(_npu.arch.device_model(design.generation)["clock_hz"])
    return SimulatedGemm(
        model="closed-form",
        seconds=e["seconds"],
        tops=_tops(size, e["seconds"]),
        bound=e["bound"],
        macs_per_cycle=m * k * n / e["cycles_per_call"],
        bytes={
            "L3_read": int(e["dram_read_bytes"]),
            "L3_write": int(e["dram_write_bytes"]),
            "L2_read": int(e["l2_read_bytes"]),
        },
        dispatch_seconds=e["dispatch"],
        cycles=array * clock,
        padded=design.padded(size),
        shares={name: e["rounds"] * needed / array for name, needed in resources.items()},
        details={key: value for key, value in e.items() if isinstance(value, float)},
    )


@functools.lru_cache(maxsize=8)
def _lowered(design: GemmDesign) -> bytes:
    return gemm.configuration(
        design.generation, design.dtype_in, design.dtype_out, **design.options
    )


def submissions(design: GemmDesign, size: Tile) -> dict[Tile, int]:
    """The padded sizes of the submissions of a problem, as npu.matmul splits it (GemmLimits of
    backend/ops/gemm.h), and how often each occurs."""
    m, k, n = design.padded(size)
    unit_m, _, unit_n = design.native
    width = min(n, _MAX_ROW_BYTES // _BYTES[design.dtype_out] // unit_n * unit_n)
    height = max(1, _MAX_ROUNDS * unit_n // width) * unit_m
    blocks: dict[Tile, int] = {}
    for rows, row_count in ((height, m // height), (m % height, 1)):
        for columns, column_count in ((width, n // width), (n % width, 1)):
            if rows and columns and row_count and column_count:
                blocks[rows, k, columns] = row_count * column_count
    return blocks


def lowered(design: GemmDesign, block: Tile, overlap: bool) -> tuple[bytes, bytes]:
    """The configuration of a design and the stream of one submission (of ``submissions``)."""
    config = _lowered(design)
    m, k, n = block
    request = {"m": m, "k": k, "n": n, "overlap": overlap}
    return config, _npu.operations.submissions("gemm", config, request)[0]["stream"]


def execute(
    design: GemmDesign,
    block: Tile,
    config: bytes,
    stream: bytes,
    constants: dict[str, float],
    trace: tuple[float, float, int, bool] | None = None,
) -> dict[str, Any]:
    """The report of a timed run without data; ``trace`` asks for a recording (trace.py)."""
    m, k, n = block
    a, c = _BYTES[design.dtype_in], _BYTES[design.dtype_out]
    sizes = [m * k * a, k * n * a, m * n * c, m * k * a, k * n * a]
    report: dict[str, Any] = _npu.model.simulate(config, stream, sizes, [], True, constants, trace)
    return report


def zeros_but(contents: bytes, size: int) -> np.ndarray:
    """An argument of ``size`` bytes that begins with the control data its stream relies on."""
    data = np.zeros(size, np.uint8)
    data[: len(contents)] = np.frombuffer(contents, np.uint8)
    return data


def _total(
    parts: list[tuple[int, dict[str, Any]]],
) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
    """Timing, cycles of the agents and bytes moved of all submissions, one after the other."""
    timing: dict[str, float] = {}
    agents: dict[str, float] = {}
    moved: dict[str, int] = {}
    for count, report in parts:
        times = report["timing"]
        for name, value in times.pop("agents").items():
            agents[name] = agents.get(name, 0) + count * value
        for name, value in report["bytes_moved"].items():
            moved[name] = moved.get(name, 0) + count * value
        for name, value in times.items():
            weight = count * (times["cycles"] if name.endswith("_share") else 1)
            timing[name] = timing.get(name, 0) + weight * value
    for name in timing:
        if name.endswith("_share"):
            timing[name] /= timing["cycles"]
    return timing, agents, moved


def _emulate(
    design: GemmDesign, size: Tile, overlap: bool, constants: dict[str, float]
) -> SimulatedGemm:
    parts = [
        (count, execute(design, block, *lowered(design, block, overlap), constants))
        for block, count in submissions(design, size).items()
    ]
    return summary(design, size, parts)


def resource_shares(timing: Mapping[str, float]) -> dict[str, float]:
    """The share of the time that each resource of a timed run works; the busiest is its bound."""
    names = {"compute": "compute", "stream": "stream", "DRAM": "dram", "command": "command"}
    return {name: timing[f"{key}_share"] for name, key in names.items()}


def constant(name: str, overridden: Mapping[str, float]) -> float:
    """A constant of the timing model, unless ``overridden`` names another value."""
    if name in overridden:
        return overridden[name]
    return next(float(c["value"]) for c in _npu.model.constants() if c["name"] == name)


def summary(
    design: GemmDesign, size: Tile, parts: list[tuple[int, dict[str, Any]]]
) -> SimulatedGemm:
    """The public result of reports of ``execute``, each with how often its submission occurs."""
    padded = design.padded(size)
    timing, agents, moved = _total(parts)
    shares = resource_shares(timing)
    return SimulatedGemm(
        model="emulator",
        seconds=timing["seconds"],
        tops=_tops(size, timing["seconds"]),
        bound=max(shares, key=lambda name: shares[name]),
        macs_per_cycle=math.prod(design.tile)
        / design.a_parts
        * timing["matmul_calls"]
        / timing["matmul_cycles"],
        bytes={
            "L3_read": moved["shim_read"],
            "L3_write": moved["shim_write"],
            "L2_read": moved["memtile_read"],
            "L2_write": moved["memtile_write"],
            "L1_read": moved["core_read"],
            "L1_write": moved["core_write"],
        },
        dispatch_seconds=timing["dispatch"],
        cycles=timing["cycles"],
        padded=padded,
        shares=shares,
        details={k: float(v) for k, v in timing.items()} | {"rounds": _rounds(design, padded)},
        agents=agents,
    )


def _rounds(design: GemmDesign, padded: Tile) -> float:
    return padded[0] / design.native[0] * padded[2] / design.native[2]
