"""Programs of bundles for tests: written as text, run on a core with registers and memory given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from npu.vliw import assembly
from npu.vliw.aie2 import AIE2
from npu.vliw.machine import Machine, Operation
from npu.vliw.program import Op, Program
from npu.vliw.simulator import Core, Run, Value

RETURN = "ret lr\n" + "nop\n" * 5


def memory(**arrays: np.ndarray) -> bytearray:
    """64 KB with arrays at the addresses that their names give, as at_64."""
    found = bytearray(65536)
    for name, array in arrays.items():
        start = int(name.removeprefix("at_"))
        found[start : start + array.nbytes] = array.tobytes()
    return found


def run(
    text: str, content: bytearray | None = None, machine: Machine = AIE2, **registers: Value
) -> tuple[Core, Run]:
    """Runs bundles, one per line, and a return."""
    core = Core(memory() if content is None else content, {})
    for name, value in registers.items():
        size = 0
        for atom in machine.atoms(name):
            end = size + machine.bytes_of(atom)
            core.registers[atom] = value[size:end] if isinstance(value, bytes) else value
            size = end
    return core, core.run(assembly.read(text + "\n" + RETURN, machine))


def changed(machine: Machine, change: Callable[[Operation], Operation]) -> Machine:
    """The machine with other operations."""
    return dataclasses.replace(machine, operations=tuple(map(change, machine.operations)))


def believed(machine: Machine, key: str) -> Machine:
    """The machine with an operation whose results are there a cycle sooner."""

    def shorter(operation: Operation) -> Operation:
        if operation.key != key:
            return operation
        operands = tuple(
            dataclasses.replace(o, latency=o.latency - 1) if o.latency else o
            for o in operation.operands
        )
        return dataclasses.replace(operation, operands=operands)

    return changed(machine, shorter)


def on(machine: Machine, program: Program) -> Program:
    """A program that was made for another machine, on this one."""

    def moved(op: Op) -> Op:
        return dataclasses.replace(op, operation=machine.operation[op.operation.key])

    bundles = tuple(dataclasses.replace(b, ops=tuple(map(moved, b.ops))) for b in program.bundles)
    return dataclasses.replace(program, machine=machine, bundles=bundles)
