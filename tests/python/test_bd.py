"""BD encoding through ``npu._npu.arch``.

Asserts that every field lands in the bits that AMD's register database gives it (the layout is
written out below, independently of the C++ tables), that decoding returns the same fields, and that
values outside a field's range raise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu import errors
from npu._npu import arch

KINDS = ["shim", "mem", "core"]


class Field(NamedTuple):
    """Bits [low, low + bits) of a word; the register holds value - bias."""

    name: str
    word: int
    low: int
    bits: int
    bias: int = 0
    signed: bool = False
    index: int | None = None

    @property
    def range(self) -> tuple[int, int]:
        if self.signed:
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        return self.bias, (1 << self.bits) - 1 + self.bias


def _chain(word: int) -> list[Field]:
    return [
        Field("tlast_suppress", word, 31, 1),
        Field("next_bd", word, 27, 4),
        Field("use_next", word, 26, 1),
        Field("valid", word, 25, 1),
        Field("release_value", word, 18, 7, signed=True),
        Field("release_id", word, 13, 4),
        Field("acquire_enable", word, 12, 1),
        Field("acquire_value", word, 5, 7, signed=True),
        Field("acquire_id", word, 0, 4),
    ]


# Base is left out: its unit differs and it spans words on the shim.
LAYOUT: dict[str, list[Field]] = {
    "core": [
        Field("length", 0, 0, 14),
        Field("compression", 1, 31, 1),
        Field("packet_enable", 1, 30, 1),
        Field("out_of_order_id", 1, 24, 6),
        Field("packet_id", 1, 19, 5),
        Field("packet_type", 1, 16, 3),
        Field("step", 2, 0, 13, 1, index=0),
        Field("step", 2, 13, 13, 1, index=1),
        Field("step", 3, 0, 13, 1, index=2),
        Field("wrap", 3, 13, 8, index=0),
        Field("wrap", 3, 21, 8, index=1),
        Field("iteration_current", 4, 19, 6),
        Field("iteration_wrap", 4, 13, 6, 1),
        Field("iteration_step", 4, 0, 13, 1),
        *_chain(5),
    ],
    "shim": [
        Field("length", 0, 0, 32),
        Field("packet_enable", 2, 30, 1),
        Field("out_of_order_id", 2, 24, 6),
        Field("packet_id", 2, 19, 5),
        Field("packet_type", 2, 16, 3),
        Field("secure", 3, 30, 1),
        Field("wrap", 3, 20, 10, index=0),
        Field("step", 3, 0, 20, 1, index=0),
        Field("burst", 4, 30, 2),
        Field("wrap", 4, 20, 10, index=1),
        Field("step", 4, 0, 20, 1, index=1),
        Field("smid", 5, 28, 4),
        Field("axcache", 5, 24, 4),
        Field("axqos", 5, 20, 4),
        Field("step", 5, 0, 20, 1, index=2),
        Field("iteration_current", 6, 26, 6),
        Field("iteration_wrap", 6, 20, 6, 1),
        Field("iteration_step", 6, 0, 20, 1),
        *_chain(7),
    ],
    "mem": [
        Field("packet_enable", 0, 31, 1),
        Field("packet_type", 0, 28, 3),
        Field("packet_id", 0, 23, 5),
        Field("out_of_order_id", 0, 17, 6),
        Field("length", 0, 0, 17),
        Field("pad_before", 1, 26, 6, index=0),
        Field("next_bd", 1, 20, 6),
        Field("use_next", 1, 19, 1),
        Field("tlast_suppress", 2, 31, 1),
        Field("wrap", 2, 17, 10, index=0),
        Field("step", 2, 0, 17, 1, index=0),
        Field("pad_before", 3, 27, 5, index=1),
        Field("wrap", 3, 17, 10, index=1),
        Field("step", 3, 0, 17, 1, index=1),
        Field("compression", 4, 31, 1),
        Field("pad_before", 4, 27, 4, index=2),
        Field("wrap", 4, 17, 10, index=2),
        Field("step", 4, 0, 17, 1, index=2),
        Field("pad_after", 5, 28, 4, index=2),
        Field("pad_after", 5, 23, 5, index=1),
        Field("pad_after", 5, 17, 6, index=0),
        Field("step", 5, 0, 17, 1, index=3),
        Field("iteration_current", 6, 23, 6),
        Field("iteration_wrap", 6, 17, 6, 1),
        Field("iteration_step", 6, 0, 17, 1),
        Field("valid", 7, 31, 1),
        Field("release_value", 7, 24, 7, signed=True),
        Field("release_id", 7, 16, 8),
        Field("acquire_enable", 7, 15, 1),
        Field("acquire_value", 7, 8, 7, signed=True),
        Field("acquire_id", 7, 0, 8),
    ],
}
WORDS = {"shim": 8, "mem": 8, "core": 6}
FLAGS = {
    "packet_enable", "compression", "tlast_suppress", "use_next", "valid", "acquire_enable",
    "secure",
}  # fmt: skip


def _bases(kind: str) -> st.SearchStrategy[int]:
    if kind == "shim":
        return st.integers(0, (1 << 46) - 1).map(lambda words: 4 * words)
    return st.integers(0, (1 << {"mem": 19, "core": 14}[kind]) - 1)


def _set(fields: dict[str, Any], field: Field, value: int) -> None:
    if field.index is None:
        fields[field.name] = bool(value) if field.name in FLAGS else value
    else:
        fields[field.name][field.index] = value


def _defaults() -> dict[str, Any]:
    return {
        "step": [1, 1, 1, 1], "wrap": [0, 0, 0], "pad_before": [0, 0, 0], "pad_after": [0, 0, 0],
    }  # fmt: skip


@st.composite
def bds(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[int]]:
    """A kind, all of its fields over their full ranges, and the words they must give."""
    kind = draw(st.sampled_from(KINDS))
    fields = _defaults()
    words = [0] * WORDS[kind]
    for field in LAYOUT[kind]:
        value = draw(st.integers(*field.range))
        _set(fields, field, value)
        words[field.word] |= ((value - field.bias) & ((1 << field.bits) - 1)) << field.low
    base = draw(_bases(kind))
    fields["base"] = base
    if kind == "shim":
        words[1] |= base & 0xFFFFFFFF
        words[2] |= base >> 32
    else:
        words[{"mem": 1, "core": 0}[kind]] |= base << {"mem": 0, "core": 14}[kind]
    return kind, fields, words


@given(bds())
def test_fields_land_in_their_bits(bd: tuple[str, dict[str, Any], list[int]]) -> None:
    kind, fields, words = bd
    assert arch.encode_bd(kind, fields) == words
    decoded = arch.decode_bd(kind, words)
    assert {key: decoded[key] for key in fields} == fields


@given(st.sampled_from(KINDS), st.lists(st.integers(0, 0xFFFFFFFF), min_size=8, max_size=8))
def test_any_register_contents_decode_and_encode_again(kind: str, words: list[int]) -> None:
    fields = arch.decode_bd(kind, words)
    again = arch.encode_bd(kind, fields)
    # Bits that belong to no field read as zero.
    assert all(new & ~old == 0 for new, old in zip(again, words, strict=False))
    assert arch.decode_bd(kind, again) == fields


@pytest.mark.parametrize("kind", KINDS)
def test_one_past_a_range_raises(kind: str) -> None:
    for field in LAYOUT[kind]:
        low, high = field.range
        for value in (low - 1, high + 1):
            fields = _defaults()
            if field.index is None:
                fields[field.name] = value
            else:
                fields[field.name][field.index] = value
            with pytest.raises(errors.ArgumentError) as caught:
                arch.encode_bd(kind, fields)
            assert caught.value.kind == "argument", (field, value)


def test_base_ranges() -> None:
    for kind, base in (("core", 1 << 14), ("mem", 1 << 19), ("shim", 1 << 48), ("mem", -1)):
        with pytest.raises(errors.NpuError, match="base"):
            arch.encode_bd(kind, {"base": base})
    with pytest.raises(errors.NpuError, match="multiple of 4"):
        arch.encode_bd("shim", {"base": 6})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("core", {"pad_before": [1]}),
        ("shim", {"pad_after": [0, 1]}),
        ("core", {"step": [1, 1, 1, 2]}),
        ("shim", {"wrap": [0, 0, 1]}),
        ("mem", {"axcache": 2}),
        ("shim", {"compression": True}),
    ],
)
def test_a_field_of_another_kind_raises(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(errors.NpuError, match="does not have"):
        arch.encode_bd(kind, fields)


def test_wrong_arguments_raise() -> None:
    with pytest.raises(errors.ArgumentError, match='no field "lenght"'):
        arch.encode_bd("core", {"lenght": 1})
    with pytest.raises(errors.ArgumentError, match="at most 3"):
        arch.encode_bd("core", {"wrap": [0, 0, 0, 0]})
    with pytest.raises(errors.DtypeError, match="length must be an integer"):
        arch.encode_bd("core", {"length": 1.0})
    with pytest.raises(errors.DtypeError, match="sequence"):
        arch.encode_bd("core", {"step": 1})
    with pytest.raises(errors.DtypeError, match=r"step\[0\] must be an integer"):
        arch.encode_bd("core", {"step": [None]})
    with pytest.raises(errors.NpuError, match="does not fit"):
        arch.encode_bd("core", {"length": 1 << 80})
    with pytest.raises(errors.ArgumentError, match="tile kind"):
        arch.encode_bd("memtile", {})
    with pytest.raises(errors.ArgumentError, match="5 words given"):
        arch.decode_bd("core", [0] * 5)


def test_short_sequences_and_numpy_integers() -> None:
    words = arch.encode_bd("core", {"length": np.int64(64), "step": (1, np.uint32(32))})
    assert words[0] == 64
    assert arch.decode_bd("core", words)["step"] == [1, 32, 1, 1]


def test_models() -> None:
    assert arch.device_geometry("npu2")["columns"] == 8
    assert arch.tile_geometry("mem")["memory_bytes"] == 512 * 1024
    assert arch.tile_address(3, 4, 0xDEF) == 0x06400DEF
    assert arch.channel_queue("shim", "s2mm", 1) == 0x1D20C
    assert arch.channel_control("mem", "mm2s", 5) == 0xA0658
    assert arch.bd_reachable("mem", 1, 24)
    assert not arch.bd_reachable("mem", 0, 24)
    with pytest.raises(errors.DeviceError):
        arch.device_geometry("npu3")
    for bad in ((128, 0, 0), (0, 32, 0), (0, 0, 1 << 20), (-1, 0, 0)):
        with pytest.raises(errors.NpuError):
            arch.tile_address(*bad)
    with pytest.raises(errors.NpuError, match="channel 2"):
        arch.channel_control("shim", "s2mm", 2)
