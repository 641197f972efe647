"""What a configuration says of each tile in words, for the golden programs and for single writes;
which cores it leaves enabled; and that a CDO gives the stream of the same writes."""

from __future__ import annotations

from typing import Any

import pytest
from golden_files import golden
from xclbin_files import CommandTuple, encode_cdo

from npu import stream
from npu.errors import FormatError
from npu.formats.xclbin import cdo, tiles, writes


def lines(name: str) -> list[str]:
    found = tiles.summarise(stream.operations(golden(name, "config.bin")))
    return [line for tile in found.values() for line in tiles.describe(tile)]


def test_the_golden_relay() -> None:
    """Locks, BDs, queues and routes as in physical.mlir of the same folder."""
    text = lines("relay_npu1")
    assert "mem(0,1): bds 0-3; locks 0=2 1=0; s2mm[0] starts bd[0]; mm2s[0] starts bd[2]" in text
    # There: aie.connect<South : 3, North : 3>, <North : 2, South : 2>, masterset(South : 0).
    shim = text[text.index("shim(0,0): locks 0=0 1=0 2=0 3=0") + 1]
    assert "south 3 -> north 3" in shim and "north 2 -> south 2" in shim
    assert "packets 15/31 of control 0 -> south 0" in shim
    assert "mm2s[0] on south 3, s2mm[0] on south 2" in shim


def operation(opcode: str, col: int, row: int, offset: int, **fields: Any) -> dict[str, Any]:
    return {"opcode": opcode, "address": stream.tile_address(col, row, offset), **fields}


def describe(*operations: dict[str, Any]) -> list[str]:
    (tile,) = tiles.summarise(operations).values()
    return tiles.describe(tile)


def test_memories_and_core() -> None:
    program = operation("BLOCKWRITE", 1, 2, 0x20000, data=[1] * 8)
    memory = operation("BLOCKWRITE", 1, 2, 0x400, data=[1, 2])
    enable = operation("MASKWRITE", 1, 2, 0x32000, value=1, mask=1)
    expected = "program 32 bytes in 0x0..0x20; memory 8 bytes in 0x400..0x408"
    assert describe(program, memory, enable) == [f"core(1,2): enabled; {expected}"]
    reset = operation("MASKWRITE", 1, 2, 0x32000, value=2, mask=2)
    assert describe(program, memory, enable, reset) == [f"core(1,2): disabled; {expected}"]


def test_routes() -> None:
    """South slave 1 to DMA master 0 as a circuit; packets 3/31 of South slave 0 to two masters."""
    base, south, dma = 0x3F000, 5, 1
    found = describe(
        operation("WRITE", 0, 3, base + 4 * dma, value=0x80000000 | south + 1),
        operation("WRITE", 0, 3, base + 4 * 13, value=0xC0000000 | 1 << 5 | 4),  # arbiter 4 msel 2
        operation("WRITE", 0, 3, base + 4 * 14, value=0xC0000000 | 1 << 5 | 4),
        operation("WRITE", 0, 3, base + 4 * 15, value=0xC0000000 | 1 << 5 | 3),
        operation("WRITE", 0, 3, base + 0x200 + 0x10 * south, value=0x031F0124),
    )
    assert found == [
        "core(0,3): routes",
        "  routes south 1 -> dma 0, packets 3/31 of south 0 -> north 0 and north 1",
    ]


@pytest.mark.parametrize(
    ("value", "expected"), [(0, False), (1, True), (2, False), (3, False), (0xFFFFFFFD, True)]
)
def test_enabled_cores(value: int, expected: bool) -> None:
    """Enabled: bit 0 without the reset bit 1."""
    builder = stream.Builder("npu1", 4)
    builder.write(stream.tile_address(2, 5, 0x32000), value)
    builder.write(stream.tile_address(2, 4, 0x31000), value)
    assert tiles.cores(builder.finish()) == {(2, 5): expected}


def to_stream(commands: list[CommandTuple], wide: bool = False) -> bytes:
    return writes.to_stream([("here", cdo.read_cdo(encode_cdo(commands, wide)))], "npu2", 8)


@pytest.mark.parametrize("wide", [False, True])
def test_the_stream_of_a_cdo(wide: bool) -> None:
    builder = stream.Builder("npu2", 8)
    builder.write(0x214000, 5)
    builder.mask_write(0x232000, 1, 3)
    builder.mask_poll(0x232004, 0, 7)
    builder.block_write(0x200400, [1, 2])
    builder.block_write(0x200800, [9, 9, 9])
    commands: list[CommandTuple] = [
        ("nop", 2), ("write", 0x214000, 5), ("delay", 7), ("mask_write", 0x232000, 3, 1),
        ("mask_poll", 0x232004, 7, 0, 100), ("block", 0x200400, [1, 2]),
        ("fill", 0x200800, 3, 9), ("end",),
    ]  # fmt: skip
    assert to_stream(commands, wide) == builder.finish()


def test_more_than_an_npu_has() -> None:
    fills: list[CommandTuple] = [("fill", 0, 1 << 18, 0)] * 16
    with pytest.raises(FormatError, match=r"^\[here\] the commands write 167\d+ bytes"):
        to_stream([*fills, ("write", 0, 0)])
    assert to_stream(fills[:15])


def test_what_the_npu_does_not_execute() -> None:
    with pytest.raises(FormatError, match=r"^\[here\] command 0x224 at byte 20 is not one"):
        to_stream([("other", 0x224, [1])])
    with pytest.raises(FormatError, match=r"accesses address 0x100000004; .* 32 bits"):
        to_stream([("write", 1 << 32 | 4, 1)], wide=True)
