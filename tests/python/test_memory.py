"""What /proc says of this process: pages of a mapping, small and huge, and private ones."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from npu import memory

HUGE = 2 << 20


def span(mapping: mmap.mmap) -> tuple[int, int]:
    begin = np.frombuffer(mapping, np.uint8).ctypes.data
    return begin, begin + len(mapping)


def test_pages_of_a_mapping(tmp_path: Path) -> None:
    """Of a file: anonymous mappings may become one with their neighbours."""
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(64 * mmap.PAGESIZE)
        mapping = mmap.mmap(file.fileno(), 0)
    begin, end = span(mapping)
    assert memory.mapped_bytes([(begin, end)]) == (0, 0)
    np.frombuffer(mapping, np.uint8)[:] = 1
    assert memory.mapped_bytes([(begin, end)]) == (len(mapping), 0)
    # A range meets the mapping that it lies in, once, and no other one.
    inside = [(begin + 5, begin + 6), (begin + 7, begin + 9)]
    assert memory.mapped_bytes(inside) == (len(mapping), 0)
    assert memory.mapped_bytes([]) == memory.mapped_bytes([(0, 4096)]) == (0, 0)


def test_huge_pages() -> None:
    mapping = mmap.mmap(-1, 4 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    before = memory.mapped_bytes([span(mapping)])
    np.frombuffer(mapping, np.uint8)[:] = 1
    resident, huge = memory.mapped_bytes([span(mapping)])
    assert resident - before[0] == len(mapping)
    if huge == before[1]:
        pytest.skip("this system gives no huge pages")
    assert (huge - before[1]) % HUGE == 0 and huge - before[1] <= len(mapping)


def test_private_memory_does_not_count_mapped_files(tmp_path: Path) -> None:
    path, size = tmp_path / "file", 64 << 20
    with path.open("wb") as file:
        file.write(bytes(size))
    before = memory.private_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert np.frombuffer(mapped, np.uint8).sum() == 0
        assert memory.private_bytes() - before < size / 4
    held = np.ones(size, np.uint8)
    assert memory.private_bytes() - before > size / 2 and held[0] == 1
    assert memory.peak_resident_bytes() >= memory.private_bytes()


def test_limits_of_control_groups(tmp_path: Path) -> None:
    """Of a group and those above it, in both versions: the limit, less what is taken, pages of
    files not counted."""
    listed = "4:cpu,memory:/box/one\n1:name=systemd:/\n0::/far/away\n"
    one, two = tmp_path / "memory" / "box", tmp_path / "far"
    (one / "one").mkdir(parents=True)
    (two / "away").mkdir(parents=True)

    def put(folder: Path, *texts: str) -> None:
        names = ("memory.max", "memory.current", "memory.stat")
        if folder.is_relative_to(tmp_path / "memory"):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        for name, text in zip(names, texts, strict=True):
            (folder / name).write_text(text)

    def left() -> list[int]:
        return memory._left_of_groups(listed, tmp_path)

    assert left() == [] == memory._left_of_groups("", tmp_path)
    put(two / "away", "max\n", "77\n", "")
    assert left() == []  # no limit
    put(two, "1077\n", "177\n", "anon 5\nfile 60\ninactive_file 20\nactive_file 30\n")
    assert left() == [950]
    put(two / "away", "70\n", "100\n", "inactive_anon 7\n")
    assert sorted(left()) == [0, 950]
    put(one / "one", "5000", "1000", "inactive_file 1\ntotal_inactive_file 40\n")
    put(one, "9000", "1000", "total_active_file 3\n")
    assert sorted(left()) == [0, 950, 4040, 8003]
    (two / "memory.max").write_text("nonsense")
    assert sorted(left()) == [0, 4040, 8003]
    # Groups that are not mounted here are not looked for elsewhere.
    assert memory._left_of_groups("0::/../far/away", tmp_path / "memory") == []
    assert memory.available_bytes() >= 0
