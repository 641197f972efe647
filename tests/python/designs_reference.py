"""Independent readers for the design tests: TXN bytes to a register file, BD words to addresses,
switch registers to streams, and the text form of a configuration.

Nothing here uses npu: offsets and bit positions are written down again from the register tables of
aie-rt (AIE2 and AIE2P have the same ones), so that an error in ours cannot hide.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import product

Tile = tuple[int, int]


@dataclass
class Registers:
    """What a static stream leaves in the registers of each tile: (col, row) -> offset -> value."""

    tiles: dict[Tile, dict[int, int]] = field(default_factory=dict)
    pushes: list[tuple[Tile, int, int]] = field(default_factory=list)  # queue writes, in order

    def get(self, tile: Tile, offset: int) -> int:
        return self.tiles.get(tile, {}).get(offset, 0)

    def put(self, address: int, value: int, mask: int = 0xFFFFFFFF) -> None:
        tile, offset = (address >> 25, address >> 20 & 31), address & 0xFFFFF
        registers = self.tiles.setdefault(tile, {})
        registers[offset] = registers.get(offset, 0) & ~mask | value & mask
        if is_queue(tile, offset):
            self.pushes.append((tile, offset, value))


def is_queue(tile: Tile, offset: int) -> bool:
    if tile[1] == 1:
        return 0xA0600 <= offset < 0xA0660 and offset % 8 == 4
    return tile[1] > 1 and 0x1DE00 <= offset < 0x1DE20 and offset % 8 == 4


def run_txn(data: bytes) -> Registers:
    """Executes WRITE, BLOCKWRITE and MASKWRITE of a version 0.1 stream."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    assert words[3] == len(data)
    out, at, count = Registers(), 4, 0
    while at < len(words):
        code = words[at] & 0xFF
        if code == 0:
            out.put(words[at + 2], words[at + 4])
            at += 6
        elif code == 1:
            size = words[at + 3] // 4
            for i, value in enumerate(words[at + 4 : at + size]):
                out.put(words[at + 2] + 4 * i, value)
            at += size
        else:
            assert code == 3, f"operation {code}"
            out.put(words[at + 2], words[at + 4], words[at + 5])
            at += 7
        count += 1
    assert count == words[2]
    return out


@dataclass
class Configuration:
    """The serialised form, read line by line."""

    head: dict[str, str]
    params: dict[str, int]
    ports: dict[str, tuple[int, str, int]]
    rtps: dict[tuple[str, Tile], int]
    rtp_locks: dict[Tile, int]
    resources: dict[tuple[int, int, str], tuple[int, int]]
    cores: dict[Tile, list[str]]
    txn: bytes
    # Of every overlay the bytes of its image, the address of its counters, its program.
    overlays: dict[str, tuple[int, int, list[str]]] = field(default_factory=dict)
    packets: dict[str, int] = field(default_factory=dict)  # ids, by port


def read_configuration(data: bytes) -> Configuration:
    out = Configuration({}, {}, {}, {}, {}, {}, {}, b"")
    core: list[str] | None = None
    while data:
        raw, _, data = data.partition(b"\n")
        words = raw.decode().split()
        if core is not None:
            if words in (["endcore"], ["endoverlay"]):
                core = None
            else:
                core.append(" ".join(words))
        elif words[0] == "param":
            out.params[words[1]] = int(words[2])
        elif words[0] == "port":
            assert words[1] not in out.ports
            out.ports[words[1]] = (int(words[2]), words[3], int(words[4]))
            if len(words) > 5:
                out.packets[words[1]] = int(words[5])
        elif words[0] == "rtp":
            out.rtps[words[1], (int(words[2]), int(words[3]))] = int(words[4])
        elif words[0] == "rtplock":
            out.rtp_locks[int(words[1]), int(words[2])] = int(words[3])
        elif words[0] == "resource":
            out.resources[int(words[1]), int(words[2]), words[3]] = (int(words[4]), int(words[5]))
        elif words[0] == "core":
            core = out.cores.setdefault((int(words[1]), int(words[2])), [])
        elif words[0] == "overlay":
            core = []
            out.overlays[words[1]] = (int(words[2]), int(words[3]), core)
        elif words[0] == "txn":
            assert len(data) == int(words[1])
            out.txn, data = data, b""
        else:
            assert words[0] in ("npu-config", "name", "generation", "source"), raw
            out.head[words[0]] = words[1]
    return out


