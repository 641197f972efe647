"""The xclbin container (AXLF): a header and sections.

Layout, little-endian: magic "xclbin2\\0", signature length, key block, at byte 0x130 the header of
152 bytes and at 0x1C8 one header of 40 bytes per section (kind, name, offset, size). Facts from
XRT (src/runtime_src/core/include/xrt/detail/xclbin.h).
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from uuid import UUID

from npu.formats.xclbin.fields import Fields, text

MAGIC = b"xclbin2\0"
HEADER = struct.Struct("<QQQHBBHH16s64s16s16sI4x")
HEADER_OFFSET, SECTIONS_OFFSET = 0x130, 0x1C8
SECTION = struct.Struct("<I16s4xQQ")
_MAX_SECTIONS = 0x10000  # XRT's limit
KINDS = (
    "BITSTREAM", "CLEARING_BITSTREAM", "EMBEDDED_METADATA", "FIRMWARE", "DEBUG_DATA",
    "SCHED_FIRMWARE", "MEM_TOPOLOGY", "CONNECTIVITY", "IP_LAYOUT", "DEBUG_IP_LAYOUT",
    "DESIGN_CHECK_POINT", "CLOCK_FREQ_TOPOLOGY", "MCS", "BMC", "BUILD_METADATA",
    "KEYVALUE_METADATA", "USER_METADATA", "DNA_CERTIFICATE", "PDI", "BITSTREAM_PARTIAL_PDI",
    "PARTITION_METADATA", "EMULATION_DATA", "SYSTEM_METADATA", "SOFT_KERNEL", "ASK_FLASH",
    "AIE_METADATA", "ASK_GROUP_TOPOLOGY", "ASK_GROUP_CONNECTIVITY", "SMARTNIC", "AIE_RESOURCES",
    "OVERLAY", "VENDER_METADATA", "AIE_PARTITION", "IP_METADATA", "AIE_RESOURCES_BIN",
    "AIE_TRACE_METADATA", "DTBO",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Section:
    """``kind`` is a name of KINDS, or a number that XRT has no name for."""

    kind: str
    name: str
    offset: int
    size: int
    data: memoryview


@dataclasses.dataclass(frozen=True)
class Axlf:
    """``length`` bytes in all; ``timestamp`` in seconds since 1970; ``version`` of XRT's tools."""

    length: int
    signature_length: int  # -1: not signed
    unique_id: int
    timestamp: int
    version: str
    mode: int
    platform: str
    uuid: UUID
    interface_uuid: UUID
    sections: tuple[Section, ...]
    label: str

    def section(self, kind: str) -> Section | None:
        """The first section of a kind that has contents."""
        return next((one for one in self.sections if one.kind == kind and one.size), None)


def is_axlf(data: bytes | memoryview) -> bool:
    return bytes(data[:6]) == MAGIC[:6]


def read_axlf(data: bytes | memoryview, label: str = "xclbin") -> Axlf:
    """The container with its sections; what they hold is read by partition.py and sections.py."""
    fields = Fields(data, label)
    magic = bytes(fields.slice(0, len(MAGIC), "the magic number"))
    if magic != MAGIC:
        raise fields.fail(f"no xclbin: it begins with {magic!r}, not {MAGIC!r}")
    (signature,) = fields.unpack(struct.Struct("<i"), 8, "the signature length")
    (unique,) = fields.unpack(struct.Struct("<Q"), 0x128, "the unique id")
    header = fields.unpack(HEADER, HEADER_OFFSET, "the xclbin header")
    length, timestamp, _, patch, major, minor, mode, _, interface, platform, own, _, count = header
    if not SECTIONS_OFFSET <= length <= len(fields):
        raise fields.fail(
            f"the header says {length} bytes, the file has {len(fields)}: it is truncated or "
            "corrupted"
        )
    if count > _MAX_SECTIONS:
        raise fields.fail(f"{count} sections; XRT takes at most {_MAX_SECTIONS}")
    body = Fields(fields.data[:length], label)
    sections = tuple(_section(body, i, count) for i in range(count))
    _check_overlaps(fields, sections)
    return Axlf(
        length,
        signature,
        unique,
        timestamp,
        f"{major}.{minor}.{patch}",
        mode,
        text(platform),
        UUID(bytes=own),
        UUID(bytes=interface),
        sections,
        label,
    )


def _section(fields: Fields, index: int, count: int) -> Section:
    at = SECTIONS_OFFSET + SECTION.size * index
    kind, name, offset, size = fields.unpack(SECTION, at, f"the header of section {index}")
    called = KINDS[kind] if kind < len(KINDS) else str(kind)
    what = f"section {index} ({called})"
    if size and offset < SECTIONS_OFFSET + SECTION.size * count:
        raise fields.fail(f"{what} begins at byte {offset}, within the headers")
    data = fields.slice(offset, size, what) if size else memoryview(b"")
    return Section(called, text(name), offset, size, data)


def _check_overlaps(fields: Fields, sections: tuple[Section, ...]) -> None:
    ordered = sorted((one for one in sections if one.size), key=lambda one: one.offset)
    for one, after in itertools.pairwise(ordered):
        if one.offset + one.size > after.offset:
            raise fields.fail(
                f"sections {one.kind} and {after.kind} overlap at byte {after.offset}"
            )
