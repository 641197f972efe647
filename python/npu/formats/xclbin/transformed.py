"""CDOs that ``xclbinutil --transform-pdi`` has rearranged: commands in groups, data at the end.

The partition header's last reserved words hold type (1), bytes of the command zone and a mark. The
command zone follows the CDO header: groups of (low byte of the opcode, number of commands, their
arguments); a DMA write's arguments are address, offset of its data in the data zone (bytes) and
its length in words, with bit 16 set where all of it is zero. The data zone follows. The CDO header
keeps the original length. Facts from XRT (src/runtime_src/tools/xclbinutil/aie-pdi-transform).
"""

from __future__ import annotations

import numpy as np

from npu.formats.xclbin.cdo import HEADER_WORDS, OPCODES, BlockWrite, Cdo, Command, command
from npu.formats.xclbin.cdo import read_header as read_cdo_header
from npu.formats.xclbin.fields import Fields

TYPE_WORD = 28  # of the partition header: type, command bytes, mark
_SEPARATE = 1  # commands and data apart
_MARK = 0x8866
_ARGUMENTS = {0x102: 3, 0x103: 2, 0x105: 4, 0x107: 4, 0x108: 3}  # words per command
# Images in AMD's published xclbins end one CDO header early: the transformation did not count it.
CUT_BYTES = 4 * HEADER_WORDS


def command_bytes(header: np.ndarray) -> int | None:
    """Bytes of the command zone, from the partition header's words; None if not transformed."""
    kind, size, mark = (int(word) for word in header[TYPE_WORD : TYPE_WORD + 3])
    swapped = (kind & 0xFF) << 8 | kind >> 8 | (size & 0xFFFF) << 16 | size >> 16
    return size if kind == _SEPARATE and mark == (_MARK | swapped) & 0xFFFFFFFF else None


def read_transformed(data: bytes | memoryview, zone: int, label: str) -> tuple[Cdo, int]:
    """The CDO and how many bytes of its data the image lacks (0 or at most 20; read as zero)."""
    fields = Fields(data, label)
    version, _ = read_cdo_header(fields)
    if zone % 4:
        raise fields.fail(f"the command zone has {zone} bytes, not a multiple of 4")
    words = fields.words(4 * HEADER_WORDS, zone // 4, "the command zone of a transformed PDI")
    start = 4 * HEADER_WORDS + zone
    reader = _Zones(fields, words, start)
    return Cdo(version, tuple(reader.commands()), len(fields)), reader.missing


class _Zones:
    def __init__(self, fields: Fields, words: np.ndarray, data_start: int) -> None:
        self.fields, self.words, self.start = fields, words, data_start
        self.left = len(fields) - data_start + CUT_BYTES  # data bytes that no write has used yet
        self.missing = 0

    def commands(self) -> list[Command]:
        found: list[Command] = []
        at, words = 0, self.words
        while at < len(words):
            if at + 2 > len(words):
                raise self.fields.fail("the command zone ends within the head of a group")
            opcode, count = 0x100 | int(words[at]), int(words[at + 1])
            size = _ARGUMENTS.get(opcode)
            if size is None or words[at] > 0xFF:
                raise self.fields.fail(
                    f"a group of the command zone has command {int(words[at])}, which none has"
                )
            at += 2
            if count * size > len(words) - at:
                raise self.fields.fail(
                    f"a group of {count} x {size} words begins {len(words) - at} words before the "
                    "end of the command zone"
                )
            for _ in range(count):
                offset = 4 * (HEADER_WORDS + at)
                found.append(self._one(opcode, offset, words[at : at + size]))
                at += size
        return found

    def _one(self, opcode: int, offset: int, arguments: np.ndarray) -> Command:
        if opcode != OPCODES["DMA_WRITE"]:
            return command(self.fields, opcode, offset, arguments)
        high, low, source, count = (int(word) for word in arguments)
        data = self._data(source, count & 0xFFFF)
        return BlockWrite(opcode, offset, high << 32 | low, data)

    def _data(self, source: int, count: int) -> np.ndarray:
        """Words of the data zone; zeros where the image ends too early by no more than 20 bytes."""
        begin, size = self.start + source, 4 * count
        lacks = min(size, max(0, begin + size - len(self.fields)))
        self.left -= size
        if lacks > CUT_BYTES or self.left < 0 or begin + size > len(self.fields) + CUT_BYTES:
            raise self.fields.fail(
                f"a DMA write takes {size} bytes from byte {source} of a data zone of "
                f"{len(self.fields) - self.start} bytes, of which others use the rest"
            )
        if not lacks:
            return self.fields.words(begin, count, "the data of a DMA write")
        self.missing = max(self.missing, lacks)
        raw = bytes(self.fields.slice(begin, size - lacks, "the data of a DMA write"))
        return np.frombuffer(raw + bytes(lacks), "<u4")