@dataclass
class Bd:
    """A decoded BD: byte addresses in the tile's own memory, in stream order, and its locks."""

    base: int
    length: int  # words
    step: list[int]
    wrap: list[int]
    next: int
    use_next: bool
    acquire: tuple[int, int]  # lock, value
    release: tuple[int, int]
    words: tuple[int, ...]

    def addresses(self) -> list[int]:
        """Brute force: the odometer of the address generator, one word at a time."""
        counts, out = [0] * len(self.step), []
        for _ in range(self.length):
            out.append(self.base + 4 * sum(c * s for c, s in zip(counts, self.step, strict=True)))
            for dim in range(len(counts)):
                counts[dim] += 1
                wrap = self.wrap[dim] if dim < len(self.wrap) else 0
                if wrap == 0 or counts[dim] < wrap:
                    break
                counts[dim] = 0
        return out


def _signed(value: int) -> int:
    return value - 128 if value & 64 else value


def read_bd(registers: Registers, tile: Tile, number: int) -> Bd:
    if tile[1] == 1:
        w = [registers.get(tile, 0xA0000 + 0x20 * number + 4 * i) for i in range(8)]
        assert w[7] >> 31 == 1, f"BD {number} of {tile} is not valid"
        assert w[7] >> 15 & 1 == 1
        own = 0x80000 // 4  # the tile's own memory, in words, as its DMA sees it
        return Bd(
            base=((w[1] & 0x7FFFF) - own) * 4,
            length=w[0] & 0x1FFFF,
            step=[(w[2 + i] & 0x1FFFF) + 1 for i in range(4)],
            wrap=[w[2 + i] >> 17 & 0x3FF for i in range(3)],
            next=w[1] >> 20 & 63,
            use_next=bool(w[1] >> 19 & 1),
            acquire=((w[7] & 0xFF) - 64, _signed(w[7] >> 8 & 0x7F)),
            release=((w[7] >> 16 & 0xFF) - 64, _signed(w[7] >> 24 & 0x7F)),
            words=tuple(w),
        )
    w = [registers.get(tile, 0x1D000 + 0x20 * number + 4 * i) for i in range(6)]
    assert w[5] >> 25 & 1 == 1, f"BD {number} of {tile} is not valid"
    assert w[5] >> 12 & 1 == 1
    return Bd(
        base=(w[0] >> 14) * 4,
        length=w[0] & 0x3FFF,
        step=[(w[2] & 0x1FFF) + 1, (w[2] >> 13 & 0x1FFF) + 1, (w[3] & 0x1FFF) + 1],
        wrap=[w[3] >> 13 & 0xFF, w[3] >> 21 & 0xFF],
        next=w[5] >> 27 & 15,
        use_next=bool(w[5] >> 26 & 1),
        acquire=(w[5] & 15, _signed(w[5] >> 5 & 0x7F)),
        release=(w[5] >> 13 & 15, _signed(w[5] >> 18 & 0x7F)),
        words=tuple(w),
    )


def chains(registers: Registers) -> dict[tuple[Tile, str, int], list[Bd]]:
    """Per started channel, the BDs of its chain until it closes on its first BD."""
    out = {}
    for tile, offset, start in registers.pushes:
        first = 0xA0600 if tile[1] == 1 else 0x1DE00
        mm2s = 0xA0630 if tile[1] == 1 else 0x1DE10
        direction = "mm2s" if offset >= mm2s else "s2mm"
        channel = (offset - (mm2s if direction == "mm2s" else first)) // 8
        bds, number = [], start & 0x3F
        while True:
            bds.append(read_bd(registers, tile, number))
            assert bds[-1].use_next
            number = bds[-1].next
            if number == start & 0x3F:
                break
            assert len(bds) < 48, "the chain does not return to its first BD"
        out[tile, direction, channel] = bds
    return out


def lock_values(registers: Registers) -> dict[tuple[Tile, int], int]:
    """Nonzero initial lock values."""
    out = {}
    for tile, offsets in registers.tiles.items():
        base, count = (0xC0000, 64) if tile[1] == 1 else (0x1F000, 16)
        if tile[1] == 0:
            base = 0x14000
        for i in range(count):
            if offsets.get(base + 16 * i, 0):
                out[tile, i] = offsets[base + 16 * i]
    return out


# Switch ports in register order, as "<direction><index>".
def _ports(*groups: tuple[str, int]) -> list[str]:
    return [f"{name}{i}" for name, count in groups for i in range(count)]


