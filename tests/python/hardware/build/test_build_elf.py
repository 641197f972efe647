"""The reader of ELF files, stacks along calls, and overlay images.

Asserts what is read of files whose contents are known, that damaged files of any kind give
FormatError and nothing else, and every way in which a stack or an image cannot be told.
"""

from __future__ import annotations

import doubles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.designs.lowering.lowered import Overlay
from npu.errors import BuildError, FormatError
from npu.hardware.build import overlays
from npu.hardware.build.elf import Elf
from npu.hardware.build.stack import FOREIGN, kernel_stacks

CALLS = {"a": ("b", "helper"), "b": ("c",), "c": (), "d": ("memcpy",), "e": ()}


def parsed(data: bytes) -> Elf:
    return Elf(data, "core.elf")


def test_sections_of_a_core():
    data = doubles.elf(
        2, [(".text", 1, 6, 0, bytes(600)), (".data", 1, 3, 0x70400, b"12345678")], []
    )
    (code,) = parsed(data).code()
    assert (code.name, code.address, code.size) == (".text", 0, 600)
    assert [(s.name, s.address, s.data) for s in parsed(data).sections if s.in_data_memory] == [
        (".data", 0x70400, b"12345678")
    ]


def test_functions_and_calls_of_an_object():
    elf = parsed(doubles.kernel_object(CALLS, 300))
    assert elf.functions() == {**dict.fromkeys(CALLS, 300), "helper": 40}
    assert elf.calls() == {"a": {"b", "helper"}, "b": {"c"}, "d": {"memcpy"}}


def test_stacks_add_up_along_the_deepest_chain():
    elf = parsed(doubles.kernel_object(CALLS, 300))
    assert kernel_stacks(elf, ["a", "b", "d", "e"]) == {
        "a": 900, "b": 600, "d": 300 + FOREIGN, "e": 300,
    }  # fmt: skip
    elf = parsed(doubles.kernel_object({"a": ("helper",)}, 16, helper=5000))
    assert kernel_stacks(elf, ["a"]) == {"a": 5016}


@pytest.mark.parametrize("calls", [{"a": ("b",), "b": ("a",)}, {"a": ("a",)}])
def test_recursion_has_no_bound(calls):
    with pytest.raises(FormatError, match=r"a calls .*a: its stack has no bound"):
        kernel_stacks(parsed(doubles.kernel_object(calls, 16)), ["a"])


@pytest.mark.parametrize("stack", [None, 16])
def test_a_kernel_without_a_stated_stack(stack):
    with pytest.raises(FormatError, match="states no stack size of kernel z"):
        kernel_stacks(parsed(doubles.kernel_object(CALLS, stack)), ["z"])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "too short"),
        (b"\x7fELF\2\1" + bytes(100), "no ELF32 file"),
        (b"MZ" + bytes(100), "no ELF32 file"),
        (doubles.elf(2, [], [])[:200], "cut off"),
        (doubles.elf(1, [(".stack_sizes", 1, 0, 0, b"1234\xff\xff\xff\xff\xff\1")], []), "cut off"),
        (doubles.elf(1, [(".rela", 4, 0, 99, bytes(12))], []), "section that does not exist"),
        (doubles.elf(1, [(".rela", 4, 0, 1, b"\0\0\0\0\1\xff\0\0" + bytes(4))], []), "symbol that"),
    ],
)
def test_damage_is_named(data, said):
    with pytest.raises(FormatError, match=said):
        elf = parsed(data)
        elf.functions()
        elf.calls()


def test_a_section_beyond_the_end():
    data = bytearray(doubles.elf(2, [(".text", 1, 6, 0, bytes(600))], []))
    table = int.from_bytes(data[32:36], "little")
    data[table + 60 : table + 64] = (1 << 20).to_bytes(4, "little")  # size of .text
    with pytest.raises(FormatError, match="section 1 is cut off"):
        parsed(bytes(data))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FormatError, match="No such file"):
        Elf.read(tmp_path / "none")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="more than"):
        Elf.read(tmp_path / "huge")


OBJECT = doubles.kernel_object({"a": ("b", "helper"), "b": ("memcpy",)}, 300)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_fuzz(data):
    """Bytes and words changed anywhere, or the end cut off: FormatError or an answer."""
    damaged = bytearray(OBJECT)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 4))
        word = data.draw(
            st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF]) | st.integers(0, 2**32 - 1)
        )
        size = data.draw(st.sampled_from([1, 4]))
        damaged[at : at + size] = word.to_bytes(4, "little")[:size]
    damaged = damaged[: data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))]
    try:
        elf = parsed(bytes(damaged))
        elf.code()
        kernel_stacks(elf, ["a", "b"])
    except FormatError:
        pass


def image(*sections, size: int = 1024, others=()) -> bytes:
    elfs = [doubles.elf(2, list(each), []) for each in (sections, *others)]
    return overlays.image(
        Overlay("norm", [], size, 0), {(0, n + 2): parsed(e) for n, e in enumerate(elfs)}
    )


def test_an_image_is_program_memory_from_address_0():
    code, more = (".text", 1, 6, 0, b"\1" * 20), (".text.more", 1, 6, 32, b"\2" * 8)
    assert image(code, more) == b"\1" * 20 + bytes(12) + b"\2" * 8 + bytes(984)
    assert image(more, code, others=([code, more],)) == image(code, more)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ([(".text", 1, 6, 0, bytes(1040))], "1040 bytes, streams of this configuration load 1024"),
        ([(".text", 1, 6, 0, bytes(16)), (".bss", 8, 3, 0, b"1")], ".bss puts 1 bytes into data"),
        ([(".text", 1, 6, 0, bytes(16)), (".more", 1, 6, 8, bytes(16))], "no place in program"),
        ([(".text", 1, 6, 1 << 30, bytes(16))], "no place in program memory"),
    ],
)
def test_images_that_streams_cannot_load(sections, said):
    with pytest.raises(BuildError, match=said):
        image(*sections)


def test_cores_must_have_the_same_image():
    with pytest.raises(BuildError, match=r"core \(0, 3\) is not that of core \(0, 2\)"):
        image((".text", 1, 6, 0, b"1"), others=([(".text", 1, 6, 0, b"2")],))
    with pytest.raises(BuildError, match="linked no core"):
        overlays.image(Overlay("norm", [], 16, 0), {})
