"""PDIs, plain and transformed: what is written is read; headers with wrong sums, offsets out of
the file, cycles and impossible counts are FormatErrors; any change of a valid file is read or
refused."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xclbin_files import (
    CommandTuple,
    as_tuple,
    checksum,
    encode_cdo,
    encode_pdi,
    encode_transformed_pdi,
    words,
)

from npu.errors import FormatError
from npu.formats.xclbin import pdi

WORD = st.integers(0, 2**32 - 1)
PAYLOAD = st.lists(WORD, max_size=40)
COMMAND = st.one_of(  # those that a transformation keeps
    st.tuples(st.just("write"), WORD, WORD),
    st.tuples(st.just("mask_write"), WORD, WORD, WORD),
    st.tuples(st.just("block"), st.integers(0, 2**64 - 1), PAYLOAD),
    st.tuples(st.just("nop"), st.integers(0, 3)),
)
COMMANDS = st.lists(COMMAND, max_size=20)
SAMPLE: list[CommandTuple] = [("write", 4, 5), ("block", 8, [1, 2, 3]), ("block", 64, [4])]


def read_all(data: bytes) -> list[list[CommandTuple]]:
    found = pdi.read_pdi(data, "here")
    return [[as_tuple(one) for one in found.cdo(p)[0].commands] for p in found.partitions]


@given(st.lists(COMMANDS, min_size=1, max_size=3), st.booleans())
def test_what_is_written_is_read(lists: list[list[CommandTuple]], bus_width: bool) -> None:
    data = encode_pdi([encode_cdo(one) for one in lists], bus_width)
    assert pdi.is_pdi(data)
    assert read_all(data) == lists
    found = pdi.read_pdi(data)
    assert found.images == (("aie_image", len(lists)),)
    assert (found.kind, found.version) == ("partial", 0x40000)


@given(COMMANDS)
def test_a_transformed_pdi_has_the_same_writes(commands: list[CommandTuple]) -> None:
    data = encode_transformed_pdi(commands)
    assert read_all(data) == [[one for one in commands if one[0] != "nop"]]


@pytest.mark.parametrize("cut", [0, 4, 20])
def test_what_a_transformed_pdi_lacks_is_zero(cut: int) -> None:
    commands: list[CommandTuple] = [("block", 4, [7]), ("block", 8, [1, 2, 3, 4, 5, 6])]
    found = pdi.read_pdi(encode_transformed_pdi(commands, cut))
    read, missing = found.cdo(found.partitions[0])
    assert missing == cut
    kept = 6 - cut // 4
    expected = [1, 2, 3, 4, 5, 6][:kept] + [0] * (6 - kept)
    assert [as_tuple(one) for one in read.commands] == [commands[0], ("block", 8, expected)]


def test_a_boot_header_precedes_the_table_of_a_full_pdi() -> None:
    """Its byte offset stands at 0xC4; offsets in headers count from the start of the file."""
    inner = encode_pdi([encode_cdo(SAMPLE)], bus_width=False)
    shift = 0x1000
    file = bytearray(shift) + bytearray(inner)
    struct.pack_into("<II", file, 0, 0xDD, 0x11223344)
    struct.pack_into("<I", file, 0x14, 0x584C4E58)
    struct.pack_into("<I", file, 0xC4, shift)
    table = list(struct.unpack_from("<32I", file, shift))
    table[2] += shift // 4
    table[4] += shift // 4
    table[10] = 0x46504449
    struct.pack_into("<32I", file, shift, *table[:31], checksum(table[:31]))
    partition = list(struct.unpack_from("<32I", file, shift + 192))
    partition[8] += shift // 4
    struct.pack_into("<32I", file, shift + 192, *partition[:31], checksum(partition[:31]))
    assert read_all(bytes(file)) == [SAMPLE]
    assert pdi.read_pdi(bytes(file)).kind == "full"


def edited(at: int, value: int, start: int, count: int, data: bytes | None = None) -> bytes:
    """The sample with one word of a header changed and its checksum made right again."""
    file = bytearray(encode_pdi([encode_cdo(SAMPLE)] * 2) if data is None else data)
    fields = list(struct.unpack_from(f"<{count}I", file, start))
    fields[at] = value
    struct.pack_into(f"<{count}I", file, start, *fields[:-1], checksum(fields[:-1]))
    return bytes(file)


TABLE, IMAGE, FIRST, SECOND = (16, 32), (144, 16), (208, 32), (336, 32)
PLAIN = encode_pdi([encode_cdo(SAMPLE)])
TRANSFORMED = encode_transformed_pdi(SAMPLE)


def transformed_zone(changes: dict[int, int], data: bytes = TRANSFORMED) -> bytes:
    file = bytearray(data)
    for index, value in changes.items():
        struct.pack_into("<I", file, 0x150 + 20 + 4 * index, value)
    return bytes(file)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty"),
        (PLAIN[:16], "the PDI's header needs"),
        (PLAIN[:100], "the image header table needs"),
        (PLAIN[:-20], "partition 0 needs"),
        (PLAIN[:16] + b"\5" + PLAIN[17:], "the image header table has checksum"),
        (PLAIN[:150] + b"\5" + PLAIN[151:], "image header 0 has checksum"),
        (PLAIN[:210] + b"\5" + PLAIN[211:], "partition header 0 has checksum"),
        (edited(10, 7, *TABLE), "the word at byte 56 is 0x00000007"),
        (edited(1, 0, *TABLE), "0 images"),
        (edited(3, 0xFFFFFFFF, *TABLE), "4294967295 partitions"),
        (edited(2, 0xFFFFFFFF, *TABLE), "image header 0 needs bytes 17179869180"),
        (edited(4, 0x3FFFFFFF, *TABLE), "partition header 0 needs"),
        (edited(3, 1, *TABLE), "more partition headers are linked than the 1"),
        (edited(3, 3, *TABLE), "2 partition headers are linked, the table has 3"),
        (edited(3, 208 // 4, *SECOND), "comes back to byte 208"),
        (edited(8, 0x3FFFFFFF, *FIRST), "partition 0 needs"),
        (edited(1, 0xFFFFFFFF, *FIRST), "partition 0 needs"),
    ],
)
def test_malformed_headers(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=r"^\[here\] ") as caught:
        pdi.read_pdi(data, "here")
    assert message in str(caught.value)


# The command zone of the sample: [3, 1, 4, 5], [5, 2, 0, 8, 0, 3, 0, 64, 12, 1].
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (edited(17, 1, *FIRST), "is encrypted"),
        (encode_pdi([bytes(32)], kind=1), "is of type ELF"),
        (transformed_zone({0: 4}), "has command 4"),
        (transformed_zone({0: 0x103}), "has command 259"),
        (transformed_zone({1: 0xFFFFFFFF}), "a group of 4294967295 x 2 words"),
        (transformed_zone({8: 0xFFFFFFFF}), "takes 12 bytes from byte 4294967295"),
        (transformed_zone({9: 0xFFFF}), "takes 262140 bytes"),
        (transformed_zone({9: 5, 8: 0, 13: 5, 12: 0}), "of which others use the rest"),
        (TRANSFORMED[: 0x150 + 20 + 13], "the command zone of a transformed PDI"),
        (encode_transformed_pdi([("block", 4, list(range(9)))], cut=24), "takes 36 bytes"),
    ],
)
def test_malformed_contents(data: bytes, message: str) -> None:
    found = pdi.read_pdi(data, "here")
    with pytest.raises(FormatError, match=r"^\[here, partition 0\] ") as caught:
        found.cdo(found.partitions[0])
    assert message in str(caught.value)


@given(st.data(), st.booleans())
def test_fuzz(data: Any, transformed: bool) -> None:
    """Words changed (with right checksums or not) and the end cut: read, or one FormatError."""
    file = bytearray(TRANSFORMED if transformed else encode_pdi([encode_cdo(SAMPLE)] * 2))
    for _ in range(data.draw(st.integers(1, 3))):
        struct.pack_into(
            "<I", file, 4 * data.draw(st.integers(0, len(file) // 4 - 1)), data.draw(WORD)
        )
    if data.draw(st.booleans()):
        for start, count in (TABLE, IMAGE, FIRST, *(() if transformed else (SECOND,))):
            fields = list(struct.unpack_from(f"<{count - 1}I", file, start))
            keep = fields[:28] if transformed and start == FIRST[0] else fields
            struct.pack_into("<I", file, start + 4 * (count - 1), checksum(keep))
    try:
        read_all(bytes(file[: data.draw(st.integers(0, len(file)))]))
    except FormatError as error:
        assert str(error).startswith("[here")


@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        read_all(words([0xDD, 0, 0, 0]) + data)
