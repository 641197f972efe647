"""Mapped blocks are brought to memory, and copied where the file's pages are small.

Copies against the bytes of the file; what leaves the process, as the kernel counts it; answers of
models that are copied against those of models that are not.
"""

from __future__ import annotations

import mmap
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from gemma3_files import write_model
from test_prepare import SHAPE

from npu import memory
from npu.errors import ArgumentError
from npu.formats.blocks import BlockTensor
from npu.formats.mapped_file import in_huge_pages, map_file, owner
from npu.models.convert import convert
from npu.models.gemma3.model import Model
from npu.models.prepare import resident
from npu.models.prepare.plan import PAGE, Part, Segment
from npu.models.sources import open_source

SEGMENTS = [
    Segment(name, name, "q4_0", (Part(name, "Q4_0", rows),), 1024)
    for name, rows in (("a", 4096), ("b", 160), ("c", 32))
]


class Mapped:
    """A file with the blocks of SEGMENTS, each on a page, and the tensors over its map."""

    def __init__(self, path: Path) -> None:
        size = sum(segment.room for segment in SEGMENTS)
        bytes_ = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        path.write_bytes(bytes_.tobytes())
        line = np.frombuffer(map_file(str(path), "test", "file"), np.uint8)
        self.span = (line.ctypes.data, line.ctypes.data + size)
        self.tensors, self.stored = {}, {}
        at = 0
        for segment in SEGMENTS:
            raw = line[at : at + segment.nbytes].reshape(segment.blocks_shape)
            self.tensors[segment.name] = BlockTensor(raw, segment.shape, segment.format)
            self.stored[segment.name] = bytes_[at : at + segment.nbytes].reshape(raw.shape)
            at += segment.room

    def lies_in(self, array: np.ndarray) -> bool:
        return self.span[0] <= array.ctypes.data < self.span[1]

    def resident(self) -> int:
        return memory.mapped_bytes([self.span])[0]


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapped:
    monkeypatch.setattr(resident, "_READ_BYTES", 20 * PAGE)
    return Mapped(tmp_path / "blocks")


