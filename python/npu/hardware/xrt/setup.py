"""Shim registers of a configuration that its xclbin does not have.

In mlir-aie, shim BDs and the packet ids of completion tokens belong to streams, so that loading an
xclbin does not write them. The driver may load it again before any run. Every stream therefore
begins with these writes of the configuration's static stream: at most 2 KB.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from npu import stream

# Of a shim tile: 16 BDs of 32 bytes, then control and queue registers of four channels
# (docs/reference/hardware.md).
_FIRST, _END = 0x1D000, 0x1D220
_TILE_BYTES = 1 << 20
_ROW = 0x1F  # of the bits above
_HEADER = struct.Struct("<8xII")  # operations, bytes
HEADER_BYTES = 16


@dataclass(frozen=True)
class Setup:
    """Operations of a TXN stream, and how many."""

    operations: bytes = b""
    count: int = 0

    def before(self, words: bytes) -> bytes:
        """A stream that does these operations first."""
        if not self.count:
            return words
        count, _ = _HEADER.unpack_from(words)
        size = len(words) + len(self.operations)
        head = words[:8] + struct.pack("<II", count + self.count, size)
        return head + self.operations + words[HEADER_BYTES:]


def is_setup(address: int) -> bool:
    """Whether a register is one that an xclbin does not write."""
    shim = address // _TILE_BYTES & _ROW == 0
    return shim and _FIRST <= address % _TILE_BYTES < _END


def setup_of(txn: bytes) -> Setup:
    """What a configuration's static stream writes to such registers."""
    found = [one for one in stream.operations(txn) if is_setup(one.get("address", 0))]
    pieces = [txn[one["byte_offset"] : one["byte_offset"] + one["bytes"]] for one in found]
    return Setup(b"".join(pieces), len(found))
