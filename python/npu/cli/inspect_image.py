"""`npu inspect FILE` for xclbins, PDIs and CDOs: what they hold, and the configuration in words."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator
from typing import Any

from npu import stream
from npu.formats.xclbin import Configuration, Image, is_image, read, sections, tiles, writes
from npu.formats.xclbin.axlf import Axlf
from npu.formats.xclbin.cdo import Command, Delay, Nop, Other
from npu.formats.xclbin.fields import printable

# Register names do not depend on the generation; npu2 has the columns of both.
_DEVICE, _COLUMNS = "npu2", 8
_SHOWN_WORDS = 8
_OPCODE_COLUMN = 13  # where the disassembler's lines have the opcode; its width is the next
_OPCODE_WIDTH = 14

__all__ = ["is_image", "print_image"]


def print_image(data: bytes, label: str, as_json: bool) -> None:
    """``label`` names the file. Raises FormatError if any part of it is malformed."""
    image = read(data, label)
    if as_json:
        print(json.dumps(_document(image), indent=1))
        return
    for line in _lines(image):
        print(line)


def _lines(image: Image) -> Iterator[str]:
    if image.axlf:
        yield from _container(image.axlf)
    if image.partition:
        yield from _partition(image)
    elif image.kind == "xclbin":
        yield "no AIE_PARTITION section: this xclbin configures no NPU"
    for index in range(image.count):
        for configuration in image.configurations(index):
            yield from _configuration(configuration)


def _container(axlf: Axlf) -> Iterator[str]:
    signed = "not signed" if axlf.signature_length < 0 else f"signature {axlf.signature_length}"
    yield f"xclbin {axlf.label}: {axlf.length} bytes, uuid {axlf.uuid}"
    yield (
        f"  version {axlf.version}, platform {axlf.platform or 'unnamed'}, "
        f"created {_time(axlf.timestamp)}, {signed}"
    )
    for one in axlf.sections:
        yield f"  section {one.kind} {one.name!r}: {one.size} bytes at 0x{one.offset:x}"
    for memory in _memories(axlf):
        used = "" if memory.used else ", unused"
        yield f"memory {memory.tag}: {memory.kind}, {memory.size} KiB at 0x{memory.base:x}{used}"
    for ip in _ips(axlf):
        number = "" if ip.kernel_id is None else f", kernel id 0x{ip.kernel_id:x}"
        yield f"instance {ip.name}: {ip.kind}{number}"
    for kernel in _kernels(axlf):
        yield (
            f"kernel {kernel.name}: {kernel.kind or 'no type'}, id {kernel.kernel_id or 'none'}, "
            f"instances {', '.join(kernel.instances) or 'none'}, {len(kernel.arguments)} arguments"
        )
        for arg in kernel.arguments:
            yield f"  argument {arg.index} {arg.name}: {arg.qualifier} {arg.type}, {arg.size} bytes"
    yield from _generated_by(axlf)


def _time(seconds: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%F %T UTC")
    except (ValueError, OverflowError, OSError):
        return f"at second {seconds}"


def _memories(axlf: Axlf) -> tuple[sections.Memory, ...]:
    found = axlf.section("MEM_TOPOLOGY")
    return sections.read_memories(found.data, f"{axlf.label}, MEM_TOPOLOGY") if found else ()


def _ips(axlf: Axlf) -> tuple[sections.Ip, ...]:
    found = axlf.section("IP_LAYOUT")
    return sections.read_ips(found.data, f"{axlf.label}, IP_LAYOUT") if found else ()


def _kernels(axlf: Axlf) -> tuple[sections.Kernel, ...]:
    found = axlf.section("EMBEDDED_METADATA")
    return sections.read_kernels(found.data, f"{axlf.label}, EMBEDDED_METADATA") if found else ()


def _generated_by(axlf: Axlf) -> Iterator[str]:
    found = axlf.section("BUILD_METADATA")
    if not found:
        return
    value: Any = sections.read_json(found.data, f"{axlf.label}, BUILD_METADATA")
    for key in ("build_metadata", "xclbin", "generated_by"):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict) and value:
        parts = (f"{key} {printable(str(one))[:200]}" for key, one in value.items() if one)
        yield "built by " + printable(", ".join(parts))


def _partition(image: Image) -> Iterator[str]:
    partition = image.partition
    assert partition is not None
    columns = ", ".join(str(column) for column in partition.start_columns) or "none given"
    yield (
        f"partition {partition.name or 'unnamed'}: {partition.column_width} columns, start column "
        f"{columns}; {partition.operations_per_cycle} operations per cycle"
    )
    for index, pdi in enumerate(partition.pdis):
        yield f"  pdi {index}: uuid {pdi.uuid}, {len(pdi.image)} bytes"
        for group in pdi.groups:
            kernels = ", ".join(f"0x{one:x}" for one in group.kernel_ids) or "no kernel"
            yield (
                f"    CDO group {group.name!r}: {group.kind}, pdi id 0x{group.pdi_id:x}, for "
                f"{kernels}"
            )


def _configuration(configuration: Configuration) -> Iterator[str]:
    cdo, pdi = configuration.cdo, configuration.pdi
    if pdi:
        images = ", ".join(f"{name} ({count})" for name, count in pdi.images)
        yield (
            f"PDI {pdi.label}: {pdi.kind}, version {pdi.version >> 16}.{pdi.version & 0xFFFF}, "
            f"images {images}"
        )
    yield (
        f"CDO {cdo.version >> 8}.{cdo.version & 0xFF:02d}, {len(cdo.commands)} commands, "
        f"{cdo.size} bytes"
    )
    if configuration.missing:
        yield (
            f"  the image ends {configuration.missing} bytes early, as the transformation of PDIs "
            "has left it in other files too; read as zero"
        )
    txn, texts = _texts(configuration.name, cdo.commands)
    for tile in tiles.summarise(stream.operations(txn)).values():
        yield from ("  " + line for line in tiles.describe(tile))
    yield from texts


def _texts(label: str, commands: tuple[Command, ...]) -> tuple[bytes, list[str]]:
    """The stream of all register accesses, and a line per command with the disassembler's words."""
    writes.check_size(label, commands)
    builder = stream.Builder(_DEVICE, _COLUMNS)
    in_stream = []
    for command in commands:
        narrow = (writes.address_of(command) or 0) < 1 << 32
        in_stream.append(writes.is_register_access(command) and narrow)
        if in_stream[-1]:
            writes.append(builder, command)
    txn = writes.finish(builder, label)
    words = iter(stream.disassemble(txn).splitlines()[1:])
    lines = []
    for index, (command, decoded) in enumerate(zip(commands, in_stream, strict=True)):
        text = next(words)[_OPCODE_COLUMN + _OPCODE_WIDTH :] if decoded else _other(command)
        lines.append(f"{index:5} {command.offset:06x} {command.name:<12} {text}".rstrip())
    return txn, lines


