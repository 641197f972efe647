"""The generation comes from the PCI device, else from XRT's name, and is never guessed; missing
pyxrt, missing devices and damaged modules are errors that say what to do; the stamp names what the
system tells; configurations that were not built are errors with the command."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xrt_devices
from pyxrt_machine import Npu
from xrt_cases import Norm, backend

from npu.errors import (
    DeviceError,
    GenerationError,
    MissingBuildError,
    MissingXrtError,
    VersionError,
)
from npu.hardware import known_npus
from npu.hardware.build import cache
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.pci import probe_npu
from npu.hardware.doctor.record import ReplaySystem
from npu.hardware.doctor.result import State
from npu.hardware.xrt import artefacts, machine

pyxrt = xrt_devices.pyxrt


def _identify(name: str, sysfs: Path, **files: str) -> machine.Identity:
    npu = Npu(pyxrt.machine, "npu2", name)
    folder = sysfs / "bus/pci/devices" / npu.bdf
    folder.mkdir(parents=True, exist_ok=True)
    for key, text in files.items():
        (folder / key).write_text(text)
    pyxrt.machine.devices[:] = [npu]
    return machine.identify(pyxrt, pyxrt.device(0), sysfs)


@pytest.mark.parametrize(
    "name, generation",
    [
        ("NPU Phoenix", "npu1"), ("RyzenAI-npu1", "npu1"), ("NPU Hawk Point", "npu1"),
        ("NPU Strix", "npu2"), ("NPU Strix Halo", "npu2"), ("NPU Krackan 1", "npu2"),
        ("NPU Krackan 2", "npu2"), ("NPU Gorgon Point 1", "npu2"), ("RyzenAI-npu4", "npu2"),
        ("RyzenAI-npu5", "npu2"), ("RyzenAI-npu6", "npu2"),
    ],
)  # fmt: skip
def test_names(name, generation, tmp_path):
    assert _identify(name, tmp_path).generation == generation


@pytest.mark.parametrize(
    "device, revision, generation",
    [("0x1502", "0x00", "npu1"), ("0x17f0", "0x10", "npu2"), ("0x17f0", "0x20", "npu2")],
)
def test_pci_devices_go_before_names(device, revision, generation, tmp_path):
    other = {"npu1": "NPU Strix", "npu2": "NPU Phoenix"}[generation]
    found = _identify(other, tmp_path, vendor="0x1022\n", device=f"{device}\n", revision=revision)
    assert found.generation == generation
    assert found.pci_id == f"1022:{device[2:]} rev {revision[2:]}"


@pytest.mark.parametrize(
    "name, files",
    [
        ("RyzenAI-npu10", {}), ("RyzenAI-npu12", {}), ("RyzenAI-npu7", {}), ("RyzenAI-npu40", {}),
        (" ", {}), ("xilinx_u250", {}),
        ("NPU Strix", {"vendor": "0x1022", "device": "0x17f0", "revision": "0x30"}),
        ("NPU Phoenix", {"vendor": "0x1022", "device": "0x1502", "revision": "0x01"}),
        ("NPU Strix", {"vendor": "0x1022", "device": "0x17f2"}),
        ("NPU Strix", {"vendor": "0x1022", "device": "0x1b0a"}),
        ("NPU Strix", {"vendor": "0x10de", "device": "0x17f0"}),
        ("NPU Strix", {"vendor": "0x1022", "device": "0x9999"}),
    ],
)  # fmt: skip
def test_other_devices_are_refused(name, files, tmp_path):
    with pytest.raises(GenerationError, match="emu:npu2") as refused:
        _identify(name, tmp_path, **files)
    number = (
        f"{files['vendor']}:{files['device']} rev".replace("0x", "") if files else "not readable"
    )
    assert number in str(refused.value)


@pytest.mark.parametrize("ids", known_npus.KNOWN)
def test_npu_doctor_and_the_device_know_the_same_npus(ids, tmp_path):
    """What doctor calls right, the device opens, as the same generation; the next revision is
    unknown to both."""
    for revision in (ids[1], ids[1] + 1):
        texts = {"vendor": "0x1022", "device": hex(ids[0]), "revision": hex(revision)}
        folder = "/sys/bus/pci/devices"
        made = {f"{folder}/0000:c5:00.1/{name}": text for name, text in texts.items()}
        record = {"files": made, "folders": {folder: ["0000:c5:00.1"]}}
        probed = probe_npu(Machine(ReplaySystem(record)))
        if (ids[0], revision) in known_npus.KNOWN:
            assert probed.values["generation"] == _identify("x", tmp_path, **texts).generation
        else:
            assert probed.state is State.BROKEN
            with pytest.raises(GenerationError):
                _identify("x", tmp_path, **texts)


def test_a_revision_that_cannot_be_read(tmp_path):
    """The name decides."""
    files = {"vendor": "0x1022", "device": "0x17f0"}
    assert _identify("NPU Krackan 1", tmp_path, **files).generation == "npu2"
    with pytest.raises(GenerationError):
        _identify("NPU of another kind", tmp_path, **files)


def test_files_of_the_system_that_are_damaged_count_as_missing(tmp_path):
    found = _identify("NPU Strix", tmp_path, vendor="\xff\0", device="", revision="x" * 9999)
    assert found.generation == "npu2" and found.pci_id == ""


def test_the_stamp(tmp_path):
    found = _identify("NPU Strix", tmp_path, vendor="0x1022", device="0x17f0", revision="0x11",
                      fw_version="1.1.2.65\n")  # fmt: skip
    stamp = machine.stamp(found, tmp_path)
    assert stamp["pci"] == "1022:17f0 rev 11" and stamp["firmware"] == "1.1.2.65"
    assert stamp["driver"] == f"in Linux {os.uname().release}" and stamp["xrt"] == "unknown"
    (tmp_path / "module/amdxdna").mkdir(parents=True)
    (tmp_path / "module/amdxdna/version").write_text("2.25.0_20260821\n")
    assert machine.stamp(found, tmp_path)["driver"] == "2.25.0_20260821"
    bare = _identify("NPU Phoenix", tmp_path / "empty")
    assert machine.stamp(bare, tmp_path / "empty")["pci"] == "NPU Phoenix"


def test_a_machine_without_pyxrt(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyxrt", None)  # what makes an import fail
    with pytest.raises(MissingXrtError, match=r"no module pyxrt.*emu:npu2"):
        machine.import_pyxrt()


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "SystemError"])
def test_a_pyxrt_of_another_python(monkeypatch, tmp_path, error):
    text = f"raise {error}('libxrt_coreutil.so.2: cannot open shared object file')"
    (tmp_path / "pyxrt.py").write_text(text)
    monkeypatch.delitem(sys.modules, "pyxrt", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingXrtError, match=r"cannot be loaded \(libxrt_coreutil.*another"):
        machine.import_pyxrt()


@pytest.mark.parametrize("missing", ["hw_context", "xclbin", "ert_cmd_state"])
def test_a_pyxrt_that_is_too_old(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "pyxrt", pyxrt)
    monkeypatch.delattr(pyxrt, missing)
    with pytest.raises(VersionError, match=rf"has no {missing}; install XRT 2\.20 or newer"):
        machine.import_pyxrt()


def test_without_user_pointers_memory_is_copied(monkeypatch):
    monkeypatch.delattr(pyxrt, "ext")
    pages = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
    assert backend().wrap(pages, False) is None


def test_the_npu_is_found_among_other_devices_of_xrt():
    other = Npu(pyxrt.machine, "npu2", "xilinx_u250_gen3x16")
    pyxrt.machine.devices[:] = [other, *pyxrt.machine.devices[::-1]]
    assert backend(index=None).identity.generation == "npu2"
    pyxrt.machine.devices[:] = [other]
    with pytest.raises(GenerationError, match="xilinx_u250"):
        backend(index=None)
    pyxrt.machine.devices.clear()
    with pytest.raises(MissingXrtError, match="XRT sees 0 devices"):
        backend(index=None)


def test_a_machine_without_a_device():
    pyxrt.machine.devices.clear()
    with pytest.raises(MissingXrtError, match=r"XRT sees 0 devices; .*npu doctor"):
        backend()
    with pytest.raises(DeviceError, match='group "render"'):
        machine.open_device(SimpleNamespace(enumerate_devices=_failing))


def _failing() -> int:
    raise RuntimeError("Open /dev/accel/accel0 failed (err=-13): Permission denied")


def _entry(folder: Path, configuration: Any) -> Path:
    """An entry of the builder's cache: its xclbin."""
    made = folder / configuration.generation / configuration.artefact
    made.mkdir(parents=True)
    data = xrt_devices.find(configuration).path.read_bytes()
    (made / "design.xclbin").write_bytes(data)
    about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {
        "format": cache.FORMAT, "artefact": configuration.artefact, "kernels": "", "tools": {},
        "generation": configuration.generation, "key": "npu2-rms_norm", "overlays": [],
        "files": {"design.xclbin": about},
    }  # fmt: skip
    (made / "manifest.json").write_text(json.dumps(manifest))
    return made / "design.xclbin"


