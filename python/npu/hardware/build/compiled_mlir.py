"""What aiecc decided, read from its module after allocation: addresses of buffers, shim channels.

Only the lines that matter are looked at: the text is what MLIR's printer writes, one operation a
line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_DEVICE = re.compile(r"\baie\.device\(\w+\)\s*(?:@(\w+))?")
_TILE = re.compile(r"(%[\w.$-]+)\s*=\s*aie\.tile\((\d+),\s*(\d+)\)")
_BUFFER = re.compile(r"(%[\w.$-]+)\s*=\s*aie\.buffer\((%[\w.$-]+)\)\s*\{(.*?)\}\s*:")
_ADDRESS = re.compile(r"\baddress = (\d+) : i32")
_SYMBOL = re.compile(r'\bsym_name = "([^"]*)"')
_SHIM = re.compile(
    r"aie\.shim_dma_allocation\s+@([\w.$-]+)\s*\(\s*(%?[\w.$-]+)\s*,\s*(%?\w+)\s*,\s*(\d+)\s*\)"
)
_DEFAULT = "main"  # as mlir-aie calls a device without a name


@dataclass
class Device:
    """One device. ``buffers``: byte address by (column, row, name), None where it has none;
    ``ports``: (column, direction, channel) by the name of the shim allocation."""

    name: str
    buffers: dict[tuple[int, int, str], int | None] = field(default_factory=dict)
    ports: dict[str, tuple[int, str, int]] = field(default_factory=dict)


def read(text: str) -> dict[str, Device]:
    """The devices of a module by name; what does not parse is not there."""
    found: dict[str, Device] = {}
    tiles: dict[str, tuple[int, int]] = {}
    current = Device("")
    for line in text.splitlines():
        if named := _DEVICE.search(line):
            tiles = {}
            current = found.setdefault(named[1] or _DEFAULT, Device(named[1] or _DEFAULT))
        elif tile := _TILE.search(line):
            tiles[tile[1]] = int(tile[2]), int(tile[3])
        elif (buffer := _BUFFER.search(line)) and buffer[2] in tiles:
            name, at = _SYMBOL.search(buffer[3]), _ADDRESS.search(buffer[3])
            key = (*tiles[buffer[2]], name[1] if name else buffer[1].removeprefix("%"))
            current.buffers[key] = int(at[1]) if at else None
        elif shim := _SHIM.search(line):
            _port(current, shim, tiles)
    return found


def _port(device: Device, shim: re.Match[str], tiles: dict[str, tuple[int, int]]) -> None:
    """(tile, direction, channel), or in older modules (direction, channel, column)."""
    name, first, second, third = shim.groups()
    if first in tiles:
        device.ports[name] = tiles[first][0], second.lower(), int(third)
    elif second.isdigit():
        device.ports[name] = int(third), first.lower(), int(second)
