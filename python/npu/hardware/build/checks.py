"""Checks of what aiecc made against the design: each has a number and a limit, and says where.

Nothing here trusts a tool: memory of programs and stacks, addresses, ports, declared arguments and
the words of a command stream are read from its output.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu import stream
from npu.designs.hardware import Tile
from npu.designs.lowering import Lowered, program_memory, stack
from npu.designs.lowering.lowered import Core
from npu.errors import FormatError, NpuError
from npu.formats.xclbin.axlf import read_axlf
from npu.formats.xclbin.sections import read_kernels
from npu.hardware.build.compiled_mlir import Device
from npu.hardware.build.elf import Elf
from npu.hardware.build.sample import Sample

PROGRAM_BYTES = program_memory.PROGRAM_BYTES
FIXED_ARGUMENTS, MOST_BUFFERS = 3, 16  # opcode, stream, its length; then buffers
_SHOWN = 3  # differences that an error lists


@dataclass(frozen=True)
class Check:
    """One comparison. ``problem``: empty if it holds, else a sentence."""

    name: str
    where: str
    value: int
    limit: int
    problem: str = ""


def program(core: Core, elf: Elf, overlay: str = "") -> list[Check]:
    """Program memory of a core: the end of its code, which begins at address 0."""
    code = elf.code()
    where = f"core ({core.tile.col}, {core.tile.row}){f', overlay {overlay}' if overlay else ''}"
    end = max((s.address + s.size for s in code), default=0)
    instructions = core.overlays[overlay] if overlay else core.program
    kernels = ", ".join(sorted({i.function for i in instructions if i.code == "call"}))
    problem = ""
    if not end:
        problem = "the linked program has no code"
    elif end > PROGRAM_BYTES:
        problem = (
            f"its program takes {end} bytes, program memory has {PROGRAM_BYTES}; it calls {kernels}"
        )
    return [Check("program memory", where, end, PROGRAM_BYTES, problem)]


def stacks(lowered: Lowered, kernels: Mapping[str, int]) -> list[Check]:
    """Stack of each core: what its deepest kernel and its own program need."""
    return [_stack(core, kernels, lowered.generation) for core in lowered.cores]


def _stack(core: Core, kernels: Mapping[str, int], generation: str) -> Check:
    called = {i.function for p in core.programs for i in p if i.code == "call"}
    deepest = max(called, key=lambda name: kernels.get(name, 0), default="")
    need = kernels.get(deepest, 0) + _own(core, called, generation)
    where = f"core ({core.tile.col}, {core.tile.row})"
    problem = ""
    if need > core.stack:
        problem = (
            f"kernel {deepest} and the core's own program need {need} bytes of stack, the design "
            f"reserves {core.stack}"
        )
    return Check("stack", where, need, core.stack, problem)


def _own(core: Core, called: Iterable[str], generation: str) -> int:
    """Estimated stack of the core's own program, which is in no object of ours."""
    estimated = stack.core_stack(core, generation)
    stated = program_memory.kernel_stacks(generation)
    return 0 if estimated is None else estimated - max((stated[k] for k in called), default=0)


def addresses(lowered: Lowered, device: Device, tiles: Collection[Tile] = ()) -> list[Check]:
    """Every buffer of the design lies where aiecc's module has it: one check per tile, of these
    tiles or of all."""
    found = []
    for tile, memories in sorted(lowered.memories.items()):
        if tiles and tile not in tiles:
            continue
        moved = []
        for memory in memories:
            at = device.buffers.get((tile.col, tile.row, memory.name), "nowhere")
            if at != memory.address:
                said = "without an address" if at is None else f"at {at}" if at != "nowhere" else at
                moved.append(f"{memory.name} is {said} instead of at {memory.address}")
        problem = ""
        if moved:
            problem = (
                f"aiecc moved {len(moved)} of {len(memories)} buffers: {_few(moved)}; command "
                "streams write to the design's addresses"
            )
        where = f"tile ({tile.col}, {tile.row}){f' of {device.name}' if tiles else ''}"
        found.append(Check("buffer addresses", where, len(moved), 0, problem))
    return found


