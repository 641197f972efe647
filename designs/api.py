"""What a design author writes: tiles, object FIFOs and their links, kernels, workers.

A design states everything about placement; the lowering chooses addresses, locks, buffer
descriptors, DMA channels that were left open, and routes. Mistakes raise DesignError at the call
that makes them, limits of the hardware at lowering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from npu.errors import DesignError

from .fifo import Dims, Link, Names, ObjectFifo, ProgramPort, ShimBd, StoreSide
from .hardware import CORE_ROWS, DTYPE_BYTES, FIRST_CORE_ROW, ROWS, Tile, device_columns
from .kernel import Kernel, kernel
from .worker import Worker


@dataclass(eq=False)
class Design:
    """A description of what the array does.

    generation: "npu1" or "npu2". object_file: the compiled kernels that MLIR cores link with.
    program_over: the design is kept although the program of a core is estimated to exceed program
    memory (lowering/program_memory.py). room_over: the design is only simulated; its cores need not
    have the stack and the data section that compiled programs get (lowering/stack.py). least_stack:
    bytes of every core's stack at least, where there is no room for what others get; the estimate
    must fit all the same.
    """

    name: str
    generation: str
    object_file: str = ""
    params: dict[str, int] = field(default_factory=dict)
    fifos: list[ObjectFifo] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    shim_bds: list[ShimBd] = field(default_factory=list)
    program_ports: list[ProgramPort] = field(default_factory=list)
    token_ports: bool = (
        False  # the configuration gives the ports' completion tokens their packet id
    )

    program_over: bool = False
    room_over: bool = False
    least_stack: int | None = None

    def __post_init__(self) -> None:
        self._names = Names(self.name)
        if self.generation not in ("npu1", "npu2"):
            raise self._error(f'generation is "{self.generation}"; use "npu1" or "npu2"')
        self.columns = device_columns(self.generation)

    def tile(self, col: int, row: int) -> Tile:
        """The tile at a place of this generation's array."""
        if not (0 <= col < self.columns and 0 <= row < ROWS):
            raise self._error(
                f"tile ({col}, {row}) is outside {self.generation}: "
                f"columns 0..{self.columns - 1}, rows 0..{ROWS - 1}"
            )
        return Tile(col, row)

    def cores(self, col: int, count: int = CORE_ROWS, first: int = 0) -> list[Tile]:
        """`count` neighbouring cores of a column, upwards from its core number `first`."""
        return [self.tile(col, FIRST_CORE_ROW + first + i) for i in range(count)]

    def fifo(
        self,
        name: str,
        producer: Tile,
        consumers: Tile | Sequence[Tile],
        shape: Sequence[int] | int,
        dtype: str = "int32",
        *,
        depth: int | tuple[int, int] = 2,
        to_stream: Dims = (),
        from_stream: Dims | Mapping[Tile, Dims] = (),
        port: str | None = None,
        producer_channel: int | None = None,
        consumer_channel: int | Mapping[Tile, int] | None = None,
        producer_type: tuple[str, tuple[int, ...]] | None = None,
        consumer_addresses: tuple[int, ...] = (),
    ) -> ObjectFifo:
        """Adds an object FIFO.

        depth: objects buffered at each end, or (producer, consumers). to_stream: the order in
        which the producer's DMA reads an object; from_stream: where consumers' DMAs write what
        arrives, one pattern for all or one per tile. port: name of the shim end (default: the
        FIFO's name). producer_channel / consumer_channel: fixed DMA channels; the rest are numbered
        in order. producer_type: (dtype, shape) of a producing core's buffers where they are larger
        than an object, which is then made at their start. consumer_addresses: fixed byte addresses
        of the buffers on consuming cores, one per object.
        """
        ends = (consumers,) if isinstance(consumers, Tile) else tuple(consumers)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        depths = (depth, depth) if isinstance(depth, int) else depth
        self._names.take(name)
        what = f'fifo "{name}"'
        if not ends or len(set(ends)) != len(ends) or producer in ends:
            raise self._error(
                f"{what} needs distinct consumer tiles other than its producer, has "
                f"{[(t.col, t.row) for t in ends]} from ({producer.col}, {producer.row})"
            )
        if producer.kind == "shim" and any(t.kind == "shim" for t in ends):
            raise self._error(f"{what} goes from shim to shim; put a memtile between them")
        if producer.kind != "shim" and sum(t.kind == "shim" for t in ends) not in (0, 1):
            raise self._error(f"{what} ends at several shim tiles; a FIFO has one port")
        if dtype not in DTYPE_BYTES:
            raise self._error(f'{what} has dtype "{dtype}"; use one of {", ".join(DTYPE_BYTES)}')
        if not shape or any(size < 1 for size in shape):
            raise self._error(f"{what} has shape {shape}; sizes must be at least 1")
        if min(depths) < 1:
            raise self._error(f"{what} has depth {depth}; it must be at least 1")
        if consumer_addresses and len(consumer_addresses) != depths[1]:
            raise self._error(
                f"{what} has depth {depths[1]} and {len(consumer_addresses)} addresses for its "
                "consumers; give one per object"
            )
        fifo = ObjectFifo(
            name=name,
            producer=producer,
            consumers=ends,
            shape=shape,
            dtype=dtype,
            producer_depth=depths[0],
            consumer_depth=depths[1],
            to_stream=tuple(to_stream),
            from_stream=_per_tile(from_stream, ends),
            port=port or name,
            producer_channel=producer_channel,
            consumer_channels=_channels(consumer_channel, ends),
            producer_type=producer_type or (dtype, shape),
            consumer_addresses=consumer_addresses,
        )
        if fifo.bytes % 4:
            raise self._error(f"{what} has objects of {fifo.bytes} B; DMAs move multiples of 4 B")
        self._check_producer_type(what, fifo)
        self._names.check(fifo.port)
        self.fifos.append(fifo)
        return fifo

    def _check_producer_type(self, what: str, fifo: ObjectFifo) -> None:
        kind, shape = fifo.producer_type
        if (kind, shape) == (fifo.dtype, fifo.shape):
            return
        if fifo.producer.kind != "core" or kind not in DTYPE_BYTES:
            raise self._error(
                f"{what}: producer_type is {fifo.producer_type}; give the dtype and shape of a "
                "producing core's buffers"
            )
        if math.prod(shape) * DTYPE_BYTES[kind] < fifo.bytes:
            raise self._error(
                f"{what}: buffers of {kind}{list(shape)} are smaller than the objects of "
                f"{fifo.bytes} B"
            )

    def forward(self, source: ObjectFifo, sink: ObjectFifo) -> None:
        """At the memtile where `source` ends and `sink` begins, pass each object on.

        An object of `source` may be several of `sink`, sent one after the other; `to_stream` of
        `sink` then orders the whole of it.
        """
        if source.bytes % sink.bytes:
            raise self._error(
                f'forward "{source.name}" ({source.bytes} B) to "{sink.name}" ({sink.bytes} B): '
                "objects must have the same size, or the first a multiple of the second"
            )
        self._link("forward", sink.producer, (source,), (sink,), (0,))

    def join(
        self, sources: Sequence[ObjectFifo], sink: ObjectFifo, offsets: Sequence[int] | None = None
    ) -> None:
        """Objects of `sources` become the parts of one object of `sink`; offsets in bytes."""
        parts = self._parts("join", sources, sink, offsets)
        self._link("join", sink.producer, tuple(sources), (sink,), parts)

    def split(
        self,
        source: ObjectFifo,
        sinks: Sequence[ObjectFifo],
        offsets: Sequence[int] | None = None,
        *,
        objects: int = 1,
    ) -> None:
        """The parts of each object of `source` become objects of `sinks`; offsets in bytes.

        A part may be several `objects` of its sink, sent one after the other: longer runs of DRAM
        and deeper buffers for the same number of BDs.
        """
        parts = self._parts("split", sinks, source, offsets, objects)
        self._link("split", sinks[0].producer, (source,), tuple(sinks), parts, objects)

    def scatter(
        self,
        port: str,
        cores: Sequence[Tile],
        shape: Sequence[int] | int,
        dtype: str,
        *,
        depth: int = 2,
        part_depth: int = 2,
        channel: int | None = None,
        part_channel: int | None = None,
    ) -> list[ObjectFifo]:
        """Objects for the cores of a column, neighbours in what the port takes: the memtile splits
        that among them. Returns a FIFO per core, in the order of `cores`.

        depth, part_depth: objects buffered in the memtile and in a core. channel: of the shim tile;
        part_channel: into the cores.
        """
        shape, shim, memtile = self._column("scatter", port, cores, shape)
        whole = self.fifo(
            port, shim, memtile, (len(cores), *shape), dtype, depth=depth, producer_channel=channel
        )
        parts = [
            self.fifo(
                f"{port}_{core.row}", memtile, core, shape, dtype,
                depth=part_depth, consumer_channel=part_channel,
            )
            for core in cores
        ]  # fmt: skip
        self.split(whole, parts)
        return parts

    def gather(
        self,
        port: str,
        cores: Sequence[Tile],
        shape: Sequence[int] | int,
        dtype: str,
        *,
        depth: int = 2,
        part_depth: int | tuple[int, int] = 2,
        channel: int | None = None,
    ) -> list[ObjectFifo]:
        """The way back: objects of the cores of a column leave through the port, joined by the
        memtile. part_depth: in (core, memtile); channel: of the shim tile."""
        shape, shim, memtile = self._column("gather", port, cores, shape)
        parts = [
            self.fifo(f"{port}_{core.row}", core, memtile, shape, dtype, depth=part_depth)
            for core in cores
        ]
        whole = self.fifo(
            port, memtile, shim, (len(cores), *shape), dtype, depth=depth, consumer_channel=channel
        )
        self.join(parts, whole)
        return parts

    def _column(
        self, what: str, port: str, cores: Sequence[Tile], shape: Sequence[int] | int
    ) -> tuple[tuple[int, ...], Tile, Tile]:
        """The shape of an object as a tuple, and the shim tile and memtile of the cores' column."""
        if len({core.col for core in cores}) != 1:
            raise self._error(
                f'{what} of "{port}" needs cores of one column, has '
                f"{[(core.col, core.row) for core in cores]}"
            )
        col = cores[0].col
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return shape, self.tile(col, 0), self.tile(col, 1)

    def cross(self, sources: Sequence[ObjectFifo], sinks: Sequence[ObjectFifo]) -> None:
        """Objects of `sources` become bands of rows of one object, whose bands of columns become
        objects of `sinks`, one or several of each. `to_stream` of a sink orders what it takes of
        each band of rows, in the whole object.

        A DMA channel can wait for and report only one lock per BD, but a band of rows concerns all
        sinks: its transfer is cut so that each sink's lock is taken in the first row and given in
        the last one.
        """
        names = ", ".join(f'"{f.name}"' for f in (*sources, *sinks))
        shapes = [f.shape for f in (*sources, *sinks)]
        if not sources or not sinks or any(len(shape) != 2 for shape in shapes):
            raise self._error(f"cross of {names}: sources and sinks have objects of two dimensions")
        rows = sum(f.shape[0] for f in sources)
        width = sum(f.shape[1] for f in sinks)
        if any(f.shape[1] != width for f in sources) or any(rows % f.shape[0] for f in sinks):
            raise self._error(
                f"cross of {names}: sources must have {width} columns, all those of the sinks, and "
                f"sinks {rows} rows, all those of the sources, or a divisor"
            )
        if any(f.shape[0] < 2 for f in sources) or any(
            f.from_stream[sinks[0].producer] for f in sources
        ):
            raise self._error(
                f"cross of {names}: sources need two rows and no pattern of their own"
            )
        self._link("cross", sinks[0].producer, tuple(sources), tuple(sinks), ())

    def store(
        self,
        streams: Sequence[tuple[ObjectFifo, ObjectFifo]],
        sides: Sequence[StoreSide],
    ) -> None:
        """At a memtile, objects that runtime streams have sent once or many times.

        Each of `streams` is a FIFO that ends there and one that goes on from there, with objects of
        one size on the way in. Its DMA channels wait for tasks: a runtime stream starts them, with
        as many objects as it needs (backend/ops/gemm/gemm_store.h). The configuration says of each
        side, after its name, in parameters the first BDs of its chains (keep_in, keep_out, keep_on,
        ring_in, ring_out, again_out; with halves first_in, second_in and ahead_in, and of the other
        side beside_in) and the sizes (objects, ring, times, halves, ahead), and as RTPs of the
        memtiles the registers: tasks_in and tasks_out, the channels' queues, and of BDs, after
        their numbers, turns, the word of those that advance, and length.
        """
        outer, inner = tuple(s[0] for s in streams), tuple(s[1] for s in streams)
        names = ", ".join(f'"{f.name}"' for f in outer)
        if len({f.bytes for f in outer}) != 1 or len(sides) != len(streams):
            raise self._error(f"store of {names}: one size of objects, and a side for each stream")
        if any(a.bytes % b.bytes for a, b in streams):
            raise self._error(f"store of {names}: objects must be multiples of those sent on")
        for side, (_, inner_fifo) in zip(sides, streams, strict=True):
            if min(side.objects, side.slots, side.times) < 1:
                raise self._error(
                    f"store of {names}: {side.name} keeps {side.objects} objects and has a ring of "
                    f"{side.slots}, sent {side.times} times; at least 1 of each"
                )
            if side.halves and (len(streams) != 2 or inner_fifo.to_stream):
                raise self._error(
                    f"store of {names}: halves of {side.name} need one other stream, and a memtile "
                    "that sends objects as they lie in it"
                )
        tile = inner[0].producer
        self._link("store", tile, outer, inner, (), sides=tuple(sides))

    def shim_bd(self, tile: Tile, id: int, size: int) -> None:
        """Has the configuration write a linear BD of `size` bytes that streams only address."""
        what = f"shim BD {id} of {tile}"
        if tile.kind != "shim" or not 0 <= id < tile.limits.bds:
            raise self._error(f"{what}: shim tiles have BDs 0..{Tile(0, 0).limits.bds - 1}")
        if any((bd.tile, bd.id) == (tile, id) for bd in self.shim_bds):
            raise self._error(f"{what} is written twice")
        if size < 4 or size % 4:
            raise self._error(f"{what} has {size} B; DMAs move multiples of 4 B")
        self.shim_bds.append(ShimBd(tile, id, size))

    def programs(
        self,
        port: str,
        tile: Tile,
        channel: int,
        cores: Sequence[Tile],
        *,
        beside: ObjectFifo | None = None,
    ) -> None:
        """A shim channel by which streams send overlays to cores, all the same at once.

        beside: the FIFO that begins at this channel, if it is not free. What either port sends are
        packets then, whose ids tell switches where they go.
        """
        self._names.take(port)
        if tile.kind != "shim" or not 0 <= channel < tile.limits.channels:
            raise self._error(f'programs "{port}": {tile} has no channel {channel} of a shim tile')
        if not cores or any(core.kind != "core" for core in cores):
            raise self._error(f'programs "{port}" go to cores, not {[str(c) for c in cores]}')
        if beside is not None:
            begins = beside.producer, beside.producer_channel
            if begins != (tile, channel) or beside not in self.fifos:
                raise self._error(
                    f'programs "{port}": fifo "{beside.name}" does not begin at MM2S channel '
                    f"{channel} of {tile}; name the one whose producer_channel that is"
                )
            if any(other.beside is beside for other in self.program_ports):
                raise self._error(f'programs "{port}": fifo "{beside.name}" has others beside it')
        self.program_ports.append(ProgramPort(port, tile, channel, tuple(cores), beside))

    def worker(self, tile: Tile, *, stack_bytes: int | None = None) -> Worker:
        """The control program of a core, empty; write it with the methods of Worker. stack_bytes:
        if it needs more stack than lowering/stack.py reserves."""
        if tile.kind != "core":
            raise self._error(f"a worker was placed on {tile}; only core tiles run programs")
        if any(w.tile == tile for w in self.workers):
            raise self._error(f"{tile} has a worker already; a core runs one program")
        worker = Worker(self._names, tile, stack_bytes)
        self.workers.append(worker)
        return worker

    def kernel(
        self, name: str, arguments: Sequence[str | tuple[str, tuple[int, ...]]] | None = None
    ) -> Kernel:
        """A kernel of aie_kernels/ by name, or one of your own with its argument types.

        arguments: "int32" for a number, (dtype, shape) for a buffer.
        """
        return kernel(name, self.generation, arguments)

    def link_at(self, fifo: ObjectFifo, tile: Tile) -> Link | None:
        """The link that a FIFO's memtile end belongs to."""
        for link in self.links:
            if link.tile == tile and fifo in (*link.inputs, *link.outputs):
                return link
        return None

    def _parts(
        self,
        what: str,
        parts: Sequence[ObjectFifo],
        whole: ObjectFifo,
        offsets: Sequence[int] | None,
        objects: int = 1,
    ) -> tuple[int, ...]:
        if not parts or objects < 1:
            raise self._error(f'{what} of "{whole.name}" has no parts')
        if offsets is None:
            offsets = [objects * sum(p.bytes for p in parts[:i]) for i in range(len(parts))]
        if len(offsets) != len(parts):
            raise self._error(
                f'{what} of "{whole.name}": {len(offsets)} offsets for {len(parts)} parts'
            )
        end = 0
        for offset, part in sorted(zip(offsets, parts, strict=True), key=lambda p: p[0]):
            if offset != end:
                raise self._error(
                    f'{what} of "{whole.name}": part "{part.name}" starts at byte {offset}, the '
                    f"parts before it end at {end}; parts must tile the object"
                )
            end = offset + objects * part.bytes
        if end != whole.bytes:
            raise self._error(
                f'{what} of "{whole.name}": the parts have {end} B, the object {whole.bytes} B'
            )
        return tuple(offsets)

    def _link(
        self,
        kind: str,
        tile: Tile,
        inputs: tuple[ObjectFifo, ...],
        outputs: tuple[ObjectFifo, ...],
        offsets: tuple[int, ...],
        objects: int = 1,
        sides: tuple[StoreSide, ...] = (),
    ) -> None:
        names = " and ".join(f'"{f.name}"' for f in (*inputs, *outputs))
        at_tile = all(tile in f.consumers for f in inputs)
        if tile.kind != "mem" or not at_tile or any(f.producer != tile for f in outputs):
            raise self._error(
                f"{kind} of {names}: inputs must end and outputs begin at the same memtile; "
                f"the output begins at {tile}"
            )
        dtypes = {f.dtype for f in (*inputs, *outputs)}
        if len(dtypes) > 1:
            raise self._error(f"{kind} of {names}: element types differ ({', '.join(dtypes)})")
        for fifo in (*inputs, *outputs):
            if self.link_at(fifo, tile) is not None:
                raise self._error(f'{kind}: "{fifo.name}" is linked at {tile} already')
        self.links.append(Link(kind, tile, inputs, outputs, offsets, objects, sides))

    def _error(self, text: str) -> DesignError:
        return DesignError(f"[design {self.name}] {text}")


def _per_tile(
    dims: Dims | Mapping[Tile, Dims], tiles: tuple[Tile, ...]
) -> dict[Tile, tuple[tuple[int, int], ...]]:
    if isinstance(dims, Mapping):
        return {tile: tuple(dims.get(tile, ())) for tile in tiles}
    return {tile: tuple(dims) for tile in tiles}


def _channels(
    channels: int | Mapping[Tile, int] | None, tiles: tuple[Tile, ...]
) -> dict[Tile, int]:
    if channels is None:
        return {}
    if isinstance(channels, Mapping):
        return dict(channels)
    return {tile: channels for tile in tiles}
