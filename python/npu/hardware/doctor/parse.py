"""Readers of what systems and tools print: versions, os-release, sysfs ids, `xrt-smi examine`.

Each takes any text and raises nothing: what is not there is None or empty.
"""

from __future__ import annotations

import dataclasses
import re
import shlex

Version = tuple[int, ...]

_MAX_DIGITS = 9  # of one part of a version: longer ones are damage


def version(text: str) -> Version | None:
    """The first dotted number in a text ("6.17.0-22-generic" -> (6, 17, 0)), of up to 4 parts."""
    part = rf"[0-9]{{1,{_MAX_DIGITS}}}"
    found = re.search(rf"(?<![\w.]){part}(?:\.{part}){{1,3}}(?![0-9])", text)
    return tuple(int(number) for number in found[0].split(".")) if found else None


def written(number: Version | None) -> str:
    """A version as text, "?" for none."""
    return ".".join(str(part) for part in number) if number else "?"


def hex_id(text: str) -> int | None:
    """A sysfs PCI attribute: "0x1022"."""
    found = re.fullmatch(r"0x([0-9a-fA-F]{1,8})", text.strip())
    return int(found[1], 16) if found else None


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Of /etc/os-release. ``family`` is one of ubuntu, debian, fedora, rhel, arch, other;
    ``image``: updated as a whole by rpm-ostree (Silverblue, Bazzite), which has no dnf install."""

    id: str
    family: str
    version: Version
    name: str
    image: bool = False


_FAMILIES = {
    "ubuntu": "ubuntu", "debian": "debian", "fedora": "fedora", "arch": "arch",
    "rhel": "rhel", "centos": "rhel", "rocky": "rhel", "almalinux": "rhel",
    "archlinux": "arch",
}  # fmt: skip
# What derivatives are cut from: their own version numbers say nothing about packages.
_CODENAMES = {"jammy": (22, 4), "noble": (24, 4), "plucky": (25, 4), "questing": (25, 10)}


def os_release(text: str) -> Distribution:
    """Reads os-release(5)."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            values[name] = _unquoted(value)
    own = values.get("ID", "").lower()
    like = [own, *values.get("ID_LIKE", "").lower().split()]
    family = next((_FAMILIES[word] for word in like if word in _FAMILIES), "other")
    number = _release(values.get("VERSION_ID", ""))
    base = values.get("UBUNTU_CODENAME", "")
    if family == "ubuntu" and own != "ubuntu":
        number = _CODENAMES.get(base, number if own == "pop" else ())
    name = _printable(values.get("PRETTY_NAME") or values.get("NAME") or own or "unknown system")
    image = family == "fedora" and "OSTREE_VERSION" in values
    return Distribution(_printable(own), family, number, name, image)


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip("\"'")


def _release(text: str) -> Version:
    """ "26.04" -> (26, 4), "13" -> (13,)."""
    found = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _printable(text: str, length: int = 48) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:length])


def shown(text: str, length: int = 120) -> str:
    """One line of a tool's output, safe to print."""
    return _printable(" ".join(text.split()), length)


@dataclasses.dataclass(frozen=True)
class Smi:
    """Of `xrt-smi examine`. ``devices``: (PCI address, name) rows; ``error``: its error line."""

    xrt: Version | None = None
    driver: str | None = None  # "0.6", "2.19.0_20250330", "unknown"
    firmware: Version | None = None
    devices: tuple[tuple[str, str], ...] = ()
    error: str | None = None


_ADDRESS = re.compile(r"\[?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\]?")
_MAX_DEVICES = 16


def smi_examine(text: str) -> Smi:
    """Reads `xrt-smi examine`: layouts of XRT 2.17 (xbutil) to 2.26."""
    keys: dict[str, str] = {}
    devices: list[tuple[str, str]] = []
    error, section = None, ""
    for line in text.splitlines():
        if line[:1] not in (" ", "\t", "|", "") and ":" not in line:
            section = line.strip()
        if found := re.search(r"(?:ERROR|error|Error)\s*:\s*(.+)|(\w+ IOCTL failed.*)", line):
            error = error or shown(found[1] or found[2])
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 2 and line.lstrip().startswith("|"):
            if (address := _ADDRESS.fullmatch(cells[0])) and len(devices) < _MAX_DEVICES:
                devices.append((address[1].lower(), _printable(cells[1])))
            continue
        name, colon, value = line.partition(":")
        if colon and section == "XRT":
            keys.setdefault(name.strip(), value.strip())
    driver = keys.get("amdxdna Version") or keys.get("amdxdna") or keys.get("AMDXDNA")
    return Smi(
        version(keys.get("Version", "")),
        _printable(driver.partition(",")[0]) if driver else None,
        version(keys.get("NPU Firmware Version", "")),
        tuple(devices),
        error,
    )


def smi_power_mode(text: str) -> str | None:
    """The mode of `xrt-smi examine -r platform`, in lower case."""
    found = re.search(r"^\s*Power Mode\s*:\s*([A-Za-z]+)", text, re.M)
    return found[1].lower() if found else None


def smi_contexts(text: str) -> tuple[int, ...] | None:
    """The process ids of the contexts of `xrt-smi examine -r aie-partitions`, one per context.
    None: it is not that report."""
    if "AIE Partitions" not in text:
        return None
    rows = re.findall(r"^\s*\|\s*([0-9]{1,9})\s*\|\s*[0-9]{1,9}\s*\|", text, re.M)
    return tuple(int(row) for row in rows)


def loader_folders(text: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that `ldconfig -p` lists for libraries, in its order."""
    found: dict[str, None] = {}
    for line in text.splitlines():
        name, arrow, path = line.strip().partition(" => ")
        folder, slash, file = path.strip().rpartition("/")
        if arrow and slash and file in names and name.startswith(file) and folder.startswith("/"):
            found[folder] = None
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Processor:
    """Of /proc/cpuinfo's first processor."""

    name: str
    vendor: str
    family: int | None
    model: int | None
    virtual: bool


def cpuinfo(text: str) -> Processor:
    """Reads the vendor, family, model and name of a processor."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    name = _printable(values.get("model name", "")) or "unknown processor"
    name = re.sub(r" w/.*|\((?:R|TM)\)", "", name).strip()
    family, model = _number(values.get("cpu family")), _number(values.get("model"))
    virtual = "hypervisor" in values.get("flags", "").split()
    return Processor(name, values.get("vendor_id", ""), family, model, virtual)


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else None
