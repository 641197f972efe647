"""Opening the NPU: whatever is refused says what to do; an older pyxrt, or another double of it,
that lacks some names is used as far as it goes; the limit of a run is what NPU_XRT_TIMEOUT says."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xrt_devices
from pyxrt_machine import HEAP_BYTES
from xrt_cases import Norm, Submitted, backend, expected

from npu import errors
from npu.hardware.xrt import machine as machine_module
from npu.hardware.xrt.run import chosen_limit

pyxrt = xrt_devices.pyxrt


def test_the_heap_does_not_fit_the_limit_of_locked_memory(machine):
    """8 MiB is what most systems allow."""
    machine.memory_lock = 8 << 20
    with pytest.raises(errors.MemoryLockError, match=r"^\[device\] xrt: .*ulimit -l unlimited"):
        backend()
    machine.memory_lock = HEAP_BYTES + (1 << 20)
    assert backend().identity.generation == "npu2"


@pytest.mark.parametrize("number", [-1, -11, -12])
def test_memory_that_opening_cannot_lock(machine, number):
    machine.inject("device heap", number)
    with pytest.raises(errors.MemoryLockError, match=r"\[device\] xrt: .*ulimit -l unlimited"):
        backend()


@pytest.mark.parametrize(
    "number, words",
    [
        (-1, "access to /dev/accel"), (-13, 'group "render"'), (-2, "/dev/accel/accel0 is missing"),
        (-16, "npu doctor"), (-19, "amd_iommu=on iommu=pt"), (-22, r"\(SVA\).*amd_iommu=on"),
        (-95, r"\(SVA\).*container"), (-110, "npu doctor"),
    ],
)  # fmt: skip
def test_a_node_that_cannot_be_opened(machine, number, words):
    machine.inject("device", number)
    with pytest.raises(errors.DeviceError, match=rf"^\[device\] xrt: .*{words}") as caught:
        backend()
    assert type(caught.value) is errors.DeviceError


@pytest.mark.parametrize("request_name", ["GET_INFO", "GET_ARRAY"])
@pytest.mark.parametrize("number", [95, -22, -95])
def test_a_driver_older_than_xrt(machine, request_name, number, monkeypatch):
    def failing(*_: Any) -> str:
        raise RuntimeError(f"DRM_IOCTL_AMDXDNA_{request_name} IOCTL failed (err={number}): no")

    monkeypatch.setattr(pyxrt.device, "get_info", failing)
    with pytest.raises(errors.VersionError, match="the driver is older than XRT"):
        backend()


@pytest.mark.parametrize("where", ["bo", "context"])
def test_other_requests_that_are_not_supported_tell_nothing_of_versions(machine, where):
    device = backend()
    machine.inject(where, -95)
    with pytest.raises(errors.DeviceError, match="err=-95") as caught:
        Norm(device)()
    assert not isinstance(caught.value, errors.VersionError)


def _smaller(*left_out: str, **changes: Any) -> Any:
    kept = {key: value for key, value in vars(pyxrt).items() if key not in left_out}
    return SimpleNamespace(**kept | changes)


def _states(*names: str) -> Any:
    return SimpleNamespace(
        **{f"ERT_CMD_STATE_{one}": pyxrt.ert_cmd_state[f"ERT_CMD_STATE_{one}"] for one in names}
    )


@pytest.mark.parametrize(
    "states",
    [
        _states("NEW", "QUEUED", "SUBMITTED", "COMPLETED", "ERROR", "ABORT", "TIMEOUT"),
        _states("SUBMITTED", "COMPLETED"),
    ],
)
def test_states_that_pyxrt_does_not_name(machine, states):
    device = backend(pyxrt=_smaller(ert_cmd_state=states))
    assert Norm(device)() == expected()
    for fault in ("error", "noresponse", "skcrashed"):
        machine.inject("run", fault)
        with pytest.raises(errors.FirmwareError, match=f"ERT_CMD_STATE_{fault.upper()}"):
            Norm(device)()
    machine.inject("run", "timeout 5")
    with pytest.raises(errors.RunTimeoutError, match="operation 5"):
        Norm(device)()
    assert Norm(device)() == expected()


def test_runs_whose_state_cannot_be_asked(machine, monkeypatch):
    """The wait's own time-out is then no failure of the run."""
    monkeypatch.delattr(pyxrt.run, "state")
    case = Submitted(backend(run_limit=0.2))
    assert case.run()["operations"] > 0
    machine.inject("run", "hang")
    run = case.start()
    assert not run.wait(0.02)
    with pytest.raises(errors.RunTimeoutError, match="this process gave up"):
        run.finish()


