"""What `npu bench gemm` sweeps: design points, problem sizes, and their simulation on all CPUs.

All times here are simulated times of the NPU (docs/timing.md), not of this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

from npu import _npu
from npu.cli.common import machine_label
from npu.designs.gemm import ROWS, DesignPoint
from npu.errors import ArgumentError, ShapeError
from npu.perf import kernel_profile
from npu.perf.execution import constant
from npu.perf.machines import machine_of
from npu.perf.problem import Size, design_point
from npu.perf.simulate import SimulatedGemm, simulate_gemm

DEFAULT_COUNT = 400
DEFAULT_LIMIT = 8192
MAX_SIZE = 65536  # of M, K and N: minutes per simulation
MAX_COUNT = 100_000  # sizes per sweep
# About the largest problem whose time the estimate is made from: a fraction of 1 s.
_PROBE = 5120**3
BOUNDS = ("compute", "DRAM", "stream", "command")
# Tile and k_mt of a core for each generation and pair. int8 and bfloat16 -> bfloat16: the balanced
# kernels of Taka et al., arXiv 2512.13282, tables 2, 3 and section 5.2.2. The other two: the best
# ~4K GEMM of the closed form over tiles in steps of 16 x 8 x 16.
BALANCED: dict[tuple[str, str, str], tuple[Size, int]] = {
    ("npu1", "int8", "int8"): ((112, 112, 112), 448),
    ("npu1", "int8", "int16"): ((96, 112, 96), 448),
    ("npu1", "int8", "int32"): ((80, 88, 96), 352),
    ("npu1", "bfloat16", "bfloat16"): ((96, 56, 96), 224),
    ("npu1", "bfloat16", "float32"): ((80, 56, 80), 224),
    ("npu1", "int16", "int32"): ((64, 112, 48), 224),
    ("npu2", "int8", "int8"): ((144, 72, 144), 432),
    ("npu2", "int8", "int16"): ((128, 72, 112), 432),
    ("npu2", "int8", "int32"): ((96, 64, 96), 384),
    ("npu2", "bfloat16", "bfloat16"): ((112, 48, 96), 384),
    ("npu2", "bfloat16", "float32"): ((128, 40, 64), 200),
    ("npu2", "int16", "int32"): ((80, 56, 80), 224),
}
# Output types swept for an input type that is named alone; the first three pairs and bfloat16 ->
# bfloat16 are what is swept when nothing is named.
OUTPUTS = {"int8": ("int8", "int16", "int32"), "bfloat16": ("bfloat16",), "int16": ("int32",)}


@dataclasses.dataclass(frozen=True)
class Case:
    """One sweep: a design point and how it is simulated."""

    design: DesignPoint
    method: str
    stream_bytes: int | None = None
    machine: str | None = None
    kernels: str | None = None

    def run(self, size: Size) -> SimulatedGemm:
        return simulate_gemm(
            self.design.generation, *size, design=self.design, model=self.method,
            stream_bytes=self.stream_bytes, machine=self.machine, kernels=self.kernels,
        )  # fmt: skip

    @property
    def pair(self) -> str:
        return f"{self.design.a_dtype} -> {self.design.c_dtype}"

    def _closed_form(self) -> SimulatedGemm:
        return dataclasses.replace(self, method="closed-form").run(self.design.native)

    @property
    def peak_tops(self) -> float:
        """All cores in the kernel all the time ("peak comp. TOPS" of the published tables)."""
        hertz = float(_npu.arch.device_geometry(self.design.generation)["clock_hz"])
        cores = ROWS * self.design.columns
        return 2 * cores * self._closed_form().macs_per_cycle * hertz / 1e12

    @property
    def read_ceiling_tops(self) -> float:
        """DRAM reads all the time: what the tile's reuse and the length of its runs allow."""
        return 2 * math.prod(self.design.native) / self._closed_form().details["read"] / 1e12

    @property
    def dram_gb_per_s(self) -> float:
        """The read ceiling of the memory."""
        device = self.design.generation
        return constant(f"dram_read_{device}", machine_of("bench", device, self.machine).values)

    @property
    def label(self) -> str:
        """The machine, as results are stamped with it."""
        return machine_label("bench", self.design.generation, self.machine, self.stream_bytes)

    @property
    def profiles(self) -> str:
        """Machine and kernels, for people."""
        return f"machine {self.label}; kernels: {kernel_profile.chosen(self.kernels)}"

    def intensity(self, size: Size) -> float:
        """Arithmetic intensity: operations per byte of A, B and C, each counted once."""
        m, k, n = size
        a, c = self.design.a_bytes, self.design.c_bytes
        return 2 * m * k * n / (a * (m * k + k * n) + c * m * n)


def pairs(dtypes: Sequence[str] | None, outputs: Sequence[str] | None) -> list[tuple[str, str]]:
    """Input and output types of a command line; unknown ones are left to design_point."""
    if dtypes is None:
        published = [(a, c) for a in ("int8", "bfloat16") for c in OUTPUTS[a]]
        if outputs is None:
            return published
        known = [(a, c) for (g, a, c) in BALANCED if g == "npu2" and c in outputs]
        found = known or [("int8", c) for c in outputs]
    else:
        found = [(a, c) for a in dtypes for c in outputs or OUTPUTS.get(a, ("int32",))]
    return list(dict.fromkeys(found))


