"""How data moves in a design: object FIFOs, what memtiles do between them, preconfigured BDs; and
the names that all parts of a design share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from npu.errors import DesignError

from .hardware import DTYPE_BYTES, Tile

Dims = Sequence[tuple[int, int]]  # (size, stride) in elements, outermost first

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Names:
    """The names of one design's FIFOs and buffers, each given once."""

    def __init__(self, design: str) -> None:
        self.design = design
        self._taken: set[str] = set()
        self.check(design)

    def check(self, name: str) -> None:
        if not _NAME.match(name):
            raise DesignError(f'[design] "{name}" is not a name; use letters, digits and "_"')

    def take(self, name: str) -> None:
        self.check(name)
        if name in self._taken:
            raise DesignError(f'[design {self.design}] the name "{name}" is used twice')
        self._taken.add(name)


@dataclass(eq=False)
class ObjectFifo:
    """Objects of one shape from a producer tile to one or several consumer tiles (broadcast).

    An end on a shim tile is a port of the configuration, an end on a core has `depth` buffers that
    the core's worker acquires, an end on a memtile belongs to a link (forward, join, split).
    """

    name: str
    producer: Tile
    consumers: tuple[Tile, ...]
    shape: tuple[int, ...]
    dtype: str
    producer_depth: int
    consumer_depth: int
    to_stream: tuple[tuple[int, int], ...]  # empty: in memory order
    from_stream: dict[Tile, tuple[tuple[int, int], ...]]
    port: str  # name of its shim end
    producer_channel: int | None
    consumer_channels: dict[Tile, int]
    producer_type: tuple[str, tuple[int, ...]]  # of the buffers at the producer, see Design.fifo
    consumer_addresses: tuple[int, ...] = ()  # of the buffers on consuming cores, if they are fixed

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]

    def type_at(self, tile: Tile) -> tuple[str, tuple[int, ...]]:
        """(dtype, shape) of the buffers at one end."""
        return self.producer_type if tile == self.producer else (self.dtype, self.shape)


@dataclass(frozen=True)
class StoreSide:
    """How one stream uses the slots of a store (Design.store). kept: the first slot of the objects
    that are sent again and again, at most `objects`. ring, slots: the first slot and the number of
    those that its objects pass through otherwise, sent once or, if streams ask for it, `times`
    times each. halves: objects that pass by arrive as the two halves of their rows, of which the
    second one may come by the other stream's way in."""

    name: str
    kept: int
    objects: int
    ring: int
    slots: int
    times: int = 1
    halves: bool = False


@dataclass(eq=False)
class Link:
    """What a memtile does between FIFOs. `offsets` are byte offsets of the parts in the object;
    a part of a split is `objects` objects of its sink."""

    kind: str  # "forward", "join", "split", "cross", "store"
    tile: Tile
    inputs: tuple[ObjectFifo, ...]
    outputs: tuple[ObjectFifo, ...]
    offsets: tuple[int, ...]
    objects: int = 1
    sides: tuple[StoreSide, ...] = ()  # of a store, one per input and output


@dataclass(frozen=True)
class ProgramPort:
    """A shim channel whose stream reaches the control ports of cores; beside: the FIFO that has the
    channel, too."""

    name: str
    tile: Tile
    channel: int
    cores: tuple[Tile, ...]
    beside: ObjectFifo | None = None


@dataclass(frozen=True)
class ShimBd:
    """A linear BD of a shim tile; streams patch its address and push it, without writing it."""

    tile: Tile
    id: int
    bytes: int
