"""CDO: a list of commands that configure the array (Configuration Data Object, version 2).

Layout: five header words (words that follow in the header = 4, identification, version, length of
the commands in words, checksum), then commands. A command is one word (bits 15:0 opcode, 23:16
payload words; 255 there: the next word is the length) and its payload. Facts from bootgen
(cdo-binary.c, cdo-driver/cdo_driver.c), AMD UG1304 and XRT's loader of NPU images
(xclbinutil/aie-pdi-transform), which executes writes, mask writes, DMA writes and NOPs only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from npu.formats.xclbin.fields import Fields, checksum

IDENTIFICATIONS = {0x004F4443: "CDO", 0x584C4E58: "XLNX"}  # "CDO\0", "XNLX" in the file
HEADER_WORDS = 5
_BIG_ENDIAN_COUNT = 4 << 24
_MAX_FILL = 1 << 18  # words of a tile's 1 MiB of addresses
_MAX_COMMANDS = 1 << 20  # a whole array takes some ten thousand
_PADDING_BYTES = 16  # bootgen pads partitions to 16 bytes

OPCODES = {
    "END": 0x100,
    "MASK_POLL": 0x101,
    "MASK_WRITE": 0x102,
    "WRITE": 0x103,
    "DELAY": 0x104,
    "DMA_WRITE": 0x105,
    "MASK_POLL64": 0x106,
    "MASK_WRITE64": 0x107,
    "WRITE64": 0x108,
    "DMA_XFER": 0x109,
    "SET": 0x10C,
    "DMA_WRITE_KEYHOLE": 0x10D,
    "NOP": 0x111,
    "LOG_STRING": 0x117,
    "MARKER": 0x119,
    "PROC": 0x11A,
    "BLOCK_BEGIN": 0x11B,
    "BLOCK_END": 0x11C,
    "SCATTER_WRITE": 0x121,
}
_NAMES = {value: name for name, value in OPCODES.items()}


@dataclasses.dataclass(frozen=True)
class Command:
    """``opcode`` (OPCODES) at ``offset`` bytes from the start of the CDO."""

    opcode: int
    offset: int

    @property
    def name(self) -> str:
        return _NAMES.get(self.opcode, f"0x{self.opcode:03x}")


@dataclasses.dataclass(frozen=True)
class Write(Command):
    """One register."""

    address: int
    value: int


@dataclasses.dataclass(frozen=True)
class MaskWrite(Command):
    """The bits of ``mask`` of one register."""

    address: int
    mask: int
    value: int


@dataclasses.dataclass(frozen=True)
class MaskPoll(Command):
    """Waits until the register's bits of ``mask`` are ``value``, at most ``timeout`` (ms)."""

    address: int
    mask: int
    value: int
    timeout: int


@dataclasses.dataclass(frozen=True, eq=False)
class BlockWrite(Command):
    """Consecutive registers; ``data`` is uint32."""

    address: int
    data: np.ndarray


@dataclasses.dataclass(frozen=True)
class Fill(Command):
    """``count`` consecutive registers get ``value``."""

    address: int
    count: int
    value: int


@dataclasses.dataclass(frozen=True)
class Delay(Command):
    """``duration`` in microseconds (UG1304)."""

    duration: int


@dataclasses.dataclass(frozen=True)
class Nop(Command):
    """Padding of ``words`` payload words."""

    words: int


@dataclasses.dataclass(frozen=True, eq=False)
class Other(Command):
    """A command that this reader does not interpret; ``payload`` is uint32."""

    payload: np.ndarray


@dataclasses.dataclass(frozen=True)
class Cdo:
    """``version`` is 0x200 for 2.0; ``size`` bytes are header and commands together."""

    version: int
    commands: tuple[Command, ...]
    size: int


def is_cdo(data: bytes | memoryview) -> bool:
    """Whether the bytes begin with a CDO header of either byte order."""
    word = int.from_bytes(data[4:8], "little")
    return len(data) >= 8 and (word in IDENTIFICATIONS or _swapped(word) in IDENTIFICATIONS)


def _swapped(word: int) -> int:
    return int.from_bytes(word.to_bytes(4, "little"), "big")


def read_header(fields: Fields) -> tuple[int, int]:
    """Version and length (words) of the CDO that ``fields`` begins with."""
    words = fields.words(0, HEADER_WORDS, "the CDO header")
    count, ident, version, length, found = (int(word) for word in words)
    if count == _BIG_ENDIAN_COUNT or _swapped(ident) in IDENTIFICATIONS:
        raise fields.fail("this CDO is big-endian; NPU images are little-endian")
    if ident not in IDENTIFICATIONS:
        raise fields.fail(f"no CDO: its identification word is 0x{ident:08x}, not 0x004f4443")
    if count != HEADER_WORDS - 1:
        raise fields.fail(f"the CDO header says that {count} words of it follow, expected 4")
    expected = checksum(words[:-1])
    if found != expected:
        raise fields.fail(
            f"the CDO header's checksum is 0x{found:08x}, its fields give 0x{expected:08x}: the "
            "file is corrupted"
        )
    if not 0x132 <= version < 0x300:
        raise fields.fail(
            f"CDO version {version >> 8}.{version & 0xFF:02d}; 1.50 to 2.xx are known"
        )
    return version, length


