"""Every failure that XRT, the driver and the firmware report is an error of its own class that says
what to do; after it the next call works, after a time-out with a context built afresh. A time-out
names the operation of the stream that had been reached, in words of the disassembler."""

from __future__ import annotations

import time

import pytest
import xrt_devices
from xrt_cases import Norm, Submitted, backend, expected

from npu import _npu, errors, stream
from npu.hardware.xrt import failures

RUNS = [
    ("timeout 7", errors.RunTimeoutError, r"watchdog.*operation 7 of \d+ was reached: 7 .*; the h"),
    ("timeout", errors.RunTimeoutError, "which of its .* operations it reached, neither"),
    ("timeout 99999", errors.RunTimeoutError, "which of its .* operations it reached"),
    ("abort", errors.RunAbortedError, "aborted: its hardware context was torn down"),
    ("error 0x1000009", errors.FirmwareError, "0x1000009, an error of a DMA channel"),
    ("error 0x1000008", errors.FirmwareError, "an error of a lock"),
    ("error 0x1000004", errors.FirmwareError, "an error in an access"),
    ("error 0x1000003", errors.FirmwareError, "an error in a stream switch"),
    ("error 0x1000001", errors.FirmwareError, "an error of the array"),
    ("error 0x3000002", errors.FirmwareError, "an instruction of the command stream"),
    ("error 0x3000003", errors.FirmwareError, r"configuration \(PDI\) could not be loaded"),
    ("error 0x4000003", errors.FirmwareError, "input that it does not take"),
    ("error 0x2000003", errors.FirmwareError, "no hardware context is left"),
    ("error", errors.FirmwareError, "XRT passes no code on; the kernel log has it"),
    ("noresponse", errors.FirmwareError, "ERT_CMD_STATE_NORESPONSE"),
    ("skcrashed", errors.FirmwareError, "ERT_CMD_STATE_SKCRASHED"),
]


@pytest.mark.parametrize("fault, error, words", RUNS)
def test_runs_that_fail(machine, fault, error, words):
    norm = Norm(backend())
    assert norm() == expected()
    contexts = machine.counts["contexts"]
    machine.inject("run", fault)
    with pytest.raises(error, match=rf"^\[wait\] (?s:.*){words}") as caught:
        norm(8, 1)
    assert caught.value.kind == error.kind and isinstance(caught.value, errors.DeviceError)
    assert norm(8, 1) == expected("npu2", 8, 1)
    assert machine.counts["contexts"] == contexts + 1
    assert len(machine.devices[1].contexts) == 1


def test_the_operation_reached_is_the_disassemblers(machine):
    case = Submitted(backend())
    machine.inject("run", "timeout 3")
    with pytest.raises(errors.RunTimeoutError) as caught:
        case.run()
    line = " ".join(stream.disassemble(case.words).splitlines()[4].split())
    assert f"was reached: {line};" in str(caught.value)


def test_without_health_data_the_time_out_says_so(machine):
    machine.health_data = False
    case = Submitted(backend())
    machine.inject("run", "timeout 3")
    with pytest.raises(errors.RunTimeoutError, match="neither driver nor firmware says"):
        case.run()


def test_a_run_without_a_watchdog_is_given_up(machine):
    case = Submitted(backend(run_limit=0.05))
    machine.inject("run", "hang")
    started = time.monotonic()
    with pytest.raises(errors.RunTimeoutError, match=r"after 0\.05 s this process gave up"):
        case.run()
    assert 0.05 <= time.monotonic() - started < 5
    case.handle.load(case.configuration)
    assert case.run()["operations"] > 0


def test_a_stream_that_deadlocks_times_out(machine):
    """On the emulated NPU, not injected: the stream waits for more tokens than come."""
    case = Submitted(backend())
    builder = _npu.stream.Builder("npu2", 8)
    builder.sync(0, 0, "s2mm", 0)
    stuck = case.handle.prepare(bytes(builder.finish()))
    with pytest.raises(errors.RunTimeoutError, match=r"\[wait\]"):
        case.handle.submit(stuck, []).finish()
    case.handle.load(case.configuration)
    assert case.run()["operations"] > 0


def test_an_abort_right_after_loading_is_a_mismatch(machine):
    case = Submitted(backend())
    machine.inject("run", "abort")
    with pytest.raises(errors.VersionError, match=r"firmware and driver do not fit"):
        case.run()
    case.handle.load(case.configuration)
    assert case.run()["operations"] > 0


