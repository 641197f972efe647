"""What the system says about a mapping of this process."""

from __future__ import annotations

from pathlib import Path

import pytest

needs_huge_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)


def mapping_flags(where: int | Path) -> list[str]:
    """The flags (VmFlags of smaps) of the mapping at an address, or of the first one of a file."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    for number, line in enumerate(lines):
        head = line.split()[0]
        if head.endswith(":"):
            continue
        first, end = (int(part, 16) for part in head.split("-"))
        if line.endswith(str(where)) if isinstance(where, Path) else first <= where < end:
            return next(x for x in lines[number:] if x.startswith("VmFlags:")).split()[1:]
    raise AssertionError(f"no mapping of {where}")
