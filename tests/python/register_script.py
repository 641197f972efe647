"""Streams of register writes for tests of the public emulator interface: a small builder whose
register map comes from npu._npu.arch, and the configuration most tests start from.
"""

from __future__ import annotations

from typing import Any

from npu import _npu

KIND = {0: "shim", 1: "mem"}
CORE_BUFFER, CORE_RESULT = 0, 4096  # byte addresses in a core's memory


class Script:
    """A TXN stream under construction; the register map comes from npu._npu.arch."""

    def __init__(self, device: str = "npu2") -> None:
        columns = _npu.arch.device_geometry(device)["columns"]
        self.raw = _npu.stream.Builder(device, columns)

    def bd(self, col: int, row: int, index: int, **fields: Any) -> Script:
        kind = KIND.get(row, "core")
        base = _npu.arch.tile_geometry(kind)["bd_base"] + 0x20 * index
        words = _npu.arch.encode_bd(kind, fields)
        self.raw.block_write(_npu.arch.tile_address(col, row, base), words)
        return self

    def host_bd(self, col: int, index: int, argument: int, offset: int = 0, **f: Any) -> Script:
        self.bd(col, 0, index, **f)
        address = _npu.arch.tile_address(col, 0, 0x1D004 + 0x20 * index)
        self.raw.address_patch(address, argument, offset)
        return self

    def push(
        self, col: int, row: int, direction: str, channel: int, bd: int, token: bool = False
    ) -> Script:
        queue = _npu.arch.channel_queue(KIND.get(row, "core"), direction, channel)
        self.raw.write(_npu.arch.tile_address(col, row, queue), bd | token << 31)
        return self

    def write(self, col: int, row: int, offset: int, value: int) -> Script:
        self.raw.write(_npu.arch.tile_address(col, row, offset), value)
        return self

    def connect(self, col: int, row: int, slave: int, master: int) -> Script:
        base = _npu.arch.tile_geometry(KIND.get(row, "core"))["switch_base"]
        self.write(col, row, base + 0x100 + 4 * slave, 1 << 31)
        return self.write(col, row, base + 4 * master, 1 << 31 | slave)

    def lock(self, col: int, row: int, index: int, value: int) -> Script:
        base = _npu.arch.tile_geometry(KIND.get(row, "core"))["lock_base"]
        return self.write(col, row, base + 0x10 * index, value)

    def bytes(self) -> bytes:
        return self.raw.finish()


def through_core(
    device: str = "npu2", words: int = 16, source: int = CORE_BUFFER, target: int = CORE_RESULT
) -> bytes:
    """Column 0: shim -> core (0,2) -> shim, one buffer each way with the usual pair of locks."""
    c = Script(device)
    c.write(0, 0, 0x1F000, 1 << 10).write(0, 0, 0x1F004, 1 << 4)
    c.connect(0, 0, 5, 12).connect(0, 1, 7, 11).connect(0, 2, 5, 1)  # up to core DMA S2MM 0
    c.connect(0, 2, 1, 5).connect(0, 1, 13, 7).connect(0, 0, 14, 4)  # down from core DMA MM2S 0
    c.lock(0, 2, 0, 1).lock(0, 2, 2, 1)
    chain: dict[str, Any] = {"length": words, "use_next": True, "acquire_enable": True}
    chain |= {"acquire_value": -1, "release_value": 1}
    c.bd(0, 2, 0, next_bd=0, base=source // 4, acquire_id=0, release_id=1, **chain)
    c.bd(0, 2, 1, next_bd=1, base=target // 4, acquire_id=3, release_id=2, **chain)
    return c.push(0, 2, "s2mm", 0, 0).push(0, 2, "mm2s", 0, 1).bytes()


def copy_stream(device: str = "npu2", words: int = 16) -> bytes:
    s = Script(device).host_bd(0, 0, 0, length=words).host_bd(0, 1, 1, length=words)
    s.push(0, 0, "mm2s", 0, 0).push(0, 0, "s2mm", 0, 1, token=True)
    s.raw.sync(0, 0, "s2mm", 0)
    return s.bytes()


# The switch ports that routes of these tests use (docs/reference/hardware.md 3.2).
CORE_PORT, CORE_DMA, CORE_CONTROL = 0, 1, 3  # master and slave
CORE_SOUTH_OUT, CORE_WEST_OUT, CORE_NORTH_OUT, CORE_EAST_OUT = 5, 9, 13, 19
CORE_SOUTH_IN, CORE_WEST_IN, CORE_NORTH_IN, CORE_EAST_IN = 5, 11, 15, 19


def shim_in(script: Script, col: int = 0) -> Script:
    """Shim MM2S 0 to the South 0 port of core (col, 2)."""
    script.write(col, 0, 0x1F000, 1 << 10)
    return script.connect(col, 0, 5, 12).connect(col, 1, 7, 11)


def shim_out(script: Script, col: int = 0) -> Script:
    """The South 0 port of core (col, 2) to shim S2MM 0."""
    script.write(col, 0, 0x1F004, 1 << 4)
    return script.connect(col, 1, 13, 7).connect(col, 0, 14, 4)


def read_back(script: Script, words: int, argument: int = 0, col: int = 0) -> Script:
    """Waits for so many words of shim S2MM 0."""
    script.host_bd(col, 1, argument, length=words).push(col, 0, "s2mm", 0, 1, token=True)
    script.raw.sync(col, 0, "s2mm", 0)
    return script
