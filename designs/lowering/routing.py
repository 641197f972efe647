"""Stream-switch connections for every flow: a deterministic multicast router.

A flow is a tree of tiles; each destination is joined to the tree over the cheapest free lanes, with
busy links costing more. Memtiles pass a stream straight through only on the same lane (hardware
facts 3.4), so a memtile on the way is crossed as one step that takes the same lane on both sides.
When a flow finds no path, it is routed first in another attempt. Flows of packets leave their DMA
channel together; from its switch on each has lanes of its own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from npu.errors import DesignError

from ..hardware import LANES, OFFSETS, OPPOSITE, ROWS, SHIM_DMA_PORTS, Tile
from .lowered import Connection, Endpoint, Flow

Hop = tuple[Tile, str, int]  # leave a tile in a direction on a lane
_HOP_COST = 16  # against 1 per lane that a link already carries


@dataclass
class _Tree:
    """The tiles a flow has reached and the slave port by which it enters each."""

    entry: dict[Tile, tuple[str, int]]
    packet: int | None
    connections: list[Connection] = field(default_factory=list)

    def connect(self, tile: Tile, master: tuple[str, int]) -> None:
        self.connections.append(Connection(tile, self.entry[tile], master, self.packet))


class Router:
    """Routes flows on an array of `columns` columns."""

    def __init__(self, columns: int, title: str) -> None:
        self.columns = columns
        self.title = title
        self._used: dict[tuple[Tile, str], set[int]] = {}

    def route(self, flows: list[Flow]) -> list[Connection]:
        """The connections of all flows, in flow order; raises when there are not enough lanes."""
        order = list(range(len(flows)))
        moved: set[int] = set()
        while True:
            self._used = {}
            routed: dict[int, list[Connection]] = {}
            for index in order:
                failure = self._route_flow(flows[index], routed, index)
                if failure is not None:
                    break
            else:
                return [c for index in sorted(routed) for c in routed[index]]
            if index in moved:
                raise DesignError(failure)
            moved.add(index)
            order.remove(index)
            order.insert(0, index)

    def _route_flow(
        self, flow: Flow, routed: dict[int, list[Connection]], index: int
    ) -> str | None:
        """Routes one flow, or says why it cannot be routed."""
        source = flow.source
        tree = _Tree({source.tile: _source_port(source)}, flow.packet)
        tiles = sorted(flow.sinks, key=lambda s: (_distance(source.tile, s.tile), s.tile))
        for sink in tiles:
            if sink.tile not in tree.entry:
                path = self._search(tree, sink.tile)
                if path is None:
                    return self._no_route(flow, sink)
                for hop in path:
                    self._apply(tree, hop)
            tree.connect(sink.tile, _sink_port(sink))
        routed[index] = tree.connections
        return None

    def _apply(self, tree: _Tree, hop: Hop) -> None:
        tile, direction, lane = hop
        self._used.setdefault((tile, direction), set()).add(lane)
        tree.connect(tile, (direction, lane))
        end = self._neighbour(tile, direction)
        assert end is not None
        tree.entry[end] = (OPPOSITE[direction], lane)

    def _search(self, tree: _Tree, goal: Tile) -> list[Hop] | None:
        """The cheapest hops from the tree to `goal` (Dijkstra over tiles)."""
        # Ties are broken by the order of insertion, which keeps routes reproducible.
        counter = 0
        heap: list[tuple[int, int, Tile, str, list[Hop]]] = []
        for tile, (group, lane) in tree.entry.items():
            came = group if group in OFFSETS and not _is_shim_dma(tile, group) else ""
            only = lane if tile.kind == "mem" and came else -1
            for cost, hops, end in self._steps(tree, tile, came, only, goal):
                heapq.heappush(heap, (cost, counter, end, OPPOSITE[hops[-1][1]], hops))
                counter += 1
        done: set[Tile] = set(tree.entry)
        while heap:
            cost, _, tile, came, hops = heapq.heappop(heap)
            if tile in done:
                continue
            if tile == goal:
                return hops
            done.add(tile)
            for extra, more, end in self._steps(tree, tile, came, -1, goal):
                if end not in done:
                    item = (cost + extra, counter, end, OPPOSITE[more[-1][1]], [*hops, *more])
                    heapq.heappush(heap, item)
                    counter += 1
        return None

    def _steps(
        self, tree: _Tree, tile: Tile, came: str, only: int, goal: Tile
    ) -> list[tuple[int, list[Hop], Tile]]:
        """Next hops from a tile entered from `came`; `only` >= 0 fixes the lane (memtile)."""
        steps = []
        for direction in OFFSETS:
            if direction == came or (tile.kind == "mem" and direction in ("east", "west")):
                continue
            end = self._neighbour(tile, direction)
            if end is None or end in tree.entry:
                continue
            lanes = (
                self._free(tile, direction) if only < 0 else self._free(tile, direction) & {only}
            )
            if end.kind == "mem" and end != goal:
                beyond = self._neighbour(end, direction)
                lanes &= self._free(end, direction)
                if not lanes or beyond is None or beyond in tree.entry:
                    continue
                lane = min(lanes)
                cost = self._cost(tile, direction) + self._cost(end, direction)
                hops: list[Hop] = [(tile, direction, lane), (end, direction, lane)]
                steps.append((cost, hops, beyond))
            elif lanes:
                hop = (tile, direction, min(lanes))
                steps.append((self._cost(tile, direction), [hop], end))
        return steps

    def _free(self, tile: Tile, direction: str) -> set[int]:
        return set(range(LANES[direction])) - self._used.get((tile, direction), set())

    def _cost(self, tile: Tile, direction: str) -> int:
        return _HOP_COST + len(self._used.get((tile, direction), ()))

    def _neighbour(self, tile: Tile, direction: str) -> Tile | None:
        dc, dr = OFFSETS[direction]
        col, row = tile.col + dc, tile.row + dr
        return Tile(col, row) if 0 <= col < self.columns and 0 <= row < ROWS else None

    def _no_route(self, flow: Flow, sink: Endpoint) -> str:
        full = sorted(
            f"{tile} {direction} ({LANES[direction]} lanes)"
            for (tile, direction), lanes in self._used.items()
            if len(lanes) == LANES[direction]
        )
        return (
            f'{self.title} fifo "{flow.fifo}": no free lanes from {flow.source.tile} to '
            f"{sink.tile}; full links: {', '.join(full) or 'none'}"
        )


def _is_shim_dma(tile: Tile, group: str) -> bool:
    return tile.row == 0 and group == "south"


def _source_port(source: Endpoint) -> tuple[str, int]:
    if source.tile.kind == "shim":
        return ("south", SHIM_DMA_PORTS["mm2s"][source.channel][0])
    return ("dma", source.channel)


def _sink_port(sink: Endpoint) -> tuple[str, int]:
    if sink.control:
        return ("control", 0)
    if sink.tile.kind == "shim":
        return ("south", SHIM_DMA_PORTS["s2mm"][sink.channel][0])
    return ("dma", sink.channel)


def _distance(a: Tile, b: Tile) -> int:
    return abs(a.col - b.col) + abs(a.row - b.row)
