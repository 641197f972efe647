"""Time of a BFP16 product with asymmetric tile buffering on a whole npu2, by the paper's equations
(npu.perf.atb) and by what they leave out: ``npu.simulate_gemm(..., model="atb")``.

The equations are two bounds. A run also fills and drains the array, hands output tiles over, starts
and ends, and reads memory in runs of addresses: terms and constants are those of the closed form
(docs/timing.md). No configuration has to exist, so that tiles can be judged before they are built.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from npu import _npu
from npu.designs.hardware import STACK_BYTES, tile_limits
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError
from npu.perf import atb
from npu.perf.atb import Precision, Tile
from npu.perf.machines import Constants, constants_of
from npu.perf.problem import MAX_SIZE, Size, checked_constants, whole
from npu.perf.simulate import SimulatedGemm

ROWS, COLUMNS = 4, 8
CHANNELS = ROWS + COLUMNS  # shim channels that read: A for each row, B for each column
CORE_MULTIPLES = (16, 8, 16)  # of m_A, k and n: a cluster of 2 x 2 chains of 8 x 8 x 8 VMACs
DEFAULT_TILE, DEFAULT_PARTS = (128, 64, 128), 4  # of table 3
# Other choices of simulate_gemm belong to designs.
CHOICES = ("dtype_in", "dtype_b", "dtype_out", "accumulate", "tile", "a_parts", "constants",
           "machine", "stream_bytes")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedAtb(SimulatedGemm):
    """What ``simulate_gemm(..., model="atb")`` returns: ``SimulatedGemm``, and the paper's figures.

    ``intensity``: operations per byte of memory (equation 2); ``memory_bound_tops`` and
    ``compute_bound_tops``: the two sides of equation 12, ``binds`` which of them is less ("memory",
    "compute"), whereas ``bound`` is the busiest resource of the run; ``core_tops``: of one core;
    ``core_efficiency``, ``microkernel_efficiency``: shares of the peak (equations 15, 13);
    ``l1_bytes``, ``l1_bytes_symmetric``: of a core's memory (equation 3), with A in parts and
    whole; ``tile``, ``a_parts``: m, k, n, and rho.
    """

    tile: Size
    a_parts: int
    intensity: float
    memory_bound_tops: float
    compute_bound_tops: float
    binds: str
    core_tops: float
    core_efficiency: float
    microkernel_efficiency: float
    l1_bytes: int
    l1_bytes_symmetric: int


def simulate_atb(device: str, size: tuple[Any, Any, Any], **choices: Any) -> SimulatedAtb:
    """``npu.simulate_gemm(device, *size, model="atb", **choices)``. Raises ArgumentError,
    DesignError (a tile that is no whole clusters, or does not fit), DeviceError, DtypeError,
    ShapeError."""
    function = "simulate_gemm"
    others = [name for name in choices if name not in CHOICES]
    if others:
        raise ArgumentError(
            f'[{function}] {", ".join(others)} with model="atb", which needs no design: leave it '
            f"out; there are {', '.join(CHOICES)}"
        )
    constants = _constants(function, device, choices)
    if device != "npu2":
        raise DeviceError(
            f'[{function}] model="atb" on {device}: only npu2 multiplies BFP16; use "npu2"'
        )
    precision = precision_of(
        choices.get("dtype_in", "bfloat16"), choices.get("dtype_b"), choices.get("dtype_out"),
        choices.get("accumulate", "narrow"),
    )  # fmt: skip
    tile = checked_tile(choices.get("tile"), choices.get("a_parts"), precision)
    m, k, n = (whole(function, x, name, MAX_SIZE) for x, name in zip(size, "MKN", strict=True))
    return _result((m, k, n), tile, precision, constants)


def precision_of(a: Any, b: Any, c: Any, accumulate: Any) -> Precision:
    """The types of a configuration. Raises ArgumentError, DtypeError."""
    a = _dtype("dtype_in", a)
    b = a if b is None else _dtype("dtype_b", b)
    c = a if c is None else _dtype("dtype_out", c)
    if accumulate not in ("narrow", "bfloat16"):
        raise ArgumentError(
            f'[simulate_gemm] accumulate is {accumulate!r} with model="atb"; use "narrow" (sums in '
            'C\'s type) or "bfloat16": the paper has no others'
        )
    if a not in atb.L1_BYTES or b != "bfp16" or c not in atb.L1_BYTES:
        raise DtypeError(
            f'[simulate_gemm] {a} x {b} -> {c} with model="atb"; A is bfloat16 or bfp16, B is '
            'bfp16 (dtype_b="bfp16"), C is bfloat16 or bfp16'
        )
    return Precision(a, b, c if accumulate == "narrow" else "bfloat16", c)


def _dtype(argument: str, value: Any) -> str:
    try:
        return value if isinstance(value, str) else np.dtype(value).name
    except TypeError:
        raise DtypeError(
            f"[simulate_gemm] {argument} is {value!r}; use bfloat16 or bfp16"
        ) from None


def checked_tile(tile: Any, a_parts: Any, precision: Precision) -> Tile:
    """Left out: table 3's. Raises ArgumentError, DesignError, ShapeError."""
    chosen = DEFAULT_TILE if tile is None else tile
    parts = (DEFAULT_PARTS if tile is None else 1) if a_parts is None else a_parts
    if not isinstance(chosen, (tuple, list)) or len(chosen) != 3:
        raise ArgumentError(f"[simulate_gemm] tile is {tile!r}; it must be (m, k, n)")
    m, k, n = (
        whole("simulate_gemm", value, f"tile {label}", MAX_SIZE)
        for value, label in zip(chosen, "mkn", strict=True)
    )
    rho = whole("simulate_gemm", parts, "a_parts", MAX_SIZE)
    units = [unit * count for unit, count in zip(CORE_MULTIPLES, (rho, 1, 1), strict=True)]
    if m % units[0] or k % units[1] or n % units[2]:
        raise DesignError(
            f"[simulate_gemm] tile {m} x {k} x {n} with A in {rho} parts; m must be a multiple of "
            f"{units[0]} (a_parts x {CORE_MULTIPLES[0]}), k of {units[1]}, n of {units[2]}"
        )
    found = Tile(m, k, n, rho)
    used, room = atb.L1_bytes(found, precision), tile_limits("core").memory_bytes - STACK_BYTES
    if used > room:
        raise DesignError(
            f"[simulate_gemm] tile {m} x {k} x {n} with A in {rho} parts needs {used / 1024:.1f} "
            f"KiB of a core's memory, {room / 1024:g} KiB are left of it; use a smaller tile or "
            "more a_parts"
        )
    return found