def read_cdo(data: bytes | memoryview, label: str = "cdo") -> Cdo:
    """The CDO at the start of ``data``; up to 15 bytes of padding may follow it."""
    fields = Fields(data, label)
    version, length = read_header(fields)
    size = 4 * (HEADER_WORDS + length)
    words = fields.words(4 * HEADER_WORDS, length, f"a CDO of {length} command words")
    if len(fields) - size >= _PADDING_BYTES:
        raise fields.fail(
            f"{len(fields) - size} bytes follow the {size} bytes of this CDO; cut them off"
        )
    return Cdo(version, tuple(_commands(fields, words)), size)


def _commands(fields: Fields, words: np.ndarray) -> Iterator[Command]:
    at = number = 0
    while at < len(words):
        offset, head = 4 * (HEADER_WORDS + at), int(words[at])
        number += 1
        if number > _MAX_COMMANDS:
            raise fields.fail(f"more than {_MAX_COMMANDS} commands; no NPU takes so many")
        opcode, count = head & 0xFFFF, head >> 16 & 0xFF
        at += 1
        if head == 0xFFFFFFFF or opcode == OPCODES["END"]:
            yield Command(OPCODES["END"], offset)
            return
        if count == 0xFF:
            if at == len(words):
                raise fields.fail(f"the length of command 0x{head:08x} at byte {offset} is missing")
            count, at = int(words[at]), at + 1
        if count > len(words) - at:
            raise fields.fail(
                f"command 0x{opcode:03x} at byte {offset} has {count} payload words, but only "
                f"{len(words) - at} words of the CDO follow"
            )
        yield command(fields, opcode, offset, words[at : at + count])
        at += count


def command(fields: Fields, opcode: int, offset: int, payload: np.ndarray) -> Command:
    """The command of ``opcode`` with its payload words; Other if it is none of those known."""
    decoder = _DECODERS.get(opcode)
    if decoder is None:
        return Other(opcode, offset, payload)
    lengths, decode = decoder
    if lengths and len(payload) not in lengths:
        raise fields.fail(
            f"{_NAMES[opcode]} at byte {offset} has {len(payload)} payload words, expected "
            f"{' or '.join(str(n) for n in lengths)}"
        )
    return decode(fields, opcode, offset, payload)


def _pair(payload: np.ndarray) -> int:
    return int(payload[0]) << 32 | int(payload[1])


def _block(fields: Fields, opcode: int, offset: int, payload: np.ndarray) -> Command:
    if len(payload) < 2:
        raise fields.fail(f"DMA_WRITE at byte {offset} has no address")
    return BlockWrite(opcode, offset, _pair(payload), payload[2:])


def _fill(fields: Fields, opcode: int, offset: int, payload: np.ndarray) -> Command:
    count = int(payload[2])
    if count > _MAX_FILL:
        raise fields.fail(
            f"SET at byte {offset} fills {count} words; a tile's addresses have {_MAX_FILL}"
        )
    return Fill(opcode, offset, _pair(payload), count, int(payload[3]))


_Decode = Callable[[Fields, int, int, np.ndarray], Command]
_DECODERS: dict[int, tuple[Sequence[int], _Decode]] = {
    0x101: ((4, 5, 6), lambda _, op, at, p: MaskPoll(op, at, *(int(w) for w in p[:4]))),
    0x102: ((3,), lambda _, op, at, p: MaskWrite(op, at, int(p[0]), int(p[1]), int(p[2]))),
    0x103: ((2,), lambda _, op, at, p: Write(op, at, int(p[0]), int(p[1]))),
    0x104: ((1,), lambda _, op, at, p: Delay(op, at, int(p[0]))),
    0x105: ((), _block),
    0x106: ((5, 6, 7), lambda _, op, at, p: MaskPoll(op, at, _pair(p), *(int(w) for w in p[2:5]))),
    0x107: ((4,), lambda _, op, at, p: MaskWrite(op, at, _pair(p), int(p[2]), int(p[3]))),
    0x108: ((3,), lambda _, op, at, p: Write(op, at, _pair(p), int(p[2]))),
    0x10C: ((4,), _fill),
    0x111: ((), lambda _, op, at, p: Nop(op, at, len(p))),
}
