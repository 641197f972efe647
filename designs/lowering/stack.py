"""The room that a core's buffers leave in its data memory: for the stack, and for a data section.

The stack is estimated as the deepest kernel that a core calls and its own program. Kernels come
from kernel_bytes.txt (aie_kernels/counting): docs/reference/program_memory.md, Stack. Not measured:
no compiler has seen them. Overflows are silent on hardware, the stack grows into the first buffer,
so that a core has LEAST_BYTES however little is estimated, unless its design says otherwise
(Design.least_stack).
"""

from __future__ import annotations

from collections.abc import Sequence

from npu.errors import DesignError

from .lowered import Core, Instruction, Lowered
from .memory import ALIGNMENT, Room
from .program_memory import kernel_stacks

# Bytes of every stack at least: frames of published kernels take up to 1,216 with LLVM 22
# (github.com/Xilinx/mlir-air, issue 1980), and calls add to them.
LEAST_BYTES = 2048
# Bytes of every data section at least: constants of kernels that are no immediates (64 B a vector)
# and tables of jumps or addresses for operands that rotate (4 B a slot).
DATA_BYTES = 256

# Bytes: return addresses and saved registers of start-up code and of the program, then a word for
# the counter of every buffer that rotates, for every open loop, and for operands beyond the eighth.
_OWN, _WORD, _OPERANDS = 64, 4, 8


def core_stack(core: Core, generation: str) -> int | None:
    """Estimated bytes of a core's stack; None if it calls a kernel that has no estimate."""
    stacks = kernel_stacks(generation)
    calls = [i for program in core.programs for i in program if i.code == "call"]
    called = {i.function for i in calls}
    if not called <= stacks.keys():
        return None
    beyond = max(0, max((len(i.operands) for i in calls), default=0) - _OPERANDS)
    deepest = max(_deepest(program) for program in core.programs)
    own = _OWN + _WORD * (core.counters + deepest + beyond)
    return own + max((stacks[k] for k in called), default=0)


def reserve(core: Core, stated: int | None, lowered: Lowered, over: bool) -> Room:
    """The room of a core, whose program is known: what its worker states, at least LEAST_BYTES and
    the estimate, and DATA_BYTES.

    over: the design is only simulated and may state less (Design.room_over); without a statement it
    gets the same. Raises DesignError if less is stated.
    """
    need = core_stack(core, lowered.generation)
    least = max(lowered.least_stack, -(-(need or 0) // ALIGNMENT) * ALIGNMENT)
    if over:
        return Room(lowered.least_stack if stated is None else stated)
    if stated is not None and stated < least:
        estimated = "" if need is None else f", {need} B are estimated"
        raise DesignError(
            f"[lower {lowered.name}] {core.tile}: the design gives its stack {stated} B, it gets "
            f"at least {least}{estimated}; leave the worker's stack_bytes out or raise it, or set "
            "the design's room_over if it is only simulated"
        )
    return Room(max(least, stated or 0), DATA_BYTES)


def check(lowered: Lowered) -> None:
    """Raises DesignError if a core's memory has less room for stack or data section than a compiled
    program gets: a design that was lowered with room_over, to be simulated only."""
    for core in lowered.cores:
        need = max(lowered.least_stack, core_stack(core, lowered.generation) or 0)
        data = data_section(lowered, core)[1]
        if core.stack < need or data < DATA_BYTES:
            raise DesignError(
                f"[mlir {lowered.name}] {core.tile}: its buffers leave {core.stack} B of stack and "
                f"{data} B for a data section, a compiled program gets at least {need} B and "
                f"{DATA_BYTES} B; use smaller objects or tiles, this design can only be simulated"
            )


def data_section(lowered: Lowered, core: Core) -> tuple[int, int]:
    """(address, bytes) of what lies behind a core's last buffer, where .data, .rodata and .bss
    are placed."""
    ends = (memory.address + memory.bytes for memory in lowered.memories.get(core.tile, []))
    begin = max(ends, default=core.stack)
    return begin, core.tile.limits.memory_bytes - begin


def _deepest(program: Sequence[Instruction]) -> int:
    """Of open loops, the most."""
    depth = most = 0
    for i in program:
        depth += (i.code == "loop") - (i.code == "end")
        most = max(most, depth)
    return most
