"""Memory of device xrt: without any one of its syncs results are wrong, so that a forgotten one is
seen; page-aligned memory and read-only mappings of files are used where they lie, other memory is
not; fresh memory is poisoned; a buffer's end gives its memory back; streams leave the heap when
room is needed, least recently used first, never one that a run uses."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest
import pyxrt_machine
import xrt_devices
from pyxrt_machine import PDI_BYTES
from xrt_cases import Norm, Submitted, backend, expected

import npu
from npu import _npu
from npu.errors import DeviceError, FirmwareError, HeapFullError, MemoryLockError
from npu.hardware.xrt import instructions, memory

PAGE = mmap.PAGESIZE


def _nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize("forgotten", ["sync_to_device", "sync_from_device"])
def test_a_forgotten_sync_of_data_gives_wrong_results(monkeypatch, forgotten):
    norm = Norm(backend())
    assert norm() == expected()
    monkeypatch.setattr(memory.XrtBuffer, forgotten, _nothing)
    assert norm(32, 3) != expected("npu2", 32, 3)


def test_a_forgotten_sync_of_a_stream_gives_no_result(monkeypatch, machine):
    pool = instructions.InstructionPool
    make = pool.__init__

    def without(self, pyxrt, device, heap_bytes):
        make(self, pyxrt, device, heap_bytes)
        self._to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE

    monkeypatch.setattr(pool, "__init__", without)
    with pytest.raises(FirmwareError):
        Norm(backend())()
    assert machine.errors


def test_results_are_fenced_after_their_sync(monkeypatch):
    order: list[str] = []
    buffer = backend().allocate(64)
    monkeypatch.setattr(memory, "fence", lambda: order.append("fence"))
    buffer.bo = type("Bo", (), {"sync": lambda *_: order.append("sync")})()
    buffer.sync_from_device(0, 64)
    assert order == ["sync", "fence"]
    buffer.sync_from_device(0, 0)
    assert order == ["sync", "fence"]


def test_fresh_memory_is_poisoned_and_copies_are_apart():
    buffer = backend().allocate(100)
    assert buffer.memory.size == 100 and (buffer.memory == 0xA5).all()
    buffer.sync_from_device(0, 50)
    assert (buffer.memory[:50] == 0x5A).all() and (buffer.memory[50:] == 0xA5).all()


def _aligned(size: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, -(-size // PAGE) * PAGE), np.uint8)[:size]


@pytest.mark.parametrize(
    "size, offset, writable, taken",
    [
        (PAGE, 0, True, True), (3 * PAGE, 0, False, True), (100, 0, False, True),
        (128, 0, True, True), (100, 0, True, False), (PAGE, 64, False, False),
        (PAGE, 4, True, False), (PAGE, PAGE, True, True), (64 << 10, 64, False, True),
        (64 << 10, 64, True, False), (64 << 10, 2, False, False),
    ],
)  # fmt: skip
def test_memory_that_is_wrapped(size, offset, writable, taken):
    array = _aligned(size + offset)[offset:]
    found = backend().wrap(array, writable)
    assert (found is not None) is taken
    if found is not None:
        assert found.memory is array and found.bo.size() % PAGE == 0


def test_nothing_is_no_buffer():
    assert backend().wrap(np.zeros(0, np.uint8), False) is None


@pytest.mark.parametrize("before", [0, 100])
def test_a_read_only_mapping_is_read_where_it_lies(tmp_path: Path, before: int):
    """Also from the middle of a page, as most tensors of a file."""
    case = Submitted(backend())
    weight = case.arguments[1][0]
    weight.array.view(np.float32)[:] = 1
    weight.sync_to_device(0, weight.nbytes)
    rows = np.random.default_rng(1).integers(0, 0x4000, case.arguments[0][2] // 2, np.uint16)
    file = tmp_path / "weights"
    file.write_bytes(bytes(before) + rows.tobytes())
    with file.open("rb") as opened:
        mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    mapped = np.frombuffer(mapping, np.uint8)[before:]
    wrapped = case.handle.wrap(mapped, "read")
    assert wrapped is not None and wrapped.nbytes == mapped.size
    wrapped.sync_to_device(0, mapped.size)
    copied, output = case.arguments[0], case.arguments[2]
    copied[0].array[:] = mapped
    copied[0].sync_to_device(0, mapped.size)
    results = []
    for first in (copied, (wrapped, 0, mapped.size, "read")):
        output[0].array[:] = 0
        case.arguments[0] = first
        case.run()
        output[0].sync_from_device(0, output[2])
        results.append(output[0].array.tobytes())
    assert results[0] == results[1] and any(results[0])
    del case, copied, wrapped
    gc.collect()
    assert mapped.tobytes() == rows.tobytes()


def test_memory_is_given_back(machine):
    device = backend()
    before = machine.counts["bos alive"], machine.locked
    buffers = [device.allocate(5000), device.wrap(_aligned(PAGE), True)]
    part = buffers[0].at(64)
    assert machine.locked == before[1] + 2 * PAGE + PAGE
    del buffers, part
    gc.collect()
    assert (machine.counts["bos alive"], machine.locked) == before


def test_idle_runs_keep_no_buffer_that_has_ended(machine):
    case = Submitted(backend())
    kept = case.arguments[0]
    case.run()
    before = machine.locked
    extra = case.handle.allocate(kept[2])
    extra.array[:] = 0
    extra.sync_to_device(0, extra.nbytes)
    case.arguments[0] = (extra, *kept[1:])
    case.run()
    case.arguments[0] = kept
    del extra
    gc.collect()
    case.handle.allocate(1)
    assert machine.locked == before
    assert case.run()["operations"] > 0


def test_parts_of_a_buffer_are_kept_and_few():
    buffer = backend().allocate(1 << 16)
    assert buffer.at(0) is buffer.bo and buffer.at(64) is buffer.at(64)
    for offset in range(4, 4 * 600, 4):
        buffer.at(offset)
    assert len(buffer.parts) <= 256


@pytest.mark.parametrize("what", ["bo", "userptr"])
@pytest.mark.parametrize("number", [-1, -11, -12])
def test_the_limit_of_locked_memory_is_named(machine, what, number):
    device = backend()
    machine.inject(what, number)
    with pytest.raises(MemoryLockError, match=r"4096 bytes.*ulimit -l unlimited"):
        device.allocate(PAGE) if what == "bo" else device.wrap(_aligned(PAGE), False)
    assert device.allocate(PAGE) is not None


@pytest.mark.parametrize("number", [-14, -22, -25, -95])
def test_memory_that_the_driver_cannot_pin_is_copied(machine, number):
    """A mapping that cannot be pinned (EFAULT), a driver that knows no pointers of users."""
    device = backend()
    machine.inject("userptr", number)
    assert device.wrap(_aligned(PAGE), False) is None
    assert (device.wrap(_aligned(PAGE), False) is None) is (number in (-25, -95))  # asked once only


def test_other_errors_of_pinning_are_errors(machine):
    device = backend()
    machine.inject("userptr", -5)
    with pytest.raises(DeviceError, match=r"^\[wrap\] 4096 bytes.*err=-5"):
        device.wrap(_aligned(PAGE), False)


def test_results_in_memory_that_cannot_be_pinned_are_the_same(machine):
    a = _aligned(1 << 18).view(np.int8).reshape(512, 512)
    a[:] = np.random.default_rng(4).integers(-9, 9, a.shape)
    npu.register_device("double:pinned", lambda: backend())
    with npu.device("double:pinned") as device:
        machine.inject("userptr", *[-22] * 99)
        product = npu.matmul(a, a, device=device)
        refused = 99 - len(machine.faults["userptr"])
    assert refused > 0
    assert (product == a.astype(np.int32) @ a).all()


def test_locked_memory_runs_out(machine):
    device = backend()
    machine.memory_lock = machine.locked + 3 * PAGE
    kept = [device.allocate(PAGE) for _ in range(3)]
    with pytest.raises(MemoryLockError, match="ulimit"):
        device.allocate(1)
    kept.pop()
    assert device.allocate(1).memory.size == 1


def _streams(case: Submitted, count: int) -> list[object]:
    """The same stream several times, each a stream of its own to the device."""
    return [case.handle.prepare(case.words) for _ in range(count)]


def test_streams_leave_the_heap_when_room_is_needed(machine):
    case = Submitted(backend(heap_bytes=4 * instructions.GRANULE))
    pool = case.backend.pool
    streams = _streams(case, 6)
    for stream in streams:
        case.handle.submit(stream, case.arguments).finish()
    assert pool.evictions == 2 and pool.granules == 4
    assert machine.devices[1].heap_used == 4 * instructions.GRANULE
    for stream in (streams[5], streams[2], streams[5]):  # still there
        case.handle.submit(stream, case.arguments).finish()
    assert pool.evictions == 2
    case.handle.submit(streams[0], case.arguments).finish()  # in place of the oldest, number 3
    case.handle.submit(streams[2], case.arguments).finish()
    assert pool.evictions == 3
    case.handle.submit(streams[3], case.arguments).finish()
    assert pool.evictions == 4


def test_a_stream_that_a_run_uses_stays(machine):
    case = Submitted(backend(heap_bytes=2 * instructions.GRANULE))
    first, second, third = _streams(case, 3)
    runs = [case.handle.submit(stream, case.arguments) for stream in (first, second)]
    with pytest.raises(HeapFullError, match=r"\[submit\] a command stream of \d+ bytes: no room"):
        case.handle.submit(third, case.arguments)
    for run in runs:
        run.finish()
    assert case.handle.submit(third, case.arguments).finish()["operations"] > 0


def test_the_heap_is_shared_by_contexts_and_may_be_smaller_than_thought(machine):
    machine.devices[1].heap_bytes = PDI_BYTES + 2 * instructions.GRANULE
    case = Submitted(backend())
    for stream in _streams(case, 5):
        assert case.handle.submit(stream, case.arguments).finish()["operations"] > 0
    assert Norm(case.handle)() == expected()


@pytest.mark.parametrize("number", [-28, -95])
def test_a_heap_without_room_for_one_stream_is_named(machine, number):
    case = Submitted(backend())
    machine.inject("heap", number)
    with pytest.raises(
        HeapFullError, match=r"no room in the NPU's heap, of whose 64 MiB streams may take 48"
    ):
        case.run()
    assert case.run()["operations"] > 0


def test_streams_leave_a_heap_that_the_firmware_cannot_expand(machine):
    """npu2 with firmware that knows no second part of the heap: EOPNOTSUPP."""
    npu = machine.devices[1]
    npu.heap_expands = False
    npu.heap_bytes = PDI_BYTES + 2 * instructions.GRANULE
    case = Submitted(backend())
    for stream in _streams(case, 5):
        assert case.handle.submit(stream, case.arguments).finish()["operations"] > 0
    assert case.backend.pool.evictions == 3


def test_a_heap_that_cannot_be_locked_makes_room_first(machine):
    """A second part of the heap is locked memory, too."""
    case = Submitted(backend())
    first, second = _streams(case, 2)
    case.handle.submit(first, case.arguments).finish()
    machine.inject("heap", -11)
    assert case.handle.submit(second, case.arguments).finish()["operations"] > 0
    assert case.backend.pool.evictions == 1
    machine.inject("heap", -11, -11)
    with pytest.raises(MemoryLockError, match="ulimit -l unlimited"):
        case.handle.submit(first, case.arguments)


def test_other_refusals_of_a_stream_evict_nothing(machine):
    case = Submitted(backend())
    first, second = _streams(case, 2)
    case.handle.submit(first, case.arguments).finish()
    machine.inject("heap", -5)
    with pytest.raises(DeviceError, match="err=-5"):
        case.handle.submit(second, case.arguments)
    assert case.backend.pool.evictions == 0


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_streams_leave_room_for_configurations(machine, generation):
    """All streams that fit, beside as many contexts as the machine has."""
    contexts = pyxrt_machine.CONTEXT_LIMITS[generation]
    room = pyxrt_machine.HEAP_BYTES - contexts * PDI_BYTES
    assert room >= instructions.HEAP_BUDGET
    case = Submitted(backend(generation), generation)
    size = 256 * instructions.GRANULE - 4096
    pad = b"\0" * (size - len(case.words))
    npu = machine.devices[xrt_devices.GENERATIONS.index(generation)]
    (context,) = case.backend.contexts.all()
    kept = []
    for _ in range(room // size + 2):
        kept.append(case.backend.pool.prepare(case.words + pad))
        case.backend.pool.place(kept[-1], context)
    assert case.backend.pool.evictions > 0
    assert npu.heap_used + contexts * PDI_BYTES <= pyxrt_machine.HEAP_BYTES


def test_a_stream_that_cannot_be_written_leaves_nothing_behind(machine):
    case = Submitted(backend())
    machine.inject("sync", -19)
    with pytest.raises(DeviceError, match=r"^\[sync\] \d+ bytes"):
        case.run()
    assert case.backend.pool.granules == 0 and machine.devices[1].heap_used == 0
    assert case.run()["operations"] > 0


def test_bos_of_streams_that_are_gone_are_used_again(machine):
    case = Submitted(backend())
    for stream in _streams(case, 3):
        case.handle.submit(stream, case.arguments).finish()
        del stream
    gc.collect()
    made = machine.counts["bos"]
    for _ in range(4):
        case.handle.submit(_streams(case, 1)[0], case.arguments).finish()
    assert machine.counts["bos"] == made
    assert _npu.stream.header(case.words)["operations"] == case.run()["operations"]


def test_a_bo_that_is_used_again_holds_a_stream_of_another_length(machine):
    norm = Norm(backend())
    case = Submitted(norm.handle, rows=16)
    case.run()
    others = [Submitted(case.handle, rows=rows) for rows in (512, 8)]
    made = machine.counts["bos"]
    case.stream = None
    case.handle.load(others[0].configuration)
    for other in others:
        case.handle.load(other.configuration)
        assert other.run()["operations"] > 0
        other.stream = None
    assert machine.counts["bos"] == made
    assert not machine.errors


def test_a_large_stream_takes_its_granules(machine):
    case = Submitted(backend(), rows=4096)
    case.run()
    granules = -(-len(case.words) // instructions.GRANULE)
    assert xrt_devices.pyxrt.machine.devices[1].heap_used == granules * instructions.GRANULE
