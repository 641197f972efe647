"""Which device runs by default, and what `npu devices` says about it, on machines with and without
an NPU; programs on the double end and fork cleanly. Each case is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import npu
from npu.errors import MissingXrtError

TESTS = Path(__file__).parents[3]
DOUBLE = f"import sys; sys.path.insert(0, {str(TESTS / 'doubles')!r})\n"
HERE = DOUBLE + f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
ONE_NPU = "import pyxrt; pyxrt.machine.reset(('npu2',)); "
PASSED = """
    from npu.hardware import verdict
    from npu.hardware.xrt import choice
    verdict.write(choice.stamp(), PASSED, "report.json")
"""
REPORT = """
    import npu
    from npu import cli
    print(npu.current_device().name)
    cli.main(["devices"])
"""


def _run(program: str, cache: Path, quiet: bool = False, **environment: str) -> str:
    others = ("NPU_DEVICE", "NPU_CACHE", "NPU_XRT_MODULE")
    env = {k: v for k, v in os.environ.items() if k not in others}
    env |= {"NPU_CACHE": str(cache), **environment}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", program],
        env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr or (quiet and "Traceback" not in done.stderr), done.stderr
    return done.stdout


def _program(text: str, double: str = HERE + ONE_NPU) -> str:
    return double + textwrap.dedent(text)


def test_without_an_npu_the_emulator_runs_and_nothing_of_the_hardware_is_imported(tmp_path):
    if list(Path("/dev").glob("accel/accel*")):
        pytest.skip("this machine may have an NPU")
    text = """
        import sys, npu, numpy
        npu.matmul(numpy.ones((2, 2), numpy.int8), numpy.ones((2, 2), numpy.int8))
        assert not [name for name in sys.modules if name.startswith(("npu.hardware", "pyxrt"))]
    """
    out = _run(_program(text + REPORT.replace("    ", "        "), "import sys\n"), tmp_path)
    lines = out.splitlines()
    assert lines[0] == "emu:npu2"
    assert lines[3].startswith("xrt ") and "not available: this machine has no NPU driver" in out
    assert lines[4] == "default    emu:npu2: xrt is not available, see `npu doctor`"


@pytest.mark.parametrize("passed, chosen, words", [
    (None, "emu:npu2", 'not tested with these versions; run "npu selftest"'),
    (False, "emu:npu2", "its self-test failed at"),
    (True, "xrt", "its self-test passed at"),
])  # fmt: skip
def test_the_npu_runs_when_its_self_test_has_passed(tmp_path, passed, chosen, words):
    kept = "" if passed is None else PASSED.replace("PASSED", str(passed))
    out = _run(_program(textwrap.dedent(kept) + textwrap.dedent(REPORT)), tmp_path).splitlines()
    assert out[0] == chosen
    assert out[3].startswith("xrt ") and "; available: NPU Strix (npu2) at ffff:" in out[3]
    assert words in out[3]
    if passed:
        assert out[4].startswith(f"default    {chosen}: NPU Strix") and words in out[4]
    else:
        assert out[4].startswith(f"default    {chosen}: no self-test of an NPU has passed")


def test_an_npu_that_never_passed_is_not_opened(tmp_path):
    program = "pyxrt.device = None\nimport npu\nprint(npu.current_device().name)"
    assert _run(_program(program), tmp_path) == "emu:npu2\n"


def test_npu_device_goes_before_the_npu(tmp_path):
    program = _program(PASSED.replace("PASSED", "True") + REPORT)
    out = _run(program, tmp_path, NPU_DEVICE="emu:npu1").splitlines()
    assert out[0] == "emu:npu1" and out[4] == "default    emu:npu1: NPU_DEVICE names it"


@pytest.mark.parametrize(
    "setup, words",
    [
        ("pyxrt.machine.devices.clear()", "XRT sees 0 devices"),
        ("pyxrt.machine.devices[0].name = 'NPU of the future'", "is not an NPU that this version"),
        ("pyxrt.machine.inject('info', *[-95] * 9)", "the driver is older than XRT"),
    ],
)
def test_an_npu_that_does_not_work_is_not_chosen(tmp_path, setup, words):
    passed = textwrap.dedent(PASSED.replace("PASSED", "True"))
    program = _program(passed + f"{setup}\n" + textwrap.dedent(REPORT))
    out = _run(program, tmp_path).splitlines()
    assert out[0] == "emu:npu2"
    assert "not available: [device] xrt" in out[3] and words in out[3]
    assert out[4] == "default    emu:npu2: xrt is not available, see `npu doctor`"


XRT = """
    import numpy as np, npu, xrt_devices
    from npu.hardware.xrt import artefacts, backend
    backend.XrtBackend.__init__.__kwdefaults__["find"] = xrt_devices.find
    a = np.arange(12, dtype=np.int8).reshape(3, 4)
    with npu.device("xrt") as device:
        product = npu.matmul(a, a.T.copy())
    assert (product == a.astype(int) @ a.T.astype(int)).all()
    assert device.name == "xrt" and not device.emulated and device.arithmetic == "hardware"
