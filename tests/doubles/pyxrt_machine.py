"""The machine behind the test double of pyxrt: its NPUs, what they count, limit and inject.

``machine`` is what tests talk to: ``reset()`` between tests, ``inject(where, ...)`` for the next
failure, ``violations`` for what a backend did that real XRT would answer with a crash or with wrong
numbers. Streams run on an emulated NPU per device, which loads the configuration anew at random
(seeded), as another process or five idle seconds make the driver do.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import struct
from pathlib import Path
from typing import Any

from npu import _npu
from npu.errors import NpuError

MAGIC = b"xclbin of the test double 1\n"
HEAP_BYTES = 64 << 20
GRANULE = 32 << 10
PDI_BYTES = 1 << 20  # of a configuration, in the heap as long as its context lives
CONTEXT_LIMITS = {"npu1": 6, "npu2": 16}
NAMES = {"npu1": "NPU Phoenix", "npu2": "NPU Strix"}
UNKNOWN_OPERATION = 0xFFFFFFFF


class Crash(BaseException):
    """Where real XRT crashes or the NPU would read memory that is gone. Not an Exception, so that
    nothing handles it by accident."""


def write_xclbin(
    path: Path,
    configuration: bytes,
    *,
    arguments: int = 16,
    kernels: tuple[str, ...] = (),
    build: int = 0,
) -> Path:
    """A file that the double takes as an xclbin: a serialised configuration, with the number of
    data arguments of its kernel, without what mlir-aie keeps out of an xclbin. Beside it, as
    NAME.overlay.bin, the programs that streams load, of which its cores run no others: noise, that
    of another ``build`` is another."""
    head = {
        "kernels": list(kernels or ("MLIR_AIE",)), "arguments": arguments + 3,
        "images": {},
    }  # fmt: skip
    for name, size, *_ in _npu.device.parse_configuration(configuration)["overlays"]:
        seed = hashlib.sha256(f"{build} {name} ".encode() + configuration).digest()
        image = hashlib.shake_256(seed).digest(size)
        path.with_name(f"{name}.overlay.bin").write_bytes(image)
        head["images"][name] = image.hex()
    content = _without_shim_bds(configuration)
    path.write_bytes(MAGIC + json.dumps(head).encode() + b"\n" + content)
    return path


def _without_shim_bds(configuration: bytes) -> bytes:
    """The configuration without writes to BDs and channels of shim tiles (row 0, 0x1D000 on)."""
    size = len(_npu.device.parse_configuration(configuration)["txn"])
    text, txn = configuration[:-size], configuration[-size:]
    kept = [
        txn[one["byte_offset"] :][: one["bytes"]]
        for one in _npu.stream.operations(txn)
        if one.get("address", 0) >> 20 & 31 or not 0x1D000 <= one["address"] & 0xFFFFF < 0x1D220
    ]
    content = b"".join(kept)
    rest = txn[:8] + struct.pack("<II", len(kept), 16 + len(content)) + content
    return text[: text.rindex(b"txn ")] + b"txn %d\n" % len(rest) + rest


class Npu:
    """A device: an emulated array, its contexts, its heap for command streams."""

    def __init__(self, machine: Machine, generation: str, name: str | None = None) -> None:
        self.machine, self.generation = machine, generation
        self.name = name or NAMES[generation]
        self.bdf = f"ffff:0{len(machine.devices)}:00.1"  # none that a machine has
        self.context_limit = CONTEXT_LIMITS[generation]
        self.heap_bytes = HEAP_BYTES
        self.heap_used = 0  # by streams
        self.heap_expands = True  # else the firmware knows no second part of the heap
        self.opened = 0  # devices of this process
        self.contexts: list[Any] = []
        self.pending: collections.deque[Any] = collections.deque()  # commands, in order
        self._array: Any = None
        self._streams: collections.OrderedDict[Any, Any] = collections.OrderedDict()

    @property
    def array(self) -> Any:
        if self._array is None:
            seed = self.machine.seed
            mode = "" if seed is None else f"+reload-random-{seed}"
            self._array = _npu.device.open(f"emu:{self.generation}{mode}", "fast")
        return self._array

    def open(self) -> None:
        """The first device of a process maps the heap, locked."""
        if self.opened == 0:
            request = f"mmap(addr=(nil), len={HEAP_BYTES}, prot=3, flags=8193, offset=0) failed"
            self.machine.check("device heap", request)
            self.machine.lock(HEAP_BYTES, request)
        self.opened += 1

    def close(self) -> None:
        self.opened -= 1
        if self.opened == 0 and self in self.machine.devices:
            self.machine.locked -= HEAP_BYTES

    def take(self, size: int) -> None:
        """Raises what the driver would where the heap has no room for ``size`` bytes more."""
        if self.heap_used + PDI_BYTES * len(self.contexts) + size <= self.heap_bytes:
            return
        if self.heap_expands:
            raise driver_error(f"Heap at max size {self.heap_bytes}, can't expand further", 28)
        raise driver_error("DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed", -95)

    def prepared(self, configuration: Any, words: bytes) -> Any:
        """A stream in the emulator's form, of the configuration that is loaded with it."""
        self.array.load(configuration)
        key = (id(configuration), words)
        if key not in self._streams:
            self._streams[key] = (self.array.prepare(words), configuration)
            if len(self._streams) > 64:
                self._streams.popitem(last=False)
        self._streams.move_to_end(key)
        return self._streams[key][0]


