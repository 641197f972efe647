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

import numpy as np

from npu.hardware.xrt import failures
from npu.hardware.xrt.memory import fence, synchronise
from npu.hardware.xrt.signals import uninterrupted

if TYPE_CHECKING:
    from npu.hardware.xrt.context import Context

HEAP_BUDGET = 48 << 20  # of 64 MiB: PDIs and command buffers of all contexts take the rest
GRANULE = 32 << 10
_KEPT_FREE = 8  # BOs without a stream
_COUNT = struct.Struct("<I")
_GAP = 4 << 10  # bytes that are synchronised sooner than a second call is made


class Slot:
    """A BO of the heap with a stream; ``serial`` is the stream's; ``uses``: runs under way that
    read it."""

    __slots__ = ("bo", "context", "granules", "prepared", "serial", "uses")

    def __init__(self, bo: Any, context: Context, granules: int, serial: int) -> None:
        self.bo, self.context, self.granules, self.serial = bo, context, granules, serial
        self.uses = 0
        self.prepared: Any = None  # a weak reference to the Prepared that it holds


class Prepared:
    """A stream: its words, and where it lies on the device (None: nowhere). ``shift``: words of
    operations that come before those of the caller's stream."""

    __slots__ = ("__weakref__", "_gone", "count", "memory", "operations", "shift", "slot")

    def __init__(self, words: bytes, gone: collections.deque[Slot], shift: int) -> None:
        self.memory = bytearray(words)
        self.count = len(words) // 4
        self.shift = shift
        self.operations: int = _COUNT.unpack_from(words, 8)[0]  # of the TXN header
        self.slot: Slot | None = None
        self._gone = gone

    @property
    def words(self) -> bytes:
        """As they are now."""
        return bytes(self.memory)

    def __del__(self) -> None:
        # Any thread, at any time: the pool takes note when it is asked the next time.
        if self.slot is not None:
            self._gone.append(self.slot)


class InstructionPool:
    """The streams on the device. ``heap_bytes``: what they may take together."""

    def __init__(self, pyxrt: Any, device: Any, heap_bytes: int = HEAP_BUDGET) -> None:
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

    def prepare(self, words: bytes, shift: int = 0) -> Prepared:
        return Prepared(words, self._gone, shift)

    def patch(self, prepared: Prepared, patches: np.ndarray) -> bool:
        """Changes words, on the device too if they are there. False: a run uses the stream. Where
        it raises, the stream is as it was."""
        slot = prepared.slot
        if slot is not None and slot.uses:
            return False
        if not len(patches):
            return True
        places = patches[:, 0].astype(np.int64) + prepared.shift
        values = patches[:, 1]
        words = np.frombuffer(prepared.memory, np.uint32)
        before = words[places]
        try:
            words[places] = values
            if slot is not None:
                np.frombuffer(slot.bo.map(), np.uint32)[places] = values
                for first, end in _ranges(places):
                    synchronise(slot.bo, self._to_device, end - first, first)
                fence()
        except BaseException:
            words[places] = before
            if slot is not None:
                self._drop(slot)  # what it holds is not known
            raise
        return True

    def place(self, prepared: Prepared, context: Context) -> Slot:
        """The BO with the stream, written if it is not there. Raises HeapFullError."""
        slot = prepared.slot
        if slot is not None:
            self._slots.move_to_end(slot.serial)
            return slot
        self._collect()
        size = len(prepared.memory)
        granules = max(1, -(-size // GRANULE))
        slot = self._reused(context, granules) or self._new(context, granules, size)
        try:
            slot.bo.write(prepared.memory, 0)
            synchronise(slot.bo, self._to_device, size, 0)
        except BaseException:
            self._forget(slot)
            raise
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
        refused: RuntimeError | None = None
        while True:
            if self.granules + granules <= self._limit:
                try:
                    bo = uninterrupted(
                        self._pyxrt.bo,
                        self._device, granules * GRANULE, flags, context.stream_group,
                    )  # fmt: skip
                except RuntimeError as error:
                    # A heap that grows locks more memory.
                    if not failures.heap_is_full(error) and not failures.is_lock_limit(error):
                        raise failures.of_memory("submit", size, error) from error
                    refused = error.with_traceback(None)  # which would keep the next BO
                else:
                    break
            if not self._evict():
                raise failures.full_heap(size, self._heap, refused) from refused
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


def _ranges(places: np.ndarray) -> list[tuple[int, int]]:
    """Bytes, from and to, that hold the words of these numbers."""
    first = np.sort(places) * 4
    breaks = np.flatnonzero(np.diff(first) > _GAP)
    begins = first[np.concatenate([[0], breaks + 1])]
    ends = first[np.concatenate([breaks, [len(first) - 1]])] + 4
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
