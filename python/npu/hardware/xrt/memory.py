"""Memory that the host and the NPU share: host-only buffer objects (BOs) of XRT and host memory
wrapped as such.

The NPU does not snoop the host's caches: ``sync`` of a BO flushes the cache lines of a range, in
both directions alike, so the host and the NPU must never write to one line (64 bytes). XRT takes
pointers that lie on a page and pins whole pages; it takes read-only mappings, too.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from collections import deque
from typing import Any

import numpy as np

from npu.device_contract import DeviceBuffer
from npu.hardware.xrt import failures
from npu.hardware.xrt.signals import uninterrupted

PAGE = mmap.PAGESIZE
LINE = 64  # bytes of a cache line
DATA_GROUP = 0  # the bank of host memory, to which every data argument of an xclbin is connected
_MOST_PARTS = 256  # sub-BOs that a buffer keeps
_SMALLEST_UNALIGNED = 64 << 10  # smaller inputs off a page are copied: pinning costs more

_serials = itertools.count(1)
_lock = threading.Lock()

_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def fence() -> None:
    """A full memory fence. XRT ends a flush without one, and a load that runs ahead of the flush
    would read the line as it was. Taking an uncontended lock is an atomic read-modify-write, which
    on x86 orders all loads and cache-line flushes around it."""
    _lock.acquire()
    _lock.release()


def whole_pages(size: int) -> int:
    """``size`` rounded up to pages, at least one."""
    return max(PAGE, -(-size // PAGE) * PAGE)


def synchronise(bo: Any, direction: Any, size: int, offset: int) -> None:
    """Flushes a range of a BO. Raises DeviceError."""
    try:
        uninterrupted(bo.sync, direction, size, offset)
    except RuntimeError as error:
        raise failures.of_sync(size, error) from error


class XrtBuffer(DeviceBuffer):
    """``memory`` of the host and the BO that has it. ``serial`` distinguishes buffers; that of one
    that has ended is appended to ``gone``."""

    def __init__(
        self, pyxrt: Any, bo: Any, memory: np.ndarray, gone: deque[int], skew: int = 0
    ) -> None:
        self.memory = memory
        self._skew = skew  # bytes of the BO before the memory
        self.bo = bo  # XRT's views of a BO's memory do not keep it
        self.serial = next(_serials)
        self.parts: dict[int, Any] = {}  # offset -> sub-BO
        self._gone = gone
        self._make = pyxrt.bo
        directions = pyxrt.xclBOSyncDirection
        self._to_device = directions.XCL_BO_SYNC_BO_TO_DEVICE
        self._from_device = directions.XCL_BO_SYNC_BO_FROM_DEVICE

    def __del__(self) -> None:
        self._gone.append(self.serial)

    def sync_to_device(self, offset: int, size: int) -> None:
        if size:
            synchronise(self.bo, self._to_device, size, offset + self._skew)

    def sync_from_device(self, offset: int, size: int) -> None:
        if size:
            synchronise(self.bo, self._from_device, size, offset + self._skew)
            fence()

    def at(self, offset: int) -> Any:
        """What a run takes as the memory from ``offset`` on: a run's argument is an address."""
        offset += self._skew
        if offset == 0:
            return self.bo
        part = self.parts.get(offset)
        if part is None:
            if len(self.parts) >= _MOST_PARTS:
                self.parts.clear()
            part = self.parts[offset] = self._make(self.bo, self.bo.size() - offset, offset)
        return part


def allocate(pyxrt: Any, device: Any, size: int, gone: deque[int]) -> XrtBuffer:
    """Memory of the device that the host sees. Raises what pyxrt raises."""
    bo = uninterrupted(pyxrt.bo, device, whole_pages(size), pyxrt.bo.host_only, DATA_GROUP)
    return XrtBuffer(pyxrt, bo, np.frombuffer(bo.map(), np.uint8)[:size], gone)


def can_wrap(address: int, size: int, writable: bool) -> bool:
    """Whether host memory can be a BO. What the NPU writes to starts on a page and shares no cache
    line with what follows; what it only reads may lie on any word, if it is large. The rest of the
    first and the last page is pinned with it."""
    if size <= 0 or (writable and size % LINE):
        return False
    skew = address % PAGE
    return skew == 0 or (not writable and skew % 4 == 0 and size >= _SMALLEST_UNALIGNED)


def wrap(pyxrt: Any, device: Any, array: np.ndarray, gone: deque[int]) -> XrtBuffer:
    """Host memory for which ``can_wrap`` holds. Raises what pyxrt raises."""
    address = array.ctypes.data
    skew = address % PAGE
    pointer = _capsule(address - skew, None, None)  # how pyxrt takes a void*
    bo = uninterrupted(pyxrt.ext.bo, device, pointer, whole_pages(array.nbytes + skew))
    return XrtBuffer(pyxrt, bo, array, gone, skew)