MASTERS = {
    "core": _ports(("core", 1), ("dma", 2), ("ctrl", 1), ("fifo", 1), ("S", 4), ("W", 4), ("N", 6),
                   ("E", 4)),
    "mem": _ports(("dma", 6), ("ctrl", 1), ("S", 4), ("N", 6)),
    "shim": _ports(("ctrl", 1), ("fifo", 1), ("S", 6), ("W", 4), ("N", 6), ("E", 4)),
}  # fmt: skip
SLAVES = {
    "core": _ports(("core", 1), ("dma", 2), ("ctrl", 1), ("fifo", 1), ("S", 6), ("W", 4), ("N", 4),
                   ("E", 4), ("trace", 2)),
    "mem": _ports(("dma", 6), ("ctrl", 1), ("S", 6), ("N", 4), ("trace", 1)),
    "shim": _ports(("ctrl", 1), ("fifo", 1), ("S", 8), ("W", 4), ("N", 4), ("E", 4), ("trace", 1)),
}  # fmt: skip
_WIRES = {"N": ((0, 1), "S"), "S": ((0, -1), "N"), "E": ((1, 0), "W"), "W": ((-1, 0), "E")}


def tile_kind(tile: Tile) -> str:
    return "shim" if tile[1] == 0 else "mem" if tile[1] == 1 else "core"


def circuits(registers: Registers, tile: Tile) -> list[tuple[str, str]]:
    """(slave, master) pairs of a switch; checks that they are legal and the slave is enabled."""
    kind = tile_kind(tile)
    base = 0xB0000 if kind == "mem" else 0x3F000
    out = []
    for index, master in enumerate(MASTERS[kind]):
        value = registers.get(tile, base + 4 * index)
        if value >> 31 == 0 or value >> 30 & 1:
            continue
        slave = SLAVES[kind][value & 0x1F]
        assert registers.get(tile, base + 0x100 + 4 * (value & 0x1F)) == 1 << 31
        _check_legal(kind, slave, master)
        out.append((slave, master))
    return out


def _check_legal(kind: str, slave: str, master: str) -> None:
    s, m, same = slave[:-1], master[:-1], slave[-1] == master[-1]
    if kind == "mem":
        if s == m == "dma" or {s, m} <= {"N", "S"}:
            assert same, f"memtile {slave} -> {master}"
        assert s in ("dma", "N", "S") and m in ("dma", "N", "S")
    elif s == m and not (kind == "shim" and s == "S"):
        assert same, f"{kind} {slave} -> {master}"


def streams(registers: Registers, columns: int) -> dict[tuple[Tile, int], set[tuple[Tile, int]]]:
    """Follows every stream from its MM2S channel to the S2MM channels that receive it."""
    switches = {tile: circuits(registers, tile) for tile in product(range(columns), range(6))}
    out: dict[tuple[Tile, int], set[tuple[Tile, int]]] = {}
    followed: set[tuple[Tile, str]] = set()

    def follow(tile: Tile, slave: str, sinks: set[tuple[Tile, int]]) -> None:
        masters = [m for s, m in switches[tile] if s == slave]
        assert masters, f"{tile}: nothing is connected to {slave}"
        for master in masters:
            assert (tile, master) not in followed, "a loop, or two streams on one wire"
            followed.add((tile, master))
            name, index = master[:-1], int(master[-1])
            if name == "dma":
                sinks.add((tile, index))
            elif tile[1] == 0 and name == "S":
                assert registers.get(tile, 0x1F004) >> {2: 4, 3: 6}[index] & 3 == 1
                sinks.add((tile, {2: 0, 3: 1}[index]))
            else:
                (dc, dr), entry = _WIRES[name]
                follow((tile[0] + dc, tile[1] + dr), f"{entry}{index}", sinks)

    for tile, pairs in switches.items():
        for slave in dict.fromkeys(s for s, _ in pairs):
            channel = None
            if slave.startswith("dma"):
                channel = int(slave[-1])
            elif tile[1] == 0 and slave in ("S3", "S7"):
                channel = {"S3": 0, "S7": 1}[slave]
                assert registers.get(tile, 0x1F000) >> {0: 10, 1: 14}[channel] & 3 == 1
            if channel is not None:
                follow(tile, slave, out.setdefault((tile, channel), set()))
    for tile, pairs in switches.items():
        for _, master in pairs:
            assert (tile, master) in followed, f"{tile}: {master} is fed by no DMA"
    return out
