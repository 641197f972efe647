"""FIFO ends and links become pools of buffers, lock pairs, DMA channels and BD chains.

Every FIFO end on a core and every link on a memtile is a pool: `depth` buffers whose parts (one,
or one per joined/split FIFO) each have a lock counting free slots and one counting full slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from npu._npu import arch
from npu.errors import DesignError

from ..api import Design
from ..fifo import Link, ObjectFifo
from ..hardware import DTYPE_BYTES, MAX_LOCK_VALUE, Tile
from .dims import Access, lower_dims
from .lowered import (
    FIFO_PACKET,
    PROGRAM_PACKET,
    Channel,
    Descriptor,
    Endpoint,
    Flow,
    Lock,
    Lowered,
    Memory,
    Part,
    Pool,
    Port,
)
from .memory import Request, Room, allocate
from .store import Store

End = tuple[ObjectFifo, Tile]


class Dataflow:
    """Builds pools, locks, channels, BDs, ports and flows of one design into `out`."""

    def __init__(self, design: Design, out: Lowered) -> None:
        self.design = design
        self.out = out
        self.pool_of: dict[End, Pool] = {}  # core and memtile ends
        self._requests: dict[Tile, list[Request]] = {}
        self._channel_of: dict[tuple[ObjectFifo, Tile, str], int] = {}
        self._buffer_names: set[str] = set()
        self._used_bds: dict[Tile, set[int]] = {}
        self._stores: dict[Tile, Store] = {}

    def error(self, text: str) -> DesignError:
        return DesignError(f"[lower {self.design.name}] {text}")

    # Locks and buffers

    def add_lock(self, tile: Tile, name: str, init: int) -> Lock:
        """The next free lock of a tile."""
        locks = self.out.locks.setdefault(tile, [])
        if len(locks) == tile.limits.locks:
            raise self.error(f'{tile}: lock "{name}" does not fit, all {len(locks)} locks are used')
        if init > MAX_LOCK_VALUE:
            raise self.error(
                f'{tile}: lock "{name}" starts at {init}, a lock holds at most {MAX_LOCK_VALUE}; '
                "use a smaller depth"
            )
        locks.append(Lock(tile, len(locks), init, name))
        return locks[-1]

    def add_memory(
        self,
        tile: Tile,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        address: int | None = None,
        init: tuple[int, ...] = (),
    ) -> Memory:
        """A single buffer; its address is filled in by place()."""
        size = math.prod(shape) * DTYPE_BYTES[dtype]
        self._request(tile, Request(name, size, 1, () if address is None else (address,)))
        memory = Memory(tile, name, dtype, shape, size, -1, init)
        self.out.memories.setdefault(tile, []).append(memory)
        return memory

    def place(self, rooms: dict[Tile, Room]) -> None:
        """Addresses for everything requested so far, beside the room of cores; memtiles may use
        their neighbours' memory."""
        for tile in sorted(t for t in self._requests if t.kind == "mem"):
            self._spill(tile)
        for tile in sorted(self._requests):
            title = f"[lower {self.design.name}]"
            placed = allocate(tile, self._requests[tile], rooms.get(tile, Room()), title)
            for memory in self.out.memories[tile]:
                if memory.name in placed:
                    memory.address = placed[memory.name][0]
            for pool in self.out.pools:
                slots = [memory for memory in pool.slots if memory.tile == tile]
                for memory, address in zip(slots, placed.get(pool.name, ()), strict=True):
                    memory.address = address

    def _free_bytes(self, tile: Tile) -> int:
        requests = self._requests.get(tile, [])
        return tile.limits.memory_bytes - sum(r.bytes * r.count for r in requests)

    def _spill(self, tile: Tile) -> None:
        """Moves whole buffers of an overfull memtile to the emptier memtile beside it.

        Only buffers of DMA channels that reach there (0 to 3) move; what still does not fit is
        reported by the allocator.
        """
        beside = [Tile(c, tile.row) for c in (tile.col - 1, tile.col + 1)]
        beside = [t for t in beside if 0 <= t.col < self.out.columns]
        reach = tile.limits.neighbour_channels
        pools = [p for p in self.out.pools if p.tile == tile]
        for pool in sorted(pools, key=lambda p: -p.slots[0].bytes):
            ends = [e for e, p in self.pool_of.items() if p is pool]
            if any(c >= reach for (f, t, _), c in self._channel_of.items() if (f, t) in ends):
                continue
            for memory in reversed(pool.slots):
                target = max(beside, key=self._free_bytes)
                if self._free_bytes(tile) >= 0 or self._free_bytes(target) < memory.bytes:
                    break
                self._move(pool, memory, target)

    def _move(self, pool: Pool, memory: Memory, target: Tile) -> None:
        """Takes one buffer of a pool to another memtile, to be placed there."""
        tile = memory.tile
        self.out.memories[tile].remove(memory)
        self.out.memories.setdefault(target, []).append(memory)
        memory.tile = target
        for at in (tile, target):
            kept = [r for r in self._requests.get(at, []) if r.name != pool.name]
            count = sum(slot.tile == at for slot in pool.slots)
            if count:
                kept.append(Request(pool.name, memory.bytes, count))
            self._requests[at] = kept

    def build_pools(self) -> None:
        """A pool for every FIFO end on a core and every link; ports for shim ends."""
        for fifo in self.design.fifos:
            for tile in (fifo.producer, *fifo.consumers):
                produces = tile == fifo.producer
                if tile.kind == "shim":
                    continue
                if tile.kind == "core":
                    depth = fifo.producer_depth if produces else fifo.consumer_depth
                    name = _end_name(fifo, tile)
                    fixed = () if produces else fifo.consumer_addresses
                    spans = [(0, fifo.bytes)]
                    pool = self._pool(tile, name, fifo.type_at(tile), depth, spans, fixed)
                    self.pool_of[fifo, tile] = pool
                    continue
                link = self.design.link_at(fifo, tile)
                if link is None:
                    raise self.error(
                        f'fifo "{fifo.name}" {"begins" if produces else "ends"} at {tile} without '
                        "a forward, join or split there"
                    )
                if link.kind == "store":
                    if fifo is link.inputs[0]:
                        self._stores[tile] = Store(link, self)
                elif fifo is _owner(link):
                    self._link_pool(link)

    def _link_pool(self, link: Link) -> None:
        owner = _owner(link)
        kind = owner.type_at(link.tile)
        joined = link.kind == "join"
        depth = owner.producer_depth if joined else owner.consumer_depth
        parts = link.inputs if joined else link.outputs
        pairs = zip(link.offsets, parts, strict=link.kind != "cross")
        spans = [(offset, link.objects * part.bytes) for offset, part in pairs]
        if link.kind == "forward":
            spans = [(0, owner.bytes)]
        if link.kind == "cross":
            kind, spans = _crossed(link)
        pool = self._pool(link.tile, _end_name(owner, link.tile), kind, depth, spans)
        for fifo in (*link.inputs, *link.outputs):
            self.pool_of[fifo, link.tile] = pool

    def _pool(
        self,
        tile: Tile,
        name: str,
        kind: tuple[str, tuple[int, ...]],
        depth: int,
        spans: list[tuple[int, int]],
        fixed: tuple[int, ...] = (),
    ) -> Pool:
        """Buffers of a (dtype, shape), with locks for each span (offset, bytes) of them."""
        dtype, shape = kind
        size = math.prod(shape) * DTYPE_BYTES[dtype]
        pool = Pool(name, tile, dtype, shape)
        for slot in range(depth):
            pool.slots.append(Memory(tile, f"{name}_buff_{slot}", dtype, shape, size, -1))
        self.out.memories.setdefault(tile, []).extend(pool.slots)
        for index, (offset, part_bytes) in enumerate(spans):
            free = self.add_lock(tile, f"{name}_prod_lock_{index}", depth)
            full = self.add_lock(tile, f"{name}_cons_lock_{index}", 0)
            pool.parts.append(Part(offset, part_bytes, free, full))
        self.out.pools.append(pool)
        self._request(tile, Request(name, size, depth, fixed))
        return pool

    def _request(self, tile: Tile, request: Request) -> None:
        if request.name in self._buffer_names:
            raise self.error(f'{tile}: two buffers are named "{request.name}"; rename a FIFO')
        self._buffer_names.add(request.name)
        self._requests.setdefault(tile, []).append(request)

    # Channels, ports and flows

    def assign_channels(self) -> None:
        """Fixed channels first, then the lowest free one in FIFO order."""
        taken: dict[tuple[Tile, str], dict[int, str]] = {}
        ends = [
            (fifo, tile, "mm2s" if tile == fifo.producer else "s2mm")
            for fifo in self.design.fifos
            for tile in (fifo.producer, *fifo.consumers)
        ]
        for fifo, tile, direction in ends:
            fixed = (
                fifo.producer_channel if direction == "mm2s" else fifo.consumer_channels.get(tile)
            )
            if fixed is None:
                continue
            used = taken.setdefault((tile, direction), {})
            if not 0 <= fixed < tile.limits.channels:
                raise self.error(
                    f'{tile}: fifo "{fifo.name}" asks for {direction.upper()} channel {fixed}, '
                    f"channels 0..{tile.limits.channels - 1} exist"
                )
            if fixed in used:
                raise self.error(
                    f'{tile}: {direction.upper()} channel {fixed} is asked for by "{used[fixed]}" '
                    f'and "{fifo.name}"'
                )
            used[fixed] = fifo.name
            self._channel_of[fifo, tile, direction] = fixed
        for fifo, tile, direction in ends:
            if (fifo, tile, direction) in self._channel_of:
                continue
            used = taken.setdefault((tile, direction), {})
            free = [c for c in range(tile.limits.channels) if c not in used]
            if not free:
                raise self.error(
                    f'{tile}: no {direction.upper()} channel left for fifo "{fifo.name}"; all '
                    f"{tile.limits.channels} are used by {', '.join(used.values())}"
                )
            used[free[0]] = fifo.name
            self._channel_of[fifo, tile, direction] = free[0]
        for port in self.design.program_ports:
            used = taken.setdefault((port.tile, "mm2s"), {})
            if port.beside is not None:
                continue  # the FIFO has it
            if port.channel in used:
                raise self.error(
                    f"{port.tile}: MM2S channel {port.channel} is asked for by "
                    f'"{used[port.channel]}" and for programs; give them a channel of their own, '
                    "or send them beside a FIFO"
                )
            used[port.channel] = port.name

    def build_ports_and_flows(self) -> None:
        """What the shim offers to runtime streams, and the streams between DMAs."""
        shared = [program.beside for program in self.design.program_ports]
        for fifo in self.design.fifos:
            packet = FIFO_PACKET if any(other is fifo for other in shared) else None
            source = Endpoint(fifo.producer, self._channel_of[fifo, fifo.producer, "mm2s"])
            sinks = [Endpoint(t, self._channel_of[fifo, t, "s2mm"]) for t in fifo.consumers]
            self.out.flows.append(Flow(fifo.name, source, sinks, packet))
            for tile in (fifo.producer, *fifo.consumers):
                if tile.kind == "shim":
                    direction = "mm2s" if tile == fifo.producer else "s2mm"
                    channel = self._channel_of[fifo, tile, direction]
                    self.out.ports.append(Port(fifo.port, tile, direction, channel, packet))
        for program in self.design.program_ports:
            sinks = [Endpoint(core, 0, control=True) for core in program.cores]
            source = Endpoint(program.tile, program.channel)
            packet = PROGRAM_PACKET if program.beside is not None else None
            self.out.flows.append(Flow(program.name, source, sinks, packet))
            self.out.ports.append(Port(program.name, program.tile, "mm2s", program.channel, packet))
        names = [p.name for p in self.out.ports]
        for name in names:
            if names.count(name) > 1:
                raise self.error(f'the port name "{name}" is used twice')

    # BD chains

    def build_chains(self) -> None:
        """One circular BD chain per channel of a core or memtile."""
        for fifo in self.design.fifos:
            for tile in (fifo.producer, *fifo.consumers):
                if tile.kind != "shim":
                    self._chain(fifo, tile)
        self.out.channels.sort(key=lambda c: c.tile)

    def _chain(self, fifo: ObjectFifo, tile: Tile) -> None:
        direction = "mm2s" if tile == fifo.producer else "s2mm"
        channel = Channel(tile, direction, self._channel_of[fifo, tile, direction], fifo.name)
        link = self.design.link_at(fifo, tile)
        if link is not None and link.kind == "store":
            self._stores[tile].build(fifo, channel)
            self.out.channels.append(channel)
            return
        pool = self.pool_of[fifo, tile]
        if link is not None and link.kind == "cross" and direction == "s2mm":
            pieces = _band_of_rows(link, fifo, pool)
        else:
            pieces = self._pieces(fifo, tile, pool, direction)
        ids = self.take_bds(tile, channel, len(pool.slots) * len(pieces), fifo)
        for memory in pool.slots:
            for piece in pieces:
                index = len(channel.descriptors)
                channel.descriptors.append(
                    Descriptor(
                        id=ids[index],
                        memory=memory,
                        offset=piece.offset,
                        bytes=piece.bytes,
                        element_bytes=pool.element_bytes,
                        access=piece.access,
                        acquire=piece.acquire,
                        release=piece.release,
                        next=ids[(index + 1) % len(ids)],
                    )
                )
        self.out.channels.append(channel)

    def _pieces(self, fifo: ObjectFifo, tile: Tile, pool: Pool, direction: str) -> list[_Piece]:
        """One transfer per part, in the order that the FIFO's end gives."""
        dims = fifo.to_stream if direction == "mm2s" else fifo.from_stream[tile]
        what = f'[lower {self.design.name}] {tile}: fifo "{fifo.name}" {direction.upper()}'
        size = pool.element_bytes
        pieces = []
        for part in self._parts_of(fifo, tile, pool):
            reach = (pool.slots[0].bytes - part.offset) // size
            access = lower_dims(dims, size, part.bytes // size, reach, tile.limits, what)
            locks = (part.full, part.free) if direction == "mm2s" else (part.free, part.full)
            pieces.append(_Piece(part.offset, part.bytes, access, *locks))
        return pieces

    def _parts_of(self, fifo: ObjectFifo, tile: Tile, pool: Pool) -> list[Part]:
        """The parts a FIFO's channel moves: all in memory order, or its own of a join or split."""
        link = self.design.link_at(fifo, tile)
        if link is not None and link.kind == "cross":
            return pool.parts[link.outputs.index(fifo) :: len(link.outputs)]
        if link is None or fifo is _owner(link):
            return sorted(pool.parts, key=lambda part: part.offset)
        parts = link.inputs if link.kind == "join" else link.outputs
        if link.kind == "forward":
            return pool.parts
        return [pool.parts[parts.index(fifo)]]

    def take_bds(self, tile: Tile, channel: Channel, count: int, fifo: ObjectFifo) -> list[int]:
        used = self._used_bds.setdefault(tile, set())
        reachable = [
            i for i in range(tile.limits.bds) if arch.bd_reachable(tile.kind, channel.index, i)
        ]
        free = [i for i in reachable if i not in used]
        if len(free) < count:
            raise self.error(
                f'{tile}: fifo "{fifo.name}" needs {count} BDs on {channel.direction.upper()} '
                f"channel {channel.index}, {len(free)} of the {len(reachable)} that this channel "
                "can use are free; use smaller depths or fewer parts"
            )
        used.update(free[:count])
        return free[:count]


@dataclass(frozen=True)
class _Piece:
    """A transfer of a chain: a span of a buffer, how it is walked, and its locks."""

    offset: int
    bytes: int
    access: Access
    acquire: Lock | None
    release: Lock | None


def _crossed(link: Link) -> tuple[tuple[str, tuple[int, ...]], list[tuple[int, int]]]:
    """The (dtype, shape) of the object of a cross, and (offset, bytes) of the columns of each sink
    in each band of rows: where they begin, how many there are."""
    dtype, width = link.inputs[0].dtype, link.inputs[0].shape[1]
    spans, size, row = [], DTYPE_BYTES[dtype], 0
    for source in link.inputs:
        column = 0
        for sink in link.outputs:
            columns = sink.shape[1]
            spans.append(((row * width + column) * size, source.shape[0] * columns * size))
            column += columns
        row += source.shape[0]
    return (dtype, (row, width)), spans


def _band_of_rows(link: Link, source: ObjectFifo, pool: Pool) -> list[_Piece]:
    """The transfers that fill a source's rows of a cross: in the first row the free locks of all
    sinks are taken, the last one's before everything between, in the last row the full locks are
    given."""
    count, index = len(link.outputs), link.inputs.index(source)
    parts = pool.parts[count * index : count * (index + 1)]
    widths = [sink.shape[1] * pool.element_bytes for sink in link.outputs]
    begin, pieces = parts[0].offset, []
    end = begin + source.bytes
    for part, width in zip(parts[:-1], widths[:-1], strict=True):
        pieces.append(_Piece(begin, width, Access(()), part.free, None))
        begin += width
    last = end - sum(widths[1:])
    pieces.append(_Piece(begin, last - begin, Access(()), parts[-1].free, parts[0].full))
    for part, width in zip(parts[1:], widths[1:], strict=True):
        pieces.append(_Piece(last, width, Access(()), None, part.full))
        last += width
    return pieces


def _owner(link: Link) -> ObjectFifo:
    """The FIFO whose object a link's buffers hold."""
    return link.outputs[0] if link.kind == "join" else link.inputs[0]


def _end_name(fifo: ObjectFifo, tile: Tile) -> str:
    """mlir-aie's naming of a FIFO end: NAME, NAME_cons, NAME_<consumer index>_cons."""
    if tile == fifo.producer:
        return fifo.name
    if len(fifo.consumers) == 1:
        return f"{fifo.name}_cons"
    return f"{fifo.name}_{fifo.consumers.index(tile)}_cons"
