"""Bounded access to the fields of a binary structure: what lies outside raises FormatError."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.metadata import show

_WORD = np.dtype("<u4")


class Fields:
    """``data`` (a view, never copied) with a ``label`` that begins every error message."""

    def __init__(self, data: bytes | memoryview, label: str) -> None:
        self.data = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.label = label

    def __len__(self) -> int:
        return len(self.data)

    def fail(self, what: str) -> FormatError:
        return FormatError(f"[{self.label}] {what}")

    def slice(self, offset: int, size: int, what: str) -> memoryview:
        """``size`` bytes from ``offset``; ``what`` names them in an error."""
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise self.fail(
                f"{what} needs bytes {offset}..{offset + size}, but only {len(self.data)} are "
                "there: the file is truncated or corrupted"
            )
        return self.data[offset : offset + size]

    def unpack(self, layout: struct.Struct, offset: int, what: str) -> tuple[Any, ...]:
        return layout.unpack(self.slice(offset, layout.size, what))

    def words(self, offset: int, count: int, what: str) -> np.ndarray:
        """``count`` 32-bit little-endian words, uint32, without a copy."""
        return np.frombuffer(self.slice(offset, 4 * count, what), _WORD)

    def string(self, offset: int, what: str) -> str:
        """The text from ``offset`` to the next zero byte."""
        if not 0 <= offset < len(self.data):
            raise self.fail(f"{what} would begin at byte {offset} of {len(self.data)}")
        raw = bytes(self.data[offset : offset + _MAX_STRING])
        end = raw.find(b"\0")
        if end < 0:
            raise self.fail(f"{what} at byte {offset} has no end: {show(raw[:40])}")
        return text(raw[:end])


_MAX_STRING = 4096


def text(raw: bytes | memoryview) -> str:
    """A fixed-size name field as text, up to its first zero byte."""
    return printable(bytes(raw).split(b"\0", 1)[0].decode("utf-8", "backslashreplace"))


def printable(name: str) -> str:
    """Text of a file, without what would move a terminal's cursor or break a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def checksum(words: np.ndarray) -> int:
    """The headers' checksum: one's complement of the sum of the words (bootgen, UG1304)."""
    return ~int(words.sum(dtype=np.uint64)) & 0xFFFFFFFF