def _constants(function: str, device: str, choices: Mapping[str, Any]) -> Constants:
    changed = checked_constants(function, choices.get("constants"))
    stream = choices.get("stream_bytes")
    if stream is not None:
        if stream not in (4, 8):
            raise ArgumentError(
                f"[{function}] stream_bytes is {stream!r}; use 4 or 8 (bytes per cycle)"
            )
        changed[f"stream_{device}"] = float(stream)
    known = all_constants()
    for name, value in changed.items():
        if name not in known or not 0 < value < math.inf:
            raise ArgumentError(
                f"[{function}] constant {name!r} = {value:g}; it must be one of "
                "`npu validate-model --constants` and positive"
            )
    return constants_of(function, device, choices.get("machine"), changed)


def all_constants() -> dict[str, float]:
    """The table's and those of this model."""
    table = {str(c["name"]): float(c["value"]) for c in _npu.perf.constants()}
    return table | {constant.name: constant.value for constant in atb.CONSTANTS}


@dataclasses.dataclass(frozen=True)
class Terms:
    """Seconds of an output round of all cores by what they are spent on, and of what comes before
    the first and behind the last round."""

    rounds: int
    cores: float
    streams: float
    handover: float
    read: float
    write: float
    memory: float
    fill: float
    tail: float
    token: float
    dispatch: float

    @property
    def round(self) -> float:
        busy = max(self.cores, self.streams) + self.handover
        return max(busy, self.read, self.write, self.memory)

    @property
    def seconds(self) -> float:
        return self.rounds * self.round + self.fill + self.tail + self.token + self.dispatch


