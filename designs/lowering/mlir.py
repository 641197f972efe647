"""A lowered design as AIE-dialect MLIR, for mlir-aie's aiecc and Peano.

Explicit addresses, lock numbers, BD numbers and flows, in the form mlir-aie itself reaches after
lowering object FIFOs; only routing is left to it. Cores are printed by mlir_core.py. A design with
overlays is several devices: the array without cores, and for each overlay, under its name, cores
with that program, of which only program memory is wanted.
"""

from __future__ import annotations

import math

from ..hardware import DTYPE_MLIR, Tile
from .lowered import Channel, Descriptor, Endpoint, Flow, Lock, Lowered, Memory
from .mlir_core import print_core
from .serialise import TOKEN_ID, TOKEN_MASK, shim_bd_offset, shim_bd_words, token_registers

# mlir-aie's packet ids per row (the column-wise unique set), used by completion tokens.
_CONTROLLER_IDS = (15, 26, 27, 29, 30, 31)
_TILE_NAMES = {"shim": "shim_noc_tile", "mem": "mem_tile", "core": "tile"}


def print_mlir(lowered: Lowered) -> str:
    """The module text."""
    lines = _tiles(lowered, lowered.tiles)
    for flow in lowered.flows:
        lines += _flow(flow)
    for core in lowered.cores:
        if not core.overlays:
            lines += print_core(core, core.program, tile_name(core.tile), lowered.object_file)
    for port in lowered.ports:
        lines.append(
            f"aie.shim_dma_allocation @{port.name}_shim_alloc({tile_name(port.tile)}, "
            f"{port.direction.upper()}, {port.channel})"
        )
    for tile in lowered.tiles:
        channels = [c for c in lowered.channels if c.tile == tile]
        if channels:
            lines += _dma(tile, channels)
    for tile in sorted({p.tile for p in lowered.ports}):
        lines += _token_flow(tile)
    lines += _shim_setup(lowered)
    devices = _device(lowered, "", lines)
    for overlay in lowered.overlays:
        cores = [core for core in lowered.cores if core.overlays]
        lines = _tiles(lowered, [core.tile for core in cores])
        for core in cores:
            program = core.overlays[overlay.name]
            lines += print_core(core, program, tile_name(core.tile), lowered.object_file)
        devices += _device(lowered, f" @{overlay.name}", lines)
    return f"module {{\n{devices}}}\n"


def _device(lowered: Lowered, name: str, lines: list[str]) -> str:
    body = "\n".join("    " + line if line else "" for line in lines)
    return f"  aie.device({lowered.generation}){name} {{\n{body}\n  }}\n"


def _tiles(lowered: Lowered, tiles: list[Tile]) -> list[str]:
    """Kernels, and tiles with their buffers and locks."""
    lines: list[str] = []
    for name, arguments in lowered.kernels.items():
        types = ", ".join(DTYPE_MLIR[a] if isinstance(a, str) else memref(*a) for a in arguments)
        lines.append(f"func.func private @{name}({types})")
    for tile in tiles:
        lines.append(
            f"{tile_name(tile)} = aie.tile({tile.col}, {tile.row}) {{controller_id = "
            f"#aie.packet_info<pkt_type = 0, pkt_id = {_CONTROLLER_IDS[tile.row]}>}}"
        )
    for tile in tiles:
        lines += [_buffer(m) for m in lowered.memories.get(tile, [])]
        lines += [_lock(k) for k in lowered.locks.get(tile, [])]
    return lines


def _flow(flow: Flow) -> list[str]:
    source = f"{tile_name(flow.source.tile)}, DMA : {flow.source.channel}"
    sinks = [f"{tile_name(sink.tile)}, {_port(sink)}" for sink in flow.sinks]
    if flow.packet is None:
        return [f"aie.flow({source}, {sink})" for sink in sinks]
    keep = " {keep_pkt_header = true}" if flow.sinks[0].control else ""
    return [
        f"aie.packet_flow({flow.packet}) {{",
        f"  aie.packet_source<{source}>",
        *(f"  aie.packet_dest<{sink}>" for sink in sinks),
        "}" + keep,
    ]


def _port(sink: Endpoint) -> str:
    return "TileControl : 0" if sink.control else f"DMA : {sink.channel}"


def tile_name(tile: Tile) -> str:
    return f"%{_TILE_NAMES[tile.kind]}_{tile.col}_{tile.row}"


