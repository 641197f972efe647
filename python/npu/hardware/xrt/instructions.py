"""Command streams in the memory that the NPU's firmware reads them from.

Every stream is in a BO of its own of the device heap (cacheable), in granules of 32 KiB; the heap
has 64 MiB for all contexts of a process, of which configurations and commands take a part. Streams
stay there until the room is needed: the one used least recently goes first, never one that a run
uses. Their words are kept on the host, so that they can be written again.
"""

from __future__ import annotations

import collections
import struct
import weakref
from typing import TYPE_CHECKING, Any

from npu.hardware.xrt import failures
from npu.hardware.xrt.memory import fence

if TYPE_CHECKING:
    from npu.hardware.xrt.context import Context

HEAP_BYTES = 64 << 20  # of npu1, and what npu2 has at first
GRANULE = 32 << 10
_KEPT_FREE = 8  # BOs without a stream
_COUNT = struct.Struct("<I")


class Slot:
    """A BO of the heap with a stream; ``serial`` is the stream's; ``uses``: runs under way that
    read it."""

    __slots__ = ("bo", "context", "granules", "prepared", "serial", "uses")

    def __init__(self, bo: Any, context: Context, granules: int, serial: int) -> None:
        self.bo, self.context, self.granules, self.serial = bo, context, granules, serial
        self.uses = 0
        self.prepared: Any = None  # a weak reference to the Prepared that it holds


class Prepared:
    """A stream: its words, and where it lies on the device (None: nowhere)."""

    __slots__ = ("__weakref__", "_gone", "count", "operations", "slot", "words")

    def __init__(self, words: bytes, gone: collections.deque[Slot]) -> None:
        self.words = words
        self.count = len(words) // 4
        self.operations: int = _COUNT.unpack_from(words, 8)[0]  # of the TXN header
        self.slot: Slot | None = None
        self._gone = gone

    def __del__(self) -> None:
        # Any thread, at any time: the pool takes note when it is asked the next time.
        if self.slot is not None:
            self._gone.append(self.slot)


class InstructionPool:
    """The streams on the device. ``heap_bytes``: what they may take together."""

    def __init__(self, pyxrt: Any, device: Any, heap_bytes: int = HEAP_BYTES) -> None:
        self._pyxrt, self._device = pyxrt, device
        self._to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        self._heap = heap_bytes
        self._limit = heap_bytes // GRANULE
        self._slots: collections.OrderedDict[int, Slot] = collections.OrderedDict()  # oldest first
        self._free: list[Slot] = []
        self._gone: collections.deque[Slot] = collections.deque()
        self._serial = 0
        self.granules = 0  # in use, free ones included
        self.evictions = 0

    def prepare(self, words: bytes) -> Prepared:
        return Prepared(words, self._gone)

    def place(self, prepared: Prepared, context: Context) -> Slot:
        """The BO with the stream, written if it is not there. Raises HeapFullError."""
        slot = prepared.slot
        if slot is not None:
            self._slots.move_to_end(slot.serial)
            return slot
        self._collect()
        size = len(prepared.words)
        granules = max(1, -(-size // GRANULE))
        slot = self._reused(context, granules) or self._new(context, granules, size)
        slot.bo.write(prepared.words, 0)
        slot.bo.sync(self._to_device, size, 0)
        fence()
        slot.prepared = weakref.ref(prepared)
        prepared.slot = slot
        self._slots[slot.serial] = slot
        return slot

    def close(self, context: Context) -> None:
        """Gives up all BOs of a context, before it goes."""
        self._collect()
        for slot in [one for one in self._slots.values() if one.context is context]:
            self._drop(slot)
        for slot in [one for one in self._free if one.context is context]:
            self._free.remove(slot)
            self._forget(slot)

    def slots(self) -> list[Slot]:
        return [*self._slots.values(), *self._free]

    def _reused(self, context: Context, granules: int) -> Slot | None:
        for slot in self._free:
            if slot.context is context and slot.granules == granules:
                self._free.remove(slot)
                slot.serial = self._next()  # another stream, of another length
                return slot
        return None

    def _new(self, context: Context, granules: int, size: int) -> Slot:
        flags = self._pyxrt.bo.cacheable
        while True:
            if self.granules + granules <= self._limit:
                try:
                    bo = self._pyxrt.bo(
                        self._device, granules * GRANULE, flags, context.stream_group
                    )
                except RuntimeError as error:
                    if not failures.heap_is_full(error):
                        raise failures.of_memory("submit", size, error) from error
                else:
                    break
            if not self._evict():
                raise failures.full_heap(size, self._heap)
        self.granules += granules
        return Slot(bo, context, granules, self._next())

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _evict(self) -> bool:
        if self._free:
            self._forget(self._free.pop())
            return True
        for slot in self._slots.values():
            if slot.uses == 0:
                self._drop(slot)
                self.evictions += 1
                return True
        return False

    def _drop(self, slot: Slot) -> None:
        del self._slots[slot.serial]
        prepared = slot.prepared()
        if prepared is not None:
            prepared.slot = None
        self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        slot.context.forget(slot)
        slot.bo = None
        self.granules -= slot.granules

    def _collect(self) -> None:
        """BOs of streams that are gone become free ones."""
        waiting = []
        while self._gone:
            slot = self._gone.popleft()
            if slot.serial not in self._slots:
                continue
            if slot.uses:
                waiting.append(slot)
                continue
            del self._slots[slot.serial]
            self._free.append(slot)
            if len(self._free) > _KEPT_FREE:
                self._forget(self._free.pop(0))
        self._gone.extend(waiting)
