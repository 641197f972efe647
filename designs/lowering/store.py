"""Memtiles that keep objects (Design.store): one buffer of slots, and for each stream the BD
chains among which runtime streams choose, by the BD that a task begins with. BDs of single objects
advance by a slot per execution and begin again after the last one; where a stream leaves them
elsewhere, it sets them back at its end.

    keep       a BD in and one out, whose lock counts objects that are there, and a third one that
               sends all of them, any number of times. Streams that keep fewer than the most say so
               in a word of each.
    ring       a BD in and one out, with locks that count free and full slots
    again      out of the ring, with as many BDs as an object is sent times
    halves     a ring whose objects are filled by two BDs, which have two locks each: by one channel
               (ring_in), or by the stream's own (first_in) and the other stream's (second_in),
               there in turns with objects to keep, too (beside_in). Objects that the other side
               keeps may also arrive by the stream's own way, before it has others (ahead_in): as
               many as have slots that neither side uses while this one keeps objects (ahead). Half
               the rows are the first
               words that are sent, and half are the last ones: what goes out is cut in three, so
               that both locks are taken before it and given after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from npu._npu import arch
from npu.errors import DesignError

from ..fifo import Link, ObjectFifo, StoreSide
from .dims import DimList, lower_dims
from .lowered import Channel, Descriptor, Lock, Register

if TYPE_CHECKING:
    from .dataflow import Dataflow

# Words of a memtile's BD (backend/arch/bd.cpp): its length, and its iterations.
_LENGTH_WORD, _TURNS_WORD = 0, 6


class _Slots(NamedTuple):
    """Locks of the slots of a ring, or of half of each."""

    free: Lock
    full: Lock


class _Locks(NamedTuple):
    kept: Lock
    parts: tuple[_Slots, ...]  # of the ring: one, or one per half


class _Move(NamedTuple):
    """A BD: where it begins, its bytes, its pattern, its locks, and over how many objects, one per
    execution, it advances."""

    offset: int
    bytes: int
    dims: DimList
    acquire: Lock | None
    release: Lock | None
    turns: int = 1


class Store:
    """The slots of one memtile and their locks."""

    def __init__(self, link: Link, flow: Dataflow) -> None:
        self.link, self.flow = link, flow
        owner = link.inputs[0]
        slots = max(max(s.kept + s.objects, s.ring + s.slots) for s in link.sides)
        rows = (slots * owner.shape[0], *owner.shape[1:])
        self.bytes = owner.bytes
        self.memory = flow.add_memory(link.tile, f"store_{link.tile.col}", owner.dtype, rows)
        self.element = owner.bytes // math.prod(owner.shape)
        self.locks = [self._locks(side) for side in link.sides]

    def _locks(self, side: StoreSide) -> _Locks:
        def lock(what: str, init: int) -> Lock:
            name = f"store_{self.link.tile.col}_{side.name}_{what}"
            return self.flow.add_lock(self.link.tile, name, init)

        parts = range(2 if side.halves else 1)
        return _Locks(
            lock("kept", 0),
            tuple(_Slots(lock(f"free_{i}", side.slots), lock(f"full_{i}", 0)) for i in parts),
        )

    def build(self, fifo: ObjectFifo, channel: Channel) -> None:
        """The BDs of one stream's channel."""
        channel.started = False
        inwards = channel.direction == "s2mm"
        index = (self.link.inputs if inwards else self.link.outputs).index(fifo)
        side, locks = self.link.sides[index], self.locks[index]
        if inwards:
            found = self._inwards(fifo, channel, side, locks)
            for i, other in enumerate(self.link.sides):
                if other.halves and other is not side:
                    found["beside_in"] = self._beside(fifo, channel, side, locks, i)
        else:
            found = self._outwards(fifo, channel, side, locks)
        way = "in" if inwards else "out"
        queue = arch.channel_queue(channel.tile.kind, channel.direction, channel.index)
        self._register(f"{side.name}_tasks_{way}", int(queue))
        self._tell(side, found)
        self._tell(side, {
            "objects": side.objects, "ring": side.slots, "times": side.times,
            "halves": int(side.halves),
        })  # fmt: skip

    def _inwards(
        self, fifo: ObjectFifo, channel: Channel, side: StoreSide, locks: _Locks
    ) -> dict[str, int]:
        """The first BDs of the chains by which objects arrive."""
        found = {"keep_in": self._chain(channel, fifo, [self._keep_in(fifo, side, locks)])}
        if not side.halves:
            (slots,) = locks.parts
            whole = self._ring(side, 0, self.bytes, self._dims(fifo), slots.free, slots.full)
            return found | {"ring_in": self._chain(channel, fifo, [whole])}
        for i, other in enumerate(self.link.sides):
            if other is not side:
                one = self._keep_in(self.link.inputs[i], other, self.locks[i])
                found["ahead_in"] = self._chain(channel, self.link.inputs[i], [one])
                found["ahead"] = max(0, min(side.kept, other.ring) - other.kept)
        halves = self._halves(fifo, side, locks)
        found["ring_in"] = self._chain(channel, fifo, halves)
        return found | {"first_in": self._chain(channel, fifo, halves[:1])}

    def _beside(
        self, fifo: ObjectFifo, channel: Channel, side: StoreSide, locks: _Locks, other: int
    ) -> int:
        """The first BD of the chain by which objects that stay and the second halves of the other
        stream's arrive in turns."""
        of, source = self.link.sides[other], self.link.inputs[other]
        half = self._halves(source, of, self.locks[other])[1]
        first = self._chain(channel, fifo, [self._keep_in(fifo, side, locks), half])
        self._tell(of, {"second_in": first + 1})
        return first

    def _outwards(
        self, fifo: ObjectFifo, channel: Channel, side: StoreSide, locks: _Locks
    ) -> dict[str, int]:
        """The first BDs of the chains by which objects are sent."""
        dims, kept = fifo.to_stream, side.kept * self.bytes
        one = _Move(kept, self.bytes, dims, locks.kept, None, side.objects)
        found = {"keep_out": self._chain(channel, fifo, [one])}
        size, several = self.bytes * side.objects, self._several(fifo, side.objects)
        found["keep_on"] = on = self._chain(channel, fifo, [_Move(kept, size, several, None, None)])
        self._bd_register("length", on, _LENGTH_WORD)
        found["ring_out"] = self._chain(channel, fifo, self._sent(fifo, side, locks, 1))
        if side.times == 1:
            return found | {"again_out": found["ring_out"]}
        again = self._sent(fifo, side, locks, side.times)
        return found | {"again_out": self._chain(channel, fifo, again)}

    def _sent(self, fifo: ObjectFifo, side: StoreSide, locks: _Locks, times: int) -> list[_Move]:
        """What sends an object of the ring so often."""
        first, last = locks.parts[0], locks.parts[-1]

        def move(begin: int, end: int, acquire: Lock | None, release: Lock | None) -> _Move:
            return self._ring(side, begin, end - begin, fifo.to_stream, acquire, release)

        end = self.bytes
        if not side.halves:
            return [
                move(0, end, first.full if i == 0 else None, first.free if i == times - 1 else None)
                for i in range(times)
            ]
        source = self.link.inputs[self.link.outputs.index(fifo)]
        half = self._half_rows(source)
        begins = move(0, half, first.full, None)
        ends = move(end - half, end, None, last.free)
        if times == 1:
            return [begins, move(half, end - half, last.full, first.free), ends]
        return [
            begins,
            move(half, end, last.full, None),
            *(move(0, end, None, None) for _ in range(times - 2)),
            move(0, end - half, None, first.free),
            ends,
        ]

    def _half_rows(self, fifo: ObjectFifo) -> int:
        """Bytes of what half the rows of an object have next to each other."""
        (rows, stride), *_ = self._dims(fifo)
        return rows // 2 * stride * self.element

    def _halves(self, fifo: ObjectFifo, side: StoreSide, locks: _Locks) -> list[_Move]:
        """What fills the two halves of an object's rows."""
        (rows, stride), *rest = self._dims(fifo)
        dims = ((rows // 2, stride), *rest)
        return [
            self._ring(side, i * self._half_rows(fifo), self.bytes // 2, dims, s.free, s.full)
            for i, s in enumerate(locks.parts)
        ]

    def _dims(self, fifo: ObjectFifo) -> DimList:
        return fifo.from_stream[self.link.tile]

    def _several(self, fifo: ObjectFifo, count: int) -> DimList:
        """The pattern that sends `count` objects."""
        if not fifo.to_stream or count == 1:
            return fifo.to_stream
        (outer, stride), *rest = fifo.to_stream
        if outer * stride * self.element != self.bytes:
            raise DesignError(
                f'[lower] {self.link.tile}: fifo "{fifo.name}" sends {count} objects at a time, '
                "and the outermost dimension of its pattern does not continue in the next one"
            )
        return ((count * outer, stride), *rest)

    def _keep_in(self, fifo: ObjectFifo, side: StoreSide, locks: _Locks) -> _Move:
        offset = side.kept * self.bytes
        return _Move(offset, self.bytes, self._dims(fifo), None, locks.kept, side.objects)

    def _ring(
        self,
        side: StoreSide,
        begin: int,
        size: int,
        dims: DimList,
        acquire: Lock | None,
        release: Lock | None,
    ) -> _Move:
        return _Move(side.ring * self.bytes + begin, size, dims, acquire, release, side.slots)

    def _chain(self, channel: Channel, fifo: ObjectFifo, moves: Sequence[_Move]) -> int:
        """BDs one after the other; the first one's number, which the others' follow."""
        ids = self.flow.take_bds(channel.tile, channel, len(moves), fifo)
        if ids != list(range(ids[0], ids[0] + len(ids))):
            raise DesignError(
                f'[lower] {channel.tile}: the BDs of fifo "{fifo.name}" are apart ({ids}); declare '
                "stores before other FIFOs"
            )
        what = f'[lower] {channel.tile}: fifo "{fifo.name}" {channel.direction.upper()}'
        reach = self.memory.bytes // self.element
        for i, move in enumerate(moves):
            at = move.offset // self.element
            channel.descriptors.append(
                Descriptor(
                    id=ids[i],
                    memory=self.memory,
                    offset=move.offset,
                    bytes=move.bytes,
                    element_bytes=self.element,
                    access=lower_dims(
                        move.dims, self.element, move.bytes // self.element, reach - at,
                        channel.tile.limits, what,
                    ),
                    acquire=move.acquire,
                    release=move.release,
                    next=ids[i + 1] if i + 1 < len(ids) else None,
                    turns=move.turns,
                    turn_bytes=self.bytes,
                )
            )  # fmt: skip
            if move.turns > 1:
                self._bd_register("turns", ids[i], _TURNS_WORD)
        return ids[0]

    def _register(self, name: str, offset: int) -> None:
        self.flow.out.registers.append(Register(name, self.link.tile, offset))

    def _bd_register(self, what: str, id: int, word: int) -> None:
        self._register(f"{what}_{id}", self.link.tile.limits.bd_base + 0x20 * id + 4 * word)

    def _tell(self, side: StoreSide, values: dict[str, int]) -> None:
        """Parameters of the configuration, which are the same for all memtiles."""
        for what, value in values.items():
            name = f"{side.name}_{what}"
            if self.flow.out.params.setdefault(name, value) != value:
                raise DesignError(
                    f"[lower] {self.link.tile}: {name} is {value}, elsewhere "
                    f"{self.flow.out.params[name]}; stores must be alike"
                )
