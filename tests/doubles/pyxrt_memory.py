"""The memory of the test double: a host copy and a device copy of every buffer object, in the NPU's
heap, in host memory of XRT's, or in the caller's.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
from pyxrt_machine import GRANULE, Crash, Npu, driver_error, machine

PAGE = mmap.PAGESIZE
INSTRUCTIONS, DATA = 1, 0  # memory banks
_POISON_HOST, _POISON_DEVICE = 0xA5, 0x5A


class Memory:
    """What BOs and their parts share."""

    read_only = False
    host: np.ndarray
    device_side: np.ndarray

    def __init__(self, npu: Npu) -> None:
        self.npu = npu
        self.number = next(machine.serials)
        machine.counts["bos"] += 1
        machine.counts["bos alive"] += 1

    def __del__(self) -> None:
        machine.counts["bos alive"] -= 1


class Instructions(Memory):
    """In the heap of the device, in granules."""

    def __init__(self, npu: Npu, size: int, group: int) -> None:
        self.context: Any = None
        super().__init__(npu)
        self.bytes = 0
        machine.check("heap", "DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed")
        if group & 0xFFFF != INSTRUCTIONS:
            raise RuntimeError(f"no instruction memory in bank {group & 0xFFFF}")
        found = [one for one in npu.contexts if one.slot == group >> 16]
        if not found:
            raise Crash("an instruction BO for a context that is gone")
        taken = -(-size // GRANULE) * GRANULE
        npu.take(taken)
        self.bytes, self.context = taken, found[0]
        npu.heap_used += taken
        self.context.bos += 1
        self.host = np.full(size, _POISON_HOST, np.uint8)
        self.device_side = np.full(size, _POISON_DEVICE, np.uint8)

    def is_read(self) -> bool:
        """Whether a command that has not ended has it as its stream."""
        commands = (one for one in self.context.commands if not one.over())
        return any(one.arguments[1][0] is self for one in commands)

    def __del__(self) -> None:
        if self.context is not None:
            self.npu.heap_used -= self.bytes
        super().__del__()


class Data(Memory):
    """Host memory of XRT's, locked."""

    def __init__(self, npu: Npu, size: int, group: int) -> None:
        self.bytes = 0
        super().__init__(npu)
        request = "mmap(addr=(nil), prot=3, flags=8193, offset=0) failed"
        machine.check("bo", request)
        if group & 0xFFFF != DATA:
            raise RuntimeError(f"no host memory in bank {group & 0xFFFF}")
        if size <= 0:
            raise driver_error("DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed", -22)
        machine.lock(size, request)
        self.bytes = size
        self._pages = mmap.mmap(-1, -(-size // PAGE) * PAGE)
        self.host = np.frombuffer(self._pages, np.uint8)[:size]
        self.host[:] = _POISON_HOST
        self._make_device_side(size)

    def _make_device_side(self, size: int) -> None:
        self.buffer = self.npu.array.allocate(size)
        self.device_side = self.buffer.array
        self.device_side[:] = _POISON_DEVICE

    def __del__(self) -> None:
        machine.locked -= self.bytes
        if self.bytes and not self.read_only and type(self) is Data:
            self.host[:] = 0xDD  # who still looks at it sees that it is gone
        super().__del__()


class User(Data):
    """Memory of the caller's, pinned."""

    def __init__(self, npu: Npu, address: int, size: int) -> None:
        self.bytes = 0
        Memory.__init__(self, npu)
        request = "DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed"
        machine.check("userptr", request)
        if address % PAGE:
            raise RuntimeError("userptr is not aligned: Invalid argument")
        if size <= 0 or size % PAGE:
            raise driver_error(request, -22)
        machine.lock(size, request)
        self.bytes = size
        self.read_only = not _is_writable(address, size, request)
        self.host = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        if self.read_only:
            self.host.flags.writeable = False
        self._make_device_side(size)


def _is_writable(address: int, size: int, request: str) -> bool:
    """Of mapped pages; others are refused."""
    writable, at = True, address
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) (...)", line)
        if not found:
            continue
        start, end = int(found[1], 16), int(found[2], 16)
        if start <= at < end:
            writable = writable and found[3][1] == "w"
            at = end
        if at >= address + size:
            return writable
    raise driver_error(request, -14)


def integers(*values: Any) -> None:
    if any(type(value) is not int for value in values):
        raise TypeError("incompatible function arguments: an integer of Python is wanted")
