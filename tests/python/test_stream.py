"""TXN streams through ``npu._npu.stream``.

Asserts that operations survive builder -> bytes -> reader, that the bytes equal an encoding written
here with ``struct`` alone, that the public compiler's files are rebuilt byte for byte, that damaged
bytes raise FormatError and nothing else, and what a runtime stream may touch.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from golden_files import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from npu import errors
from npu._npu import arch, stream

STREAMS = sorted(GOLDEN.glob("*/*.bin"))

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
u64 = st.integers(0, (1 << 64) - 1)


def _op(opcode: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"opcode": st.just(opcode), **fields})


OPERATIONS = st.one_of(
    _op("WRITE", address=u32, value=u32),
    _op("BLOCKWRITE", address=u32, data=st.lists(u32, min_size=1, max_size=20), column=u8, row=u8),
    _op("MASKWRITE", address=u32, value=u32, mask=u32),
    _op("MASKPOLL", address=u32, value=u32, mask=u32),
    _op("NOOP"),
    _op("PREEMPT", level=st.integers(0, 3)),
    _op("LOADPDI", pdi_id=u16, pdi_bytes=u32, address=u64),
    _op(
        "SYNC",
        column=u8,
        row=u8,
        direction=st.sampled_from(["s2mm", "mm2s"]),
        channel=u8,
        columns=st.integers(1, 255),
        rows=st.integers(1, 255),
    ),
    _op("ADDRESS_PATCH", address=u32, argument=u32, argument_offset=u64),
)


def _append(builder: stream.Builder, op: dict[str, Any]) -> None:
    match op["opcode"]:
        case "WRITE":
            builder.write(op["address"], op["value"])
        case "BLOCKWRITE":
            builder.block_write(op["address"], op["data"], op["column"], op["row"])
        case "MASKWRITE":
            builder.mask_write(op["address"], op["value"], op["mask"])
        case "MASKPOLL":
            builder.mask_poll(op["address"], op["value"], op["mask"])
        case "NOOP":
            builder.noop()
        case "PREEMPT":
            builder.preempt(op["level"])
        case "LOADPDI":
            builder.load_pdi(op["pdi_id"], op["pdi_bytes"], op["address"])
        case "SYNC":
            builder.sync(
                op["column"], op["row"], op["direction"], op["channel"], op["columns"], op["rows"]
            )
        case "ADDRESS_PATCH":
            builder.address_patch(op["address"], op["argument"], op["argument_offset"], fold=False)
        case other:
            pytest.fail(f"no builder method for {other}")


def _packed(op: dict[str, Any]) -> bytes:
    """The operation's bytes by the published layout, field by field."""
    match op["opcode"]:
        case "WRITE":
            return struct.pack("<IIQII", 0, 0, op["address"], op["value"], 24)
        case "BLOCKWRITE":
            data = op["data"]
            head = struct.pack(
                "<IBBHII", 1, op["column"], op["row"], 0, op["address"], 16 + 4 * len(data)
            )
            return head + struct.pack(f"<{len(data)}I", *data)
        case "MASKWRITE" | "MASKPOLL":
            code = 3 if op["opcode"] == "MASKWRITE" else 4
            return struct.pack("<IIQIII", code, 0, op["address"], op["value"], op["mask"], 28)
        case "NOOP":
            return b"\x05\0\0\0"
        case "PREEMPT":
            return bytes([6, op["level"], 0, 0])
        case "LOADPDI":
            return struct.pack("<HHIQ", 8, op["pdi_id"], op["pdi_bytes"], op["address"])
        case "SYNC":
            where = (int(op["direction"] == "mm2s"), op["row"], op["column"], 0)
            return struct.pack(
                "<II8B", 0x80, 16, *where, 0, op["rows"], op["columns"], op["channel"]
            )
        case _:
            return struct.pack(
                "<6IQQQ", 0x81, 48, 0, 0, 0, 0, op["address"], op["argument"],
                op["argument_offset"],
            )  # fmt: skip


@given(st.lists(OPERATIONS, max_size=12), st.integers(1, 8))
def test_builder_reader_and_published_layout_agree(ops: list[dict[str, Any]], columns: int) -> None:
    builder = stream.Builder("npu2", columns)
    for op in ops:
        _append(builder, op)
    assert builder.operations() == len(ops)
    data = builder.finish()
    body = b"".join(_packed(op) for op in ops)
    header = struct.pack("<8BII", 0, 1, 4, 6, columns, 1, 0, 0, len(ops), 16 + len(body))
    assert data == header + body
    read = stream.operations(data)
    assert [{key: got[key] for key in op} for got, op in zip(read, ops, strict=True)] == ops
    assert stream.disassemble(data).count("\n") == len(ops) + 1