@pytest.mark.parametrize(
    "number, words",
    [
        (-2, "heap for command streams is missing"), (-12, "ulimit -l unlimited"),
        (-22, "too many contexts are open"), (28, "heap has no room for it"),
        (-19, "no columns of the array are free"),
    ],
)  # fmt: skip
def test_contexts_that_are_refused(machine, number, words):
    norm = Norm(backend())
    machine.inject("context", number)
    with pytest.raises(errors.ContextError, match=rf"^\[load\] a hardware context for .*{words}"):
        norm()
    assert norm() == expected()


def test_a_machine_without_a_free_context_makes_room_of_ours(machine):
    machine.devices[1].context_limit = 1  # others have the rest
    handle = _npu.device.open_python(backend())
    first = Norm(handle)
    assert first() == expected()
    case = _npu.device.Configuration.parse(
        xrt_devices.npu.ops.registry.operation("rope").configuration("npu2")
    )
    handle.load(case)
    assert len(machine.devices[1].contexts) == 1
    assert first() == expected()


def test_a_run_that_the_driver_refuses(machine):
    norm = Norm(backend())
    machine.inject("start", -11)
    with pytest.raises(errors.MemoryLockError, match=r"^\[submit\] .*ulimit -l unlimited"):
        norm()
    machine.inject("start", -5)
    with pytest.raises(errors.DeviceError, match=r"^\[submit\] the driver refuses the run"):
        norm()
    assert norm() == expected()


def test_a_context_that_cannot_be_built_afresh_is_tried_again(machine):
    case = Submitted(backend())
    case.run()
    machine.inject("start", -5)
    with pytest.raises(errors.DeviceError, match="refuses the run"):
        case.run()
    machine.inject("context", -22)
    with pytest.raises(errors.ContextError):
        case.run()
    assert case.run()["operations"] > 0


def test_an_interrupt_between_start_and_run_ends_the_run(machine, monkeypatch):
    case = Submitted(backend())
    case.run()
    start = xrt_devices.pyxrt.run.start

    def interrupted(run):
        start(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(xrt_devices.pyxrt.run, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        case.start()
    monkeypatch.undo()
    assert not machine.devices[1].contexts
    assert case.run()["operations"] > 0


@pytest.mark.parametrize("number", [95, -22, -95])
def test_a_driver_older_than_xrt(machine, number):
    for where in ("device", "info"):
        machine.inject(where, number)
        with pytest.raises(errors.VersionError, match="the driver is older than XRT"):
            backend()
    machine.inject("device", -13)
    with pytest.raises(errors.DeviceError, match=r"cannot open the NPU.*npu doctor"):
        backend()


def test_xclbins_that_are_damaged(tmp_path, machine):
    bad = tmp_path / "design.xclbin"
    contents = [b"", b"\0" * 100, xrt_devices.pyxrt.xclbin.__module__.encode() * 9]
    for content in contents:
        bad.write_bytes(content)
        device = backend(find=lambda _: xrt_devices.Xclbin(bad))
        with pytest.raises(errors.DeviceError, match=r"XRT cannot use it.*build the configuration"):
            Norm(device)()
    device = backend(find=lambda _: xrt_devices.Xclbin(tmp_path / "nothing"))
    with pytest.raises(errors.DeviceError, match="XRT cannot use it"):
        Norm(device)()


def test_the_kernel_is_the_first_of_mlir_aies(tmp_path):
    def finder(*kernels: str):
        def find(configuration):
            path = tmp_path / f"{len(kernels)}-{kernels[0]}"
            data = xrt_devices._lowered[configuration.artefact]
            return xrt_devices.Xclbin(xrt_devices.write_xclbin(path, data, kernels=kernels))

        return find

    assert Norm(backend(find=finder("other", "MLIR_AIE_2")))() == expected()
    with pytest.raises(errors.DeviceError, match=r'should have a kernel "MLIR_AIE", found other'):
        Norm(backend(find=finder("other")))()


def test_error_numbers_are_read_from_messages():
    assert failures.number_of(RuntimeError("x IOCTL failed (err=-22): Invalid argument")) == 22
    assert failures.number_of(RuntimeError("Bad BO type. (err=22)")) == 22
    assert failures.number_of(RuntimeError("err 22")) is None
