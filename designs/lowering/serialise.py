"""A lowered design as bytes: the static TXN stream and the text form of runtime/configuration.h.

The order of register writes is mlir-aie's: core resets, locks, buffer descriptors and channel
starts, stream switches, shim multiplexers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from npu._npu import arch, kernels
from npu._npu import stream as txn

from ..fifo import ShimBd
from ..hardware import (
    MASTER_PORTS,
    SHIM_DMA_PORTS,
    SLAVE_PORTS,
    Tile,
)
from .lowered import Channel, Descriptor, Instruction, Lock, Lowered, Operand
from .program_memory import PROGRAM_BYTES

_CORE_CONTROL = 0x32000
_CORE_RESET = 2
_AXCACHE = 2  # NoC upsizing, as in runtime streams (backend/ops/shim_commands.h)
_ENABLE = 1 << 31
_PACKET = 1 << 30
_DROP_HEADER, _MSEL_0 = 1 << 7, 1 << 3  # of a master port of packets
# Completion tokens leave a shim as packets of id 15 from its control port to its South port 0,
# through arbiter 5 and msel 3; the values are the ones mlir-aie writes.
_TOKEN_MASTER, _TOKEN_SLAVE = 2, 0  # register indices of South 0 and tile control
_TOKEN_ROUTE = _ENABLE | _PACKET | 1 << (3 + 3) | 5
TOKEN_ID, TOKEN_MASK = 15 << 8, 0x1F00  # in the control register of a shim channel
_TOKEN_SLOT = 15 << 24 | 0x1F << 16 | 1 << 8 | 3 << 4 | 5


def serialise(lowered: Lowered) -> bytes:
    """The configuration as bytes."""
    stream = static_stream(lowered)
    body = [f"param {name} {value}" for name, value in lowered.params.items()]
    for p in lowered.ports:
        packet = "" if p.packet is None else f" {p.packet}"
        body.append(f"port {p.name} {p.tile.col} {p.direction} {p.channel}{packet}")
    for core in lowered.cores:
        at = f"{core.tile.col} {core.tile.row}"
        body += [f"rtp {name} {at} {word.address}" for name, word in core.rtps.items()]
        if core.rtp_lock is not None:
            body.append(f"rtplock {at} {core.rtp_lock.id}")
    body += [f"rtp {r.name} {r.tile.col} {r.tile.row} {r.offset}" for r in lowered.registers]
    body += resource_lines(lowered)
    for overlay in lowered.overlays:
        body.append(f"overlay {overlay.name} {overlay.bytes} {overlay.slots}")
        body += [*program_lines(overlay.program), "endoverlay"]
    for core in lowered.cores:
        body.append(f"core {core.tile.col} {core.tile.row}")
        body += [*program_lines(core.program), "endcore"]
    body.append(f"txn {len(stream)}")
    rest = ("\n".join(body) + "\n").encode() + stream
    head = [
        "npu-config 1",
        f"name {lowered.name}",
        f"generation {lowered.generation}",
        f"source {hashlib.sha256(rest + kernels.SOURCE_HASH.encode()).hexdigest()}",
    ]
    return ("\n".join(head) + "\n").encode() + rest


def resource_lines(lowered: Lowered) -> list[str]:
    """What each tile uses of what it has."""
    lines = []
    stacks = {core.tile: core.stack for core in lowered.cores}
    programs = {core.tile: core.program_bytes for core in lowered.cores}
    for tile in lowered.tiles:
        limits = tile.limits
        channels = [c for c in lowered.channels if c.tile == tile]
        ports = [p for p in lowered.ports if p.tile == tile]
        directions = [c.direction for c in channels]
        directions += [d for d, _ in {(p.direction, p.channel) for p in ports}]
        rows = [(f"{d}_channels", directions.count(d), limits.channels) for d in ("s2mm", "mm2s")]
        if tile.kind != "shim":
            used = stacks.get(tile, 0) + sum(m.bytes for m in lowered.memories.get(tile, []))
            rows = [
                ("memory", used, limits.memory_bytes),
                ("locks", len(lowered.locks.get(tile, [])), limits.locks),
                ("bds", sum(len(c.descriptors) for c in channels), limits.bds),
                *rows,
            ]
        if (program := programs.get(tile)) is not None:
            rows.append(("program", program, PROGRAM_BYTES))
        lines += [f"resource {tile.col} {tile.row} {k} {used} {lim}" for k, used, lim in rows]
    return lines


def program_lines(program: Sequence[Instruction]) -> list[str]:
    """A worker program as text."""
    lines, depth = [], 0
    for instruction in program:
        depth -= instruction.code == "end"
        lines.append("  " * depth + _instruction(instruction))
        depth += instruction.code == "loop"
    return lines


def _instruction(i: Instruction) -> str:
    if i.code == "loop":
        if i.count is None:
            return "loop forever"
        return f"loop {i.count if isinstance(i.count, int) else f'rtp:{i.count.address}'}"
    if i.code == "end":
        return "end"
    if i.code == "call":
        return " ".join(["call", i.function, *map(_operand, i.operands)])
    if i.code == "advance":
        return f"advance {i.counter} {i.value}"
    assert i.lock is not None
    return f"{i.code} {i.lock.id} {i.value}"


def _operand(o: Operand) -> str:
    if o.kind == "constant":
        return f"#{o.value}"
    if o.rtp is not None:
        return f"${o.rtp.address}"
    text = "@" + "|".join(str(m.address) for m in o.memories)
    return text if o.counter < 0 else f"{text}%{o.counter}"


def static_stream(lowered: Lowered) -> bytes:
    """The static register writes as a TXN stream."""
    out = txn.Builder(lowered.generation, lowered.columns)
    for core in lowered.cores:
        control = arch.tile_address(core.tile.col, core.tile.row, _CORE_CONTROL)
        out.mask_write(control, _CORE_RESET, _CORE_RESET)
        out.mask_write(control, 0, _CORE_RESET)
    for tile in lowered.tiles:
        if tile.kind != "shim":
            _write_locks(out, tile, lowered.locks.get(tile, []))
        for memory in lowered.memories.get(tile, []):
            for index, word in enumerate(memory.init):
                address = memory.address + 4 * index
                out.write(arch.tile_address(tile.col, tile.row, address), word & 0xFFFFFFFF)
    for channel in lowered.channels:
        _write_channel(out, channel)
    for bd in lowered.shim_bds:
        address = arch.tile_address(bd.tile.col, bd.tile.row, shim_bd_offset(bd))
        out.block_write(address, shim_bd_words(bd, lowered.generation))
    for tile, offset in token_registers(lowered):
        out.mask_write(arch.tile_address(tile.col, tile.row, offset), TOKEN_ID, TOKEN_MASK)
    _write_switches(out, lowered)
    _write_muxes(out, lowered)
    return bytes(out.finish())


def _write_locks(out: txn.Builder, tile: Tile, locks: list[Lock]) -> None:
    """Initial values; a core's unused locks are cleared as well."""
    values = {lock.id: lock.init for lock in locks}
    ids = range(tile.limits.locks) if tile.kind == "core" else sorted(values)
    for lock in ids:
        offset = tile.limits.lock_base + 0x10 * lock
        out.write(arch.tile_address(tile.col, tile.row, offset), values.get(lock, 0))


