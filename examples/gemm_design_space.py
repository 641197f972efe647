"""Prints the tables of docs/gemm_designs.md: for each kind of GEMM design of npu2 the best tile at
about 4096 x 4096 x 4096 (each size within 10 %, no padding), simulated.

The closed form searches, the emulator repeats the best of each kind (the resident A panel exists in
the closed form only). Takes about half a minute: python examples/gemm_design_space.py
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from npu import _npu
from npu.errors import NpuError
from npu.perf.simulate import check_design, simulate_gemm

PAIRS = (
    ("int8", "int8"),
    ("int8", "int16"),
    ("int8", "int32"),
    ("bfloat16", "bfloat16"),
)
BYTES = {"int8": 1, "int16": 2, "int32": 4, "bfloat16": 2}
COLUMNS, MEMTILE_BYTES = 8, 512 * 1024
SIZE, SLACK = 4096, 0.1


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of design."""

    name: str
    kernel: str
    a_parts: int = 1
    a_resident: bool = False


KINDS = (
    Kind("published kernels", "published"),
    Kind("pipelined", "pipelined"),
    Kind("pipelined, A in 2 parts", "pipelined", 2),
    Kind("pipelined, A in 4 parts", "pipelined", 4),
    Kind("published kernels, A panel in L2", "published", 1, True),
    Kind("pipelined, A panel in L2", "pipelined", 1, True),
)
PIPELINED = KINDS[1]


@dataclasses.dataclass(frozen=True)
class Point:
    """A design and a size that it computes without padding."""

    tops: float
    tile: tuple[int, int, int]
    k_mt: int
    size: tuple[int, int, int]
    bound: str


def nearest(unit: int) -> int:
    """The multiple of `unit` nearest to SIZE, 0 if it is more than SLACK away."""
    size = max(1, round(SIZE / unit)) * unit
    return size if abs(size - SIZE) <= SLACK * SIZE else 0


def tiles(kind: Kind) -> Iterator[tuple[int, int, int]]:
    depths = range(16, 65, 8) if kind.kernel == "pipelined" else range(16, 137, 8)
    for m, n, k in itertools.product(range(64, 289, 16), range(64, 289, 16), depths):
        if m % (16 * kind.a_parts) == 0:
            yield m, k, n


def panel_fits(pair: tuple[str, str], tile: tuple[int, int, int], k_mt: int, depth: int) -> bool:
    """A panel of 4 m x K, two B tiles per column, and the joined C tiles."""
    m, _, n = tile
    a, c = BYTES[pair[0]], BYTES[pair[1]]
    need = 4 * m * depth * a + 2 * COLUMNS * n * k_mt * a + 4 * COLUMNS * m * n * c
    return need <= COLUMNS * MEMTILE_BYTES


def estimates(kind: Kind, pair: tuple[str, str], constants: dict[str, float]) -> Iterator[Point]:
    a_type, c_type = pair
    for tile in tiles(kind):
        m, k, n = tile
        for run in (256, 384, 512, 640):
            k_mt = k * max(1, run // (k * BYTES[a_type]))
            size = nearest(4 * m), nearest(k_mt), nearest(COLUMNS * n)
            if not all(size) or (kind.a_resident and not panel_fits(pair, tile, k_mt, size[1])):
                continue
            try:
                check_design(
                    "npu2", a_type, c_type, tile, k_mt, "col", 1, "bfp16", kind.kernel, kind.a_parts
                )
            except NpuError:
                continue
            e = _npu.model.estimate(
                "npu2", a_type, c_type, list(tile), list(size), k_mt, True, 1, True, False,
                kind.kernel == "pipelined", kind.a_parts, constants, kind.a_resident,
            )  # fmt: skip
            yield Point(2 * math.prod(size) / e["seconds"] / 1e12, tile, k_mt, size, e["bound"])


def emulated(
    kind: Kind, pair: tuple[str, str], point: Point, stream: int, constants: dict[str, float]
) -> float:
    return simulate_gemm(
        "npu2", *point.size, dtype_in=pair[0], dtype_out=pair[1], tile=point.tile,
        k_mt=point.k_mt, kernel=kind.kernel, a_parts=kind.a_parts, stream_bytes=stream,
        constants=constants,
    ).tops  # fmt: skip


def cross(numbers: tuple[int, ...]) -> str:
    return " x ".join(map(str, numbers))


def ranked(
    kind: Kind, pair: tuple[str, str], constants: dict[str, float] | None = None
) -> list[Point]:
    """Best first, with streams of 4 bytes per cycle."""
    return sorted(estimates(kind, pair, constants or {}), key=lambda p: -p.tops)


def print_designs() -> None:
    print("| pair | design | tile, k_mt | M x K x N | TOPS, 4 B/cycle | 8 B/cycle | bound |")
    print("|---|---|---|---|---|---|---|")
    for pair, kind in itertools.product(PAIRS, KINDS):
        for best in ranked(kind, pair):
            figures = f"{best.tops:.1f} (closed form) | -"
            if not kind.a_resident:
                try:
                    four, eight = (emulated(kind, pair, best, width, {}) for width in (4, 8))
                except NpuError:  # the memtiles' buffers fit together but not one by one
                    continue
                figures = f"{four:.1f} | {eight:.1f}"
            print(
                f"| {' -> '.join(pair)} | {kind.name} | {cross(best.tile)}, {best.k_mt} | "
                f"{cross(best.size)} | {figures} | {best.bound} |",
                flush=True,
            )
            break


def print_sensitivity() -> None:
    print("\n| pair | constant | TOPS, tile above | best tile then | TOPS |\n|---|---|---|---|---|")
    for pair in PAIRS:
        interval = "mac_interval_bfp16" if pair[0] == "bfloat16" else "mac_interval"
        usual = ranked(PIPELINED, pair)[0]
        for name, value in ((interval, 1.16), (interval, 1.5), ("kernel_call", 436.0)):
            change = {name: value}
            if change == {"mac_interval_bfp16": 1.16}:  # its value
                continue
            other = ranked(PIPELINED, pair, change)[0]
            print(
                f"| {' -> '.join(pair)} | {name} = {value:g} "
                f"| {emulated(PIPELINED, pair, usual, 4, change):.1f} "
                f"| {cross(other.tile)}, {other.k_mt} "
                f"| {emulated(PIPELINED, pair, other, 4, change):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    print_designs()
    print_sensitivity()
