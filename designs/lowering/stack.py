"""Estimates of stacks: the deepest kernel that a core calls and its own program, against what the
design reserves in data memory.

Kernels come from kernel_bytes.txt (aie_kernels/counting): docs/reference/program_memory.md, Stack.
Not measured: no compiler has seen them.
"""

from __future__ import annotations

from collections.abc import Sequence

from npu.errors import DesignError

from .lowered import Core, Instruction, Lowered
from .program_memory import kernel_stacks

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


def check(lowered: Lowered, over: bool) -> None:
    """Raises DesignError if a core is estimated to need more stack than it has, unless the design
    says that it knows (`over`)."""
    for core in lowered.cores:
        need = core_stack(core, lowered.generation)
        if over or need is None or need <= core.stack:
            continue
        raise DesignError(
            f"[lower {lowered.name}] {core.tile}: its stack is estimated at {need} B, the design "
            f"gives it {core.stack} B; set the worker's stack_bytes, call kernels that need less "
            "(designs/kernel_bytes.txt), or set the design's stack_over to keep it in spite of the "
            "estimate"
        )


def _deepest(program: Sequence[Instruction]) -> int:
    """Of open loops, the most."""
    depth = most = 0
    for i in program:
        depth += (i.code == "loop") - (i.code == "end")
        most = max(most, depth)
    return most
