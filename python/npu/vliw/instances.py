"""All operations of a region's first and last blocks with their registers, in the times of the
steady state, and what must not change between them when they are moved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from npu.vliw.allocation import Addressing
from npu.vliw.dataflow import Access, Node, Region
from npu.vliw.machine import Fifo, Machine, Operation
from npu.vliw.modulo import COPIES, Steady, Written, lasting, uses, writers
from npu.vliw.program import Address, Op, Tag

_LATENCY = 16  # more than that of any operation of a set-up


@dataclass(frozen=True)
class Instance:
    """One operation of one block, or of the set-up (block -1). ``forms``: what may execute it."""

    time: int
    forms: tuple[Operation, ...]
    operands: tuple[str | int | Address | Fifo, ...]
    bank: str | None = None
    pointer: str | None = None
    block: int = -1
    tag: Tag | None = None
    expects: dict[str, Tag] = field(default_factory=dict)

    def later(self, blocks: int, cycles: int) -> Instance:
        """The same so many blocks on."""
        return Instance(
            self.time + cycles, self.forms, self.operands, self.bank, self.pointer,
            self.block + blocks, self.tag and self.tag.later(blocks),
            {atom: tag.later(blocks) for atom, tag in self.expects.items()},
        )  # fmt: skip

    def op(self, form: Operation, later: int = 0) -> Op:
        """The operation as it stands in a program, ``later`` blocks on."""
        if not later:
            return Op(form, self.operands, self.tag, self.expects)
        expects = {atom: tag.later(later) for atom, tag in self.expects.items()}
        return Op(form, self.operands, self.tag and self.tag.later(later), expects)


def of_blocks(
    region: Region,
    machine: Machine,
    steady: Steady,
    registers: dict[tuple[str, int], str],
    addressing: Addressing,
    blocks: int,
    given: Mapping[str, Tag],
) -> list[Instance]:
    """The instances of ``blocks`` blocks. ``given``: what registers hold from earlier regions."""
    written = writers(region, machine)
    turns = [
        _of_turn(region, machine, steady, registers, addressing, turn, given, written)
        for turn in range(min(COPIES, blocks))
    ]
    return [
        instance.later(block, block * steady.interval)
        for block in range(blocks)
        for instance in turns[block % COPIES]
    ]


def _of_turn(
    region: Region,
    machine: Machine,
    steady: Steady,
    registers: dict[tuple[str, int], str],
    addressing: Addressing,
    turn: int,
    given: Mapping[str, Tag],
    written: Mapping[tuple[str, str], Sequence[Written]],
) -> list[Instance]:
    """The instances of block 0, with the registers and steps of block ``turn``."""
    own = {atom for _, operands in region.preamble for atom in machine.atoms(operands[0])}
    names = {v: registers[v, turn] for v in region.allocated} | region.pinned
    found = []
    for node in region.nodes:
        operands = tuple(
            _access(node, operand.stream, machine, addressing, turn)
            if isinstance(operand, Access)
            else _register(machine, names, value, part)
            for operand, (value, part) in zip(node.operands, node.named, strict=True)
        )
        expects: dict[str, Tag] = {}
        for value, part, operand_ in uses(node, steady.form[node.name]):
            if operand_.stage and value in region.values:
                atoms = machine.atoms(_register(machine, names, value, part))
                for atom, by in zip(atoms, written[node.name, value], strict=True):
                    before = given.get(atom) if value in region.pinned else None
                    carried = by.blocks and atom not in own
                    if by.node and not (carried and not before and value in region.partial):
                        first = before if carried else None
                        expects[atom] = Tag(by.node.name, -by.blocks, first=first)
                    elif before:
                        expects[atom] = before
        preferred = steady.form[node.name]
        forms = tuple(machine.operation[key] for key in node.forms)
        forms = (preferred, *(form for form in forms if form is not preferred))
        time, tag = steady.time[node.name], Tag(node.name, 0)
        found.append(Instance(time, forms, operands, node.bank, node.pointer, 0, tag, expects))
    return found


def _access(
    node: Node, stream: str, machine: Machine, addressing: Addressing, turn: int
) -> str | Address | Fifo:
    """How a node accesses a stream in blocks of this turn."""
    register = addressing.pointer[stream]
    if node.points:
        return register
    if node.through_file:
        fifo = next(f for f in machine.fifos if f.pointer == register)
        leaves = node.name in addressing.step
        step = addressing.step_of(node.name, turn) if leaves else ""
        return replace(fifo, step=str(step))
    step = addressing.step_of(node.name, turn)
    walk = isinstance(step, str) and step.startswith("d")
    return Address(register, "walk" if walk else "post", step)


def _register(machine: Machine, names: dict[str, str], value: str, part: range | None) -> str:
    register = names.get(value, value)
    return register if part is None else machine.part(register, part)


def set_up(
    region: Region, machine: Machine, addressing: Addressing, at: dict[str, int]
) -> list[Instance]:
    """Constants, modifiers and pointers. ``at``: where the argument registers point, in bytes from
    the arguments."""
    found: list[Instance] = []

    def add(key: str, *operands: str | int | Address) -> None:
        time = _before(len(found))  # before everything else
        found.append(Instance(time, (machine.operation[key],), operands))

    starts = {
        addressing.pointer[name]: region.streams[name].bases[0] + nodes[0].offset(name)
        for name, nodes in region.accesses.items()
    }
    arrays = {addressing.pointer[name]: s.array for name, s in region.streams.items()}
    for register, array in arrays.items():
        if register != array:
            add("mov.P.P", register, array)
    for register, array in arrays.items():
        _advance(found, machine, register, starts[register] - at[array])
    for register, argument in region.arguments.items():
        add(f"mov.{machine.file_of(register)}.{machine.file_of(argument)}", register, argument)
    for register, value in {**region.constants, **addressing.numbers}.items():
        found.append(_number(machine, register, value, _before(len(found))))
    written = lasting(region, machine)
    for key, operands in region.preamble:
        add(key, *operands)
        last = next((written[a] for a in machine.atoms(operands[0]) if a in written), None)
        if last:  # what the first block finds counts as the result of one before it
            found[-1] = replace(found[-1], tag=Tag(last, -1))
    return found


def _before(number: int) -> int:
    """A time before everything else for each of the set-up, after the results of those before."""
    return _LATENCY * number - 1_000_000


def _advance(found: list[Instance], machine: Machine, pointer: str, distance: int) -> None:
    """Adds a distance to a pointer in steps that an immediate can hold."""
    forms = tuple(machine.operation[key] for key in ("padds", "padda"))
    limit = forms[0].post
    assert limit
    most = ((1 << (limit.bits - 1)) - 1) * limit.step
    while distance:
        step = max(-most, min(most, distance))
        time = _before(len(found))
        found.append(Instance(time, forms, (Address(pointer, "post", step),)))
        distance -= step


def _number(machine: Machine, register: str, value: int, time: int) -> Instance:
    """A number into a register, by the units that can."""
    file = machine.file_of(register)
    keys = ("movx", "mov", "mova", "movxm")
    forms = [machine.operation[k] for key in keys if (k := f"{key}.{file}") in machine.operation]
    holds = tuple(form for form in forms if form.immediate and form.immediate.holds(value))
    return Instance(time, holds, (register, value))


Edges = dict[int, list[tuple[int, int]]]


def dependences(instances: list[Instance], machine: Machine) -> tuple[Edges, Edges]:
    """Per instance, (other, distance) of those before and of those after it: a read follows its
    write, and the next write to a register lands after the reads before it."""
    events: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for index, instance in enumerate(instances):
        for atom, offset, is_read in effects(instance.forms[0], instance.operands, machine):
            events[atom].append((instance.time + offset, is_read, index, offset))
    before: Edges = defaultdict(list)
    after: Edges = defaultdict(list)

    def add(first: int, second: int, distance: int) -> None:
        if first != second:
            before[second].append((first, distance))
            after[first].append((second, distance))

    for found in events.values():
        write: tuple[int, int] | None = None
        reads: list[tuple[int, int]] = []
        for _, is_read, index, offset in sorted(found):
            if is_read:
                reads.append((index, offset))
                if write:
                    add(write[0], index, write[1] - offset)
            else:
                for reader, stage in reads:
                    add(reader, index, stage - offset + 1)
                if write:
                    add(write[0], index, write[1] - offset + 1)
                write, reads = (index, offset), []
    return before, after


def effects(
    form: Operation, operands: Sequence[str | int | Address | Fifo], machine: Machine
) -> list[tuple[str, int, int]]:
    """(part of a register, cycles after issue, 1 for a read): writes count from when reads see
    them."""
    found: list[tuple[str, int, int]] = []
    for value, operand in zip(operands, form.operands, strict=True):
        if isinstance(value, Address):
            found += [(value.pointer, 0, 1)]
            if value.mode != "offset":
                found.append((value.pointer, 1, 0))
            if isinstance(value.step, str):
                atoms = machine.atoms(value.step)
                found += [(atom, 0, 1) for atom in atoms]
                if value.mode == "walk":
                    found.append((atoms[3], 1, 0))
        elif isinstance(value, Fifo):
            for register in (value.pointer, value.position):
                found += [(register, 0, 1), (register, 1, 0)]
            if value.step:
                atoms = machine.atoms(value.step)
                found += [(atom, 0, 1) for atom in atoms] + [(atom, 1, 0) for atom in atoms[3:]]
        elif isinstance(value, str) and not value.startswith("."):
            atoms = machine.atoms(value)[: operand.parts or None]
            if operand.stage:
                found += [(atom, operand.stage - 1, 1) for atom in atoms]
            if operand.latency:
                found += [(atom, operand.latency, 0) for atom in atoms]
    found += [(mode, stage - 1, 1) for mode, stage in form.modes]
    return found
