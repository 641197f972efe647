"""Registers of shim tiles that a host writes once: those of a configuration that aiecc leaves out.

mlir-aie's configuration has no preconfigured shim BDs and no packet ids of completion tokens: they
belong to runtime sequences there. Nothing keeps them over a reload of the array, which other
programs and five idle seconds cause, so that the stream that writes them is short and may be run
before any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu._npu import arch
from npu._npu import stream as txn

from ..hardware import Tile
from .lowered import Lowered
from .serialise import TOKEN_ID, TOKEN_MASK, port_registers, shim_bd_offset, shim_bd_words


@dataclass(frozen=True)
class Write:
    """One register: an offset in its tile, a value, and which bits of it count (all: None)."""

    tile: Tile
    offset: int
    value: int
    mask: int | None = None


def writes(lowered: Lowered) -> list[Write]:
    """The preconfigured shim BDs, and the packet id of the completion tokens of every port: where
    streams write it as well, it is the same."""
    out = [
        Write(bd.tile, shim_bd_offset(bd) + 4 * index, word)
        for bd in lowered.shim_bds
        for index, word in enumerate(shim_bd_words(bd, lowered.generation))
    ]
    ports = port_registers(lowered)
    return out + [Write(tile, offset, TOKEN_ID, TOKEN_MASK) for tile, offset in ports]


def setup_stream(lowered: Lowered) -> bytes:
    """The same as a TXN stream."""
    out = txn.Builder(lowered.generation, lowered.columns)
    for write in writes(lowered):
        address = arch.tile_address(write.tile.col, write.tile.row, write.offset)
        if write.mask is None:
            out.write(address, write.value)
        else:
            out.mask_write(address, write.value, write.mask)
    return bytes(out.finish())
