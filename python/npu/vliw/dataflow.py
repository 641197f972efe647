"""Kernels as dataflow: the operations of one block of results and the blocks' places in memory.

All blocks of a region have the same nodes; what differs is where their streams start. Nodes are in
program order: a node reads what the last node before it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Access:
    """A place in memory: ``offset`` bytes from where the block's part of ``stream`` starts."""

    stream: str
    offset: int


@dataclass(frozen=True)
class Node:
    """One operation. ``forms``: operations of the machine that can do it, the preferred first.

    ``operands``, in the operation's order: names of values, "value:0" or "value:0-1" for a part of
    one or some that follow each other (from 0, lowest bits first), or an Access. What is written
    and what read follows from the operation.
    """

    name: str
    forms: tuple[str, ...]
    operands: tuple[str | Access, ...]
    # In which order the scheduler takes them: "multiply", "store", "move" between registers,
    # "load", "advance" of a pointer to the next block.
    role: str
    bank: str | None = None
    # Place of a multiplication in the interval, else its number; of a store the earliest.
    at: int | None = None
    group: str | None = None  # loads or moves that the scheduler moves together, before others

    @cached_property
    def named(self) -> tuple[tuple[str, range | None], ...]:
        """Per operand, the value and the parts of it that it names; no value for an access."""
        return tuple(("", None) if isinstance(o, Access) else _split(o) for o in self.operands)

    @cached_property
    def access(self) -> Access | None:
        return next((o for o in self.operands if isinstance(o, Access)), None)

    @cached_property
    def through_file(self) -> bool:
        """Whether the access goes through a load or store file."""
        return self.steps_itself or any(form.endswith(".leave") for form in self.forms)

    @cached_property
    def steps_itself(self) -> bool:
        """Whether the pointer follows the file."""
        return any(form.endswith((".fill", ".pop", ".push", ".flush")) for form in self.forms)

    @cached_property
    def points(self) -> bool:
        """Whether it sets the pointer of its first access to that of the second."""
        return self.forms == ("mov.P.P",)

    def offset(self, stream: str) -> int:
        """Of its access to a stream."""
        return next(o.offset for o in self.operands if isinstance(o, Access) and o.stream == stream)

    @cached_property
    def pointer(self) -> str | None:
        """The stream it goes through."""
        return self.access.stream if self.access else None


def _split(operand: str) -> tuple[str, range | None]:
    value, _, parts = operand.partition(":")
    first, _, last = parts.partition("-")
    return value, range(int(first), int(last or first) + 1) if parts else None


@dataclass(frozen=True)
class Stream:
    """Accesses through one pointer, in the order of the nodes. ``array``: the argument register it
    starts from; ``bases``: the byte offset from the argument, per block; ``pointer``: the register
    that it must walk, if it is no choice."""

    name: str
    array: str
    bases: Sequence[int]
    pointer: str = ""


@dataclass(frozen=True)
class Region:
    """Blocks of one shape: ``values`` has the register file of each value of a block, ``constants``
    registers with numbers that all blocks share, ``arguments`` registers with copies of those that
    the caller gives. ``preamble``: what makes other registers for all blocks, as operation and
    operands; ``reserved``: registers that values may not take, ``pools``: those of a file that they
    may, where files overlap; of "X@low" those of X that values of that name may.

    ``lanes``: whether the general search (`loop.py`) schedules it instead of that for matrix
    products; ``interval`` and ``start``: where that begins, as a longer one found nothing before;
    ``patience``: how many changes without success it tries from each start; ``tail``: cycles from
    the last place that a node has to what no node of its block reads, about, if not the usual.

    ``pinned``: values in registers of their own, the same for all blocks. What is read before it is
    written comes from the block before, in the first block from the preamble; what is never written
    here, from the region before. Later regions find what the last block wrote. ``partial``: values
    with parts that nobody writes; operations work on whatever is there, nobody uses the results."""

    name: str
    nodes: tuple[Node, ...]
    values: dict[str, str]
    streams: dict[str, Stream]
    constants: dict[str, int]
    arguments: dict[str, str] = field(default_factory=dict)
    preamble: tuple[tuple[str, tuple[str, ...]], ...] = ()
    reserved: frozenset[str] = frozenset()
    pools: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    lanes: bool = False
    interval: int = 1
    start: int = 0
    patience: int = 20
    tail: int = 0

    @property
    def blocks(self) -> int:
        return len(next(iter(self.streams.values())).bases) if self.streams else 1

    @cached_property
    def allocated(self) -> dict[str, str]:
        """The register file of each value that has no register of its own."""
        return {v: kind for v, kind in self.values.items() if v not in self.pinned}

    @cached_property
    def groups(self) -> dict[str, list[Node]]:
        """What the scheduler moves: groups as a whole, streams without groups by the last load or
        first store. It moves streams with an advance by itself."""
        found = {}
        for name, nodes in self.accesses.items():
            if not any(node.group or node.role == "advance" for node in nodes):
                found[name] = [nodes[-1 if nodes[0].role == "load" else 0]]
        for node in self.nodes:
            if node.group:
                found.setdefault(node.group, []).append(node)
        return found

    @cached_property
    def accesses(self) -> dict[str, list[Node]]:
        """Per stream, its nodes in order."""
        found: dict[str, list[Node]] = {name: [] for name in self.streams}
        for node in self.nodes:
            for operand in node.operands:
                if isinstance(operand, Access):
                    found[operand.stream].append(node)
        return found
