"""Estimates of program memory: a core's kernels, its own program, start-up code, against 16 KB.

Kernels come from kernel_bytes.txt (aie_kernels/counting), the program of the core is weighed here,
as conservatively: docs/reference/program_memory.md. Not measured: no compiler has seen them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from npu.errors import DesignError

from .lowered import Core, Instruction, Lowered, Operand, RtpWord

_KERNELS = Path(__file__).parents[1] / "kernel_bytes.txt"
PROGRAM_BYTES = 0x4000  # of a core, both generations (docs/reference/hardware.md)
# Of a published core's 592 bytes 560 are no program of its own: start, end and exit handlers
# (mlir-aie, test/Conversion/AIEToConfiguration/convert_aie_to_ctrl_pkts_elfs/core_0_2.elf).
START_BYTES = 640
_UNROLLED = 4  # rounds of a loop of a constant count that the compiler may unroll


@dataclass(frozen=True)
class _Weights:
    """Bytes of what a program is made of. A jump has five delay slots, a load six, of 2 B each."""

    call: int  # a jump; counters kept over the call are stored and loaded
    constant: int  # an immediate of 32 bits
    load: int  # a word: its address, the load
    choice: int  # a slot of a buffer that rotates: comparison, jump or selection, address
    stacked: int  # an operand beyond the eighth
    lock: int  # number, value, the operation, and four cycles
    loop: int  # counter, test before the first round and after each, two jumps
    advance: int  # addition, comparison, selection, and the counter's place on the stack


_WEIGHTS = {
    "fast": _Weights(30, 6, 18, 24, 8, 20, 50, 24),
    "small": _Weights(8, 6, 6, 14, 4, 12, 24, 12),  # no cycle spent waiting
}
Table = dict[str, tuple[int, tuple[str, ...]]]  # bytes, and what it needs besides


def core_bytes(core: Core, generation: str, form: str = "fast") -> int | None:
    """Estimated bytes of a core's program, or of its largest overlay; None if it calls a kernel
    that has no estimate.

    form: "fast", as kernels are meant to be compiled, stated conservatively; "small", compiled for
    size: the same sources at their least.
    """
    sizes = [program_bytes(program, core, generation, form) for program in core.programs]
    return None if None in sizes else max(size for size in sizes if size is not None)


def program_bytes(
    program: Sequence[Instruction], core: Core, generation: str, form: str = "fast"
) -> int | None:
    """The same of one of the core's programs."""
    kernels, shared, _ = _tables()[form, generation]
    called = {i.function for i in program if i.code == "call"}
    if not called <= kernels.keys():
        return None
    needed = {name for kernel in called for name in kernels[kernel][1]}
    total = START_BYTES + _program_bytes(program, _WEIGHTS[form])
    if core.overlays:  # counters are loaded at the start and stored at the end
        total += core.counters * (_WEIGHTS[form].load + 2 * _WEIGHTS[form].constant)
    return total + sum(kernels[k][0] for k in called) + sum(shared[n] for n in needed)


def kernel_stacks(generation: str) -> dict[str, int]:
    """Bytes of stack that kernels need, as they are meant to be compiled."""
    return _tables()["fast", generation][2]


def check(lowered: Lowered, over: bool) -> None:
    """Raises DesignError if the program of a core is estimated to exceed program memory, unless the
    design says that it knows (`over`)."""
    for core in lowered.cores:
        if over or core.program_bytes is None or core.program_bytes <= PROGRAM_BYTES:
            continue
        raise DesignError(
            f"[lower {lowered.name}] {core.tile}: its program is estimated at "
            f"{core.program_bytes} B, program memory has {PROGRAM_BYTES} B; call fewer or smaller "
            "kernels (designs/kernel_bytes.txt), or set the design's program_over to keep it in "
            "spite of the estimate"
        )


def _program_bytes(program: Sequence[Instruction], weights: _Weights) -> int:
    """The worker's loops, locks and calls."""
    w = weights
    totals, rounds = [0], []
    for i in program:
        if i.code == "loop":
            rounds.append(i.count if isinstance(i.count, int) and i.count <= _UNROLLED else 1)
            totals.append(w.loop + (w.load if isinstance(i.count, RtpWord) else w.constant))
        elif i.code == "end":
            inside = totals.pop()
            totals[-1] += rounds.pop() * inside
        elif i.code == "call":
            operands = sum(_operand_bytes(operand, w) for operand in i.operands)
            totals[-1] += w.call + operands + w.stacked * max(0, len(i.operands) - 8)
        else:
            totals[-1] += w.advance if i.code == "advance" else w.lock
    return totals[0]


def _operand_bytes(operand: Operand, weights: _Weights) -> int:
    if operand.rtp is not None:
        return weights.load
    if operand.counter >= 0:
        return weights.choice * len(operand.memories)
    return weights.constant


@cache
def _tables() -> dict[tuple[str, str], tuple[Table, dict[str, int], dict[str, int]]]:
    """(kernels, what they share, stacks) by form and generation."""
    found: dict[tuple[str, str], tuple[Table, dict[str, int], dict[str, int]]] = {}
    for line in _KERNELS.read_text().splitlines():
        if line.startswith("#"):
            continue
        form, generation, kind, size, rest = line.split(" ", 4)
        name, *needed = rest.split("; ")
        kernels, shared, stacks = found.setdefault((form, generation), ({}, {}, {}))
        if kind == "kernel":
            kernels[name] = (int(size), tuple(needed))
        else:
            (stacks if kind == "stack" else shared)[name] = int(size)
    return found
