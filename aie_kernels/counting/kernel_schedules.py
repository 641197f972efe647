#!/usr/bin/env python3
"""Writes backend/perf/kernel_schedules.inc: the cycles that generated kernels take (npu.vliw), for
the cost estimates.

    python aie_kernels/counting/kernel_schedules.py                    every kernel (an hour)
    python aie_kernels/counting/kernel_schedules.py --kernel NAME      its lines alone, anew

Run it when the generator has changed; tests compare the file with it. A line stands for one kernel,
or a loop that kernels contain, one k (1 for all but products and row-major matrices) and one shape
of blocks: the cycles between two blocks in the steady state, and those that a call takes beside
them, from the function's first bundle to its last, operands in banks of their own
(npu.vliw.cycles, npu.vliw.loop_cycles).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from npu.errors import NpuError
from npu.vliw import cycles, kernels, loop_cycles

TABLE = Path(__file__).resolve().parents[2] / "backend" / "perf" / "kernel_schedules.inc"
HEAD = """\
// Cycles of generated kernels, see kernel_schedules.h: interval and outside are cycles, code is
// bytes. Simulated: no assembler has met these programs (docs/kernels.md).
// Written by aie_kernels/counting/kernel_schedules.py.
// generation, kernel, k, block m, block n, interval, outside, code
"""


@dataclass(frozen=True, order=True)
class Line:
    device: str
    kernel: str  # as declared in aie_kernels/, or a loop
    k: int
    block_m: int
    block_n: int
    interval: int
    outside: int
    code_bytes: int

    def text(self) -> str:
        device, kernel, *numbers = astuple(self)
        return f"NPU_SCHEDULE({device.capitalize()}, {kernel}, {', '.join(map(str, numbers))})"

    @classmethod
    def of(cls, text: str) -> Line:
        device, kernel, *numbers = text.removeprefix("NPU_SCHEDULE(").rstrip(")").split(", ")
        return cls(device.lower(), kernel, *map(int, numbers))


@dataclass(frozen=True)
class TwoWidths:
    """A kernel with blocks of two widths, of which the narrow ones compute what the wide ones leave
    over of n, or of one width. ``tile``: its m, k, n; ``blocks``: rows and columns of tiles;
    ``depths``: k in tiles; ``b_layout``: where there are several."""

    device: str
    kernel: str
    name: str
    tile: tuple[int, int, int]
    blocks: tuple[tuple[int, int], ...]
    depths: range
    b_layout: str | None = None

    def line(self, k1: int, block: tuple[int, int]) -> Line:
        """Its figures, from programs of eight and of twelve blocks: two in a row where the blocks
        are the widest, else the one that is left over."""
        rows, columns = block
        across = 2 if block == self.blocks[0] else 1
        few, more = (self._run(count // across * rows, k1, across * columns) for count in (8, 12))
        interval, left = divmod(more[0] - few[0], 4)
        outside = few[0] - 8 * interval
        if left:
            raise AssertionError(f"{self.name} at k1 = {k1}: {few} and {more} have no interval")
        m, k, n = self.tile
        return Line(
            self.device, self.name, k1 * k, rows * m, columns * n, interval, outside, more[1]
        )  # fmt: skip

    def _run(self, m1: int, k1: int, n1: int) -> tuple[int, int]:
        """Cycles without stalls, and bytes of code."""
        found = kernels.schedule(
            self.device, self.kernel, m1, k1, n1, b_layout=self.b_layout
        )  # fmt: skip
        run = found.simulated()
        return run.cycles - run.stalls, found.program.code_bytes


TWO_WIDTHS = (
    TwoWidths("npu1", "matmul_bf16", "matmul_bf16_f32", (4, 8, 4), ((2, 4), (2, 2)), range(1, 11)),
    *(
        TwoWidths(
            "npu1", f"matmul_bf16_square{turned}", f"square{turned}_{layout}", (4, 8, 4), ((2, 4),),
            range(8, 9), layout,
        )
        for turned, layout in (("", "col"), ("", "row"), ("_turned", "row"))
    ),
)  # fmt: skip


ROW_MAJOR = "convert_bf16_bfp16_b"


def read() -> list[Line]:
    """The file's lines."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    return [Line.of(line) for line in lines if line.startswith("NPU_SCHEDULE(")]


def write(lines: list[Line]) -> None:
    key = {line: (line.device, line.kernel, line.k, -line.block_n) for line in lines}
    texts = (line.text() for line in sorted(lines, key=key.__getitem__))
    TABLE.write_text(HEAD + "".join(text + "\n" for text in texts))


def generate(kernel: str | None) -> Iterator[Line]:
    """All lines, or those of one kernel."""
    for one in TWO_WIDTHS:
        if kernel in (None, one.name):
            yield from (one.line(k1, block) for k1 in one.depths for block in one.blocks)
    for (device, name), variant in (cycles.VARIANTS | cycles.PROMPTS).items():
        if kernel not in (None, name):
            continue
        (m, k, n), (rows, columns) = variant.tile, variant.block
        for steps in variant.steps:
            made = cycles.of(device, name, steps)
            yield Line(
                device, name, steps * k, rows * m, columns * n, made.interval, made.outside,
                made.code_bytes,
            )  # fmt: skip


def conversions(kernel: str | None) -> Iterator[Line]:
    """Lines of conversions to BFP16: values in a row, and columns of k of a row-major B."""
    for name in cycles.CONVERSIONS:
        if kernel not in (None, name):
            continue
        for k1 in range(1, 9) if name == ROW_MAJOR else (None,):
            for found in cycles.conversion(name, k1):
                yield Line(
                    "npu2", name, 8 * (k1 or 0) or 1, 1, 64 * found.tiles, found.interval,
                    found.outside, found.code_bytes,
                )  # fmt: skip


def loops(kernel: str | None) -> Iterator[Line]:
    """Lines of loops over lanes."""
    for loop in loop_cycles.LOOPS:
        if kernel in (None, loop.name):
            found = loop_cycles.of(loop.device, loop.name)
            yield Line(
                loop.device, loop.name, 1, 1, loop.step, found.interval, found.outside,
                found.code_bytes,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    names = sorted(
        {one.name for one in TWO_WIDTHS}
        | {name for _, name in (*cycles.VARIANTS, *cycles.PROMPTS)}
        | cycles.CONVERSIONS.keys()
        | {loop.name for loop in loop_cycles.LOOPS}
    )
    parser.add_argument("--kernel", choices=names, help="only this one's lines")
    chosen = parser.parse_args().kernel
    kept = [line for line in read() if chosen and line.kernel != chosen]
    try:
        for line in (*generate(chosen), *conversions(chosen), *loops(chosen)):
            print(line.text(), flush=True)
            kept.append(line)
    except NpuError as error:
        sys.exit(str(error))
    write(kept)


if __name__ == "__main__":
    main()
