"""Builds the nodes of a loop over lanes: every operation names its result, loads and stores are as
wide as the core's vectors."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from npu.errors import ShapeError
from npu.vliw.dataflow import Access, Node, Region, Stream
from npu.vliw.machine import Machine


def turns(kernel: str, blocks: int, *counts: int) -> list[tuple[int, ...]]:
    """The block of every turn of a loop, and its place in a block, of one or more dimensions."""
    if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1:
        raise ShapeError(f"[{kernel}] blocks is {blocks!r}: give 1 or more")
    return list(itertools.product(*map(range, (blocks, *counts))))


class Dataflow:
    """Nodes in program order and the register files of their values."""

    def __init__(self, machine: Machine, name: str = "") -> None:
        """``name``: of the region, before the names of its nodes."""
        self.npu1 = machine.generation == "npu1"
        self.nodes: list[Node] = []
        self.values: dict[str, str] = {}
        self.pinned: dict[str, str] = {}
        self.partial: set[str] = set()
        self._prefix = f"{name} " if name else ""

    def region(
        self, name: str, streams: Iterable[Stream], constants: Mapping[str, int], **more: Any
    ) -> Region:
        """A loop, or code, that executes the nodes; ``more``: what Region has beside these."""
        return Region(
            name, tuple(self.nodes), self.values, {s.name: s for s in streams}, dict(constants),
            pinned=self.pinned, partial=frozenset(self.partial), lanes=True, **more,
        )  # fmt: skip

    def value(self, kind: str, register: str = "", *, partial: bool = False) -> str:
        """A new value in registers of this file, or in ``register`` for all blocks; ``partial``:
        with parts that hold anything."""
        name = f"v{len(self.values)}"
        self.values[name] = kind
        if register:
            self.pinned[name] = register
        if partial:
            self.partial.add(name)
        return name

    def op(self, form: str, kind: str, *operands: str, at: int | None = None) -> str:
        """An operation with a result of its own. ``at``: its place among those that have one."""
        result = self.value(kind)
        self._add((form,), (result, *operands), "compute", at=at)
        return result

    def into(self, form: str, result: str, *operands: str) -> None:
        """An operation with a result in (a part of) a value."""
        self._add((form,), (result, *operands), "compute")

    def load(self, stream: str, offset: int, bank: str) -> str:
        """64 bytes into a vector: two accesses on XDNA1."""
        result = self.value("X")
        if self.npu1:
            for part in range(2):
                self.load_part(stream, offset + 32 * part, bank, result, part)
        else:
            self.load_into(stream, offset, bank, result)
        return result

    def load_into(self, stream: str, offset: int, bank: str, result: str) -> None:
        """64 bytes into (a part of) a value (XDNA2)."""
        self._add(("vldb.x", "vlda.x"), (result, Access(stream, offset)), "load", bank)

    def load_part(self, stream: str, offset: int, bank: str, result: str, part: int) -> None:
        """32 bytes into half a vector."""
        operands = (f"{result}:{part}", Access(stream, offset))
        self._add(("vldb.w", "vlda.w"), operands, "load", bank)

    def load_am(self, stream: str, offset: int, bank: str, result: str, part: int) -> None:
        """32 bytes into half an accumulator (XDNA1)."""
        operands = (f"{result}:{part}", Access(stream, offset))
        self._add(("vlda.am",), operands, "load", bank)

    def load_bm(self, stream: str, offset: int, bank: str, result: str, part: int) -> None:
        """64 bytes into a quarter of an accumulator (XDNA2)."""
        operands = (f"{result}:{part}", Access(stream, offset))
        self._add(("vlda.bm",), operands, "load", bank)

    def store(self, forms: tuple[str, ...], value: str, access: Access, bank: str) -> None:
        self._add(forms, (value, access), "store", bank)

    def _add(
        self,
        forms: tuple[str, ...],
        operands: tuple[str | Access, ...],
        role: str,
        bank: str | None = None,
        at: int | None = None,
    ) -> None:
        name = f"{self._prefix}{len(self.nodes)} {forms[0]}"
        self.nodes.append(Node(name, forms, operands, role, bank, at))
