"""Memtiles that keep objects (Design.store): one buffer of slots, and for each stream the BD
chains among which runtime streams choose, by the BD that a task begins with.

    kept objects   one BD per object in, one per group out; a lock per group, the gate, is given
                   when the group is there, and taken and given back by every sending of it. Streams
                   set it to 0 at their end. Tasks that begin later in a chain keep fewer objects.
    ring           a BD per slot in and out, with a lock of free and one of full slots
    again          out of the ring, with as many BDs per slot as an object is sent times
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu._npu import arch
from npu.errors import DesignError

from ..fifo import Link, ObjectFifo, StoreSide
from .dims import lower_dims
from .lowered import Channel, Descriptor, Lock, Register

if TYPE_CHECKING:
    from .dataflow import Dataflow


@dataclass(frozen=True)
class _Locks:
    gates: list[Lock]
    free: Lock
    full: Lock


class Store:
    """The slots of one memtile and their locks."""

    def __init__(self, link: Link, flow: Dataflow) -> None:
        self.link, self.flow = link, flow
        owner = link.inputs[0]
        slots = max(max(side.kept + side.slots, 1 + max(side.ring)) for side in link.sides)
        rows = (slots * owner.shape[0], *owner.shape[1:])
        self.bytes = owner.bytes
        self.memory = flow.add_memory(link.tile, f"store_{link.tile.col}", owner.dtype, rows)
        self.locks = [self._locks(side) for side in link.sides]

    def _locks(self, side: StoreSide) -> _Locks:
        def lock(what: str, init: int) -> Lock:
            return self.flow.add_lock(
                self.link.tile, f"store_{self.link.tile.col}_{side.name}_{what}", init
            )

        gates = [lock(f"gate_{i}", 0) for i in range(len(side.groups))]
        base = self.link.tile.limits.lock_base
        for i, gate in enumerate(gates):
            self._register(f"{side.name}_gate_{i}", base + 0x10 * gate.id)
        return _Locks(gates, lock("free", len(side.ring)), lock("full", 0))

    def build(self, fifo: ObjectFifo, channel: Channel) -> None:
        """The BDs of one stream's channel."""
        channel.started = False
        inwards = channel.direction == "s2mm"
        index = (self.link.inputs if inwards else self.link.outputs).index(fifo)
        side, locks = self.link.sides[index], self.locks[index]
        kept: list[tuple[int, int, Lock | None]] = []  # first slot, slots, gate
        slot = side.kept
        for size, gate in zip(side.groups, locks.gates, strict=True):
            if inwards:
                kept += [(slot + i, 1, gate if i == size - 1 else None) for i in range(size)]
            else:
                kept.append((slot, size, gate))
            slot += size
        repeats = side.times if not inwards and side.times > 1 else 0
        count = len(kept) + len(side.ring) * (1 + repeats)
        ids = self.flow.take_bds(channel.tile, channel, count, fifo)
        if ids != list(range(ids[0], ids[0] + len(ids))):
            raise DesignError(
                f'[lower] {channel.tile}: the BDs of fifo "{fifo.name}" are apart ({ids}); declare '
                "stores before other FIFOs"
            )
        for i, (first, many, opened) in enumerate(kept):
            after = ids[i + 1] if i + 1 < len(kept) else None
            taken = None if inwards else opened
            self._add(channel, fifo, ids[i], (first, many), taken, opened, after)
        take, give = (locks.free, locks.full) if inwards else (locks.full, locks.free)
        ring, again = ids[len(kept) :][: len(side.ring)], ids[len(kept) + len(side.ring) :]
        for i, slot in enumerate(side.ring):
            after = ring[i + 1] if i + 1 < len(ring) else None
            self._add(channel, fifo, ring[i], (slot, 1), take, give, after)
        for i, id in enumerate(again):
            after = again[i + 1] if i + 1 < len(again) else None
            turn, slot = i % repeats, side.ring[i // repeats]
            acquire, release = take if turn == 0 else None, give if turn == repeats - 1 else None
            self._add(channel, fifo, id, (slot, 1), acquire, release, after)
        way = "in" if inwards else "out"
        queue = arch.channel_queue(channel.tile.kind, channel.direction, channel.index)
        self._register(f"{side.name}_tasks_{way}", int(queue))
        self._tell(side, {f"keep_{way}": ids[0], f"ring_{way}": ring[0]})
        if not inwards:
            self._tell(side, {"again_out": again[0] if again else ring[0]})

    def _add(
        self,
        channel: Channel,
        fifo: ObjectFifo,
        id: int,
        slots: tuple[int, int],
        acquire: Lock | None,
        release: Lock | None,
        after: int | None,
    ) -> None:
        """A BD for some slots that follow each other."""
        first, count = slots
        size = self.memory.bytes // (self.memory.shape[0] * self.memory.shape[1])
        elements = count * self.bytes // size
        inwards = channel.direction == "s2mm"
        dims = fifo.from_stream[channel.tile] if inwards else fifo.to_stream
        if count > 1:
            (outer, stride), *rest = dims
            if outer * stride * size != self.bytes:
                raise DesignError(
                    f'[lower] {channel.tile}: fifo "{fifo.name}" sends {count} objects at a time, '
                    "and the outermost dimension of its pattern does not continue in the next one"
                )
            dims = ((count * outer, stride), *rest)
        what = f'[lower] {channel.tile}: fifo "{fifo.name}" {channel.direction.upper()}'
        access = lower_dims(dims, size, elements, elements, channel.tile.limits, what)
        channel.descriptors.append(
            Descriptor(
                id=id,
                memory=self.memory,
                offset=first * self.bytes,
                bytes=count * self.bytes,
                element_bytes=size,
                access=access,
                acquire=acquire,
                release=release,
                next=after,
            )
        )

    def _register(self, name: str, offset: int) -> None:
        self.flow.out.registers.append(Register(name, self.link.tile, offset))

    def _tell(self, side: StoreSide, first: dict[str, int]) -> None:
        """The configuration's parameters, which are the same for all memtiles."""
        found = first | {
            "groups": len(side.groups), "ring": len(side.ring), "times": side.times,
        }  # fmt: skip
        found |= {f"group_{i}": size for i, size in enumerate(side.groups)}
        for what, value in found.items():
            name = f"{side.name}_{what}"
            if self.flow.out.params.setdefault(name, value) != value:
                raise DesignError(
                    f"[lower] {self.link.tile}: {name} is {value}, elsewhere "
                    f"{self.flow.out.params[name]}; stores must be alike"
                )