def _npu_in(sysfs: Path, number: str = "0x17f0", revision: str = "0x10") -> Path:
    folder = sysfs / "bus/pci/devices/0000:c5:00.1"
    folder.mkdir(parents=True)
    for key, text in (("vendor", "0x1022"), ("device", number), ("revision", revision)):
        (folder / key).write_text(text + "\n")
    (folder / "vbnv").write_text("RyzenAI-npu4\n")
    return sysfs


def test_without_enumeration_the_first_device_is_opened(machine, tmp_path):
    machine.reset(("npu2",), None)
    module = _smaller("enumerate_devices")
    assert backend(pyxrt=module, index=None).identity.generation == "npu2"
    machine.devices.clear()
    with pytest.raises(errors.MissingXrtError, match=r"XRT sees 0 devices.*npu doctor"):
        backend(pyxrt=module, index=None)


@pytest.mark.parametrize("left_out", ["xrt_info_device", "get_info"])
def test_without_information_the_system_says_which_npu_it_is(
    machine, tmp_path, monkeypatch, left_out
):
    module = _smaller(left_out)
    if left_out == "get_info":
        monkeypatch.delattr(pyxrt.device, "get_info")
    found = backend(pyxrt=module, sysfs=_npu_in(tmp_path)).identity
    assert (found.generation, found.bdf) == ("npu2", "0000:c5:00.1")
    assert found.name == "RyzenAI-npu4" and found.pci_id == "1022:17f0 rev 10"
    with pytest.raises(errors.GenerationError, match=r"which NPU.*emu:npu2"):
        backend(pyxrt=module, sysfs=tmp_path / "nothing")
    with pytest.raises(errors.GenerationError, match="generation after npu2"):
        backend(pyxrt=module, sysfs=_npu_in(tmp_path / "newer", "0x17f2"))


@pytest.mark.parametrize("left_out", ["enumerate_devices", "xrt_info_device", "ext", "runlist"])
def test_names_that_need_not_be_there(monkeypatch, left_out):
    module = _smaller(left_out)
    monkeypatch.setitem(machine_module.importlib.sys.modules, "pyxrt", module)
    assert machine_module.import_pyxrt() is module


@pytest.mark.parametrize("text, seconds", [(None, 30), ("", 30), ("1", 1), ("86400", 86400)])
def test_the_limit_of_a_run(monkeypatch, text, seconds):
    monkeypatch.delenv("NPU_XRT_TIMEOUT", raising=False)
    if text is not None:
        monkeypatch.setenv("NPU_XRT_TIMEOUT", text)
    assert chosen_limit() == seconds


@pytest.mark.parametrize(
    "text", ["0", "-1", "86401", "1.5", " 3", "3 ", "+3", "1e3", "1_0", "x", "9" * 30, "٣"]
)
def test_limits_that_are_none(monkeypatch, text):
    """As in C++ (tests/cpp/xrt/test_xrt_failures.cpp)."""
    monkeypatch.setenv("NPU_XRT_TIMEOUT", text)
    with pytest.raises(errors.ArgumentError, match="use seconds from 1 to 86400"):
        backend()


def test_a_run_ends_at_the_limit_of_the_environment(machine, monkeypatch):
    monkeypatch.setenv("NPU_XRT_TIMEOUT", "1")
    case = Submitted(backend())
    machine.inject("run", "hang")
    with pytest.raises(errors.RunTimeoutError, match=r"after 1 s this process gave up"):
        case.run()


def test_runs_that_wait_for_others_have_the_whole_limit(machine):
    """The time of a run counts from the end of the one before it."""
    case = Submitted(backend(run_limit=0.3))
    case.run()
    machine.inject("run", None, "hang")
    first, second = case.start(), case.start()
    time.sleep(0.2)
    assert first.finish()["operations"] > 0
    ended = time.monotonic()
    with pytest.raises(errors.RunTimeoutError, match="this process gave up"):
        second.finish()
    assert time.monotonic() - ended > 0.28