@given(st.integers(0, 20), st.integers(0, (1 << 32) - 1))
def test_fold_adds_the_aperture_from_argument_five(argument: int, offset: int) -> None:
    builder = stream.Builder("npu1", 4)
    builder.address_patch(0x1D004, argument, offset)
    (op,) = stream.operations(builder.finish())
    assert op["argument_offset"] == offset + (0x80000000 if argument >= 5 else 0)


@given(st.data())
def test_damaged_streams_raise_format_errors_only(data: st.DataObject) -> None:
    builder = stream.Builder("npu2", 8)
    for op in data.draw(st.lists(OPERATIONS, min_size=1, max_size=4)):
        _append(builder, op)
    raw = bytearray(builder.finish())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(u8)
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            stream.disassemble(damaged)
        except errors.FormatError as error:
            assert str(error).startswith("[Stream::parse]")


@given(st.binary(max_size=200))
def test_random_bytes_raise_format_errors(data: bytes) -> None:
    with pytest.raises(errors.FormatError):
        stream.operations(data)


@pytest.mark.parametrize("path", STREAMS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_files_of_the_public_compiler(path: Path) -> None:
    data = path.read_bytes()
    header = stream.header(data)
    builder = stream.Builder(header["generation"], header["columns"])
    for op in stream.operations(data):
        _append(builder, op)
        if op["opcode"] == "BLOCKWRITE":
            _check_golden_bd(op)
    assert builder.finish() == data
    if path.name == "insts.bin":
        stream.check(data)
    else:
        with pytest.raises(errors.StreamError):
            stream.check(data)


def _check_golden_bd(op: dict[str, Any]) -> None:
    """A BD written by the compiler decodes to fields that encode to the same words."""
    row, offset = op["address"] >> 20 & 31, op["address"] & 0xFFFFF
    kind = "shim" if row == 0 else "mem" if row == 1 else "core"
    model = arch.tile_geometry(kind)
    slot = offset - model["bd_base"]
    if 0 <= slot < 0x20 * model["bds"] and slot % 0x20 == 0 and len(op["data"]) >= 6:
        fields = arch.decode_bd(kind, op["data"])
        assert fields["valid"]
        assert arch.encode_bd(kind, fields) == op["data"][: model["bd_words"]]


def _stream(*ops: dict[str, Any]) -> bytes:
    builder = stream.Builder("npu1", 4)
    for op in ops:
        _append(builder, op)
    return builder.finish()


def test_a_runtime_stream_may_touch_shims_rtp_words_and_rtp_locks_only() -> None:
    def write(col: int, row: int, offset: int) -> bytes:
        address = arch.tile_address(col, row, offset)
        return _stream({"opcode": "WRITE", "address": address, "value": 1})

    stream.check(write(0, 0, 0x1D000))
    words, locks = [(1, 2, 0x400, 8)], [(1, 2, 15)]
    stream.check(write(1, 2, 0x404), rtp_words=words, rtp_locks=locks)
    stream.check(write(1, 2, 0x1F0F0), rtp_words=words, rtp_locks=locks)
    for col, row, offset, name in [
        (1, 2, 0x408, r"core\(1,2\).memory\[0x408\]"),
        (2, 2, 0x404, r"core\(2,2\).memory\[0x404\]"),
        (1, 2, 0x1F0E0, r"core\(1,2\).lock\[14\]"),
        (0, 1, 0xA0600, r"mem\(0,1\).s2mm\[0\].control"),
        (0, 0, 0x3F000, r"shim\(0,0\).switch"),
    ]:
        with pytest.raises(errors.StreamError, match=f"operation 0 .*{name}") as caught:
            stream.check(write(col, row, offset), rtp_words=words, rtp_locks=locks)
        assert caught.value.kind == "forbidden"
    with pytest.raises(errors.StreamError, match="LOADPDI"):
        stream.check(_stream({"opcode": "LOADPDI", "pdi_id": 0, "pdi_bytes": 0, "address": 0}))


def test_builder_arguments() -> None:
    builder = stream.Builder("npu2", 8)
    with pytest.raises(errors.ArgumentError, match="0 data words"):
        builder.block_write(0, [])
    with pytest.raises(errors.ArgumentError, match="direction"):
        builder.sync(0, 0, "in", 0)
    with pytest.raises(errors.ArgumentError, match="9 columns"):
        stream.Builder("npu2", 9)
    with pytest.raises(errors.DeviceError):
        stream.Builder("npu9", 1)
    with pytest.raises(TypeError):
        builder.write(-1, 0)
    assert builder.operations() == 0
    assert stream.header(builder.finish())["operations"] == 0
