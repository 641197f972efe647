"""Programs of bundles for tests: written as text, run on a core with registers and memory given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from npu.vliw import assembly, reference
from npu.vliw.aie2 import AIE2
from npu.vliw.kernels import Schedule
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


def on(machine: Machine, program: Program) -> Program:
    """A program that was made for another machine, on this one."""

    def moved(op: Op) -> Op:
        return dataclasses.replace(op, operation=machine.operation[op.operation.key])

    bundles = tuple(dataclasses.replace(b, ops=tuple(map(moved, b.ops))) for b in program.bundles)
    return dataclasses.replace(program, machine=machine, bundles=bundles)


def believing(key: str, latency: int = -1, stage: int = 0) -> Callable[[Operation], Operation]:
    """What makes a scheduler believe that results of these operations (keys) are there sooner, or
    that their second operand is read in another stage."""

    def believed(operation: Operation) -> Operation:
        if operation.key not in key.split():
            return operation
        operands = tuple(
            dataclasses.replace(
                o,
                stage=stage if stage and i == 1 else o.stage,
                latency=o.latency + latency if o.latency else 0,
            )
            for i, o in enumerate(operation.operands)
        )
        return dataclasses.replace(operation, operands=operands)

    return believed


def with_ops(program: Program, change: Callable[[Op], Op]) -> Program:
    """A program of changed operations."""
    bundles = tuple(dataclasses.replace(b, ops=tuple(map(change, b.ops))) for b in program.bundles)
    return dataclasses.replace(program, bundles=bundles)


def into(program: Program, victim: Op, register: str) -> Program:
    """A program in which one operation's result goes into another register."""

    def change(op: Op) -> Op:
        operands = (register, *op.operands[1:])
        return dataclasses.replace(op, operands=operands) if op is victim else op

    return with_ops(program, change)


def writers(program: Program, machine: Machine, kinds: str) -> list[Op]:
    """Operations of the dataflow whose results go into registers of these files."""
    ops = [op for bundle in program.bundles for op in bundle.ops if op.tag]
    return [
        op
        for op in ops
        if op.operation.operands[0].latency
        and machine.file_of(str(op.operands[0])) in kinds.split()
    ]


def check_int8(
    found: Schedule, c: tuple[str, str], factors: tuple[str, str], lines: int, seed: int
) -> None:
    """An int8 product gives the C++ kernel's results without stalls. ``c``: load and store of C, as
    many as its elements have bytes; ``factors``: loads of A and of B, whose tiles are together so
    many lines; each tile that is loaded feeds two multiplications."""
    given = reference.operands(found, seed)
    result, run = found.run(given.a, given.b, given.c, given.shift)
    np.testing.assert_array_equal(result, given.after)
    m1, k1, n1 = found.shape
    assert run.stalls == 0
    assert run.issued["vmac"] == m1 * k1 * n1
    assert {run.issued[key] for key in c} == {np.dtype(found.out).itemsize * m1 * n1}
    assert sum(run.issued[key] for key in factors) == lines * m1 * k1 * n1 // 2
    assert run.issued["vshuffle"] == (m1 * k1 * n1 // 2 if found.b_layout == "col" else 0)
