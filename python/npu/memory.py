"""Memory of this process and of the machine, from Linux's /proc."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

# Of control groups: files with the limit and what is taken, and lines of memory.stat that count
# pages of files.
_VERSION_1 = (
    "memory.limit_in_bytes", "memory.usage_in_bytes", r"^total_(?:in)?active_file (\d+)",
)  # fmt: skip
_VERSION_2 = ("memory.max", "memory.current", r"^(?:in)?active_file (\d+)")
_PMD_MAPPED = ("AnonHugePages", "FilePmdMapped", "ShmemPmdMapped")


def private_bytes() -> int:
    """Memory that belongs to this process alone: anonymous pages, heap and copies of mapped ones.

    Not the "private" of smaps: the kernel counts pages of a mapped file there while no other
    process has mapped them, although they can leave memory at any time.
    """
    with open("/proc/self/status") as file:
        (anonymous,) = re.findall(r"RssAnon:\s+(\d+)", file.read())
    return 1024 * int(anonymous)


def peak_resident_bytes() -> int:
    """The most that was resident at a time since the process started, mapped files included."""
    with open("/proc/self/status") as file:
        (peak,) = re.findall(r"VmHWM:\s+(\d+)", file.read())
    return 1024 * int(peak)


def available_bytes() -> int:
    """What this process can take without swapping; 0 where the kernel does not say."""
    try:
        with open("/proc/meminfo") as file:
            found = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    except OSError:
        return 0
    if not found:
        return 0
    listed = Path("/proc/self/cgroup")
    groups = listed.read_text() if listed.is_file() else ""
    return min([1024 * int(found[1]), *_left_of_groups(groups, Path("/sys/fs/cgroup"))])


def _left_of_groups(listed: str, root: Path) -> list[int]:
    """Bytes left under each limit of the control groups that /proc/self/cgroup lists; pages of
    files are left, as they are available. ``root``: where groups are mounted."""
    left = []
    for line in listed.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, kind = root, _VERSION_2
        elif "memory" in controllers.split(","):
            top, kind = root / "memory", _VERSION_1
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if ".." in folder.parts or not folder.is_relative_to(top):
                break  # beyond what is mounted here
            with contextlib.suppress(OSError, ValueError):  # no limit, or not to be read
                limit, taken = (int((folder / name).read_text()) for name in kind[:2])
                cached = re.findall(kind[2], (folder / "memory.stat").read_text(), re.MULTILINE)
                left.append(max(0, limit - taken + sum(map(int, cached))))
    return left


def mapped_bytes(spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of the mappings of this process that meet these ranges of addresses [begin, end): bytes in
    memory, and those of them in huge pages. (0, 0) where the kernel does not say."""
    resident = huge = 0
    meets = False
    try:
        with open("/proc/self/smaps") as file:
            for line in file:
                if not line[0].isupper():  # of the next mapping, by its addresses
                    begin, end = (int(word, 16) for word in line.split(" ", 1)[0].split("-"))
                    meets = any(begin < last and first < end for first, last in spans)
                elif meets:
                    name, _, rest = line.partition(":")
                    if name == "Rss":
                        resident += 1024 * int(rest.split()[0])
                    elif name in _PMD_MAPPED:
                        huge += 1024 * int(rest.split()[0])
    except OSError:
        return 0, 0
    return resident, huge
