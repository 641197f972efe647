"""What the loops of generated kernels that are no matrix products cost: cycles from turn to turn
and cycles outside the turns, by simulation. Simulated times charge them to the calls of C++ kernels
that contain these loops (backend/perf/kernel_schedules.inc).

A loop is a region of a generated function; where that has several, each is a line of its own. Not
included: the call, and bank stalls, as operands lie in banks of their own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from npu.errors import ArgumentError
from npu.vliw import vector_kernels
from npu.vliw.modulo import COPIES
from npu.vliw.program import Program


@dataclass(frozen=True)
class Loop:
    """``name``: in the table; ``kernel``: what is generated, and which region of it, or several
    (None: all, as often as there are blocks). ``counts``: numbers of its blocks by which it is
    measured: its ends are the longest of these. ``size``: of a block, in what a call's size counts,
    elements mostly; 0: the region runs once. ``step``: of a line's block, a turn mostly. ``turns``:
    of a block."""

    device: str
    name: str
    kernel: str
    size: int
    step: int
    turns: int
    region: int | range | None = 0
    counts: tuple[int, ...] = (1, 2, 4)


_ROWS = (1, 2, 4, 8)

# Simulated times use their cycles.
LOOPS = (
    Loop("npu1", "dequant_q4nx", "dequant_q4nx", 1, 1, 16, counts=(1, 2)),
    Loop("npu2", "dequant_q4nx", "dequant_q4nx", 1, 1, 16, counts=(1, 2)),
    Loop("npu1", "dequant_q8", "dequant_q8", 1, 1, 0, None, (1, 2)),
    Loop("npu2", "dequant_q8", "dequant_q8", 1, 1, 8, counts=(1, 2)),
    Loop("npu1", "gemv_q4nx", "gemv_q4nx", 1, 1, 0, None, (1, 2)),
    Loop("npu2", "gemv_q4nx", "gemv_q4nx", 1, 1, 0, None, (1, 2)),
    Loop("npu1", "gemv_q8", "gemv_q8", 1, 1, 0, None),
    Loop("npu2", "gemv_q8", "gemv_q8", 1, 1, 0, None),
    Loop("npu1", "rms_norm_squares", "rms_norm", 128, 32, 4, 0, _ROWS),
    Loop("npu1", "rms_norm_root", "rms_norm", 0, 1, 1, range(1, 4), _ROWS),
    Loop("npu1", "rms_norm_scaling", "rms_norm", 128, 16, 8, 4, _ROWS),
    Loop("npu2", "rms_norm_squares", "rms_norm", 128, 32, 4, 0, _ROWS),
    Loop("npu2", "rms_norm_root", "rms_norm", 0, 1, 1, 1, _ROWS),
    Loop("npu2", "rms_norm_scaling", "rms_norm", 128, 32, 4, 2, _ROWS),
    Loop("npu1", "softmax_scaling", "softmax", 16, 4, 4),
    Loop("npu1", "softmax_weighing", "softmax", 16, 4, 4, 2),
    Loop("npu1", "softmax_turning", "softmax", 16, 8, 2, 3),
    Loop("npu2", "softmax_scaling", "softmax", 16, 4, 4),
    Loop("npu2", "softmax_weighing", "softmax", 16, 8, 2, 2),
    Loop("npu1", "rope", "rope", 256, 32, 8),
    Loop("npu2", "rope", "rope", 256, 64, 4),
    Loop("npu1", "geglu", "geglu", 256, 16, 16),
    Loop("npu2", "geglu", "geglu", 256, 32, 8),
)
NAMES = {(loop.device, loop.name): loop for loop in LOOPS}


@dataclass(frozen=True)
class LoopCycles:
    """``interval`` cycles from one block of ``step`` to the next, ``outside`` beside these; bytes
    of the whole function."""

    loop: Loop
    interval: int
    outside: int
    code_bytes: int

    def total(self, size: int) -> int:
        """Cycles of so many elements. Raises ArgumentError."""
        if size < 1 or size % self.loop.step:
            raise ArgumentError(
                f"[loop_cycles] {size} elements of {self.loop.name}: give a multiple of "
                f"{self.loop.step}"
            )
        return self.interval * (size // self.loop.step) + self.outside


def _region(loop: Loop, program: Program) -> range:
    """Its bundles."""
    ends = (*program.starts, len(program.bundles))
    match loop.region:
        case None:
            return range(ends[-1])
        case range() as regions:
            return range(ends[regions.start], ends[regions.stop])
        case region:
            return range(ends[region], ends[region + 1])


def simulated(loop: Loop, blocks: int) -> int:
    """Cycles of the region in a function for so many blocks."""
    found = vector_kernels.schedule(loop.device, loop.kernel, blocks)
    passed = found.simulated().passed
    return sum(passed[bundle] for bundle in _region(loop, found.program))


@functools.cache
def of(device: str, name: str) -> LoopCycles:
    """Raises ArgumentError."""
    loop = NAMES.get((device, name))
    if loop is None:
        known = ", ".join(f"{n} on {d}" for d, n in sorted(NAMES))
        raise ArgumentError(f"[loop_cycles] no loop {name} on {device}; there is {known}")
    found = {blocks: simulated(loop, blocks) for blocks in loop.counts}
    program = vector_kernels.schedule(loop.device, loop.kernel, max(found)).program
    if loop.size == 0:
        return LoopCycles(loop, max(found.values()), 0, program.code_bytes)
    region = _region(loop, program)
    if loop.region is None:
        few, more = min(found), max(found)
        interval = (found[more] - found[few]) // (more - few)
    else:
        (turn,) = ((last - first + 1) // COPIES for first, last in program.loops if first in region)
        interval = turn * loop.turns * loop.step // loop.size
    outside = max(
        cycles - interval * loop.size // loop.step * blocks for blocks, cycles in found.items()
    )
    return LoopCycles(loop, interval, outside, program.code_bytes)