def memref(dtype: str, shape: tuple[int, ...]) -> str:
    return f"memref<{'x'.join(map(str, shape))}x{DTYPE_MLIR[dtype]}>"


def _buffer(memory: Memory) -> str:
    limits = memory.tile.limits
    kind = memref(memory.dtype, memory.shape)
    bank = memory.address // (limits.memory_bytes // limits.banks)
    words = [*memory.init, *[0] * (math.prod(memory.shape) - len(memory.init))]
    begin = f" = dense<[{', '.join(map(str, words))}]>" if memory.init else ""
    return (
        f"%{memory.name} = aie.buffer({tile_name(memory.tile)}) {{"
        f"address = {memory.address} : i32, "
        f'mem_bank = {bank} : i32, sym_name = "{memory.name}"}} : {kind}{begin}'
    )


def _lock(lock: Lock) -> str:
    return (
        f"%{lock.name} = aie.lock({tile_name(lock.tile)}, {lock.id}) "
        f'{{init = {lock.init} : i32, sym_name = "{lock.name}"}}'
    )


def _dma(tile: Tile, channels: list[Channel]) -> list[str]:
    """aie.mem or aie.memtile_dma with one looping block chain per channel."""
    operation = "memtile_dma" if tile.kind == "mem" else "mem"
    lines = [f"%{operation}_{tile.col}_{tile.row} = aie.{operation}({tile_name(tile)}) {{"]
    block = 1
    for number, channel in enumerate(channels):
        count = len(channel.descriptors)
        first, after = block, block + count
        if number:
            lines.append(f"^bb{first - 1}:")
        head = (
            f"aie.dma_start({channel.direction.upper()}, {channel.index}, ^bb{first}, ^bb{after})"
        )
        lines.append(f"  %{number} = {head}")
        for index, descriptor in enumerate(channel.descriptors):
            lines.append(f"^bb{first + index}:")
            lines += _descriptor(descriptor)
            lines.append(f"  aie.next_bd ^bb{first + (index + 1) % count}")
        block = after + 1
    return [*lines, f"^bb{block - 1}:", "  aie.end", "}"]


def _descriptor(d: Descriptor) -> list[str]:
    offset, length = d.offset // d.element_bytes, d.bytes // d.element_bytes
    dims = ", ".join(f"<size = {size}, stride = {stride}>" for size, stride in d.access.dims)
    pattern = f", [{dims}]" if dims else ""
    kind = memref(d.memory.dtype, d.memory.shape)
    take = [f"  aie.use_lock(%{d.acquire.name}, AcquireGreaterEqual, 1)"] if d.acquire else []
    give = [f"  aie.use_lock(%{d.release.name}, Release, 1)"] if d.release else []
    move = (
        f"  aie.dma_bd(%{d.memory.name} : {kind}, {offset}, {length}{pattern}) "
        f"{{bd_id = {d.id} : i32, next_bd_id = {d.next} : i32}}"
    )
    return [*take, move, *give]


def _shim_setup(lowered: Lowered) -> list[str]:
    """Registers of shim tiles: a sequence for the host to run once, after loading the array."""
    lines = []
    for bd in lowered.shim_bds:
        for index, word in enumerate(shim_bd_words(bd, lowered.generation)):
            lines.append(
                f"  aiex.npu.write32 {{address = {shim_bd_offset(bd) + 4 * index} : ui32, "
                f"column = {bd.tile.col} : i32, row = {bd.tile.row} : i32, value = {word} : ui32}}"
            )
    for tile, offset in token_registers(lowered):
        lines.append(
            f"  aiex.npu.maskwrite32 {{address = {offset} : ui32, "
            f"column = {tile.col} : i32, row = {tile.row} : i32, "
            f"value = {TOKEN_ID} : ui32, mask = {TOKEN_MASK} : ui32}}"
        )
    return ["aie.runtime_sequence @shim_setup() {", *lines, "}"] if lines else []


def _token_flow(tile: Tile) -> list[str]:
    """The packet route of completion tokens to the command processor."""
    name = tile_name(tile)
    return [
        f"aie.packet_flow({_CONTROLLER_IDS[0]}) {{",
        f"  aie.packet_source<{name}, TileControl : 0>",
        f"  aie.packet_dest<{name}, South : 0>",
        "} {keep_pkt_header = true, priority_route = true}",
    ]