def bd_words(descriptor: Descriptor, tile: Tile) -> list[int]:
    """Register words of a resident BD."""
    limits = tile.limits
    # A memtile sees its west and east neighbours' memory below and above its own.
    side = descriptor.memory.tile.col - tile.col
    base = limits.dma_memory_base + side * limits.memory_bytes
    address = base + descriptor.memory.address + descriptor.offset
    fields: dict[str, Any] = {
        "base": address // 4,
        "length": descriptor.bytes // 4,
        "use_next": descriptor.next is not None,
        "next_bd": descriptor.next or 0,
    }
    # Where one lock is missing, mlir-aie names the other and takes or gives 0 of it.
    take, give = descriptor.acquire or descriptor.release, descriptor.release or descriptor.acquire
    if take is not None and give is not None:
        fields["acquire_id"] = take.id + limits.dma_lock_base
        fields["release_id"] = give.id + limits.dma_lock_base
    if descriptor.acquire is not None:
        fields["acquire_enable"] = True
        fields["acquire_value"] = -1  # wait for at least 1 and take it
    if descriptor.release is not None:
        fields["release_value"] = 1
    if descriptor.access.dims:
        steps = list(descriptor.access.step)
        fields["step"] = steps + [1] * (4 - len(steps))
        wraps = list(descriptor.access.wrap)
        fields["wrap"] = wraps + [0] * (3 - len(wraps))
    if descriptor.turns > 1:
        fields["iteration_wrap"] = descriptor.turns
        fields["iteration_step"] = descriptor.turn_bytes // 4
    return list(arch.encode_bd(tile.kind, fields))


