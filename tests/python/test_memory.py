"""What /proc says of this process: pages of a mapping, small and huge, and private ones."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from npu import memory

HUGE = 2 << 20


def anonymous(advice: int) -> tuple[mmap.mmap, tuple[int, int]]:
    found = mmap.mmap(-1, 4 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    found.madvise(advice)
    begin = np.frombuffer(found, np.uint8).ctypes.data
    return found, (begin, begin + len(found))


def test_pages_of_a_mapping() -> None:
    mapping, span = anonymous(mmap.MADV_NOHUGEPAGE)
    assert memory.mapped_bytes([span]) == (0, 0)
    np.frombuffer(mapping, np.uint8)[: 3 * mmap.PAGESIZE] = 1
    assert memory.mapped_bytes([span]) == (3 * mmap.PAGESIZE, 0)
    # A range meets the mapping that it lies in, once, and no other one.
    begin = span[0]
    inside = [(begin + 5, begin + 6), (begin + 7, begin + 9)]
    assert memory.mapped_bytes(inside) == (3 * mmap.PAGESIZE, 0)
    assert memory.mapped_bytes([]) == memory.mapped_bytes([(0, 4096)]) == (0, 0)


def test_huge_pages() -> None:
    mapping, span = anonymous(mmap.MADV_HUGEPAGE)
    np.frombuffer(mapping, np.uint8)[:] = 1
    resident, huge = memory.mapped_bytes([span])
    assert resident == len(mapping)
    if huge == 0:
        pytest.skip("this system gives no huge pages")
    assert huge % HUGE == 0 and huge <= resident


def test_private_and_available_bytes() -> None:
    before = memory.private_bytes()
    taken = np.ones(32 << 20, np.uint8)
    assert memory.private_bytes() - before >= 0.9 * taken.nbytes
    assert memory.peak_resident_bytes() >= memory.private_bytes()
    assert memory.available_bytes() > 0


def test_limits_of_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    free = memory.available_bytes()
    group = tmp_path
    named = Path("/proc/self/cgroup").read_text().rsplit("0::/", 1)[-1].strip()
    for part in Path(named).parts:
        group /= part
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("77\n")
    assert memory.available_bytes() > free / 2  # no limit
    for limit, left in (("1077\n", 1000), ("70\n", 0)):
        (group / "memory.max").write_text(limit)
        assert memory.available_bytes() == left
    (group / "memory.max").write_text("nonsense")
    assert memory.available_bytes() > free / 2
