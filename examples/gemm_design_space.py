"""Prints the tables of docs/gemm_designs.md: for each kind of GEMM design of npu2 the best tile at
about 4096 x 4096 x 4096 (each size within 10 %, no padding), simulated with schedules of pipelined
kernels where there are any; and how far the profile "published" depends on its constants.

The closed form searches, the emulator repeats the best of each kind. Takes about half a minute:
python examples/gemm_design_space.py
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from npu.designs.gemm import DesignPoint
from npu.errors import NpuError
from npu.perf.problem import Size, design_point
from npu.perf.simulate import simulate_gemm

PAIRS = (
    ("int8", "int8"),
    ("int8", "int16"),
    ("int8", "int32"),
    ("bfloat16", "bfloat16"),
)
BYTES = {"int8": 1, "int16": 2, "int32": 4, "bfloat16": 2}
SIZE, SLACK = 4096, 0.1
# Name -> kernel and row parts of A.
KINDS = {
    "published kernels": ("published", 1),
    "pipelined": ("pipelined", 1),
    "pipelined, A in 2 parts": ("pipelined", 2),
    "pipelined, A in 4 parts": ("pipelined", 4),
}


@dataclasses.dataclass(frozen=True)
class Found:
    """A design and a size that it computes without padding."""

    tops: float
    design: DesignPoint
    size: Size
    bound: str


def nearest(unit: int) -> int:
    """The multiple of `unit` nearest to SIZE, 0 if it is more than SLACK away."""
    size = max(1, round(SIZE / unit)) * unit
    return size if abs(size - SIZE) <= SLACK * SIZE else 0


def tiles(kernel: str, a_parts: int) -> Iterator[Size]:
    depths = range(16, 65, 8) if kernel == "pipelined" else range(16, 137, 8)
    for m, n, k in itertools.product(range(64, 289, 16), range(64, 289, 16), depths):
        if m % (16 * a_parts) == 0:
            yield m, k, n


def estimates(
    kind: str, pair: tuple[str, str], constants: dict[str, float], kernels: str | None
) -> Iterator[Found]:
    kernel, a_parts = KINDS[kind]
    for tile in tiles(kernel, a_parts):
        for run in (256, 384, 512, 640):
            try:
                design = design_point(
                    "npu2", dtype_in=pair[0], dtype_out=pair[1], tile=tile, kernel=kernel,
                    k_mt=tile[1] * max(1, run // (tile[1] * BYTES[pair[0]])), a_parts=a_parts,
                )  # fmt: skip
            except NpuError:
                continue
            m, k, n = (nearest(unit) for unit in design.native)
            if m and k and n:
                r = simulate_gemm(
                    "npu2", m, k, n, design=design, model="closed-form", constants=constants,
                    kernels=kernels,
                )  # fmt: skip
                yield Found(r.tops, design, (m, k, n), r.bound)


def emulated(
    found: Found, stream: int, constants: dict[str, float], kernels: str | None = None
) -> float:
    return simulate_gemm(
        "npu2", *found.size, design=found.design, stream_bytes=stream, constants=constants,
        kernels=kernels,
    ).tops  # fmt: skip


def cross(numbers: tuple[int, ...]) -> str:
    return " x ".join(map(str, numbers))


def ranked(
    kind: str,
    pair: tuple[str, str],
    constants: dict[str, float] | None = None,
    kernels: str | None = None,
) -> list[Found]:
    """Best first, with streams of 4 bytes per cycle."""
    return sorted(estimates(kind, pair, constants or {}, kernels), key=lambda p: -p.tops)


def print_designs() -> None:
    print("| pair | design | tile, k_mt | M x K x N | TOPS, 4 B/cycle | 8 B/cycle | bound |")
    print("|---|---|---|---|---|---|---|")
    for pair, kind in itertools.product(PAIRS, KINDS):
        for best in ranked(kind, pair):
            try:
                four, eight = (emulated(best, width, {}) for width in (4, 8))
            except NpuError:  # the memtiles' buffers fit together but not one by one
                continue
            print(
                f"| {' -> '.join(pair)} | {kind} | {cross(best.design.tile)}, {best.design.k_mt} | "
                f"{cross(best.size)} | {four:.1f} | {eight:.1f} | {best.bound} |",
                flush=True,
            )
            break


def print_sensitivity() -> None:
    print("\n| pair | constant | TOPS, tile above | best tile then | TOPS |\n|---|---|---|---|---|")
    for pair in PAIRS:
        interval = "mac_interval_bfp16" if pair[0] == "bfloat16" else "mac_interval"
        usual = ranked("pipelined", pair, {}, "published")[0]
        for name, value in ((interval, 1.16), (interval, 1.5), ("kernel_call", 436.0)):
            change = {name: value}
            if change == {"mac_interval_bfp16": 1.16}:  # its value
                continue
            other = ranked("pipelined", pair, change, "published")[0]
            print(
                f"| {' -> '.join(pair)} | {name} = {value:g} "
                f"| {emulated(usual, 4, change, 'published'):.1f} "
                f"| {cross(other.design.tile)}, {other.design.k_mt} "
                f"| {emulated(other, 4, change, 'published'):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    print_designs()
    print_sensitivity()