def ports(lowered: Lowered, device: Device) -> list[Check]:
    """Every port is the shim channel that aiecc's module has for it."""
    wrong = []
    for port in lowered.ports:
        ours = (port.tile.col, port.direction, port.channel)
        theirs = device.ports.get(f"{port.name}_shim_alloc")
        if theirs != ours:
            there = "no channel" if theirs is None else _channel(theirs)
            wrong.append(f"{port.name} has {there} instead of {_channel(ours)}")
    problem = f"aiecc's shim channels differ from the ports: {_few(wrong)}" if wrong else ""
    return [Check("ports", f"{len(lowered.ports)} ports", len(wrong), 0, problem)]


def declared(xclbin: Path) -> dict[str, int]:
    """How many arguments the kernels of an xclbin have by its metadata. Raises FormatError."""
    label = xclbin.name
    try:
        data = xclbin.read_bytes()
    except OSError as error:
        raise FormatError(f"[build] {xclbin}: {error.strerror}") from error
    section = read_axlf(data, label).section("EMBEDDED_METADATA")
    if section is None:
        raise FormatError(f"[{label}] no section EMBEDDED_METADATA, which declares its kernels")
    return {one.name: len(one.arguments) for one in read_kernels(section.data, label)}


def arguments(declared: Mapping[str, int], sample: Sample | None) -> list[Check]:
    """The one kernel declares as many buffers as streams pass, and no more than are proven."""
    if len(declared) != 1:
        problem = f"the xclbin has {len(declared)} kernels, one is expected"
        return [Check("kernel arguments", "xclbin", len(declared), 1, problem)]
    ((name, count),) = declared.items()
    buffers, need = count - FIXED_ARGUMENTS, sample.buffers if sample else 0
    problem = ""
    if buffers < need:
        problem = (
            f"it declares {buffers} buffers, streams of the operation pass {need}; XRT crashes on "
            "more than are declared: build with a newer mlir-aie"
        )
    elif buffers > MOST_BUFFERS:
        problem = f"it declares {buffers} buffers, at most {MOST_BUFFERS} are proven to work"
    return [Check("kernel arguments", f"kernel {name}", buffers, MOST_BUFFERS, problem)]


def words(ours: bytes, theirs: bytes) -> list[Check]:
    """The instruction words that aiecc made of the sample are ours, word for word."""
    if len(theirs) % 4:
        problem = f"aiecc's stream has {len(theirs)} bytes, no whole number of words"
        return [Check("stream words", "sample stream", len(theirs), len(ours), problem)]
    pairs = itertools.zip_longest(_words(ours), _words(theirs))
    different = [n for n, (a, b) in enumerate(pairs) if a != b]
    problem = ""
    if different:
        at = different[0]
        problem = (
            f"{len(different)} of {len(ours) // 4} words differ, first word {at}: "
            f"{_said(ours, at)} instead of aiecc's {_said(theirs, at)}"
        )
    return [Check("stream words", "sample stream", len(different), 0, problem)]


def _words(data: bytes) -> Sequence[int]:
    return memoryview(data).cast("I") if data else ()


def _said(data: bytes, word: int) -> str:
    """A word, and the operation it belongs to as the disassembler says it."""
    if 4 * word >= len(data):
        return "nothing"
    value = f"0x{_words(data)[word]:08x}"
    try:
        for operation in stream.operations(data):
            begin = operation["byte_offset"]
            if begin <= 4 * word < begin + operation["bytes"]:
                return f"{value} ({_line(data, operation['index'])})"
    except NpuError:
        return f"{value} (of a stream that does not parse)"
    return f"{value} (header)"


def _line(data: bytes, index: int) -> str:
    """The disassembler's line of an operation."""
    for line in stream.disassemble(data).splitlines():
        number, *rest = line.split()
        if number == str(index):
            return " ".join(rest[1:])  # without its offset
    return f"operation {index}"


def _channel(port: tuple[int, str, int]) -> str:
    return f"column {port[0]} {port[1]} {port[2]}"


def _few(problems: Sequence[str]) -> str:
    more = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