class System:
    """Every sample of mapped blocks lies in a huge page, or every second one, as ``huge`` says;
    memory is given in huge pages if ``gives``. There is enough of it, and nothing is too small."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, huge: float, gives: bool = True) -> None:
        self.available, self._huge, self._gives, self._asked = 1 << 40, huge, gives, 0
        monkeypatch.delenv("NPU_HUGE_PAGES", raising=False)
        monkeypatch.setattr(resident, "_SMALLEST", 0)
        monkeypatch.setattr(resident, "HUGE_PAGE", 8 * PAGE)
        monkeypatch.setattr(resident, "memory", self)

    def available_bytes(self) -> int:
        return self.available

    def mapped_bytes(self, spans: list[tuple[int, int]]) -> tuple[int, int]:
        resident, _ = memory.mapped_bytes(spans)
        self._asked += 1
        if self._asked == 1:
            return resident, int(self._huge * len(spans)) * 8 * PAGE
        return resident, (2 << 20) * (self._gives and self._asked == 3)  # before and after


def test_blocks_in_small_pages_are_copied(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    System(monkeypatch, 0.49)
    steps: list[tuple[int, int]] = []
    found = resident.bring(SEGMENTS, mapped.tensors, lambda *step: steps.append(step))
    for segment in SEGMENTS:
        copy = found[segment.name]
        assert (copy.shape, copy.format) == (segment.shape, segment.format)
        assert np.array_equal(copy.blocks, mapped.stored[segment.name])
        assert not mapped.lies_in(copy.blocks) and copy.blocks.ctypes.data % PAGE == 0
    # Prompts read beyond small blocks: all lie in one piece of memory, with room behind the last.
    base = owner(found["c"].blocks)
    end = base.ctypes.data + base.nbytes
    assert end >= found["c"].blocks.ctypes.data + SEGMENTS[-1].room
    total = sum(segment.nbytes for segment in SEGMENTS)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert {of for _, of in steps} == {total} and steps[-1][0] == total
    # Pages at the ends of a part stay, and what the kernel maps around them when they are met.
    assert mapped.resident() < total / 2


def test_blocks_in_huge_pages_stay(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    System(monkeypatch, 0.51)
    found = resident.bring(SEGMENTS, mapped.tensors, lambda done, total: None)
    assert found == mapped.tensors and mapped.lies_in(found["a"].blocks)
    assert mapped.resident() >= sum(segment.nbytes for segment in SEGMENTS)


@pytest.mark.parametrize(
    "why", ["switched off", "little memory", "a small model", "no huge pages", "no memory"]
)
def test_nothing_is_copied(why: str, mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(monkeypatch, 0.0, why != "no huge pages")
    total = sum(segment.nbytes for segment in SEGMENTS)
    if why == "switched off":
        monkeypatch.setenv("NPU_HUGE_PAGES", "0")
    elif why == "little memory":
        system.available = 2 * total - 1
    elif why == "no memory":
        monkeypatch.setattr(resident, "one_piece", _refuse)
    elif why == "a small model":
        monkeypatch.setattr(resident, "_SMALLEST", total + 1)
    found = resident.bring(SEGMENTS, mapped.tensors, lambda done, total: None)
    assert found == mapped.tensors
    assert mapped.resident() >= total


def _refuse(segments: list[Segment]) -> None:
    raise MemoryError


def test_a_file_in_huge_pages_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel tells it: a sample in small pages maps 64 KiB at most, another one 2 MiB."""
    monkeypatch.delenv("NPU_HUGE_PAGES", raising=False)
    pieces, piece = 32, 2 << 20
    found = {}
    for whole in (0, pieces // 4, pieces):  # written in pieces of 2 MiB, the others by pages
        path = tmp_path / str(whole)
        with path.open("wb", buffering=0) as file:
            for _ in range(whole):
                file.write(b"x" * piece)
            for _ in range((pieces - whole) * piece // PAGE):
                file.write(b"x" * PAGE)
        mapping = map_file(str(path), "test", "file")
        in_huge_pages(mapping)
        line = np.frombuffer(mapping, np.uint8)
        found[whole] = resident._worth_a_copy([line], line.size)
        if whole == 0 and not found[0]:
            pytest.skip("this file system makes huge pages of small writes")
    if found[pieces]:
        pytest.skip("this file system has no huge pages")
    assert found == {0: True, pieces // 4: True, pieces: False}


def test_another_word_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_HUGE_PAGES", "1")
    source = open_source(write_model(tmp_path / "m.gguf", SHAPE))
    with pytest.raises(ArgumentError, match=r"^\[load\] NPU_HUGE_PAGES is '1'; use 0 to copy"):
        Model(source)


@pytest.mark.parametrize("kind", ["in place", "from the cache", "of both"])
def test_models_answer_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "cache"))
    path = write_model(tmp_path / "m.gguf", SHAPE)
    if kind != "from the cache":
        path = convert(path, tmp_path / "m.q4nx")
    if kind == "of both":
        stored = sys.modules[Model.__module__].plan

        def mixed(*arguments: object) -> list[Segment]:
            """Every second segment as if the file had it otherwise: it is converted."""
            return [
                Segment(s.key, s.kind, "q8", s.parts, s.columns) if index % 2 else s
                for index, s in enumerate(stored(*arguments))
            ]

        monkeypatch.setattr(sys.modules[Model.__module__], "plan", mixed)
    expected = Model(open_source(path))
    assert all(_is_mapped(one) for one in expected.weight_blocks)
    for again in (False, True):  # where something is converted, written first, then found
        if not again:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        System(monkeypatch, 0.0)
        copied = Model(open_source(path))
        pairs = zip(copied.weight_blocks, expected.weight_blocks, strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)
        assert not any(_is_mapped(one) for one in copied.weight_blocks)
        prompt = [2, 5, 6, 7]
        one, other = (m.prefill(prompt, m.new_cache(16)) for m in (copied, expected))
        assert np.array_equal(one, other)


def _is_mapped(array: np.ndarray) -> bool:
    found = owner(array)
    return isinstance(found, memoryview) and isinstance(found.obj, mmap.mmap)
