"""What a configuration leaves in each tile, in words: memories, BDs, locks, queues, routes, core.

Made of the operations of a stream (npu.stream.operations); registers without a name here are
counted. Field positions: docs/reference/hardware.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from npu import stream
from npu._npu import arch

_COL_SHIFT, _ROW_SHIFT, _ROWS = 25, 20, 6
_PROGRAM, _PROGRAM_END = 0x20000, 0x24000
_CORE_CONTROL = 0x32000
_MUX, _DEMUX = 0x1F000, 0x1F004
_BD_STRIDE, _LOCK_STRIDE = 0x20, 0x10


@dataclasses.dataclass
class Area:
    """Bytes written to a memory: ``end`` is one past the last."""

    words: int = 0
    begin: int = 1 << 32
    end: int = 0

    def add(self, offset: int, words: int) -> None:
        self.words += words
        self.begin, self.end = min(self.begin, offset), max(self.end, offset + 4 * words)

    def __str__(self) -> str:
        return f"{4 * self.words} bytes in 0x{self.begin:x}..0x{self.end:x}"


@dataclasses.dataclass
class Tile:
    """``registers`` by offset, but for memories; ``pushes`` are (offset, value) of task queues."""

    col: int
    row: int
    memory: Area = dataclasses.field(default_factory=Area)
    program: Area = dataclasses.field(default_factory=Area)
    registers: dict[int, int] = dataclasses.field(default_factory=dict)
    pushes: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    @property
    def kind(self) -> str:
        return ("shim", "mem")[self.row] if self.row < 2 else "core"

    @property
    def geometry(self) -> Mapping[str, Any]:
        return arch.tile_geometry(self.kind)

    @property
    def enabled(self) -> bool | None:
        """Whether the core runs at the end; None if its control register was never written."""
        value = self.registers.get(_CORE_CONTROL) if self.kind == "core" else None
        return None if value is None else value & 3 == 1


def summarise(operations: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int], Tile]:
    """The tiles that the operations write to, by (column, row)."""
    tiles: dict[tuple[int, int], Tile] = {}
    for op in operations:
        if op["opcode"] not in ("WRITE", "BLOCKWRITE", "MASKWRITE"):
            continue
        address = op["address"]
        place = (address >> _COL_SHIFT, address >> _ROW_SHIFT & 0x1F)
        if place[1] >= _ROWS:
            continue
        tile = tiles.setdefault(place, Tile(*place))
        offset = address & 0xFFFFF
        _write(tile, offset, op.get("data") or [op.get("value", 0)], op.get("mask"))
    return dict(sorted(tiles.items()))


def _write(tile: Tile, offset: int, values: list[int], mask: int | None) -> None:
    geometry = tile.geometry
    if offset < geometry["memory_bytes"]:
        tile.memory.add(offset, len(values))
    elif tile.kind == "core" and _PROGRAM <= offset < _PROGRAM_END:
        tile.program.add(offset - _PROGRAM, len(values))
    else:
        for index, value in enumerate(values):
            at = offset + 4 * index
            if mask is not None:
                value = tile.registers.get(at, 0) & ~mask | value & mask
            if _is_queue(geometry, at):
                tile.pushes.append((at, value))
            else:
                tile.registers[at] = value


def _is_queue(geometry: Mapping[str, Any], offset: int) -> bool:
    first = min(geometry["s2mm_base"], geometry["mm2s_base"])
    return 0 <= offset - first < 16 * geometry["channels"] and offset % 8 == 4


def describe(tile: Tile) -> list[str]:
    """Lines about one tile, the first of which begins with its name."""
    facts: list[str] = []
    if tile.enabled is not None:
        facts.append("enabled" if tile.enabled else "disabled")
    if tile.program.words:
        facts.append(f"program {tile.program}")
    if tile.memory.words:
        facts.append(f"memory {tile.memory}")
    bds = sorted(_bds(tile))
    if bds:
        facts.append(f"bds {_ranges(bds)}")
    locks = _locks(tile)
    if locks:
        facts.append("locks " + " ".join(f"{lock}={value}" for lock, value in locks))
    facts += [_push(tile, offset, value) for offset, value in tile.pushes]
    lines = [f"{tile.kind}({tile.col},{tile.row}): " + ("; ".join(facts) or "routes")]
    routes = list(_routes(tile))
    if routes:
        lines.append("  routes " + ", ".join(routes))
    return lines


def _bds(tile: Tile) -> set[int]:
    base, count = tile.geometry["bd_base"], tile.geometry["bds"]
    indices = ((offset - base) // _BD_STRIDE for offset in tile.registers if offset >= base)
    return {index for index in indices if index < count}


def _locks(tile: Tile) -> list[tuple[int, int]]:
    base, count = tile.geometry["lock_base"], tile.geometry["locks"]
    found = (
        ((offset - base) // _LOCK_STRIDE, value)
        for offset, value in sorted(tile.registers.items())
        if offset >= base
    )
    return [(lock, value) for lock, value in found if lock < count]


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers: "0-3, 24"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def _push(tile: Tile, offset: int, value: int) -> str:
    base = {name: tile.geometry[f"{name}_base"] for name in ("s2mm", "mm2s")}
    size = 8 * tile.geometry["channels"]
    name = "s2mm" if 0 <= offset - base["s2mm"] < size else "mm2s"
    return f"{name}[{(offset - base[name]) // 8}] starts bd[{value & 0x3F}]"


def _routes(tile: Tile) -> Iterator[str]:
    """Circuits as "south 1 -> dma 0", packets as "packets 15/31 of control 0 -> south 0"."""
    base = tile.geometry["switch_base"]
    masters = arch.switch_ports(tile.kind, True)
    slaves = arch.switch_ports(tile.kind, False)
    value = tile.registers.get
    packet_masters = []
    for index in range(64):
        config = value(base + 4 * index, 0)
        if not config >> 31:
            continue
        if config >> 30 & 1:
            packet_masters.append((index, config))
        else:
            yield f"{_port(slaves, config & 0x1F)} -> {_port(masters, index)}"
    for slot in range(0, 4 * 64):
        config = value(base + 0x200 + 4 * slot, 0)
        if not config >> 8 & 1:
            continue
        arbiter, msel = config & 7, config >> 4 & 3
        targets = [
            _port(masters, index)
            for index, master in packet_masters
            if master & 7 == arbiter and master >> 3 + msel & 1
        ]
        yield (
            f"packets {config >> 24 & 0x1F}/{config >> 16 & 0x1F} of {_port(slaves, slot // 4)} -> "
            + (" and ".join(targets) or "nowhere")
        )
    yield from _shim_dma(tile)


def _shim_dma(tile: Tile) -> Iterator[str]:
    if tile.kind != "shim":
        return
    for direction in ("mm2s", "s2mm"):
        for channel in range(tile.geometry["channels"]):
            lane, offset, shift = arch.shim_dma_port(direction, channel)
            if tile.registers.get(offset, 0) >> shift & 3 == 1:
                yield f"{direction}[{channel}] on south {lane}"


def _port(ports: Mapping[str, tuple[int, int]], index: int) -> str:
    for side, (first, count) in ports.items():
        if first <= index < first + count:
            return f"{side} {index - first}"
    return f"port {index}"


def cores(txn: bytes) -> dict[tuple[int, int], bool]:
    """Which cores the stream leaves enabled, of those whose control register it writes."""
    found = summarise(stream.operations(txn))
    return {place: tile.enabled for place, tile in found.items() if tile.enabled is not None}
