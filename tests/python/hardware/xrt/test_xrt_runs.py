"""Device xrt: results are the emulated NPU's on both generations, whatever is reloaded in between;
run objects are reused and only arguments that change are set; an offset is a part of a BO; more
arguments than the xclbin declares, and more runs than the driver takes, are refused; contexts are
kept and few; a submission costs less than twice the double's own time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import submission_cost
import xrt_devices
from xrt_cases import Norm, Submitted, backend, expected

import npu
from npu import _npu, stream
from npu.errors import ArgumentError, DeviceError, GenerationError
from npu.hardware.xrt import setup
from npu.ops.registry import operation


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_results_are_the_emulated_npus(generation):
    norm = Norm(backend(generation), generation)
    for rows, seed in ((64, 0), (5, 1), (64, 2), (64, 0)):
        assert norm(rows, seed) == expected(generation, rows, seed)


def test_reloads_between_runs_change_nothing(machine):
    machine.reset(seed=5)
    norm = Norm(backend())
    for seed in range(8):
        assert norm(16, seed) == expected("npu2", 16, seed)


def test_run_objects_are_reused_and_arguments_set_once(machine):
    case = Submitted(backend())
    case.run()
    runs, arguments = machine.counts["runs"], machine.counts["arguments set"]
    for _ in range(5):
        case.run()
    assert machine.counts["starts"] == 6
    assert (machine.counts["runs"], machine.counts["arguments set"]) == (runs, arguments)
    buffer = case.handle.allocate(case.arguments[0][2])
    case.arguments[0] = (buffer, *case.arguments[0][1:])
    case.run()
    assert machine.counts["arguments set"] == arguments + 1


def test_a_stream_with_fewer_arguments_leaves_none_of_the_last_ones_behind(machine):
    case = Submitted(backend())
    case.run()
    case.handle.submit(case.stream, [*case.arguments, *[None] * 5]).finish()
    (context,) = case.backend.contexts.all()
    bound = context.idle[0].bound
    assert bound[0][0] > 0
    case.arguments[0] = None
    case.handle.submit(case.stream, case.arguments)  # never waited for
    assert bound[0] == (0, 0)  # the placeholder


def test_an_offset_is_a_part_of_a_buffer():
    case = Submitted(backend())
    report = case.run()
    assert report["operations"] > 0
    sizes = [count for _, _, count, _ in case.arguments]
    whole = case.handle.allocate(sum(sizes) + 4096)
    whole.array[:] = 0
    whole.array[-sizes[2] :] = 1
    whole.sync_to_device(0, whole.nbytes)
    at = 4096
    parts = []
    for size, (*_, access) in zip(sizes, case.arguments, strict=True):
        parts.append((whole, at, size, access))
        at += size
    case.handle.submit(case.stream, parts).finish()
    whole.sync_from_device(0, whole.nbytes)
    assert not whole.array[parts[2][1] :].any()  # zeros, normalised
    assert not whole.array[:4096].any()


def test_more_arguments_than_the_xclbin_declares_are_refused():
    device = backend(find=lambda configuration: xrt_devices.find(configuration, 5))
    case = Submitted(device)
    (context,) = device.contexts.all()
    assert context.arguments == 5
    assert case.run()["operations"] > 0
    extra = [*case.arguments, *[None] * 2, case.arguments[0]]
    with pytest.raises(ArgumentError, match=r"has 6 arguments, the xclbin.* declares 5"):
        case.handle.submit(case.stream, extra)
    case.handle.submit(case.stream, [*case.arguments, *[None] * 13]).finish()  # 16, the last empty
    with pytest.raises(ArgumentError, match=r"17 arguments.* up to 16"):
        case.handle.submit(case.stream, [*case.arguments, *[None] * 14])


def test_more_runs_than_the_driver_takes_are_refused():
    case = Submitted(backend())
    runs = [case.start() for _ in range(4)]
    with pytest.raises(ArgumentError, match="4 runs under way"):
        case.start()
    for run in runs:
        run.finish()
    assert case.run()["operations"] > 0


def test_waiting_a_little_returns(machine):
    case = Submitted(backend(run_limit=60))
    machine.inject("run", "hang")
    run = case.start()
    assert not run.wait(0) and not run.wait(0.012) and run.state == "running"
    run.cancel()


def test_a_cancelled_run_ends_its_context_and_those_beside_it():
    case = Submitted(backend())
    xrt_devices.pyxrt.machine.inject("run", "hang", None)
    first, second = case.start(), case.start()
    first.cancel()
    with pytest.raises(DeviceError, match="given up"):
        second.finish()
    case.handle.load(case.configuration)
    assert case.run()["operations"] > 0


def test_a_context_is_kept_for_every_configuration_up_to_a_limit(machine):
    device = backend(contexts=2)
    handle = _npu.device.open_python(device)
    configurations = [
        _npu.device.Configuration.parse(operation(name).configuration("npu2"))
        for name in ("rms_norm", "rope", "geglu")
    ]
    for one in configurations[:2] * 3:
        handle.load(one)
    assert machine.counts["contexts"] == 2
    handle.load(configurations[2])
    assert machine.counts["contexts"] == 3 and len(machine.devices[1].contexts) == 2
    handle.load(configurations[1])  # still there: the oldest went
    assert machine.counts["contexts"] == 3


def test_configurations_of_the_other_generation_are_refused(machine):
    device = backend("npu1")
    configuration = _npu.device.Configuration.parse(operation("rms_norm").configuration("npu2"))
    with pytest.raises(GenerationError, match=r"is for npu2, this NPU is npu1; lower its design"):
        device.load(configuration)
    found = xrt_devices.find(configuration)
    lie = xrt_devices.Xclbin(found.path, {"generation": "npu1"})
    with pytest.raises(GenerationError, match=r"was built for npu1.*--device npu2 rms_norm"):
        backend("npu2", find=lambda _: lie).load(configuration)
    assert machine.counts["contexts"] == 0


def test_a_submission_costs_less_than_the_limit():
    total, double = submission_cost.measure()
    assert total - double < submission_cost.LIMIT * double


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_streams_begin_with_what_an_xclbin_does_not_write(generation):
    data = operation("gemv").configuration(generation)
    configuration = _npu.device.Configuration.parse(data)
    txn = configuration.as_dict()["txn"]
    found = setup.setup_of(txn)
    assert found.count > 0
    request = {"n": 64, "k": 512}
    words = operation("gemv").submissions(data, request)[0].stream
    whole = found.before(words)
    head, lines = stream.header(whole), stream.operations(whole)
    assert head["operations"] == len(lines) == found.count + stream.header(words)["operations"]
    assert head["bytes"] == len(whole)
    in_txn = [one for one in stream.operations(txn) if setup.is_setup(one.get("address", 0))]
    keys = ("opcode", "address", "value", "mask", "data")
    for one, other in zip(in_txn, lines, strict=False):
        assert all(one.get(key) == other.get(key) for key in keys)
    assert whole[-len(words) + 16 :] == words[16:]
    assert setup.Setup().before(words) is words


def test_without_those_writes_nothing_runs(monkeypatch, machine):
    """The double's xclbins are without them, as mlir-aie's are."""
    with npu_device("npu2") as device:
        x = np.ones((1, 512), np.float32)
        assert npu.gemv(BLOCKS, x, device=device).shape == (1, 64)
    monkeypatch.setattr(setup.Setup, "before", lambda _, words: words)
    with npu_device("npu2") as device, pytest.raises(DeviceError):
        npu.gemv(BLOCKS, x, device=device)


BLOCKS = (np.zeros((4, 5120), np.uint8), (64, 512))
_names = itertools.count()


def npu_device(generation: str):
    name = f"double:test-{next(_names)}"
    npu.register_device(name, lambda: backend(generation))
    return npu.device(name)
