"""What a record of a machine leaves out: names of users and hosts, serial numbers, and all parts of
files that the probes do not use. The latter is cut while reading, the former where something is
written to be passed on: a record, JSON, a report. Probes and commands to be typed have real paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_CPU = ("vendor_id", "cpu family", "model", "model name")
_BOOT = re.compile(r"(?:\S*(?:iommu|amdxdna|blacklist)\S*)")
_LOG = re.compile(
    r"amdxdna|xdna_mailbox|amdnpu|AMD-Vi|iommu|module verification|[Ll]ockdown: modprobe", re.I
)
_LOG_LINES = 200
# Lines that XRT's tools print with every error.
_XRT_OWNER = re.compile(r"^\s*>?\s*(?:HOST|UID|P ?ID|EXE)\s*:.*$", re.M)
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_MAC = re.compile(r"\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}\b")
_SERIAL = re.compile(r"^.*\bserial\b.*$", re.I | re.M)
_HOME = re.compile(r"(/(?:var/)?home/|/run/user/)[^/\s:\"']+")
_PROTECTED = {  # words that the probes look for, should a user or host be called so
    *("amd", "amdxdna", "npu", "xrt", "root", "linux", "render", "video", "accel", "firmware"),
    *("ubuntu", "debian", "fedora", "arch", "platform", "python", "strix", "phoenix", "krackan"),
    *("lib", "usr", "opt", "dev", "iommu", "kernel", "version", "device", "driver", "power"),
    *("xilinx", "bin", "etc", "sys", "proc", "home", "lib64", "local", "bus", "pci", "devices"),
    *("noble", "jammy", "resolute", "trixie", "bookworm", "ok", "error", "none", "name"),
}


def reduced(path: str, text: str) -> str:
    """The part of a file that the probes use."""
    if path == "/proc/cpuinfo":
        return _cpu(text)
    if path == "/proc/cmdline":
        return " ".join(word for word in text.split() if _BOOT.fullmatch(word))
    if path.startswith("/etc/modprobe.d/"):
        return "\n".join(line for line in text.splitlines() if "amdxdna" in line)
    if path in ("/run/.containerenv", "/.dockerenv"):
        return ""
    return text


def _cpu(text: str) -> str:
    kept = []
    for line in text.split("\n\n", 1)[0].splitlines():
        name = line.partition(":")[0].strip()
        if name in _CPU:
            kept.append(line)
        elif name == "flags" and " hypervisor" in line:
            kept.append("flags\t\t: hypervisor")
    return "\n".join(kept) + "\n"


def kernel_lines(text: str) -> tuple[str, ...]:
    """The last lines of a kernel log that are about the NPU's driver or the IOMMU, without time."""
    lines = [line for line in text.splitlines() if _LOG.search(line)]
    return tuple(re.sub(r"^\[ *\d+\.\d+\] ", "", line)[:400] for line in lines[-_LOG_LINES:])


HOME = "/home/USER"  # what stands for the home folder


def each(value: Any, change: Callable[[str], str]) -> Any:
    """JSON types with every text in them changed, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: each(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [each(part, change) for part in value]
    return value


class Scrubber:
    """Replaces the names of a user and a host, home folders, UUIDs, MAC addresses and serials."""

    def __init__(self, home: str, names: Sequence[str]) -> None:
        self._home = home if len(home) > 1 else ""
        words = [n for n in names if len(n) > 1 and n.lower() not in _PROTECTED]
        pattern = "|".join(re.escape(word) for word in words)
        self._names = re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])") if words else None

    def __call__(self, text: str) -> str:
        if self._home and self._home != "/root":
            text = text.replace(self._home, HOME)
        text = _HOME.sub(r"\1USER", text)
        for pattern in (_XRT_OWNER, _SERIAL):
            text = pattern.sub("", text)
        text = _MAC.sub("MAC", _UUID.sub("UUID", text))
        return self._names.sub("NAME", text) if self._names else text