def test_what_has_not_been_built_is_named_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setenv("NPU_XCLBINS", str(tmp_path))
    device = backend(find=artefacts.find)
    with pytest.raises(MissingBuildError, match=r"not been built.*npu build --device npu2 rms"):
        Norm(device)()
    found: list[Any] = []

    def copied(configuration: Any) -> artefacts.Xclbin:
        _entry(tmp_path, configuration)
        found.append(artefacts.find(configuration))
        return found[0]

    assert Norm(backend(find=copied))()
    assert found[0].path.parts[-3] == "npu2" and found[0].manifest["key"] == "npu2-rms_norm"
    monkeypatch.delenv("NPU_XCLBINS")
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "empty"))
    with pytest.raises(MissingBuildError):
        Norm(backend(find=artefacts.find))()


def test_a_damaged_xclbin_is_not_run(monkeypatch, tmp_path):
    """One bit, in a file of the right size."""
    monkeypatch.setenv("NPU_XCLBINS", str(tmp_path))
    paths: list[Path] = []

    def damaged(configuration: Any) -> artefacts.Xclbin:
        paths.append(_entry(tmp_path, configuration))
        data = bytearray(paths[0].read_bytes())
        data[len(data) // 2] ^= 1
        paths[0].write_bytes(data)
        return artefacts.find(configuration)

    with pytest.raises(MissingBuildError, match=r"is damaged in the cache .*npu build --device"):
        Norm(backend(find=damaged))()
    assert paths[0].is_file()


def test_the_builders_cache_is_asked(monkeypatch, tmp_path):
    asked: list[Any] = []
    answer: list[Any] = [None]
    monkeypatch.setattr(cache, "find", lambda *key: asked.append(key) or answer[0])
    monkeypatch.setattr(cache, "command", lambda *key: f"npu build {key}")
    what = SimpleNamespace(name="gemm", generation="npu1", artefact="gemm-npu1-00")
    with pytest.raises(MissingBuildError, match=r"npu build \('npu1', 'gemm'\)"):
        artefacts.find(what)
    assert asked == [("npu1", "gemm-npu1-00")]
    answer[0] = artefacts.Xclbin(tmp_path / "d.xclbin", {"generation": "npu1"})
    assert artefacts.find(what) is answer[0]
