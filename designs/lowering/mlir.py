"""A lowered design as AIE-dialect MLIR, for mlir-aie's aiecc and Peano.

Explicit addresses, lock numbers, BD numbers and flows, in the form mlir-aie itself reaches after
lowering object FIFOs; only routing is left to it. Cores are printed by mlir_core.py, what mlir-aie
has written in two ways by mlir_syntax.py. A design with overlays is several devices: the array
without cores, and for each overlay, under its name, cores with that program, of which only program
memory is wanted.

Tiles ask for basic-sequential allocation, which keeps addresses; mlir-aie's default moves buffers
that have one. Each kernel's declaration names the object file that has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from npu.errors import DesignError

from ..hardware import DTYPE_MLIR, Tile
from .lowered import (
    Channel,
    Descriptor,
    Endpoint,
    Flow,
    Instruction,
    Lock,
    Lowered,
    Memory,
)
from .mlir_core import print_core
from .mlir_syntax import Syntax
from .mlir_words import in_words
from .setup import writes

# mlir-aie's packet ids per row (the column-wise unique set), used by completion tokens.
_CONTROLLER_IDS = (15, 26, 27, 29, 30, 31)
_TILE_NAMES = {"shim": "shim_noc_tile", "mem": "mem_tile", "core": "tile"}


SETUP = "setup"  # name of the runtime sequence
_ARGUMENTS = 16  # of the sequence: the buffers that a submission passes at most


def print_mlir(lowered: Lowered, *, operands: bool = True) -> str:
    """The module text. operands: as mlir-aie reads it since 2026-07, see mlir_syntax.py.
    Raises DesignError for a pattern that mlir-aie refuses, see mlir_words.py."""
    if started := [c for c in lowered.channels if not c.started]:
        raise DesignError(
            f"[mlir {lowered.name}] {started[0].tile}: runtime streams start the tasks of fifo "
            f'"{started[0].fifo}", for which mlir-aie has no form beside aie.dma_start; this '
            "design can only be simulated"
        )
    lowered = in_words(lowered)
    plain = [core for core in lowered.cores if not core.overlays]
    lines = _tiles(lowered, lowered.tiles, [core.program for core in plain])
    for flow in lowered.flows:
        lines += _flow(flow)
    for core in plain:
        lines += print_core(core, core.program, tile_name(core.tile), Syntax(operands))
    for port in lowered.ports:
        lines.append(
            f"aie.shim_dma_allocation @{port.name}_shim_alloc({tile_name(port.tile)}, "
            f"{port.direction.upper()}, {port.channel})"
        )
    for tile in lowered.tiles:
        channels = [c for c in lowered.channels if c.tile == tile]
        if channels:
            lines += _dma(tile, channels, operands)
    for tile in sorted({p.tile for p in lowered.ports}):
        lines += _token_flow(tile)
    lines += _setup(lowered, Syntax(operands))
    devices = _device(lowered, "", lines)
    for overlay in lowered.overlays:
        cores = [core for core in lowered.cores if core.overlays]
        programs = [core.overlays[overlay.name] for core in cores]
        lines = _tiles(lowered, [core.tile for core in cores], programs)
        for core, program in zip(cores, programs, strict=True):
            lines += print_core(core, program, tile_name(core.tile), Syntax(operands))
        devices += _device(lowered, f" @{overlay.name}", lines)
    return f"module {{\n{devices}}}\n"


def kernels_of(programs: Iterable[list[Instruction]]) -> set[str]:
    """Names of the kernels that programs call."""
    return {i.function for program in programs for i in program if i.code == "call"}


def _device(lowered: Lowered, name: str, lines: list[str]) -> str:
    body = "\n".join("    " + line if line else "" for line in lines)
    return f"  aie.device({lowered.generation}){name} {{\n{body}\n  }}\n"


def _tiles(lowered: Lowered, tiles: list[Tile], programs: list[list[Instruction]]) -> list[str]:
    """The kernels that programs call, and tiles with their buffers and locks."""
    lines: list[str] = []
    called = kernels_of(programs)
    link = f' attributes {{link_with = "{lowered.object_file}"}}' if lowered.object_file else ""
    for name, arguments in lowered.kernels.items():
        if name in called:
            types = (DTYPE_MLIR[a] if isinstance(a, str) else memref(*a) for a in arguments)
            lines.append(f"func.func private @{name}({', '.join(types)}){link}")
    for tile in tiles:
        scheme = "" if tile.kind == "shim" else 'allocation_scheme = "basic-sequential", '
        lines.append(
            f"{tile_name(tile)} = aie.tile({tile.col}, {tile.row}) {{{scheme}controller_id = "
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
    kind = memref(memory.dtype, memory.shape)
    words = [*memory.init, *[0] * (math.prod(memory.shape) - len(memory.init))]
    begin = f" = dense<[{', '.join(map(str, words))}]>" if memory.init else ""
    return (
        f"%{memory.name} = aie.buffer({tile_name(memory.tile)}) {{"
        f"address = {memory.address} : i32, "
        f'sym_name = "{memory.name}"}} : {kind}{begin}'
    )


def _lock(lock: Lock) -> str:
    return (
        f"%{lock.name} = aie.lock({tile_name(lock.tile)}, {lock.id}) "
        f'{{init = {lock.init} : i32, sym_name = "{lock.name}"}}'
    )


def _dma(tile: Tile, channels: list[Channel], operands: bool) -> list[str]:
    """aie.mem or aie.memtile_dma with one looping block chain per channel."""
    operation = "memtile_dma" if tile.kind == "mem" else "mem"
    lines, syntax = [], Syntax(operands)
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
            lines += _descriptor(descriptor, syntax)
            lines.append(f"  aie.next_bd ^bb{first + (index + 1) % count}")
        block = after + 1
    head = f"%{operation}_{tile.col}_{tile.row} = aie.{operation}({tile_name(tile)}) {{"
    numbers = ["  " + line for line in syntax.definitions()]
    return [head, *numbers, *lines, f"^bb{block - 1}:", "  aie.end", "}"]


def _descriptor(d: Descriptor, syntax: Syntax) -> list[str]:
    """One that takes or gives no lock names the other one's, of which it takes or gives 0: mlir-aie
    configures both or none (AIERT.cpp, configureLocksInBdBlock). Taking 0 is an Acquire, because
    aiecc's canonicalizer erases an AcquireGreaterEqual of 0, and then fails."""
    offset, length = d.offset // d.element_bytes, d.bytes // d.element_bytes
    take, give = d.acquire or d.release, d.release or d.acquire
    lines = []
    if take is not None:
        if d.acquire:
            lines.append(syntax.use_lock(take.name, "AcquireGreaterEqual", 1))
        else:
            lines.append(syntax.use_lock(take.name, "Acquire", 0, " {acq_en = false}"))
    buffer = f"%{d.memory.name} : {memref(d.memory.dtype, d.memory.shape)}"
    ids = f"{{bd_id = {d.id} : i32, next_bd_id = {d.next} : i32}}"
    lines.append(syntax.dma_bd(buffer, offset, length, list(d.access.dims), ids))
    if give is not None:
        lines.append(syntax.use_lock(give.name, "Release", 1 if d.release else 0))
    return ["  " + line for line in lines]


def _setup(lowered: Lowered, syntax: Syntax) -> list[str]:
    """What the configuration writes to shim tiles and aiecc does not: for the host to run once
    after loading the array, or before a stream."""
    body = []
    for write in writes(lowered):
        numbers = {"address": write.offset, "value": write.value}
        if write.mask is not None:
            numbers["mask"] = write.mask
        operation = "write32" if write.mask is None else "maskwrite32"
        body.append(syntax.register(operation, numbers, write.tile.col, write.tile.row))
    arguments = ", ".join(f"%buffer{n}: memref<1xi32>" for n in range(_ARGUMENTS))
    lines = ["  " + line for line in (*syntax.definitions(), *body)]
    return [f"aie.runtime_sequence @{SETUP}({arguments}) {{", *lines, "}"]


def _token_flow(tile: Tile) -> list[str]:
    """The packet route of completion tokens to the command processor."""
    name = tile_name(tile)
    return [
        f"aie.packet_flow({_CONTROLLER_IDS[0]}) {{",
        f"  aie.packet_source<{name}, TileControl : 0>",
        f"  aie.packet_dest<{name}, South : 0>",
        "} {keep_pkt_header = true, priority_route = true}",
    ]
