"""How long a GEMM takes on the NPU, simulated: no hardware is involved and nothing is computed.

``npu.simulate_gemm`` has three models. "emulator" lowers the real configuration, builds the real
command stream and executes it on the emulated array with timing and without data. "closed-form"
evaluates equations (docs/timing.md) and is fast enough to search over tiles. "atb" is another
paper's model (npu.perf.atb_simulation).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from npu import _npu
from npu.designs import gemm
from npu.designs.gemm import DesignPoint
from npu.errors import ArgumentError
from npu.perf.execution import Totals, execute, run_request
from npu.perf.problem import Choices, GemmProblem, Size, gemm_problem

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npu.perf.atb_simulation import SimulatedAtb

MODELS = ("emulator", "closed-form")  # of designs


@dataclasses.dataclass(frozen=True)
class SimulatedGemm:
    """A simulated GEMM: times are of the modelled NPU, not of this machine.

    ``seconds`` includes ``dispatch_seconds`` (host to array and back); ``tops`` counts 2 M K N
    operations of the unpadded problem; ``bound`` is the resource that is busiest; ``shares`` is the
    share of the time each resource works (emulator) or would need (closed form); ``bytes`` counts
    what crossed DRAM (L3), memtiles (L2) and cores (L1); ``details`` has the model's own figures;
    ``agents`` (emulator) the cycles in which each core, DMA channel and the command processor
    worked, out of ``cycles``; ``machine`` and ``kernels`` (where cycles of kernels come from)
    the profiles that were simulated.
    """

    model: str
    machine: str
    kernels: str
    seconds: float
    tops: float
    bound: str
    macs_per_cycle: float
    bytes: dict[str, int]
    dispatch_seconds: float
    cycles: float
    padded: Size
    shares: dict[str, float]
    details: dict[str, float] = dataclasses.field(repr=False)
    agents: dict[str, float] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def array_seconds(self) -> float:
        """Without the host's part."""
        return self.seconds - self.dispatch_seconds


@overload
def simulate_gemm(
    device: str, M: int, K: int, N: int, *, model: Literal["atb"], **choices: Unpack[Choices]
) -> SimulatedAtb: ...
@overload
def simulate_gemm(
    device: str, M: int, K: int, N: int, *, model: str = ..., **choices: Unpack[Choices]
) -> SimulatedGemm: ...
def simulate_gemm(
    device: str,
    M: int,
    K: int,
    N: int,
    *,
    model: str = "emulator",
    **choices: Unpack[Choices],
) -> SimulatedGemm:
    """The simulated time of C[M, N] = A[M, K] B[K, N] on a whole NPU ("npu1" or "npu2").

    model: "emulator" (default), "closed-form", or "atb", for products with a B in BFP16 by the
    paper on asymmetric tile buffering, whether there is a design or not: it takes dtype_in and
    dtype_out ("bfloat16" or "bfp16"), dtype_b "bfp16", accumulate ("narrow", or "bfloat16" for the
    sums of a C in BFP16), tile and a_parts (default: (128, 64, 128) in 4), stream_bytes, constants
    and machine, and returns a ``SimulatedAtb``. Choices, by default those of the published designs:
    dtype_in, dtype_out: of A and B (int8), of C (int32); dtype_b: of B, "bfp16" for blocks beside
    an A of bfloat16 or "bfp16" (npu2; C may be "bfp16", too, and its sums "bfloat16"); tile: (m, k,
    n) of one core; k_mt: depth of a memtile's tiles, a multiple of k (up to 448, as fits L2 and
    pads K little); b_layout: "col" (default) or "row" (major); c_buffers: C tiles per core, 1
    (default), 2, or 0 with wide sums, which then are narrowed where they lie; accumulate: "narrow"
    (default) keeps sums in C's type in L1, "wide" in 32 bits; bf16: how npu2 multiplies bfloat16,
    "bfp16" (default) or "native"; kernel: "published" (default) or "pipelined", and a_parts: row
    parts of an A tile, see ``npu.designs.gemm.Choices``. design: a checked
    ``npu.designs.gemm.DesignPoint`` instead of all these. overlap_bds: False waits for each round
    of outputs before it writes the next BDs. stream_bytes: bytes per cycle of a stream port, 4 or 8
    (default: the constant of that generation). constants: other values for constants of ``npu
    validate-model --constants``; machine: a profile of ``npu validate-model --machines``, by
    default that of the generation. kernels: where cycles of products come from, "published"
    (constants) or "scheduled" (schedules that `npu kernel` generates, for kernels that have one);
    by default the former for kernel="published" and the latter for "pipelined".
    Raises DeviceError, DtypeError, ShapeError, ArgumentError; DesignError names the limit that an
    illegal tile violates.
    """
    if model == "atb":
        from npu.perf.atb_simulation import simulate_atb

        return simulate_atb(device, (M, K, N), **choices)
    if model not in MODELS:
        raise ArgumentError(f"[simulate_gemm] model is {model!r}; use one of {(*MODELS, 'atb')}")
    problem = gemm_problem("simulate_gemm", device, (M, K, N), **choices)
    return _emulate(problem) if model == "emulator" else _estimate(problem)


