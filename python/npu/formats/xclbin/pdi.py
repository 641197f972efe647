"""PDI: the image that configures a device (Programmable Device Image).

Layout: 16 bytes of bus-width words (may be missing), for a whole device a boot header, then the
image header table (128 bytes), image headers (64 bytes each), partition headers (128 bytes each,
a list) and partitions; offsets in words from the start of the file. An NPU's PDI has one image of
one CDO partition. Facts from bootgen (imageheadertable-versal.h, partitionheadertable-versal.h,
bootheader-versal.h), AMD UG1283 and XRT (aie-pdi-transform/libinclude/load_pdi.h).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from npu.errors import FormatError
from npu.formats.xclbin import transformed
from npu.formats.xclbin.cdo import Cdo, is_cdo, read_cdo
from npu.formats.xclbin.fields import Fields, checksum, text

_BUS_WIDTH = (0x000000DD, 0x00DD0000, 0xDD000000)  # first word, by width
_BUS_WIDTH_BYTES = 16
_BOOT_IDENTIFICATION = 0x584C4E58  # word at 0x14 of a PDI with a boot header
_BOOT_IMAGE_OFFSET = 0xC4  # of the byte offset of the image header table
_IDENTIFICATIONS = {0x50504449: "partial", 0x46504449: "full"}  # "IDPP", "IDPF" in the file
_TABLE_WORDS, _IMAGE_WORDS, _PARTITION_WORDS = 32, 16, 32
_TABLE_IDENTIFICATION = 10  # word of the image header table
_MAX_HEADERS = 32  # images or partitions (XilPdi)
_TYPES = {0: "reserved", 1: "ELF", 2: "CDO", 3: "CFI", 4: "raw", 5: "raw ELF"}  # attributes 26:24


@dataclasses.dataclass(frozen=True)
class Partition:
    """``data`` starts at ``offset`` bytes of the PDI; ``commands`` are the bytes of the command
    zone of a transformed CDO, else None. ``encrypted`` data cannot be read."""

    index: int
    kind: str
    offset: int
    data: memoryview
    commands: int | None
    encrypted: bool

    @property
    def is_cdo(self) -> bool:
        return self.kind == "CDO" or is_cdo(self.data)


@dataclasses.dataclass(frozen=True)
class Pdi:
    """``version`` of the image header table; ``images`` are names with numbers of partitions."""

    version: int
    kind: str
    pdi_id: int
    images: tuple[tuple[str, int], ...]
    partitions: tuple[Partition, ...]
    label: str

    def cdo(self, partition: Partition) -> tuple[Cdo, int]:
        """A partition's commands, and how many bytes of data the image lacks (transformed.py)."""
        label = f"{self.label}, partition {partition.index}"
        if partition.encrypted:
            raise FormatError(f"[{label}] is encrypted and cannot be read")
        if not partition.is_cdo:
            raise FormatError(f"[{label}] is of type {partition.kind}, not a CDO")
        if partition.commands is not None:
            return transformed.read_transformed(partition.data, partition.commands, label)
        return read_cdo(partition.data, label), 0


def is_pdi(data: bytes | memoryview) -> bool:
    """Whether the bytes begin as a PDI does: bus-width words, or the image header table."""
    if int.from_bytes(data[:4], "little") in _BUS_WIDTH and len(data) >= 4:
        return True
    word = int.from_bytes(data[4 * _TABLE_IDENTIFICATION :][:4], "little")
    return len(data) >= 4 * _TABLE_IDENTIFICATION + 4 and word in _IDENTIFICATIONS


def read_pdi(data: bytes | memoryview, label: str = "pdi") -> Pdi:
    """Headers and partitions; checksums of all headers are verified."""
    fields = Fields(data, label)
    if not len(fields):
        raise fields.fail("no PDI: it is empty")
    table_at = _table_offset(fields)
    table = fields.words(table_at, _TABLE_WORDS, "the image header table")
    kind = _IDENTIFICATIONS.get(int(table[_TABLE_IDENTIFICATION]))
    if kind is None:
        raise fields.fail(
            f"no PDI: the word at byte {table_at + 4 * _TABLE_IDENTIFICATION} is "
            f"0x{int(table[_TABLE_IDENTIFICATION]):08x}, not 0x50504449 or 0x46504449"
        )
    _verify(fields, table, "the image header table")
    version, images, image_at, partitions, partition_at = (int(word) for word in table[:5])
    for what, count in (("images", images), ("partitions", partitions)):
        if not 1 <= count <= _MAX_HEADERS:
            raise fields.fail(f"{count} {what}; a PDI has 1 to {_MAX_HEADERS}")
    return Pdi(
        version,
        kind,
        int(table[8]),
        tuple(_image(fields, 4 * image_at, i) for i in range(images)),
        _partitions(fields, 4 * partition_at, partitions),
        label,
    )


def _table_offset(fields: Fields) -> int:
    first = int(fields.words(0, 1, "a PDI")[0])
    if first not in _BUS_WIDTH:
        return 0
    if int(fields.words(0x14, 1, "the PDI's header")[0]) == _BOOT_IDENTIFICATION:
        return int(fields.words(_BOOT_IMAGE_OFFSET, 1, "the boot header")[0])
    return _BUS_WIDTH_BYTES


def _verify(fields: Fields, words: np.ndarray, what: str) -> None:
    found, expected = int(words[-1]), checksum(words[:-1])
    if found != expected:
        raise fields.fail(
            f"{what} has checksum 0x{found:08x}, its fields give 0x{expected:08x}: the file is "
            "corrupted"
        )


def _image(fields: Fields, first: int, index: int) -> tuple[str, int]:
    what = f"image header {index}"
    words = fields.words(first + 4 * _IMAGE_WORDS * index, _IMAGE_WORDS, what)
    _verify(fields, words, what)
    return text(words[4:8].tobytes()), int(words[1])


def _partitions(fields: Fields, first: int, count: int) -> tuple[Partition, ...]:
    """Follows the list of partition headers; its length must be what the table says."""
    found: list[Partition] = []
    seen: set[int] = set()
    at = first
    while True:
        if at in seen:
            raise fields.fail(f"the list of partition headers comes back to byte {at}")
        if len(found) == count:
            raise fields.fail(f"more partition headers are linked than the {count} of the table")
        seen.add(at)
        words = fields.words(at, _PARTITION_WORDS, f"partition header {len(found)}")
        found.append(_partition(fields, words, len(found)))
        at = 4 * int(words[3])
        if at == 0:
            break
    if len(found) != count:
        raise fields.fail(f"{len(found)} partition headers are linked, the table has {count}")
    return tuple(found)


def _partition(fields: Fields, words: np.ndarray, index: int) -> Partition:
    what = f"partition header {index}"
    zone = transformed.command_bytes(words)
    if zone is None:
        _verify(fields, words, what)
    else:  # the transformation changes neither checksum nor lengths
        original = words.copy()
        original[transformed.TYPE_WORD : transformed.TYPE_WORD + 3] = 0
        _verify(fields, original, what)
    offset, length = 4 * int(words[8]), 4 * int(words[1])
    if zone is not None:
        length = len(fields) - offset
    return Partition(
        index,
        _TYPES.get(int(words[9]) >> 24 & 7, "unknown"),
        offset,
        fields.slice(offset, length, f"partition {index}"),
        zone,
        int(words[17]) != 0,
    )
