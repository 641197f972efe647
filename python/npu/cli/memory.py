"""Memory of this process, as `npu bench` prints it, and of the machine, from Linux's /proc."""

from __future__ import annotations

import re


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
    """What new processes can use without swapping; 0 where the kernel does not say."""
    try:
        with open("/proc/meminfo") as file:
            found = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0
