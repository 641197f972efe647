"""What the kernels of the GEMM designs cost by the schedules generated for them: cycles from block
to block of C in the steady state and cycles outside it, by simulation.

Operands lie where their accesses do not meet: C in banks of its own, A and B in others; those of
prompts' products where their design has them, with the stalls that this makes. Sizes are fixed when
the code is generated; a C++ kernel that takes them as arguments computes some addresses more. Not
included: the call, and a first row other than 0, which moves C's pointer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from npu.errors import ArgumentError
from npu.vliw import convert_bfp16, kernels, vector_kernels

# Rows and columns of blocks of the programs that are simulated: two with the same ends, from which
# the interval follows, an odd number, and one alone.
_SIZES = ((2, 4), (3, 4), (3, 3), (1, 1))


@dataclass(frozen=True)
class Variant:
    """A kernel of aie_kernels/ and what is generated for it. ``tile``: M, K and N of a tile;
    ``block``: tiles of C that are computed together, rows by columns; ``steps``: tiles along k."""

    device: str
    name: str
    kernel: str
    out: str
    b_layout: str
    tile: tuple[int, int, int]
    block: tuple[int, int]
    steps: range
    sizes: tuple[tuple[int, int], ...] = _SIZES
    stalls: bool = False  # whether those of its addresses count


@dataclass(frozen=True)
class Cycles:
    """Of one variant and one k: ``interval`` from a block of C to the next, ``outside`` beside
    these, in cycles without bank stalls, unless the variant has them; the program's bytes for eight
    blocks."""

    variant: Variant
    steps: int
    interval: int
    outside: int
    code_bytes: int

    def total(self, m: int, n: int) -> int:
        """Cycles of a product of m x k x n elements, whole blocks, from the function's first bundle
        to its last. The ends differ by a few cycles with the numbers of blocks; these are the
        longest of _SIZES."""
        (rows, _, columns), (high, wide) = self.variant.tile, self.variant.block
        if m < 1 or n < 1 or m % (rows * high) or n % (columns * wide):
            raise ArgumentError(
                f"[cycles] m = {m} and n = {n} of {self.variant.name} must be multiples of "
                f"{rows * high} and {columns * wide}"
            )
        return self.interval * (m // (rows * high)) * (n // (columns * wide)) + self.outside

    def utilisation(self, m: int, n: int) -> float:
        """The share of cycles with a multiplication."""
        rows, _, columns = self.variant.tile
        return m // rows * self.steps * (n // columns) / self.total(m, n)


def _int8(short: str, out: str, b_layout: str) -> Variant:
    name = f"matmul_i8_{short}_pipelined" + ("_bcol" if b_layout == "col" else "")
    return Variant("npu2", name, "matmul_i8", out, b_layout, (8, 8, 8), (2, 2), range(2, 9))


def _xdna1_int8(short: str, out: str, b_layout: str) -> Variant:
    name = f"matmul_i8_{short}" + ("_bcol" if b_layout == "col" else "")
    return Variant("npu1", name, "matmul_i8", out, b_layout, (4, 8, 8), (2, 2), range(14, 17))


def _int16(device: str, b_layout: str) -> Variant:
    name = "matmul_i16_i32" + ("_bcol" if b_layout == "col" else "")
    tile, steps = ((4, 4, 4), range(12, 29)) if device == "npu1" else ((4, 4, 8), range(4, 17))
    return Variant(device, name, "matmul_i16", "int32", b_layout, tile, (2, 2), steps)


def _bfp16(short: str, out: str) -> Variant:
    name = f"matmul_bfp16_{short}_pipelined"
    return Variant("npu2", name, "matmul_bfp16_tiles", out, "col", (8, 8, 8), (2, 2), range(2, 9))


def _named(variants: Iterable[Variant]) -> dict[tuple[str, str], Variant]:
    return {(variant.device, variant.name): variant for variant in variants}


# Simulated times use their cycles (backend/perf/kernel_schedules.inc).
VARIANTS = _named(
    [
        make(short, out, layout)
        for make in (_int8, _xdna1_int8)
        for layout in ("row", "col")
        for short, out in (("i8", "int8"), ("i16", "int16"), ("i32", "int32"))
    ]
    + [_int16(device, layout) for device in ("npu1", "npu2") for layout in ("row", "col")]
    + [
        _bfp16(short, out)
        for short, out in (("bf16", "bfloat16"), ("f32", "float32"), ("bfp16", "bfp16"))
    ]
)

# A slice of the products of prompts: fewest and most blocks, and two sizes between without stalls.
PROMPTS = _named(
    [
        Variant(
            "npu2", "prefill_multiply", "prefill_multiply", "float32", "col", (8, 8, 8), (2, 2),
            range(4, 5), ((2, 4), (4, 4), (1, 2), (8, 4)), True,
        )
    ]
)  # fmt: skip


@functools.cache
def of(device: str, name: str, steps: int) -> Cycles:
    """``name``: as in aie_kernels/; ``steps``: k in tiles. Raises ArgumentError."""
    variant = (VARIANTS | PROMPTS).get((device, name))
    if variant is None:
        known = ", ".join(sorted(n for d, n in VARIANTS if d == device))
        raise ArgumentError(f"[cycles] {name} on {device} is not generated; {known} are")
    if steps not in variant.steps:
        raise ArgumentError(
            f"[cycles] {name} takes {variant.steps.start} to {variant.steps.stop - 1} steps of "
            f"{variant.tile[1]} along k, not {steps!r}"
        )
    sizes = variant.sizes
    found = {blocks: _cycles(variant, steps, *blocks) for blocks in sizes}
    few, more = (found[blocks][0] for blocks in sizes[:2])
    apart = sizes[1][0] * sizes[1][1] - sizes[0][0] * sizes[0][1]
    interval, rest = divmod(more - few, apart)
    if rest:
        raise AssertionError(f"{name}, {steps} steps: {more - few} cycles for {apart} blocks")
    outside = max(found[r, c][0] - interval * r * c for r, c in sizes)
    return Cycles(variant, steps, interval, outside, found[sizes[0]][1])


def _cycles(variant: Variant, steps: int, rows: int, columns: int) -> tuple[int, int]:
    """Cycles and bytes of the program for so many blocks."""
    high, wide = variant.block
    found = kernels.schedule(
        variant.device, variant.kernel, rows * high, steps, columns * wide,
        out=variant.out, b_layout=variant.b_layout,
    )  # fmt: skip
    run = found.simulated()
    return run.cycles - (0 if variant.stalls else run.stalls), found.program.code_bytes


# Kernels that convert to BFP16 and what is generated for them; all of npu2.
CONVERSIONS = {
    "convert_bf16_bfp16_a": "convert_bf16_bfp16_a",
    "convert_bf16_bfp16_b": "convert_bf16_bfp16_b",
    "convert_bf16_bfp16_b_bcol": "convert_bf16_bfp16_a",
    "convert_bf16_bfp16_c": "convert_bf16_bfp16_c",
    "convert_f32_bfp16_c": "convert_f32_bfp16_c",
}
_COLUMNS = (8, 4, 5, 1)  # of the programs that are simulated
_TILES = 3 * convert_bfp16.PER_FLUSH  # a loop of groups of tiles, before those that are left over


@dataclass(frozen=True)
class Conversion:
    """``tiles`` that follow each other take ``interval`` cycles; ``k1``: of a column of a row-major
    B, else None. What is left over of the widest adds the interval of its own number."""

    name: str
    k1: int | None
    tiles: int
    interval: int
    outside: int
    code_bytes: int


@functools.cache
def conversion(name: str, k1: int | None = None) -> list[Conversion]:
    """The figures of a kernel in aie_kernels/, the most tiles first; ``k1``: for row-major B."""
    kernel = CONVERSIONS[name]

    def run(blocks: int) -> tuple[int, int]:
        found = vector_kernels.schedule("npu2", kernel, blocks, k1)
        return found.simulated().cycles, found.program.code_bytes

    if k1 is not None:
        total = {columns: run(columns)[0] for columns in _COLUMNS}
        interval = (total[8] - total[4]) // 4
        outside = max(cycles - columns * interval for columns, cycles in total.items())
        return [Conversion(name, k1, k1, interval, outside, run(8)[1])]
    most = convert_bfp16.PER_FLUSH
    base, code = run(_TILES)
    interval = (run(_TILES + 2 * most)[0] - base) // 2
    whole = Conversion(name, None, most, interval, max(0, base - _TILES // most * interval), code)
    left = [(tiles, *run(_TILES + tiles)) for tiles in range(most - 1, 0, -1)]
    return [whole, *(Conversion(name, None, t, c - base, 0, size) for t, c, size in left)]