def simulate_call(
    design: DesignPoint,
    size: Size,
    stream_bytes: int | None = None,
    machine: str | None = None,
    kernels: str | None = None,
    stored: Mapping[str, int] | None = None,
) -> SimulatedGemm:
    """The timed emulator on the streams that npu.matmul submits to a configuration for row-major A
    and C and a B as it has it: ragged edges, K tails and splits are those of the call, where
    ``simulate_gemm`` computes the padded problem. stored: fields of the
    request that say otherwise ("packed_b", "a_across", "b_across"), or that add another product to
    the submission ("then_m", ...)."""
    problem = gemm_problem(
        "simulate_call", design.generation, size, design=design, stream_bytes=stream_bytes,
        machine=machine, kernels=kernels,
    )  # fmt: skip
    request = dict(zip("mkn", size, strict=True)) | dict(stored or {})
    totals = run_request("gemm", gemm.configuration_of(design), request, problem.constants)
    return _summary(problem, totals)


def _tops(size: Size, seconds: float) -> float:
    return 2 * math.prod(size) / seconds / 1e12


def _estimate(problem: GemmProblem) -> SimulatedGemm:
    design = problem.design
    if design.keeps:
        raise ArgumentError(
            f"[simulate_gemm] {design.text}: the closed form knows no operands that memtiles keep; "
            'use model="emulator"'
        )
    e: dict[str, Any] = _npu.perf.estimate(
        design, problem.size, overlap=problem.overlap, overrides=problem.constants
    )
    resources = {
        "compute": e["compute"],
        "stream": e["stream"],
        "DRAM": max(e["read"], e["memory"]),
        "command": e["command"],
    }
    array = e["seconds"] - e["dispatch"]
    clock = float(_npu.arch.device_geometry(design.generation)["clock_hz"])
    return SimulatedGemm(
        model="closed-form",
        machine=problem.constants.label,
        kernels=problem.constants.kernels(_sources(design, e)),
        seconds=e["seconds"],
        tops=_tops(problem.size, e["seconds"]),
        bound=e["bound"],
        macs_per_cycle=math.prod(design.tile) / e["cycles_per_call"],
        bytes={
            "L3_read": int(e["dram_read_bytes"]),
            "L3_write": int(e["dram_write_bytes"]),
            "L2_read": int(e["l2_read_bytes"]),
        },
        dispatch_seconds=e["dispatch"],
        cycles=array * clock,
        padded=design.padded(problem.size),
        shares={name: e["rounds"] * needed / array for name, needed in resources.items()},
        details={key: value for key, value in e.items() if isinstance(value, float)},
    )


def _sources(design: DesignPoint, estimate: dict[str, Any]) -> dict[str, str]:
    """What the closed form's cycles are of every kernel of a design."""
    source = "published" if design.kernel == "published" else "counted"
    found = {estimate["kernel"]: "scheduled" if estimate["scheduled"] else source}
    others = {
        "convert_bf16_bfp16_*": estimate["convert_cycles"] > 0,
        "narrow_*" if design.has_shift else "convert_f32_bf16": design.sum_dtype != design.c_dtype,
        "zero_*": True,
    }
    found |= {name: "counted" for name, called in others.items() if called}
    if estimate["convert_scheduled"] and estimate["convert_cycles"] > 0:
        found["convert_bf16_bfp16_*"] = "scheduled"
    return found


@dataclasses.dataclass(frozen=True)
class Submission:
    """One command stream of a problem, how often it is submitted, its padded size, and the bytes
    of its arguments."""

    stream: bytes
    count: int
    size: Size
    sizes: list[int]


def submissions(problem: GemmProblem) -> list[Submission]:
    """The streams of the padded problem, split as npu.matmul splits it."""
    config = gemm.configuration_of(problem.design)
    found = []
    for (m, k, n), count in _npu.gemm_choice.blocks(problem.design, problem.size):
        request = {"m": m, "k": k, "n": n, "overlap": problem.overlap}
        (one,) = _npu.operations.submissions("gemm", config, request)
        sizes = [argument["bytes"] for argument in one["arguments"]]
        found.append(Submission(one["stream"], count, (m, k, n), sizes))
    return found


def _emulate(problem: GemmProblem) -> SimulatedGemm:
    config = gemm.configuration_of(problem.design)
    parts = [
        (s.count, execute(config, s.stream, sizes=s.sizes, constants=problem.constants))
        for s in submissions(problem)
    ]
    return summary(problem, parts)


def summary(problem: GemmProblem, parts: list[tuple[int, dict[str, Any]]]) -> SimulatedGemm:
    """The public result of reports of ``execute``, each with how often its submission occurs."""
    return _summary(problem, Totals.of(parts))


def _summary(problem: GemmProblem, totals: Totals) -> SimulatedGemm:
    design, size = problem.design, problem.size
    padded, timing, moved = design.padded(size), totals.timing, totals.moved
    calls_per_tile = design.a_parts
    rounds = padded[0] / design.native[0] * padded[2] / design.native[2]
    return SimulatedGemm(
        model="emulator",
        machine=problem.constants.label,
        kernels=problem.constants.kernels(totals.kernels),
        seconds=timing["seconds"],
        tops=_tops(size, timing["seconds"]),
        bound=totals.bound,
        macs_per_cycle=math.prod(design.tile)
        / calls_per_tile
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
        shares=totals.shares,
        details=totals.details | {"rounds": rounds},
        agents=totals.agents,
    )
