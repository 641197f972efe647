"""A program of bundles: operations with their operands, sizes and addresses of the code, the
alignment that a hardware loop asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from npu.errors import DesignError
from npu.vliw.machine import Fifo, Machine, Operation


@dataclass(frozen=True)
class Address:
    """Where an access goes and what happens to the pointer.

    post: [p], step (a number or a modifier register); walk: [p], d (two dimensions);
    offset: [p, step] (a number or a dj register), the pointer stays.
    """

    pointer: str
    mode: Literal["post", "walk", "offset"]
    step: int | str


@dataclass(frozen=True)
class Tag:
    """Which value this is: what node of the dataflow wrote it, for which block. ``fixed``: in every
    pass of a loop, as an earlier region wrote it. ``first``: what is meant where there is no such
    block yet."""

    node: str
    block: int
    fixed: bool = False
    first: Tag | None = None

    def later(self, blocks: int) -> Tag:
        """So many blocks on."""
        if self.fixed or not blocks:
            return self
        return Tag(self.node, self.block + blocks, first=self.first)

    @property
    def meant(self) -> Tag:
        return self.first if self.first and self.block < 0 else self


@dataclass(frozen=True)
class Op:
    """An operation in a program. ``tag`` and ``expects`` (part of a register -> the value that the
    scheduler meant to be there) are what the simulator checks; programs from text have none."""

    operation: Operation
    operands: tuple[str | int | Address | Fifo, ...] = ()
    tag: Tag | None = None
    expects: Mapping[str, Tag] = field(default_factory=dict)


@dataclass(frozen=True)
class Bundle:
    """Operations of one cycle, and slots with an explicit nop, which makes the bundle larger."""

    ops: tuple[Op, ...] = ()
    nops: frozenset[str] = frozenset()

    @property
    def slots(self) -> frozenset[str]:
        return frozenset(op.operation.slot for op in self.ops) | self.nops

    def check(self, machine: Machine, where: str) -> None:
        """Raises DesignError if a slot is used twice or slots exclude each other."""
        names = [op.operation.slot for op in self.ops]
        for name in names:
            if names.count(name) > 1:
                raise DesignError(f"[check] {where}: slot {name} is used twice")
        for one, other in machine.exclusive:
            if one in names and other in names:
                raise DesignError(f"[check] {where}: slots {one} and {other} exclude each other")


@dataclass(frozen=True)
class Program:
    """Bundles in their order; ``labels`` name bundles. ``loop_step``: blocks per pass of a loop,
    by which tags advance; ``loops``: first and last bundle of each; ``starts``: of each part that
    was joined, the first bundle."""

    name: str
    machine: Machine
    bundles: tuple[Bundle, ...]
    labels: Mapping[str, int] = field(default_factory=dict)
    loops: tuple[tuple[int, int], ...] = ()
    loop_step: int = 0
    starts: tuple[int, ...] = (0,)

    @property
    def sizes(self) -> list[int]:
        return [self.machine.bundle_bytes(bundle.slots) for bundle in self.bundles]

    @property
    def addresses(self) -> list[int]:
        """The address of every bundle, from 0, and that of the end."""
        found = [0]
        for size in self.sizes:
            found.append(found[-1] + size)
        return found

    @property
    def code_bytes(self) -> int:
        return sum(self.sizes)


def aligned(program: Program) -> Program:
    """The program with explicit nops where its loops need them: first and last bundle of each at a
    multiple of the alignment, the last with all slots."""
    bundles = list(program.bundles)
    machine, rules = program.machine, program.machine.loop
    start = 0
    for first, last in program.loops:
        _keep_distance(bundles, machine, start, first)
        _grow(bundles, machine, start, first, rules.alignment)
        _grow(bundles, machine, first, last, rules.alignment)
        bundles[last] = _padded(bundles[last], machine, rules.last_bytes)
        start = last + 1
    return replace(program, bundles=tuple(bundles))


def _keep_distance(bundles: list[Bundle], machine: Machine, start: int, first: int) -> None:
    """Enlarges bundles between those that set the loop's registers and the loop until there are as
    many bytes of code as there must be."""
    setting = [i for i in range(start, first) if any(_sets_loop(op) for op in bundles[i].ops)]
    between = range(max(setting, default=start) + 1, first)
    for i in between:
        have = sum(machine.bundle_bytes(bundles[j].slots) for j in between)
        if have >= machine.loop.distance:
            return
        bundles[i] = _padded(bundles[i], machine, 16)


def _sets_loop(op: Op) -> bool:
    return bool(op.operation.operands) and op.operation.operands[0].kind == "LOOP"


def _grow(bundles: list[Bundle], machine: Machine, start: int, end: int, alignment: int) -> None:
    """Enlarges bundles until those in [start, end) fill a multiple of ``alignment``; what is before
    ``start`` does."""
    need = -sum(machine.bundle_bytes(b.slots) for b in bundles[start:end]) % alignment
    for i in range(end - 1, start - 1, -1):
        size = machine.bundle_bytes(bundles[i].slots)
        for extra in range(min(need, 16 - size), 0, -1):
            grown = _maybe_padded(bundles[i], machine, size + extra)
            if grown is not None:
                bundles[i], need = grown, need - extra
                break
        if need == 0:
            return
    if need:
        raise DesignError(
            f"[aligned] {need} bytes are missing before bundle {end}, which must start at a "
            f"multiple of {alignment}: no bundle can be enlarged"
        )


def _maybe_padded(bundle: Bundle, machine: Machine, size: int) -> Bundle | None:
    for bytes_, slots in machine.formats:
        if bytes_ == size and bundle.slots <= slots:
            grown = replace(bundle, nops=slots - {op.operation.slot for op in bundle.ops})
            if machine.bundle_bytes(grown.slots) == size:
                return grown
    return None


def _padded(bundle: Bundle, machine: Machine, size: int) -> Bundle:
    grown = _maybe_padded(bundle, machine, size)
    assert grown is not None, "every bundle fits the largest format"
    return grown


def joined(name: str, parts: Sequence[Program]) -> Program:
    """Programs one after the other as one."""
    bundles: list[Bundle] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    starts: list[int] = []
    for part in parts:
        at = len(bundles)
        starts.append(at)
        bundles += part.bundles
        labels |= {label: at + index for label, index in part.labels.items()}
        loops += [(at + first, at + last) for first, last in part.loops]
    return Program(
        name, parts[0].machine, tuple(bundles), labels, tuple(loops), parts[0].loop_step,
        tuple(starts),
    )  # fmt: skip
