"""CDOs: what is written is read, in both widths of addresses and lengths; every malformed CDO is
one FormatError that says what is wrong; any bytes are read or refused, never anything else."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xclbin_files import CommandTuple, as_tuple, encode_cdo, words

from npu.errors import FormatError
from npu.formats.xclbin import cdo, writes

WORD = st.integers(0, 2**32 - 1)
PAYLOAD = st.lists(WORD, max_size=300)
COMMAND = st.one_of(
    st.tuples(st.just("write"), WORD, WORD),
    st.tuples(st.just("mask_write"), WORD, WORD, WORD),
    st.tuples(st.just("mask_poll"), WORD, WORD, WORD, WORD),
    st.tuples(st.just("block"), st.integers(0, 2**64 - 1), PAYLOAD),
    st.tuples(st.just("fill"), WORD, st.integers(0, 1 << 18), WORD),
    st.tuples(st.just("delay"), WORD),
    st.tuples(st.just("nop"), st.integers(0, 300)),
    st.tuples(st.just("other"), st.sampled_from([0x109, 0x224, 0x704]), PAYLOAD),
)


@given(st.lists(COMMAND, max_size=20), st.booleans(), st.booleans(), st.booleans())
def test_what_is_written_is_read(
    commands: list[CommandTuple], wide: bool, long: bool, older: bool
) -> None:
    ident, version = (0x584C4E58, 0x132) if older else (0x004F4443, 0x200)
    data = encode_cdo(commands, wide, long, ident, version)
    found = cdo.read_cdo(data + b"\1" * (len(data) % 16))
    assert [as_tuple(one) for one in found.commands] == commands
    assert (found.size, found.version) == (len(data), version)


@given(st.integers(0, 2**64 - 1), WORD)
def test_wide_addresses_have_64_bits(address: int, value: int) -> None:
    (found,) = cdo.read_cdo(encode_cdo([("write", address, value)], wide=True)).commands
    assert as_tuple(found) == ("write", address, value)
    assert found.name == "WRITE64"


def test_offsets_count_from_the_start_of_the_header() -> None:
    data = encode_cdo([("nop", 2), ("write", 4, 5), ("block", 8, [1, 2])])
    offsets = [one.offset for one in cdo.read_cdo(data).commands]
    assert offsets == [20, 32, 44]
    assert all(struct.unpack_from("<I", data, at)[0] & 0xFF00 == 0x100 for at in offsets)


def test_an_end_mark_ends_it() -> None:
    for mark in (0x100, 0xFFFFFFFF):
        body = [0x00020103, 4, 5, mark, 0x00020103, 8, 9]
        header = [4, 0x004F4443, 0x200, len(body)]
        data = words([*header, ~sum(header) & 0xFFFFFFFF, *body])
        assert [one.name for one in cdo.read_cdo(data).commands] == ["WRITE", "END"]


def raw(body: list[int], **header: int) -> bytes:
    fields = {"count": 4, "ident": 0x004F4443, "version": 0x200, "length": len(body)} | header
    values = list(fields.values())
    return words([*values, ~sum(values) & 0xFFFFFFFF, *body])


GOOD = encode_cdo([("write", 4, 5)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "needs bytes 0..20, but only 0"),
        (GOOD[:19], "needs bytes 0..20"),
        (GOOD[:-1], "a CDO of 3 command words needs"),
        (GOOD[:16] + b"\0" + GOOD[17:], "checksum"),
        (b"\0\0\0\4" + GOOD[4:], "big-endian"),
        (raw([], ident=0x12345678), "identification word is 0x12345678"),
        (raw([], count=5), "5 words of it follow"),
        (raw([], version=0x300), "version 3.00"),
        (raw([], length=0xFFFFFFF0), "truncated or corrupted"),
        (GOOD + bytes(16), "16 bytes follow"),
        (raw([0x00030103, 1, 2, 3]), "WRITE at byte 20 has 3 payload words, expected 2"),
        (raw([0x00FE0103, 1]), "254 payload words, but only 1"),
        (raw([0x00FF0105]), "length of command 0x00ff0105 at byte 20 is missing"),
        (raw([0x00FF0105, 0xFFFFFFFF, 1]), "4294967295 payload words, but only 1"),
        (raw([0x00010105, 1]), "has no address"),
        (raw([0x0004010C, 0, 0, 0xFFFFFFFF, 0]), "fills 4294967295 words"),
    ],
)
def test_malformed(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=r"^\[here\] ") as caught:
        cdo.read_cdo(data, "here")
    assert message in str(caught.value)


def test_the_number_of_commands_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdo, "_MAX_COMMANDS", 2)
    assert len(cdo.read_cdo(raw([0x111] * 2)).commands) == 2
    with pytest.raises(FormatError, match="more than 2 commands"):
        cdo.read_cdo(raw([0x111] * 3))


@given(st.data())
def test_fuzz(data: Any) -> None:
    """A valid CDO changed or cut, with a right header checksum: read, or one FormatError."""
    body = encode_cdo(data.draw(st.lists(COMMAND, max_size=4)))[20:]
    changed = np.frombuffer(body, "<u4").copy()
    for _ in range(data.draw(st.integers(0, 3))):
        if len(changed):
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(WORD)
    length = data.draw(st.one_of(st.just(len(changed)), WORD))
    file = raw(changed.tolist(), length=length)[: data.draw(st.integers(0, len(body) + 20))]
    try:
        cdo.read_cdo(file)
    except FormatError as error:
        assert str(error).startswith("[cdo] ")


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        cdo.read_cdo(b"\4\0\0\0CDO\0" + data)


def test_many_large_fills_are_refused_before_they_are_made():
    """A few kilobytes of commands must not become gigabytes of stream."""
    fill = cdo.Fill(0x10C, 20, 0x1000, 1 << 18, 7)
    many = [fill] * 16
    assert writes.check_size("x", many) == 1 << 24
    with pytest.raises(FormatError, match=r"\[x\] the commands write 17825792 bytes"):
        writes.check_size("x", [*many, fill])
    with pytest.raises(FormatError, match="commands write"):
        writes.to_stream([("x", cdo.Cdo(0x200, (*many, fill), 0))], "npu2", 8)
