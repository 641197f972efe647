"""Sections of an xclbin that say what a host may call: MEM_TOPOLOGY, IP_LAYOUT, metadata.

Layouts from XRT (struct mem_topology, ip_layout of xrt/detail/xclbin.h); EMBEDDED_METADATA is XML
with a ``kernel`` element per kernel and an ``arg`` per argument, BUILD_METADATA is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any
from xml.etree import ElementTree

from npu.formats.metadata import show
from npu.formats.xclbin.fields import Fields, printable, text

MEMORY = struct.Struct("<BB6xQQ16s")
IP = struct.Struct("<IIQ64s")
_COUNT = struct.Struct("<i4x")
_MEMORY_TYPES = (
    "DDR3", "DDR4", "DRAM", "STREAMING", "PREALLOCATED_GLOB", "ARE", "HBM", "BRAM", "URAM",
    "STREAMING_CONNECTION", "HOST", "PS_KERNEL",
)  # fmt: skip
_IP_TYPES = (
    "MB", "KERNEL", "DNASC", "DDR4_CONTROLLER", "MEM_DDR4", "MEM_HBM", "MEM_HBM_ECC", "PS_KERNEL",
)  # fmt: skip
_PS_KERNEL = 7
_QUALIFIERS = ("scalar", "global", "constant", "local", "stream")


@dataclasses.dataclass(frozen=True)
class Memory:
    """A bank: ``size`` in KiB for DRAM."""

    kind: str
    used: bool
    size: int
    base: int
    tag: str


@dataclasses.dataclass(frozen=True)
class Ip:
    """``kernel_id`` of a PS or DPU kernel, else None."""

    kind: str
    kernel_id: int | None
    base: int
    name: str


@dataclasses.dataclass(frozen=True)
class Argument:
    name: str
    index: int
    qualifier: str
    size: int
    offset: int
    type: str


@dataclasses.dataclass(frozen=True)
class Kernel:
    """``kernel_id`` as the metadata writes it, e.g. "0x901"; empty if it has none."""

    name: str
    kind: str
    kernel_id: str
    instances: tuple[str, ...]
    arguments: tuple[Argument, ...]


def _named(names: tuple[str, ...], index: int) -> str:
    return names[index] if 0 <= index < len(names) else str(index)


def _entries(fields: Fields, layout: struct.Struct) -> list[tuple[Any, ...]]:
    (count,) = fields.unpack(_COUNT, 0, "the count")
    if count < 0:
        raise fields.fail(f"{count} entries")
    data = fields.slice(_COUNT.size, count * layout.size, f"{count} entries")
    return list(layout.iter_unpack(data)) if count else []


def read_memories(data: bytes | memoryview, label: str = "MEM_TOPOLOGY") -> tuple[Memory, ...]:
    return tuple(
        Memory(_named(_MEMORY_TYPES, kind), bool(used), size, base, text(tag))
        for kind, used, size, base, tag in _entries(Fields(data, label), MEMORY)
    )


def read_ips(data: bytes | memoryview, label: str = "IP_LAYOUT") -> tuple[Ip, ...]:
    return tuple(
        Ip(
            _named(_IP_TYPES, kind),
            properties >> 16 & 0xFFF if kind == _PS_KERNEL else None,
            base,
            text(name),
        )
        for kind, properties, base, name in _entries(Fields(data, label), IP)
    )


def read_kernels(data: bytes | memoryview, label: str = "EMBEDDED_METADATA") -> tuple[Kernel, ...]:
    """The kernels of the metadata. Document types are refused: no xclbin has them, and entities
    can make a small document huge."""
    fields = Fields(data, label)
    raw = bytes(fields.data).rstrip(b"\0")
    if b"<!DOCTYPE" in raw or b"<!ENTITY" in raw:
        raise fields.fail("the XML declares a document type; the metadata of an xclbin has none")
    try:
        root = ElementTree.fromstring(raw.decode("utf-8"))
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        raise fields.fail(f"no valid XML: {show(str(error))}") from None
    return tuple(_kernel(fields, element) for element in root.iter("kernel"))


def _text(element: ElementTree.Element, key: str) -> str:
    return printable(element.get(key, ""))


def _kernel(fields: Fields, element: ElementTree.Element) -> Kernel:
    extended = element.find("extended-data")
    return Kernel(
        _text(element, "name"),
        _text(element, "type"),
        "" if extended is None else _text(extended, "dpu_kernel_id"),
        tuple(_text(one, "name") for one in element.findall("instance")),
        tuple(_argument(fields, one) for one in element.findall("arg")),
    )


def _argument(fields: Fields, element: ElementTree.Element) -> Argument:
    def number(key: str) -> int:
        value = element.get(key) or "0"
        try:
            return int(value[:20], 0)
        except ValueError:
            raise fields.fail(
                f"argument {show(element.get('name', ''))} has {key} {show(value)}, no number"
            ) from None

    return Argument(
        _text(element, "name"),
        number("id"),
        _named(_QUALIFIERS, number("addressQualifier")),
        number("size"),
        number("offset"),
        _text(element, "type"),
    )


def read_json(data: bytes | memoryview, label: str = "BUILD_METADATA") -> dict[str, Any]:
    """A JSON object."""
    fields = Fields(data, label)
    try:
        value = json.loads(bytes(fields.data).rstrip(b"\0"))
    except (ValueError, RecursionError) as error:
        raise fields.fail(f"no valid JSON: {show(str(error))}") from None
    if not isinstance(value, dict):
        raise fields.fail("no JSON object")
    return value