"""


def test_a_program_on_the_npu_ends_in_order(tmp_path):
    """The device is never closed by hand; what the double saw is told after everything else."""
    watch = """
        import atexit
        import pyxrt
        pyxrt.machine.reset(("npu2",))
        def tell():
            print(pyxrt.machine.violations, pyxrt.machine.devices[0].contexts)
        atexit.register(tell)  # runs after those registered later
    """
    program = HERE + textwrap.dedent(watch) + textwrap.dedent(XRT)
    assert _run(program, tmp_path) == "[] []\n"


def test_an_arithmetic_is_not_for_the_npu(tmp_path):
    text = """
        try:
            with npu.device("xrt", arithmetic="silicon"): pass
        except npu.errors.DeviceError as error:
            print(error)
    """
    out = _run(_program(textwrap.dedent(XRT) + textwrap.dedent(text)), tmp_path)
    assert 'it computes as "hardware"' in out


FORK = """
    import os
    keep = npu.current_device("xrt")
    child = os.fork()
    if child == 0:
        try:
            with npu.device("xrt"):
                npu.matmul(a, a.T.copy())
        except npu.errors.DeviceError as error:
            print(error, flush=True)
        del keep, device
        npu.devices._xrt["pyxrt"]._handle = None
        npu.devices._open_devices.clear()
        import gc; gc.collect()
        machine = xrt_devices.pyxrt.machine
        print(len(machine.devices[0].contexts), machine.violations, flush=True)
        HOW_IT_ENDS
    os.waitpid(child, 0)
    with npu.device("xrt"):
        assert (npu.matmul(a, a.T.copy()) == product).all()
    print("the parent goes on")
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "raise SystemExit"])
def test_a_fork_gives_nothing_back_and_says_why_it_cannot_run(tmp_path, end):
    text = textwrap.dedent(XRT) + textwrap.dedent(FORK.replace("HOW_IT_ENDS", end))
    text = text.replace("npu.devices._", "sys.modules['npu.devices']._")
    # What the child keeps, on purpose, is reported by the bindings of the emulator.
    out = _run(_program(text), tmp_path, quiet="System" in end).splitlines()
    assert "was opened before this process was forked" in out[0] and "spawn" in out[0]
    assert out[1] == "1 []"  # the parent's context is untouched
    assert out[-1] == "the parent goes on"


def test_a_driver_without_pyxrt_is_told(monkeypatch):
    module = sys.modules["npu.devices"]
    monkeypatch.setattr(module, "_hardware_may_exist", lambda: True)
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    monkeypatch.setenv("NPU_XRT_MODULE", "/nowhere/libnpu_xrt.so")
    (entry,) = [one for one in npu.devices() if one.name == "xrt"]
    assert not entry.available and "Python finds no module pyxrt" in entry.reason
    with pytest.raises(MissingXrtError, match=r"no module pyxrt.*emu:npu2"), npu.device("xrt"):
        pass
    monkeypatch.setattr(module, "_hardware_may_exist", lambda: False)
    with pytest.raises(MissingXrtError, match=r"no NPU driver.*use emu:npu1"), npu.device("xrt"):
        pass
