"""xclbin containers and their sections: what is written is read, every malformed one is a
FormatError that says what is wrong, any change of a valid one is read or refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xclbin_files import (
    as_tuple,
    encode_axlf,
    encode_cdo,
    encode_ips,
    encode_memories,
    encode_partition,
    encode_pdi,
)

from npu.errors import FormatError
from npu.formats import xclbin
from npu.formats.xclbin import axlf, partition, sections

BYTES = st.binary(max_size=60)
NAME = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=15)
U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
XML = b"""<?xml version="1.0" encoding="utf-8"?><project><platform><device><core>
<kernel name="MLIR_AIE" type="dpu"><extended-data subtype="1" dpu_kernel_id="0x901"/>
<arg name="opcode" addressQualifier="0" id="0" size="0x8" offset="0x00" type="uint64_t"/>
<arg name="bo0" addressQualifier="1" id="3" size="0x8" offset="0x14" type="void*"/>
<instance name="MLIRAIE"/></kernel></core></device></platform></project>"""


@given(st.lists(st.tuples(st.integers(0, 40), NAME, BYTES), max_size=6))
def test_what_is_written_is_read(written: list[tuple[int, str, bytes]]) -> None:
    data = encode_axlf(written)
    found = axlf.read_axlf(data)
    kinds = [axlf.KINDS[k] if k < len(axlf.KINDS) else str(k) for k, _, _ in written]
    assert [one.kind for one in found.sections] == kinds
    assert [one.name for one in found.sections] == [name for _, name, _ in written]
    assert [bytes(one.data) for one in found.sections] == [content for _, _, content in written]
    assert (found.length, found.signature_length, found.version) == (len(data), -1, "2.1.7")
    assert found.platform == "xilinx_v1_ipu_0_0"
    assert (found.uuid.bytes, found.interface_uuid.bytes) == (b"\2" * 16, b"\1" * 16)


def test_a_section_by_kind() -> None:
    found = axlf.read_axlf(encode_axlf([(6, "empty", b""), (6, "a", b"x"), (6, "b", b"y")]))
    section = found.section("MEM_TOPOLOGY")
    assert section and bytes(section.data) == b"x"
    assert found.section("AIE_PARTITION") is None


@given(st.lists(BYTES, max_size=4), U16, st.lists(U16, max_size=4), st.lists(U64, max_size=3))
def test_partitions(images: list[bytes], width: int, starts: list[int], kernels: list[int]) -> None:
    found = partition.read_partition(encode_partition(images, width, starts, kernels))
    assert (found.name, found.column_width, found.start_columns) == ("QoS", width, tuple(starts))
    assert found.operations_per_cycle == 2048
    assert [bytes(one.image) for one in found.pdis] == images
    for index, pdi in enumerate(found.pdis):
        (group,) = pdi.groups
        assert (group.name, group.kind, group.pdi_id) == ("DPU", "primary", index + 1)
        assert (group.kernel_ids, group.pre_groups) == (tuple(kernels), (0xC1,))
        assert pdi.uuid.bytes == bytes([index]) * 16


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 1), U64, U64, NAME), max_size=5))
def test_memories(written: list[tuple[int, int, int, int, str]]) -> None:
    found = sections.read_memories(
        encode_memories([(*one[:4], one[4].encode()) for one in written])
    )
    assert [(one.used, one.size, one.base, one.tag) for one in found] == [
        (bool(used), size, base, tag) for _, used, size, base, tag in written
    ]
    assert len({one.kind for one in found}) == len({one[0] for one in written})


@given(st.lists(st.tuples(st.integers(0, 9), U32, U64, NAME), max_size=5))
def test_ips(written: list[tuple[int, int, int, str]]) -> None:
    found = sections.read_ips(encode_ips([(*one[:3], one[3].encode()) for one in written]))
    assert [(one.kernel_id, one.base, one.name) for one in found] == [
        (properties >> 16 & 0xFFF if kind == 7 else None, base, name)
        for kind, properties, base, name in written
    ]


def test_kernels() -> None:
    (kernel,) = sections.read_kernels(XML + b"\0\0")
    assert (kernel.name, kernel.kind, kernel.kernel_id) == ("MLIR_AIE", "dpu", "0x901")
    assert kernel.instances == ("MLIRAIE",)
    assert kernel.arguments == (
        sections.Argument("opcode", 0, "scalar", 8, 0, "uint64_t"),
        sections.Argument("bo0", 3, "global", 8, 0x14, "void*"),
    )


def test_names_cannot_move_a_terminals_cursor() -> None:
    (memory,) = sections.read_memories(encode_memories([(2, 1, 0, 0, b"\x1b[2Ja\nb\xff")]))
    assert memory.tag == "\\x1b[2Ja\\nb\\xff"
    (kernel,) = sections.read_kernels(b'<p><kernel name="a&#10;b"/></p>')
    assert kernel.name == "a\\nb"


def test_all_the_way_to_the_commands() -> None:
    commands = [("write", 4, 5)]
    image = encode_pdi([encode_cdo(commands)])
    file = encode_axlf([(2, "xml", XML), (32, "part", encode_partition([image, image]))])
    found = xclbin.read(file, "a.xclbin")
    assert (found.kind, found.count) == ("xclbin", 2)
    for index in range(2):
        (one,) = found.configurations(index)
        assert [as_tuple(command) for command in one.cdo.commands] == commands
        assert one.name == f"a.xclbin, PDI {index}"


def changed(data: bytes, at: int, layout: str, value: int) -> bytes:
    file = bytearray(data)
    struct.pack_into(layout, file, at, value)
    return bytes(file)


SMALL = encode_axlf([(6, "a", b"x" * 8), (8, "b", b"y" * 8)])
LENGTH, COUNT, OFFSET, SIZE = 0x130, 0x130 + 144, 0x1C8 + 24, 0x1C8 + 32
PART = encode_partition([b"image"], 1, [0], [5])
MEMORIES = encode_memories([(2, 1, 3, 4, b"HOST")])


@pytest.mark.parametrize(
    ("read", "data", "message"),
    [
        (axlf.read_axlf, b"", "the magic number needs bytes 0..8, but only 0"),
        (axlf.read_axlf, b"xclbin1\0" + SMALL[8:], "it begins with b'xclbin1\\x00'"),
        (axlf.read_axlf, SMALL[:300], "the unique id needs"),
        (axlf.read_axlf, SMALL[:400], "the xclbin header needs"),
        (axlf.read_axlf, SMALL[:-1], f"the header says {len(SMALL)} bytes, the file has"),
        (axlf.read_axlf, changed(SMALL, LENGTH, "<Q", 2**63), "says 9223372036854775808 bytes"),
        (axlf.read_axlf, changed(SMALL, LENGTH, "<Q", 3), "the header says 3 bytes"),
        (axlf.read_axlf, changed(SMALL, COUNT, "<I", 0x10001), "65537 sections"),
        (axlf.read_axlf, changed(SMALL, COUNT, "<I", 0x10000), "0 (MEM_TOPOLOGY) begins at byte"),
        (axlf.read_axlf, changed(SMALL, OFFSET, "<Q", 2**64 - 1), "section 0 (MEM_TOPOLOGY) needs"),
        (axlf.read_axlf, changed(SMALL, SIZE, "<Q", 2**64 - 1), "section 0 (MEM_TOPOLOGY) needs"),
        (axlf.read_axlf, changed(SMALL, OFFSET, "<Q", 8), "begins at byte 8, within the headers"),
        (axlf.read_axlf, changed(SMALL, SIZE, "<Q", 9), "MEM_TOPOLOGY and IP_LAYOUT overlap"),
        (partition.read_partition, b"", "the partition header needs bytes 0..184"),
        (partition.read_partition, PART[:190], "name would begin at byte 280 of 190"),
        (partition.read_partition, changed(PART, 4, "<I", 10**6), "begin at byte 1000000"),
        (partition.read_partition, changed(PART, 40, "<I", 2**32 - 1), "exceed the section"),
        (partition.read_partition, changed(PART, 120, "<I", 2**32 - 1), "exceed the section"),
        (partition.read_partition, changed(PART, 124, "<I", 2**32 - 1), "1 PDIs needs bytes"),
        (partition.read_partition, changed(PART, 184 + 16, "<I", 10**9), "image of PDI 0"),
        (partition.read_partition, changed(PART, 184 + 24, "<I", 10**9), "CDO groups of PDI 0"),
        (sections.read_memories, b"", "the count needs"),
        (sections.read_memories, changed(MEMORIES, 0, "<i", -1), "-1 entries"),
        (sections.read_memories, changed(MEMORIES, 0, "<i", 2), "2 entries needs"),
        (sections.read_ips, changed(encode_ips([]), 0, "<i", 2**31 - 1), "2147483647 entries"),
        (sections.read_kernels, b"", "no valid XML"),
        (sections.read_kernels, b"<a", "no valid XML"),
        (sections.read_kernels, b'<!DOCTYPE a [<!ENTITY b "c">]><a/>', "declares a document type"),
        (sections.read_kernels, '<!DOCTYPE a><a/>'.encode("utf-16"), "no valid XML"),
        (sections.read_kernels, b'<kernel><arg name="x" id="one"/></kernel>', "has id 'one'"),
        (sections.read_json, b"[1]", "no JSON object"),
        (sections.read_json, b"{", "no valid JSON"),
        (sections.read_json, b'{"a":' * 100_000, "no valid JSON"),
        (sections.read_json, b"\xff\xfe", "no valid JSON"),
    ],
)  # fmt: skip
def test_malformed(read: Callable[..., Any], data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=r"^\[here\] ") as caught:
        read(data, "here")
    assert message in str(caught.value)


def test_a_string_without_end() -> None:
    with pytest.raises(FormatError, match="has no end"):
        partition.read_partition(changed(PART[:-4] + b"\1" * 4, 4, "<I", len(PART) - 2))


@pytest.mark.parametrize("data", [b"", b"\x7fELF" + bytes(60), b"npu-config", b"version https://g"])
def test_other_files(data: bytes) -> None:
    assert not xclbin.is_image(data)
    with pytest.raises(FormatError, match="no xclbin, PDI or CDO"):
        xclbin.read(data, "here")


READERS: list[tuple[Callable[..., Any], bytes]] = [
    (axlf.read_axlf, SMALL),
    (partition.read_partition, PART),
    (sections.read_memories, MEMORIES),
    (sections.read_ips, encode_ips([(7, 0x01000001, 5, b"a:b")])),
    (sections.read_kernels, XML),
    (sections.read_json, b'{"a": [1, "b"]}'),
]


@given(st.data(), st.sampled_from(READERS))
def test_fuzz(data: Any, reader: tuple[Callable[..., Any], bytes]) -> None:
    """Bytes changed in a valid section and its end cut: read, or a FormatError of the reader."""
    read, valid = reader
    file = bytearray(valid)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(file) - 1))
        file[at : at + 4] = data.draw(st.binary(min_size=1, max_size=4))
    with contextlib.suppress(FormatError):
        read(bytes(file[: data.draw(st.integers(0, len(file)))]), "here")


@given(st.binary(max_size=300), st.sampled_from(READERS))
def test_any_bytes(data: bytes, reader: tuple[Callable[..., Any], bytes]) -> None:
    with contextlib.suppress(FormatError):
        reader[0](data, "here")