class Machine:
    """All state of the double."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, generations: tuple[str, ...] = ("npu1", "npu2"), seed: int | None = 11) -> None:
        """A machine with these NPUs and nothing open. ``seed``: of reloads; None: none happen."""
        self.seed = seed
        self.null = False  # runs end at once and compute nothing
        self.memory_lock: int | None = None  # bytes
        self.locked = 0
        self.health_data = True  # whether a time-out says which operation was reached
        self.watchdog = True
        self.counts: collections.Counter[str] = collections.Counter()
        self.violations: list[str] = []
        self.errors: list[str] = []  # of the emulated NPU
        self.faults: dict[str, collections.deque[Any]] = collections.defaultdict(collections.deque)
        self.serials = itertools.count(1)
        self.devices: list[Npu] = []
        for generation in generations:
            self.devices.append(Npu(self, generation))

    def inject(self, where: str, *faults: Any) -> None:
        """The next events at ``where``: an error number of "device" (its node), "device heap",
        "info", "register", "context", "bo", "userptr", "heap", "start", "wait" or "sync"; of "run"
        a state ("timeout", "timeout 5" with the operation reached, "abort", "error 0x3000002",
        "hang"), None for a good one."""
        self.faults[where].extend(faults)

    def fault(self, where: str) -> Any:
        waiting = self.faults.get(where)
        return waiting.popleft() if waiting else None

    def check(self, where: str, request: str) -> None:
        """Raises what the driver would, if a fault is waiting there."""
        number = self.fault(where)
        if number is not None:
            raise driver_error(request, number)

    def lock(self, size: int, request: str) -> None:
        """Counts locked memory against the limit."""
        if self.memory_lock is not None and self.locked + size > self.memory_lock:
            raise driver_error(request, -11)
        self.locked += size

    def violate(self, what: str) -> None:
        self.violations.append(what)


def driver_error(request: str, number: int) -> RuntimeError:
    """As xdna-driver's shim words it (shim_debug.h)."""
    return RuntimeError(f"{request} (err={number}): the double says so")


def parse_xclbin(path: str) -> tuple[dict[str, Any], Any]:
    """(head, configuration) of a file. Raises RuntimeError as XRT does."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RuntimeError(f"failed to open file '{path}': {error.strerror}") from None
    if not data.startswith(MAGIC):
        raise RuntimeError(f"Invalid xclbin '{path}'")
    head, _, configuration = data[len(MAGIC) :].partition(b"\n")
    try:
        about = json.loads(head)
        images = {name: bytes.fromhex(one) for name, one in about.get("images", {}).items()}
        return about, _npu.device.Configuration.parse(configuration, images)
    except (ValueError, NpuError) as error:
        raise RuntimeError(f"Invalid xclbin '{path}': {error}") from None


def words_of(stream: bytes) -> int:
    """How many words the header of a TXN stream counts; 0 where there is none."""
    return struct.unpack_from("<I", stream, 12)[0] // 4 if len(stream) >= 16 else 0


machine = Machine()