def _other(command: Command) -> str:
    if isinstance(command, Nop):
        return f"{command.words} words" if command.words else ""
    if isinstance(command, Delay):
        return f"{command.duration} us"
    if isinstance(command, Other):
        shown = " ".join(f"{int(word):08x}" for word in command.payload[:_SHOWN_WORDS])
        more = " ..." if len(command.payload) > _SHOWN_WORDS else ""
        return f"{len(command.payload)} words {shown}{more} (the NPU does not execute it)"
    address = writes.address_of(command)
    return "" if address is None else f"0x{address:x}, beyond the array's addresses"


def _document(image: Image) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": image.kind, "bytes": len(image.data)}
    if image.axlf:
        axlf = image.axlf
        out |= {
            "uuid": str(axlf.uuid),
            "version": axlf.version,
            "platform": axlf.platform,
            "timestamp": axlf.timestamp,
            "sections": [
                {"kind": s.kind, "name": s.name, "offset": s.offset, "bytes": s.size}
                for s in axlf.sections
            ],
            "memories": [dataclasses.asdict(one) for one in _memories(axlf)],
            "instances": [dataclasses.asdict(one) for one in _ips(axlf)],
            "kernels": [dataclasses.asdict(one) for one in _kernels(axlf)],
        }
    if image.partition:
        partition = image.partition
        out["partition"] = {
            "name": partition.name,
            "column_width": partition.column_width,
            "start_columns": partition.start_columns,
            "operations_per_cycle": partition.operations_per_cycle,
            "pdis": [
                {
                    "uuid": str(pdi.uuid),
                    "bytes": len(pdi.image),
                    "cdo_groups": [dataclasses.asdict(group) for group in pdi.groups],
                }
                for pdi in partition.pdis
            ],
        }
    out["configurations"] = [
        {
            "name": one.name,
            "missing_bytes": one.missing,
            "commands": [_command(command) for command in one.cdo.commands],
        }
        for index in range(image.count)
        for one in image.configurations(index)
    ]
    return out


def _command(command: Command) -> dict[str, Any]:
    fields = {f.name: getattr(command, f.name) for f in dataclasses.fields(command)}
    fields["opcode"] = command.name
    for name in ("data", "payload"):
        if name in fields:
            fields[name] = fields[name].tolist()
    return fields