def terms(
    size: Size, tile: Tile, precision: Precision, values: Mapping[str, float], clock: float
) -> Terms:
    """The closed form's equations (docs/timing.md) for operands of different widths; values: all
    constants."""
    M, K, N = size
    m, k, n = tile.m, tile.k, tile.n
    steps = -(-K // k)
    a, b, c = (atb.L1_BYTES[dtype] for dtype in (precision.a, precision.b, precision.c))
    stream = values["stream_npu2"] * clock
    step = max(m * k * a, k * n * b) / stream
    A, B, C = ROWS * m * K * a, COLUMNS * n * K * b, ROWS * COLUMNS * m * n * c
    # BFP16 is packed on the host, tile by tile; a bfloat16 A is read where it lies.
    run_a = values["atb_run"] if precision.converts else tile.m_A * k * a
    read = A / _bandwidth(run_a, values, clock) + B / _bandwidth(k * n * b, values, clock)
    # One C tile per core: it leaves before the next sums are zeroed.
    port = values["l1_port_npu2"] * clock
    handover = m * n * c / stream + m * n * atb.L1_BYTES[precision.sums] / port
    if precision.sums != precision.c:
        handover += m * n * atb.L1_BYTES[precision.sums] / port
    joined = ROWS * m * n * c / stream  # the C of a column, through one shim channel
    return Terms(
        rounds=-(-M // (ROWS * m)) * -(-N // (COLUMNS * n)),
        cores=steps * atb.L_tile(tile, precision, values) / clock,
        streams=steps * step,
        handover=handover + values["round"] * 1e-6,
        read=read,
        write=joined,
        memory=(A + B + C) / (values["dram_total_npu2"] * 1e9),
        fill=read / steps + step + values["shim_cold_start"] / clock,
        tail=joined,
        token=values["token"] * 1e-6,
        dispatch=values["dispatch"] * 1e-6,
    )


def _bandwidth(run: float, values: Mapping[str, float], clock: float) -> float:
    """Bytes per second of reads in runs of so many bytes (docs/timing.md, DRAM reads)."""
    ceiling = values["dram_read_npu2"] * 1e9
    visits = CHANNELS * run / values["row_visit"] * clock
    return float((ceiling**-4 + visits**-4) ** -0.25)


def _result(size: Size, tile: Tile, precision: Precision, constants: Constants) -> SimulatedAtb:
    values = all_constants() | constants
    clock = float(_npu.arch.device_geometry("npu2")["clock_hz"])
    t = terms(size, tile, precision, values, clock)
    peak, cores = 2 * atb.PEAK_MACS * clock, ROWS * COLUMNS
    efficiency = atb.eff_core(tile, precision, values)
    intensity = atb.AI_array(tile, size[1], precision, ROWS, COLUMNS)
    ceiling = values["dram_total_npu2"] * 1e9
    memory, compute = intensity * ceiling, cores * peak * efficiency
    operations = 2 * math.prod(size)
    shares = {
        "compute": t.cores, "DRAM": max(t.read, t.memory), "stream": max(t.streams, t.write),
        "command": 0.0,
    }  # fmt: skip
    array = t.seconds - t.dispatch
    padded = tuple(
        -(-x // unit) * unit
        for x, unit in zip(size, (ROWS * tile.m, tile.k, COLUMNS * tile.n), strict=True)
    )
    a, b, c = (atb.L1_BYTES[dtype] for dtype in (precision.a, precision.b, precision.c))
    read = ROWS * tile.m * padded[1] * a + COLUMNS * tile.n * padded[1] * b
    return SimulatedAtb(
        model="atb",
        machine=constants.label,
        kernels="published",
        seconds=t.seconds,
        tops=operations / t.seconds / 1e12,
        bound=_bound(t),
        macs_per_cycle=atb.PEAK_MACS * efficiency,
        bytes={
            "L3_read": int(t.rounds * read),
            "L3_write": int(t.rounds * cores * tile.m * tile.n * c),
        },
        dispatch_seconds=t.dispatch,
        cycles=array * clock,
        padded=(padded[0], padded[1], padded[2]),
        shares={name: t.rounds * seconds / array for name, seconds in shares.items()},
        details={name: float(value) for name, value in dataclasses.asdict(t).items()}
        | {"equation_12_tops": atb.Perf(intensity, ceiling, cores, peak, efficiency) / 1e12},
        tile=(tile.m, tile.k, tile.n),
        a_parts=tile.rho,
        intensity=intensity,
        memory_bound_tops=memory / 1e12,
        compute_bound_tops=compute / 1e12,
        binds="memory" if memory < compute else "compute",
        core_tops=peak * efficiency / 1e12,
        core_efficiency=efficiency,
        microkernel_efficiency=atb.eff_mk(tile.k, values),
        l1_bytes=math.ceil(atb.L1_bytes(tile, precision)),
        l1_bytes_symmetric=math.ceil(atb.L1_bytes(tile.symmetric, precision)),
    )


def _bound(t: Terms) -> str:
    """What the time of a round is."""
    if t.round in (t.read, t.memory):
        return "DRAM"
    if t.round == t.write or t.streams > t.cores:
        return "stream"
    return "compute"
