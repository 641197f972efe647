"""Memory of this process and of the machine, from Linux's /proc."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
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
    return min([1024 * int(found[1]), *_left_of_groups()]) if found else 0


def _left_of_groups() -> list[int]:
    """What the limits of its control groups (version 2), as of a container, leave at least: pages
    of files count as taken there."""
    try:
        with open("/proc/self/cgroup") as file:
            found = re.search(r"^0::/(.*)$", file.read(), re.MULTILINE)
        group = _GROUPS / found[1] if found else _GROUPS
        left = []
        for folder in (group, *group.parents):
            if not folder.is_relative_to(_GROUPS) or not (folder / "memory.max").is_file():
                continue
            limit = (folder / "memory.max").read_text().strip()
            if limit != "max":
                left.append(max(0, int(limit) - int((folder / "memory.current").read_text())))
        return left
    except (OSError, ValueError):
        return []


def mapped_bytes(spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of the mappings of this process that meet these ranges of addresses [begin, end): bytes in
    memory, and those of them in huge pages. (0, 0) where the kernel does not say."""
    resident = huge = 0
    meets = False
    try:
        with open("/proc/self/smaps") as file:
            for line in file:
                if header := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                    begin, end = (int(word, 16) for word in header.groups())
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
