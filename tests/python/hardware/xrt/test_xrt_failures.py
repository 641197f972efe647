"""Every failure that XRT, the driver and the firmware report is an error of its own class that says
what to do; after it the next call works, after a time-out with a context built afresh. A time-out
names the operation of the stream that had been reached, in words of the disassembler."""

from __future__ import annotations

import contextlib
import mmap
import signal
import time

import numpy as np
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
        (-11, "ulimit -l unlimited"), (-1, "ulimit -l unlimited"),
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
    for number in (-1, -11, -12):
        machine.inject("start", number)
        with pytest.raises(errors.MemoryLockError, match=r"^\[submit\] .*ulimit -l unlimited"):
            norm()
    machine.inject("start", -95)
    with pytest.raises(errors.VersionError, match="the driver is older than XRT"):
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


@pytest.mark.parametrize("where", ["wait", "sync", "start", "bo", "userptr", "heap", "context"])
def test_what_a_signal_interrupts_goes_on(machine, where):
    """Python runs the signal's handler in between; no run is lost and no context made again."""
    device = backend()
    norm = Norm(device)
    if where in ("wait", "sync", "start"):
        assert norm() == expected()
    machine.inject(where, -4, -4, -4)
    if where == "userptr":
        assert device.wrap(np.frombuffer(mmap.mmap(-1, 4096), np.uint8), False) is not None
    assert norm(16, 3) == expected("npu2", 16, 3)
    assert not machine.faults[where] and len(machine.devices[1].contexts) == 1
    assert machine.counts["contexts"] == (4 if where == "context" else 1)


@contextlib.contextmanager
def _timer(handler):
    """A signal every 2 ms."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("where", ["wait", "sync"])
def test_an_interrupt_from_the_keyboard_ends_waits(machine, where):
    """Whose system call is interrupted again and again."""
    case = Submitted(backend())
    case.run()
    machine.inject("run", "hang")
    run = case.start()
    machine.inject(where, *[-4] * 1_000_000)

    def interrupt():
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _timer(interrupt):
        if where == "wait":
            run.finish()
        case.arguments[2][0].sync_from_device(0, 64)
    assert machine.faults[where]
    machine.faults.clear()
    run.cancel()
    case.handle.load(case.configuration)
    assert case.run()["operations"] > 0


def test_signals_during_a_run(machine):
    case = Submitted(backend(run_limit=0.4))
    machine.inject("run", "hang")
    seen = []
    with (
        pytest.raises(errors.RunTimeoutError, match="this process gave up"),
        _timer(lambda: seen.append(machine.inject("wait", -4))),
    ):
        case.run()
    assert len(seen) > 5


@pytest.mark.parametrize("number", [-5, -12, -19, -22])
def test_a_wait_that_fails_ends_the_context(machine, number):
    norm = Norm(backend())
    assert norm() == expected()
    contexts = machine.counts["contexts"]
    machine.inject("wait", number)
    with pytest.raises(
        errors.DeviceError, match=rf"^\[wait\] .*err={number}.*npu doctor"
    ) as caught:
        norm(8, 1)
    assert caught.value.kind == "device"
    assert norm(8, 1) == expected("npu2", 8, 1)
    assert machine.counts["contexts"] == contexts + 1


@pytest.mark.parametrize("method", ["sync_to_device", "sync_from_device"])
def test_a_sync_that_fails(machine, method):
    handle = _npu.device.open_python(backend())
    buffer = handle.allocate(4096)
    machine.inject("sync", -19)
    with pytest.raises(errors.DeviceError, match=r"^\[sync\] 128 bytes .*err=-19.*npu doctor"):
        getattr(buffer, method)(0, 128)
    getattr(buffer, method)(0, 128)


@pytest.mark.parametrize(
    "number, contexts_left", [(-28, 0), (-12, 0), (-11, 0), (-19, 0), (-22, 2), (-2, 3), (-1, 3),
                              (-95, 3), (-110, 3)],
)  # fmt: skip
def test_contexts_are_closed_only_where_that_can_help(machine, number, contexts_left):
    """EINVAL, one context too many, is cured by one; what is left are contexts of the process."""
    handle = _npu.device.open_python(backend())
    names = ("rms_norm", "rope", "geglu", "copy")
    made = [
        _npu.device.Configuration.parse(
            xrt_devices.npu.ops.registry.operation(name).configuration("npu2")
        )
        for name in names
    ]
    for one in made[:3]:
        handle.load(one)
    machine.inject("context", *[number] * 9)
    with pytest.raises(errors.DeviceError):
        handle.load(made[3])
    assert len(machine.devices[1].contexts) == contexts_left
    machine.faults.clear()
    handle.load(made[3])


def test_xclbins_that_are_damaged(tmp_path, machine):
    bad = tmp_path / "design.xclbin"
    contents = [b"", b"\0" * 100, xrt_devices.pyxrt.xclbin.__module__.encode() * 9]
    for content in contents:
        bad.write_bytes(content)
        device = backend(find=lambda _: xrt_devices.Xclbin(bad))
        with pytest.raises(errors.DeviceError, match=r"XRT cannot use it.*again: npu build"):
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
