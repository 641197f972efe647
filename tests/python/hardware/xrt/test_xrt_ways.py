"""The ways to the NPU and the names that choose them: pyxrt goes first, libnpu_xrt.so is what other
Pythons take, names say way and generation; all of them are one device. Cases over the module need
one that is built against the stand-in for XRT (NPU_XRT_MODULE, as .ci/run has it) and are processes
of their own, without pyxrt."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import xrt_devices

import npu
from npu import _npu, errors
from npu.errors import DeviceError, GenerationError, MissingXrtError
from npu.hardware.xrt import choice, machine, ways

devices = sys.modules["npu.devices"]
MODULE = os.environ.get("NPU_XRT_MODULE", "")
DOUBLES = str(Path(__file__).parents[3] / "doubles")
needs_module = pytest.mark.skipif(
    not Path(MODULE).is_file(), reason="NPU_XRT_MODULE names no module"
)


@pytest.fixture
def one_npu(monkeypatch):
    """This machine has an npu2, pyxrt and no module."""
    xrt_devices.pyxrt.machine.reset(("npu2",), seed=None)
    monkeypatch.setitem(sys.modules, "pyxrt", xrt_devices.pyxrt)
    monkeypatch.setattr(devices, "_hardware_may_exist", lambda: True)
    monkeypatch.setattr(_npu.device, "xrt_module", lambda: None)
    fresh = {name: devices._Registered(name, one._open) for name, one in devices._xrt.items()}
    monkeypatch.setattr(devices, "_xrt", fresh)
    monkeypatch.setattr(devices, "_open_devices", {})
    yield
    for way in fresh.values():
        way._handle = None


def test_names_of_an_npu_are_one_device(one_npu):
    opened = []
    for name in ("xrt", "xrt:npu2", "xrt+pyxrt", "xrt:npu2+pyxrt"):
        with npu.device(name) as device:
            assert (device.name, device.way, device.generation) == ("xrt", "pyxrt", "npu2")
            opened.append(device)
    assert len({id(one.handle) for one in opened}) == 1


@pytest.mark.parametrize("name", ["xrt:npu1", "xrt:npu1+pyxrt"])
def test_another_generation_is_refused(one_npu, name):
    with pytest.raises(GenerationError, match=r'the NPU of this machine is npu2; use "xrt:npu2"'):
        npu.device(name).__enter__()


@pytest.mark.parametrize("name", ["xrt:", "xrt:npu3", "xrt+", "xrt+other", "xrt+module:npu2"])
def test_other_names_are_unknown(name):
    with pytest.raises(DeviceError, match=r'is unknown; the NPU is "xrt"'):
        npu.device(name).__enter__()


def test_pyxrt_goes_first_then_the_module(one_npu, monkeypatch):
    monkeypatch.setattr(_npu.device, "xrt_module", lambda: "/some/libnpu_xrt.so")
    assert ways.choose() == ways.Way("pyxrt", "through pyxrt")
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    chosen = ways.choose()
    assert chosen.name == "module" and "through /some/libnpu_xrt.so, because" in chosen.reason
    assert ways.choose("pyxrt").name == "pyxrt"
    monkeypatch.setattr(_npu.device, "xrt_module", lambda: None)
    with pytest.raises(MissingXrtError, match=r"no module pyxrt.*npu build --xrt"):
        ways.choose()


def test_a_verdict_is_about_one_way(one_npu, monkeypatch):
    there = machine.Identity("npu2", "NPU Strix", "ffff:00:00.1", "")
    monkeypatch.setattr(ways, "identity", lambda way: there)
    assert choice.stamp("pyxrt") == choice.stamp() != choice.stamp("module")


@pytest.mark.parametrize("kind", [
    "timeout", "abort", "firmware", "context", "heap", "memory_lock", "generation", "versions",
    "build", "xrt",
])  # fmt: skip
def test_kinds_of_the_core_are_classes(kind):
    error = errors.make_error(kind, "text")
    assert isinstance(error, DeviceError) and type(error) is not DeviceError
    assert error.kind == type(error).kind == kind


def _run(program: str, cache: Path, module: str = MODULE, **environment: str) -> str:
    # XRT's setup.sh adds pyxrt and another libxrt_coreutil.so to these.
    env = {name: text for name, text in os.environ.items() if name != "LD_LIBRARY_PATH"}
    env["PYTHONPATH"] = str(Path(npu.__file__).parents[1])
    env |= {"NPU_CACHE": str(cache), "NPU_XRT_MODULE": module, **environment}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", textwrap.dedent(program), DOUBLES],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_module
@pytest.mark.parametrize("generation, name", [("npu1", "NPU Phoenix"), ("npu2", "NPU Strix")])
def test_without_pyxrt_the_module_is_the_device(tmp_path, generation, name):
    program = """
        import npu
        from npu import cli
        for name in ("xrt", "xrt+module"):
            with npu.device(name) as device:
                print(device.name, device.way, device.generation, device.arithmetic)
        from npu.hardware import verdict
        from npu.hardware.xrt import choice
        print(npu.devices()[2].reason)
        verdict.write(choice.stamp(), True, "report.json")
        cli.main(["devices"])
    """
    out = _run(program, tmp_path, NPU_XRT_DOUBLE=f"emu:{generation}").splitlines()
    assert out[:2] == [f"xrt module {generation} hardware"] * 2
    through = f"{name} ({generation}) at ffff:00:00.1 through {MODULE}, because this Python has no"
    assert out[2].startswith(through) and 'run "npu selftest"' in out[2]
    assert out[5].startswith("xrt ") and f"; available: {through}" in out[5]
    assert out[6].startswith(f"default    xrt: {through}")


@needs_module
def test_errors_of_the_module_are_those_of_pyxrt(tmp_path):
    program = """
        import npu, numpy as np
        from npu.errors import GenerationError, MissingBuildError
        def raised(call, kind):
            try: call()
            except kind as error: print(error.kind, str(error)[:60])
        raised(lambda: npu.device("xrt:npu1").__enter__(), GenerationError)
        a = np.ones((3, 4), np.int8)
        with npu.device("xrt:npu2+module"):
            raised(lambda: npu.matmul(a, a.T.copy()), MissingBuildError)
    """
    out = _run(program, tmp_path, NPU_XRT_DOUBLE="emu:npu2", NPU_XCLBINS=str(tmp_path)).splitlines()
    assert out[0].startswith('generation [device] "xrt:npu1" was requested, the NPU')
    assert out[1].startswith('build [load] configuration "gemm_i8')


@needs_module
def test_a_fork_of_the_module_gives_nothing_back(tmp_path):
    program = """
        import gc, os, sys, npu, numpy as np
        sys.path.insert(0, sys.argv[1])
        from xrt_module_double import _stand_in as stand_in
        sys.path.pop(0)  # there is a pyxrt, too
        from npu.errors import DeviceError
        a = np.ones((3, 4), np.int8)
        with npu.device("xrt") as device:
            product = npu.matmul(a, a.T.copy())  # makes a context
        handle = device.handle
        buffer = handle.allocate(4096)
        child = os.fork()
        if child == 0:
            try: handle.allocate(64)
            except DeviceError as error: print(error, flush=True)
            del device, handle, buffer
            sys.modules["npu.devices"]._xrt["module"]._handle = None
            sys.modules["npu.devices"]._open_devices.clear()
            gc.collect()
            print(stand_in.xrt_double_complaints(), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        buffer.array[:] = 3
        buffer.sync_to_device(0, 4096)
        with npu.device("xrt"):
            assert (npu.matmul(a, a.T.copy()) == product).all()
        print("the parent goes on", stand_in.xrt_double_complaints(), flush=True)
    """
    out = _run(program, tmp_path, NPU_XRT_DOUBLE="emu:npu2").splitlines()
    assert "before this process was forked" in out[0]
    assert out[1:] == ["b''", "the parent goes on b''"]


@needs_module
def test_a_module_that_does_not_load_is_told(tmp_path):
    broken = tmp_path / "libnpu_xrt.so"
    broken.write_bytes(b"not a library")
    out = _run("import npu\nprint(npu.devices()[2])", tmp_path, str(broken))
    assert "available=False" in out and "does not load" in out and "npu build --xrt" in out