def token_registers(lowered: Lowered) -> list[tuple[Tile, int]]:
    """Control registers that get the packet id of a channel's completion tokens: tile, offset."""
    return port_registers(lowered) if lowered.token_ports else []


def port_registers(lowered: Lowered) -> list[tuple[Tile, int]]:
    """Control registers of the channels of all ports: tile, offset."""
    places = [
        (p.tile, int(arch.channel_control("shim", p.direction, p.channel))) for p in lowered.ports
    ]
    return list(dict.fromkeys(places))  # two ports may share a channel


def shim_bd_offset(bd: ShimBd) -> int:
    return bd.tile.limits.bd_base + 0x20 * bd.id


def shim_bd_words(bd: ShimBd, generation: str) -> list[int]:
    """Register words of a linear shim BD whose address streams patch."""
    burst = int(arch.device_geometry(generation)["shim_burst"])
    fields = {"length": bd.bytes // 4, "burst": burst, "axcache": _AXCACHE}
    return list(arch.encode_bd("shim", fields))


def _write_channel(out: txn.Builder, channel: Channel) -> None:
    tile = channel.tile
    for descriptor in sorted(channel.descriptors, key=lambda d: d.id):
        offset = tile.limits.bd_base + 0x20 * descriptor.id
        out.block_write(arch.tile_address(tile.col, tile.row, offset), bd_words(descriptor, tile))
    if not channel.started:
        return
    queue = arch.channel_queue(tile.kind, channel.direction, channel.index)
    control = arch.channel_control(tile.kind, channel.direction, channel.index)
    out.write(arch.tile_address(tile.col, tile.row, queue), channel.descriptors[0].id)
    out.write(arch.tile_address(tile.col, tile.row, control), 1)


def _write_switches(out: txn.Builder, lowered: Lowered) -> None:
    for tile in lowered.tiles:
        base = tile.limits.switch_base

        def write(offset: int, value: int, tile: Tile = tile, base: int = base) -> None:
            out.write(arch.tile_address(tile.col, tile.row, base + offset), value)

        for c in (c for c in lowered.connections if c.tile == tile):
            master = MASTER_PORTS[tile.kind][c.master[0]][0] + c.master[1]
            slave = SLAVE_PORTS[tile.kind][c.slave[0]][0] + c.slave[1]
            if c.packet is None:
                write(4 * master, _ENABLE | slave)
                write(0x100 + 4 * slave, _ENABLE)
                continue
            drop = _DROP_HEADER if c.master[0] == "dma" else 0
            write(4 * master, _ENABLE | _PACKET | drop | _MSEL_0 | c.packet)
            write(0x100 + 4 * slave, _ENABLE | _PACKET)
            slot = c.packet << 24 | 0x1F << 16 | 1 << 8 | c.packet
            write(0x200 + 0x10 * slave + 4 * c.packet, slot)
        if any(p.tile == tile for p in lowered.ports):
            write(4 * _TOKEN_MASTER, _TOKEN_ROUTE)
            write(0x100 + 4 * _TOKEN_SLAVE, _ENABLE | _PACKET)
            write(0x200 + 0x10 * _TOKEN_SLAVE, _TOKEN_SLOT)


def _write_muxes(out: txn.Builder, lowered: Lowered) -> None:
    """Connects the South ports of shim tiles that routes use with the DMA."""
    for c in (c for c in lowered.connections if c.tile.kind == "shim"):
        for direction, (side, lane) in (("mm2s", c.slave), ("s2mm", c.master)):
            for port, offset, shift in SHIM_DMA_PORTS[direction]:
                if (side, lane) == ("south", port):
                    address = arch.tile_address(c.tile.col, c.tile.row, offset)
                    out.mask_write(address, 1 << shift, 3 << shift)
