"""Every device: loads and submissions are counted and repeated loads are free, ranges and access of
arguments are checked, runs are waited for with a timeout, errors are typed, and a device is as good
as new after a run that failed. The stream here is a GEMM's; what operations compute is in
test_operations.py."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import python_relay

import npu
from npu import _npu
from npu.errors import ArgumentError, DeviceError, FormatError, NpuError, StreamError
from npu.ops.registry import operation

REQUEST = {"m": 300, "k": 500, "n": 700}


@pytest.fixture
def prepared(device):
    """(handle, configuration, prepared stream, arguments) of a GEMM on memory of the device."""
    gemm = operation("gemm")
    config = gemm.configuration(device.generation)
    (submission,) = gemm.submissions(config, REQUEST)
    configuration = _npu.device.Configuration.parse(config)
    device.handle.load(configuration)
    stream = device.handle.prepare(submission.stream)
    arguments = []
    for one in submission.arguments:
        if one["bytes"] == 0:
            arguments.append(None)
            continue
        buffer = device.handle.allocate(one["bytes"])
        buffer.array[:] = 0
        buffer.sync_to_device(0, one["bytes"])
        arguments.append((buffer, 0, one["bytes"], "write" if one["written"] else "read"))
    return device.handle, configuration, stream, arguments


def test_runs_are_counted_and_repeated_loads_are_free(prepared):
    handle, configuration, stream, arguments = prepared
    before = handle.counters()
    handle.load(configuration)
    for _ in range(3):
        report = handle.submit(stream, arguments).finish()
        assert report["operations"] > 0
    after = handle.counters()
    assert after["configuration_loads"] == before["configuration_loads"]
    assert after["submissions"] == before["submissions"] + 3


def test_a_run_is_waited_for(prepared):
    handle, _, stream, arguments = prepared
    run = handle.submit(stream, arguments)
    while not run.wait(0.001):
        assert run.state == "running"
        with pytest.raises(ArgumentError, match="running"):
            run.report()
    assert run.state == "done" and run.wait(0) and run.report()["operations"] > 0
    with pytest.raises(ArgumentError, match="timeout"):
        run.wait(-1)


def test_a_cancelled_run_leaves_a_device_that_works(prepared):
    handle, configuration, stream, arguments = prepared
    run = handle.submit(stream, arguments)
    run.cancel()
    assert run.state in ("cancelled", "done")
    handle.load(configuration)
    assert handle.submit(stream, arguments).finish()["operations"] > 0


def test_more_arguments_than_the_device_takes_are_refused(prepared):
    handle, _, stream, arguments = prepared
    limit = handle.info()["max_arguments"]
    full = [*arguments, *[None] * (limit - len(arguments))]
    assert handle.submit(stream, full).finish()["operations"] > 0
    before = handle.counters()["submissions"]
    with pytest.raises(ArgumentError, match=rf"\[submit\] {limit + 1} arguments.* up to {limit};"):
        handle.submit(stream, [*full, None])
    assert handle.counters()["submissions"] == before
    assert handle.submit(stream, arguments).finish()["operations"] > 0


@pytest.mark.parametrize("offset, count", [(1 << 40, 4), (0, 1 << 40), (4, 1 << 63)])
def test_ranges_outside_a_buffer_are_refused(prepared, offset, count):
    handle, _, stream, arguments = prepared
    bad = [(arguments[0][0], offset, count, "read"), *arguments[1:]]
    with pytest.raises(NpuError, match="argument 0"):
        handle.submit(stream, bad)
    assert handle.submit(stream, arguments).finish()["operations"] > 0


def test_read_only_memory_is_never_written(prepared):
    handle, _, stream, arguments = prepared
    # On a page, as some devices want it.
    array = np.frombuffer(mmap.mmap(-1, arguments[2][2]), np.uint8)
    array.flags.writeable = False
    wrapped = handle.wrap(array, "read")
    if wrapped is None:
        pytest.skip("the device reaches no host memory")
    bad = [*arguments[:2], (wrapped, 0, arguments[2][2], "write"), *arguments[3:]]
    with pytest.raises(ArgumentError, match="read-only"):
        handle.submit(stream, bad)


def test_streams_are_checked_when_they_are_prepared(prepared):
    handle, *_ = prepared
    for damaged in (b"", b"12345", bytes(64), b"\xff" * 64):
        with pytest.raises(FormatError):
            handle.prepare(damaged)
    generation = handle.info()["generation"]
    builder = _npu.stream.Builder(generation, handle.info()["columns"])
    builder.write(_npu.arch.tile_address(0, 2, 0x32000), 1)  # a core's control register
    with pytest.raises(StreamError):
        handle.prepare(bytes(builder.finish()))


def test_configurations_of_the_other_generation_are_refused(device):
    other = {"npu1": "npu2", "npu2": "npu1"}[device.generation]
    config = _npu.device.Configuration.parse(operation("gemm").configuration(other))
    with pytest.raises(DeviceError, match=other):
        device.handle.load(config)


def test_a_stream_belongs_to_its_configuration(prepared):
    handle, configuration, stream, arguments = prepared
    config = operation("dequant").configuration(configuration.generation)
    handle.load(_npu.device.Configuration.parse(config))
    with pytest.raises(ArgumentError, match="another configuration"):
        handle.submit(stream, arguments)


def _copies(device, sizes):
    """Streams of copies of so many bytes, of equally many words, and the configuration."""
    copy = operation("copy")
    config = copy.configuration(device.generation)
    streams = [copy.submissions(config, {"bytes": size})[0].stream for size in sizes]
    assert len({len(one) for one in streams}) == 1
    return _npu.device.Configuration.parse(config), streams


def _patches(old, new):
    old, new = (np.frombuffer(one, np.uint32) for one in (old, new))
    return [(int(word), int(new[word])) for word in np.flatnonzero(old != new)]


def test_a_patched_stream_runs_as_the_one_built_anew(device):
    """Copies of three sizes by one stream, and as none is what a device may say, too."""
    sizes = (3 << 16, 1 << 16, 2 << 16)
    configuration, streams = _copies(device, sizes)
    handle = device.handle
    handle.load(configuration)
    data, result = (handle.allocate(max(sizes)) for _ in range(2))
    data.array[:] = np.random.default_rng(5).integers(1, 256, max(sizes), np.uint8)
    data.sync_to_device(0, max(sizes))
    prepared, at = handle.prepare(streams[0]), 0
    for target in (0, 1, 2, 1, 0):
        if not handle.patch(prepared, _patches(streams[at], streams[target])):
            prepared = handle.prepare(streams[target])
        at = target
        result.array[:] = 0
        result.sync_to_device(0, max(sizes))
        arguments = [(data, 0, sizes[at], "read"), (result, 0, sizes[at], "write")]
        handle.submit(prepared, arguments).finish()
        result.sync_from_device(0, max(sizes))
        np.testing.assert_array_equal(result.array[: sizes[at]], data.array[: sizes[at]])
        assert not result.array[sizes[at] :].any()


def test_words_that_no_patch_may_change_are_refused(device):
    configuration, (words,) = _copies(device, (1 << 16,))
    handle = device.handle
    handle.load(configuration)
    prepared = handle.prepare(words)
    if not handle.patch(prepared, []):
        pytest.skip("the device patches nothing")
    for word in (0, 2, 4, len(words) // 4, 1 << 31):
        with pytest.raises(StreamError, match=rf"word {word} of {len(words) // 4}"):
            handle.patch(prepared, [(word, 0)])


def test_a_patch_that_is_refused_changes_nothing(device):
    """A word that may change before one that may not: the stream runs as it was."""
    sizes = (3 << 16, 1 << 16)
    configuration, streams = _copies(device, sizes)
    handle = device.handle
    handle.load(configuration)
    prepared = handle.prepare(streams[0])
    if not handle.patch(prepared, []):
        pytest.skip("the device patches nothing")
    data, result = (handle.allocate(max(sizes)) for _ in range(2))
    data.array[:] = np.random.default_rng(5).integers(1, 256, max(sizes), np.uint8)
    data.sync_to_device(0, max(sizes))
    with pytest.raises(StreamError, match="word 2 of"):
        handle.patch(prepared, [*_patches(*streams), (2, 0)])
    handle.submit(prepared, [(data, 0, sizes[0], "read"), (result, 0, sizes[0], "write")]).finish()
    result.sync_from_device(0, max(sizes))
    np.testing.assert_array_equal(result.array, data.array)


def test_a_stream_belongs_to_its_device(device):
    configuration, (words,) = _copies(device, (1 << 16,))
    device.handle.load(configuration)
    other = _npu.device.open(f"emu:{device.generation}", "fast")
    other.load(configuration)
    stream = other.prepare(words)
    for call in (lambda: device.handle.patch(stream, []), lambda: device.handle.submit(stream, [])):
        with pytest.raises(ArgumentError, match="prepared by another device"):
            call()


def test_programs_of_overlays_have_the_size_that_streams_load(device):
    chosen = operation("prefill")
    config = chosen.configuration(device.generation)
    configuration = _npu.device.Configuration.parse(config)
    overlays = {one[0]: one[1] for one in configuration.as_dict()["overlays"]}
    images = {name: device.handle.overlay_image(configuration, name) for name in overlays}
    assert len(set(images.values())) == len(overlays) == 6
    assert {name: len(image) for name, image in images.items()} == overlays
    with pytest.raises(ArgumentError, match='has no overlay "no such program"'):
        device.handle.overlay_image(configuration, "no such program")
    # They are what a submission to this device sends.
    request = dict(next(iter(chosen.examples.values())))
    (submission,) = chosen.submissions(config, request, device.handle)
    headers = next(one for one in submission.arguments if one["name"] == "headers")
    for image in images.values():
        assert all(image[at : at + 16] in headers["contents"] for at in range(0, len(image), 1600))


def test_what_is_computed_between_failures_is_right(device):
    """An operation that was refused changes nothing for the next one."""
    a = np.arange(12, dtype=np.int8).reshape(3, 4)
    b = np.arange(20, dtype=np.int8).reshape(4, 5)
    expected = a.astype(np.int32) @ b.astype(np.int32)
    for _ in range(2):
        with pytest.raises(NpuError):
            npu.matmul(a, a)
        np.testing.assert_array_equal(npu.matmul(a, b), expected)


def test_a_python_device_sets_the_limit_of_arguments():
    class Narrow(python_relay.Relay):
        def info(self):
            return {**super().info(), "max_arguments": 3}

    npu.register_device("python:narrow", Narrow)
    with npu.device("python:narrow") as device:
        assert device.handle.info()["max_arguments"] == 3
        x = np.ones((4, 128), np.float32)
        assert npu.rms_norm(x).astype(np.float32) == pytest.approx(x)  # three arguments
        with pytest.raises(ArgumentError, match=r"\[submit\] 8 arguments.* up to 3;"):
            npu.matmul(x, x.T)


def test_names_are_typed_errors():
    for name in ("emu:npu3", "emu:npu2+", "emu:npu2+never", "null:npu3", "python:nowhere", ""):
        with pytest.raises(DeviceError):
            npu.Device(name, "fast")
    with pytest.raises(DeviceError, match="is taken"):
        npu.register_device("emu:npu2", lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(DeviceError):
        _npu.device.open_python(object())