def design_of(
    device: str, pair: tuple[str, str], layout: str, tile: Size | None, k_mt: int | None
) -> DesignPoint:
    """The checked design: the balanced kernel unless another tile or k_mt is asked for."""
    default = BALANCED.get((device, *pair), (None, None))
    chosen = tile or default[0]
    depth = k_mt if k_mt is not None or tile else default[1]
    a, c = pair
    return design_point(
        device, dtype_in=a, dtype_out=c, tile=chosen, k_mt=depth, b_layout=layout, function="bench"
    )


def problem_sizes(native: Size, count: int, limit: int) -> list[Size]:
    """At least `count` distinct multiples of `native` up to `limit`, from the smallest to the
    largest, equally many steps in each dimension as far as there are so many multiples.
    """
    if limit > MAX_SIZE:
        raise ShapeError(f"[bench] --max-size {limit}: it may be {MAX_SIZE} at most")
    if count > MAX_COUNT:
        raise ArgumentError(f"[bench] --count {count}: it may be {MAX_COUNT} at most")
    counts = [limit // unit for unit in native]
    if min(counts) < 1:
        raise ArgumentError(
            f"[bench] sizes up to {limit}: the native size is {_text(native)}, none fits; use a "
            "larger --max-size or a smaller --tile"
        )
    if math.prod(counts) < count:
        raise ArgumentError(
            f"[bench] {count} sizes up to {limit}: there are {math.prod(counts)} multiples of the "
            f"native size {_text(native)}; use a smaller --count or a larger --max-size"
        )
    steps = [1, 1, 1]
    while math.prod(steps) < count:
        free = [i for i in range(3) if steps[i] < counts[i]]
        steps[min(free, key=lambda i: (steps[i], native[i]))] += 1
    axes = [_spaced(*of) for of in zip(native, counts, steps, strict=True)]
    return [(m, k, n) for m in axes[0] for k in axes[1] for n in axes[2]]


def check_sizes(sizes: Sequence[Size]) -> list[Size]:
    """The distinct ones, or an error if one is too large to simulate."""
    for size in sizes:
        if max(size) > MAX_SIZE:
            raise ShapeError(f"[bench] size {_text(size)}: M, K and N may be {MAX_SIZE} at most")
    return list(dict.fromkeys(sizes))


def _spaced(unit: int, count: int, steps: int) -> list[int]:
    if steps == 1:
        return [unit * count]
    return [unit * (1 + (count - 1) * i // (steps - 1)) for i in range(steps)]


def _text(size: Size) -> str:
    return "x".join(map(str, size))


@dataclasses.dataclass
class Sweep:
    """A case with its sizes and the results so far, in the order of the sizes."""

    case: Case
    sizes: list[Size]
    results: dict[Size, SimulatedGemm] = dataclasses.field(default_factory=dict)

    def done(self) -> list[tuple[Size, SimulatedGemm]]:
        return [(size, self.results[size]) for size in self.sizes if size in self.results]


def threads() -> int:
    """Threads of the emulator: $NPU_THREADS, else the usable CPUs."""
    text = os.environ.get("NPU_THREADS", "")
    if text.isdigit() and int(text):
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(sweeps: Sequence[Sweep]) -> float:
    """Simulates a small and a larger size of each sweep, so that a design that does not lower fails
    at once; returns the estimated seconds of the rest on free CPUs.
    """
    total = 0.0
    for sweep in sweeps:
        ordered = sorted(sweep.sizes, key=math.prod)
        below = [size for size in ordered if math.prod(size) <= _PROBE]
        ends = [ordered[0], below[-1] if below else ordered[0]]
        sweep.case.run(ends[0])  # lowers the design
        cost = []
        for size in ends:
            begin = time.thread_time()  # others may use the CPUs too
            sweep.results[size] = sweep.case.run(size)
            cost.append(time.thread_time() - begin)
        spread = max(1, math.prod(ends[1]) - math.prod(ends[0]))
        slope = max(0.0, cost[1] - cost[0]) / spread
        rest = [size for size in ordered if size not in sweep.results]
        total += sum(cost[0] + slope * (math.prod(size) - math.prod(ends[0])) for size in rest)
    return total / threads()


def run(sweeps: Sequence[Sweep], advance: Callable[[int], Any]) -> None:
    """Simulates what is missing. An interrupt leaves the results so far in the sweeps."""
    todo = [(s, size) for s in sweeps for size in s.sizes if size not in s.results]
    random.Random(0).shuffle(todo)  # so that the remaining time can be told from the progress

    def one(sweep: Sweep, size: Size) -> None:
        sweep.results[size] = sweep.case.run(size)
        advance(1)

    with _pool() as pool:
        futures: list[Future[None]] = [pool.submit(one, *item) for item in todo]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()


@contextlib.contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Threads (a simulation releases the interpreter lock); leaving drops what has not begun."""
    pool = ThreadPoolExecutor(threads(), thread_name_prefix="npu-bench")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
