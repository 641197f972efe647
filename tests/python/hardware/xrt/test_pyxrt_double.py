"""The test double of pyxrt is strict: what real XRT refuses, crashes on or answers with wrong
numbers is refused, recorded or answered so here."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xrt_devices
from pyxrt_machine import GRANULE, HEAP_BYTES, PDI_BYTES, Crash, words_of, write_xclbin

from npu import _npu
from npu.ops.registry import operation

pyxrt = xrt_devices.pyxrt
TO_DEVICE = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
FROM_DEVICE = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
DONE = pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED


@pytest.fixture
def opened(tmp_path: Path, machine: Any) -> Any:
    """Device, context, kernel, a stream with its BO, and a BO per argument."""
    chosen = operation("rms_norm")
    data = chosen.configuration("npu2")
    (submission,) = chosen.submissions(data, {"rows": 16, "width": 128})
    path = write_xclbin(tmp_path / "design.xclbin", data, arguments=5)
    device = pyxrt.device(1)
    image = pyxrt.xclbin(str(path))
    context = pyxrt.hw_context(device, device.register_xclbin(image))
    kernel = pyxrt.kernel(context, "MLIR_AIE")
    words = submission.stream
    stream = pyxrt.bo(device, len(words), pyxrt.bo.cacheable, kernel.group_id(1))
    stream.write(words, 0)
    stream.sync(TO_DEVICE)
    buffers = [
        pyxrt.bo(device, one["bytes"], pyxrt.bo.host_only, kernel.group_id(3))
        for one in submission.arguments
    ]
    for one in buffers:
        np.frombuffer(one.map(), np.uint8)[:] = 0
        one.sync(TO_DEVICE)
    found = SimpleNamespace(
        machine=machine, device=device, context=context, kernel=kernel, words=words,
        stream=stream, buffers=buffers, image=image, path=path,
    )  # fmt: skip
    yield found
    for name in ("stream", "kernel", "context"):
        setattr(found, name, None)
    del stream, kernel, context


def _run(opened: Any, *arguments: Any) -> Any:
    run = pyxrt.run(opened.kernel)
    wanted = arguments or (3, opened.stream, len(opened.words) // 4, *opened.buffers)
    for index, one in enumerate(wanted):
        run.set_arg(index, one)
    return run


def test_a_run_computes(opened):
    run = _run(opened)
    assert run.state() is pyxrt.ert_cmd_state.ERT_CMD_STATE_NEW
    run.start()
    assert run.wait() is DONE and run.state() is DONE
    run.start()
    assert run.wait(1000) is DONE
    run.wait2()
    output = np.frombuffer(opened.buffers[2].map(), np.uint8)
    output[:] = 7
    opened.buffers[2].sync(FROM_DEVICE)
    assert not output.any()


def test_run_lists_run_in_order(opened):
    runs = [_run(opened), _run(opened)]
    listed = pyxrt.runlist(opened.context)
    for one in runs:
        listed.add(one)
    listed.execute()
    listed.wait()
    assert all(one.state() is DONE for one in runs)


@pytest.mark.parametrize(
    "change",
    [
        {0: 2}, {0: 4}, {2: 0}, {2: 10**6}, {1: "data"}, {3: "stream"}, {3: 1},
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind_crash(opened, change):
    arguments: list[Any] = [3, opened.stream, len(opened.words) // 4, *opened.buffers]
    for index, value in change.items():
        arguments[index] = {"data": opened.buffers[0], "stream": opened.stream}.get(value, value)
    run = _run(opened, *arguments)
    with pytest.raises(Crash):
        run.start()


@pytest.mark.parametrize("words", [-1, +1])
def test_the_number_of_words_is_the_streams(opened, words):
    assert words_of(opened.words) == len(opened.words) // 4
    large = pyxrt.bo(opened.device, GRANULE, pyxrt.bo.cacheable, opened.kernel.group_id(1))
    large.write(opened.words, 0)
    large.sync(TO_DEVICE)
    run = _run(opened, 3, large, len(opened.words) // 4 + words, *opened.buffers)
    run.start()
    assert run.wait() is pyxrt.ert_cmd_state.ERT_CMD_STATE_ERROR
    with pytest.raises(RuntimeError, match="ERT_CMD_STATE_ERROR"):
        run.wait2()


def test_more_arguments_than_declared_crash(opened):
    with pytest.raises(Crash, match="declares 8"):
        _run(opened, 3, opened.stream, 1, *[opened.buffers[0]] * 6)


def test_arguments_are_not_changed_under_way(opened):
    run = _run(opened)
    run.start()
    with pytest.raises(Crash, match="under way"):
        run.set_arg(3, opened.buffers[1])
    with pytest.raises(RuntimeError, match="can't launch"):
        run.start()
    run.wait()


@pytest.mark.parametrize("flags", ["normal", "device_only", "p2p", "svm"])
def test_flags_that_the_driver_does_not_take(opened, flags):
    with pytest.raises(RuntimeError, match=r"Bad BO type\. \(err=22\)"):
        pyxrt.bo(opened.device, 4096, getattr(pyxrt.bo, flags), 0)


def test_banks_of_other_memory_are_refused(opened):
    instructions, data = opened.kernel.group_id(1), opened.kernel.group_id(3)
    with pytest.raises(RuntimeError, match="bank"):
        pyxrt.bo(opened.device, 4096, pyxrt.bo.host_only, instructions)
    with pytest.raises(RuntimeError, match="bank"):
        pyxrt.bo(opened.device, 4096, pyxrt.bo.cacheable, data)
    with pytest.raises(TypeError):
        pyxrt.bo(opened.device, np.int64(4096), pyxrt.bo.host_only, 0)


def _capsule(address: int) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, None, None)


def test_pointers_of_users_are_checked(opened):
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = np.frombuffer(pages, np.uint8).ctypes.data
    found = pyxrt.ext.bo(opened.device, _capsule(address), mmap.PAGESIZE)
    assert found.size() == mmap.PAGESIZE
    with pytest.raises(RuntimeError, match="not aligned"):
        pyxrt.ext.bo(opened.device, _capsule(address + 64), mmap.PAGESIZE)
    with pytest.raises(RuntimeError, match="err=-22"):
        pyxrt.ext.bo(opened.device, _capsule(address), 100)
    with pytest.raises(RuntimeError, match="err=-14"):
        pyxrt.ext.bo(opened.device, _capsule(1 << 46), mmap.PAGESIZE)
    with pytest.raises(TypeError):
        pyxrt.ext.bo(opened.device, address, mmap.PAGESIZE)


def test_ranges_are_checked(opened):
    buffer = opened.buffers[0]
    for span in ((buffer.size() + 1, 0), (1, buffer.size()), (-1, 0)):
        with pytest.raises(RuntimeError):
            buffer.sync(TO_DEVICE, *span)
    with pytest.raises(RuntimeError):
        pyxrt.bo(buffer, 64, buffer.size())
    with pytest.raises(RuntimeError):
        opened.stream.write(b"x" * 8, opened.stream.size())
    with pytest.raises(TypeError):
        buffer.sync(0)
    part = pyxrt.bo(buffer, 64, 128)
    part.write(b"\1" * 64, 0)
    part.sync(TO_DEVICE, 32, 32)
    assert buffer.read(256, 0).tolist() == [0] * 128 + [1] * 64 + [0] * 64
    np.frombuffer(buffer.map(), np.uint8)[:] = 9
    buffer.sync(FROM_DEVICE)
    assert buffer.read(256, 0).tolist() == [0] * 160 + [1] * 32 + [0] * 64


def test_contexts_and_the_heap_are_limited(opened):
    machine = opened.machine
    uuid = opened.device.register_xclbin(opened.image)
    kept = [pyxrt.hw_context(opened.device, uuid) for _ in range(15)]
    with pytest.raises(RuntimeError, match=r"CREATE_HWCTX IOCTL failed \(err=-22\)"):
        pyxrt.hw_context(opened.device, uuid)
    kept.clear()
    group = opened.kernel.group_id(1)
    machine.devices[1].heap_bytes = PDI_BYTES + 3 * GRANULE
    other = pyxrt.bo(opened.device, GRANULE + 1, pyxrt.bo.cacheable, group)
    with pytest.raises(RuntimeError, match="can't expand further"):
        pyxrt.bo(opened.device, 1, pyxrt.bo.cacheable, group)
    del other
    assert pyxrt.bo(opened.device, 1, pyxrt.bo.cacheable, group).size() == 1


@pytest.mark.parametrize(
    "order, words",
    [
        (("context",), ["1 of its bos", "1 of its kernels"]),
        (("stream", "kernel", "context"), []),
        (("kernel", "context", "stream"), ["1 of its bos"]),
    ],
)
def test_the_order_of_giving_back_is_watched(tmp_path, machine, order, words):
    data = operation("rms_norm").configuration("npu2")
    device = pyxrt.device(1)
    image = pyxrt.xclbin(str(write_xclbin(tmp_path / "x", data)))
    context = pyxrt.hw_context(device, device.register_xclbin(image))
    kernel = pyxrt.kernel(context, "MLIR_AIE")
    stream = pyxrt.bo(device, 64, pyxrt.bo.cacheable, kernel.group_id(1))
    held = {"context": context, "kernel": kernel, "stream": stream}
    del context, kernel, stream
    for name in order:
        del held[name]
    gc.collect()
    found = " ".join(machine.violations)
    assert all(one in found for one in words) and bool(found) is bool(words)
    machine.violations.clear()


def test_use_after_the_context_is_a_crash(tmp_path, machine):
    data = operation("rms_norm").configuration("npu2")
    device = pyxrt.device(1)
    image = pyxrt.xclbin(str(write_xclbin(tmp_path / "x", data)))
    context = pyxrt.hw_context(device, device.register_xclbin(image))
    kernel = pyxrt.kernel(context, "MLIR_AIE")
    run, group = pyxrt.run(kernel), kernel.group_id(1)
    del context
    assert len(machine.violations) == 1 + 1  # its run and its kernel
    machine.violations.clear()
    with pytest.raises(Crash):
        run.set_arg(0, 3)
    with pytest.raises(Crash):
        pyxrt.bo(device, 64, pyxrt.bo.cacheable, group)
    del run, kernel


def test_an_open_device_locks_its_heap(machine):
    machine.memory_lock = HEAP_BYTES
    opened = [pyxrt.device(1), pyxrt.device(1)]  # one heap per process
    assert machine.locked == HEAP_BYTES
    with pytest.raises(RuntimeError, match=r"mmap\(.*len=67108864.*\(err=-11\)"):
        pyxrt.device(0)
    opened.pop()
    assert machine.locked == HEAP_BYTES
    opened.pop()
    assert machine.locked == 0
    assert pyxrt.device(0)


def test_configurations_take_their_part_of_the_heap(opened):
    opened.machine.devices[1].heap_bytes = PDI_BYTES + GRANULE
    with pytest.raises(RuntimeError, match="can't expand further"):
        pyxrt.hw_context(opened.device, opened.device.register_xclbin(opened.image))
    opened.machine.devices[1].heap_expands = False
    with pytest.raises(RuntimeError, match=r"\(err=-95\)"):
        pyxrt.bo(opened.device, 1, pyxrt.bo.cacheable, opened.kernel.group_id(1))


def test_waits_and_syncs_fail_on_request(opened):
    run = _run(opened)
    run.start()
    opened.machine.inject("wait", -4)
    with pytest.raises(RuntimeError, match=r"SYNCOBJ_TIMELINE_WAIT IOCTL failed \(err=-4\)"):
        run.wait(10)
    assert run.state() is pyxrt.ert_cmd_state.ERT_CMD_STATE_SUBMITTED
    assert run.wait() is DONE
    opened.machine.inject("sync", -19)
    with pytest.raises(RuntimeError, match=r"SYNC_BO IOCTL failed \(err=-19\)"):
        opened.buffers[0].sync(TO_DEVICE)


@pytest.mark.parametrize("seed", [None, 3])
def test_configurations_are_loaded_again_at_random(machine, seed):
    machine.reset(seed=seed)
    case = xrt_devices.backend("npu2")
    assert _npu.device.open_python(case).info()["generation"] == "npu2"
    assert ("random-3" in machine.devices[1].array.info()["name"]) is (seed == 3)


@pytest.mark.parametrize(
    "content", [b"", b"xclbin2\0", b"xclbin of the test double 1\n{}\nnonsense"]
)
def test_files_that_are_no_xclbin(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RuntimeError, match="xclbin"):
        pyxrt.xclbin(str(tmp_path / "x"))
    with pytest.raises(RuntimeError, match="failed to open"):
        pyxrt.xclbin(str(tmp_path / "nowhere"))
