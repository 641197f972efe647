"""Memory use of this process, from Linux's /proc, as `npu bench` prints it."""

from __future__ import annotations

import re


def private_bytes() -> int:
    """Memory that belongs to this process alone: pages of mapped files that it only reads are not
    counted."""
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * sum(map(int, re.findall(r"Private_(?:Clean|Dirty):\s+(\d+)", file.read())))


def peak_resident_bytes() -> int:
    """The most that was resident at a time since the process started, mapped files included."""
    with open("/proc/self/status") as file:
        (peak,) = re.findall(r"VmHWM:\s+(\d+)", file.read())
    return 1024 * int(peak)
