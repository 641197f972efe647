"""XRT: its library and NPU plugin, how it gets along with the driver, and its Python bindings."""

from __future__ import annotations

import re

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import Smi, loader_folders, shown, smi_examine, version, written
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown

_CORE = "libxrt_coreutil.so.2"
_PLUGIN = "libxrt_driver_xdna.so.2"
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
_OPT = "/opt/xilinx/xrt"
_SETUP = f"source {_OPT}/setup.sh"
_NPU_XRT = (2, 17)  # the first with run lists and ELF modules; older ones are for FPGA cards
# What an old driver answers to a request that a newer XRT makes.
_OLD_DRIVER = re.compile(r"GET_(?:INFO|ARRAY) IOCTL failed \(err=-?(95|22)\)")
_PYXRT = "import pyxrt; print(pyxrt.__file__)"
_MODULE = re.compile(r"pyxrt(?:\.(cpython-\d+|abi3)[\w-]*)?\.so")


def _folders(machine: Machine) -> tuple[list[str], list[str]]:
    """Where the loader looks first (LD_LIBRARY_PATH), and where XRT is installed otherwise."""
    first = [f for f in (machine.system.environment("LD_LIBRARY_PATH") or "").split(":") if f]
    root = machine.system.environment("XILINX_XRT") or _OPT
    known = machine.system.command("ldconfig", "-p")
    listed = loader_folders(known.output, (_CORE, _PLUGIN)) if known else ()
    later = dict.fromkeys((*listed, *_SYSTEM, f"{root}/lib", f"{_OPT}/lib"))
    return [f.rstrip("/") or "/" for f in first], list(later)


def _holding(machine: Machine, folders: list[str], name: str) -> list[str]:
    return [f for f in folders if machine.system.stat(f"{f}/{name}") is not None]


def probe_xrt(machine: Machine) -> Result:
    """libxrt_coreutil and, for NPUs, the plugin that it loads."""
    first, later = _folders(machine)
    cores = _holding(machine, [*first, *later], _CORE)
    plugins = _holding(machine, [*first, *later], _PLUGIN)
    system = machine.distribution
    if not cores and machine.smi_examine and smi_examine(machine.smi_examine.output).devices:
        return unknown("in a folder that is not known; xrt-smi runs")
    if not cores:
        fix = Fix("XRT, AMD's runtime library, is not installed.", install.install_xrt(system))
        return broken("not installed", fix)
    core = cores[0]
    number = version((machine.system.link(f"{core}/{_CORE}") or "").rpartition(".so.")[2])
    found = {"version": written(number) if number else None, "folder": core}
    if number and number < _NPU_XRT:
        text = f"XRT {written(number)} in {core} is for FPGA cards only; NPUs need 2.17 or newer."
        if system.family == "debian" and not install.packaged(system):
            text += " Debian 12 has no newer one: build it, or upgrade to Debian 13."
        fix = Fix(text, install.install_xrt(system))
        return broken(f"{written(number)} is for FPGA cards only", fix, **found)
    if not plugins:
        text = f"XRT is there, but not its plugin for NPUs, {_PLUGIN}."
        return broken("no NPU plugin", Fix(text, install.install_xrt(system)), **found)
    if core in first and core not in plugins:
        text = (
            f"LD_LIBRARY_PATH makes programs load the XRT of {core}, which has no NPU plugin; the "
            f"one in {plugins[0]} has. Take the folder out of the variable."
        )
        keep = ":".join(f for f in first if f != core)
        fix = Fix(text, (f'export LD_LIBRARY_PATH="{keep}"',))
        return broken("LD_LIBRARY_PATH hides the NPU plugin", fix, **found)
    return ok(f"XRT {written(number)} with NPU plugin", **found)


def probe_xrt_smi(machine: Machine) -> Result:
    """Does XRT see the NPU through the driver: `xrt-smi examine`."""
    done = machine.smi_examine
    tools = install.install_xrt_tools(machine.distribution)
    if done is None:
        return unknown("xrt-smi is not installed", f"to install xrt-smi: {tools[-1]}")
    if done.timed_out:
        text = (
            "`xrt-smi examine` hangs: the NPU or its driver no longer answers. Stop what uses it "
            "and load the driver again; if that hangs too, power off completely."
        )
        fix = Fix(text, (f"sudo fuser -v {machine.node}", install.RELOAD))
        return broken("xrt-smi hangs", fix)
    smi = smi_examine(done.output)
    if old := _OLD_DRIVER.search(done.output):
        text = (
            f"The driver refuses what XRT {written(smi.xrt)} asks (error {old[1]}): it is older "
            "than XRT. Install a newer driver, or the kernel that has it."
        ).replace("XRT ?", "XRT")
        fix = Fix(text, install.dkms_driver(machine.distribution))
        return broken(f"driver older than XRT (error {old[1]})", fix)
    if not smi.devices:
        said = f": {smi.error}" if smi.error else ""
        text = (
            f"xrt-smi finds no NPU though the driver has one{said}. XRT and its plugin must be of "
            "the same version; install both anew."
        )
        fix = Fix(text, install.install_xrt(machine.distribution))
        return broken("xrt-smi finds no NPU", fix, error=smi.error)
    return _seen(machine, smi)


def _seen(machine: Machine, smi: Smi) -> Result:
    assert machine.npu is not None
    names = dict(smi.devices)
    name = names.get(machine.npu.address.lower())
    values = {
        "xrt": written(smi.xrt) if smi.xrt else None, "driver": smi.driver,
        "firmware": written(smi.firmware) if smi.firmware else None,
        "devices": list(names.values()),
    }  # fmt: skip
    if name is None:
        return unknown(f"xrt-smi shows {next(iter(names))}, not this NPU", **values)
    notes = []
    driver = version(smi.driver or "")
    if smi.xrt and driver and driver[0] == smi.xrt[0] and driver[:2] != smi.xrt[:2]:
        notes.append(f"driver {smi.driver} and XRT {written(smi.xrt)} are of different releases")
    return ok(f"XRT {written(smi.xrt)} sees {name}", *notes, **values)


def probe_pyxrt(machine: Machine) -> Result:
    """XRT's Python bindings, which are built for one version of Python."""
    done = machine.system.command("python", "-c", _PYXRT)
    if done and done.exit == 0:
        return ok(f"for Python {machine.system.python().version}", file=shown(done.output))
    if done and done.timed_out:
        text = "`import pyxrt` does not end; XRT waits for the NPU. Load its driver again."
        return broken("import hangs", Fix(text, (install.RELOAD,)))
    there = _modules(machine)
    if not there:
        text = "XRT's Python bindings (pyxrt) are not installed."
        commands = install.install_pyxrt(machine.distribution)
        if install.SOURCE in commands:
            text += " There is no package of them for this system: build XRT, which brings them."
        return broken("not installed", Fix(text, commands))
    return _not_imported(machine, there, done.output if done else "")


def _modules(machine: Machine) -> list[tuple[str, str | None]]:
    """(folder, ABI tag) of every pyxrt that lies where XRT's packages put it."""
    root = machine.system.environment("XILINX_XRT") or _OPT
    folders = dict.fromkeys((f"{root}/python", f"{_OPT}/python", "/usr/lib/python3/dist-packages"))
    for base in ("/usr/lib", "/usr/lib64"):
        for name in machine.system.names(base) or ():
            if re.fullmatch(r"python3\.\d+", name):
                folders |= dict.fromkeys((f"{base}/{name}/site-packages",))
    found = []
    for folder in folders:
        for name in machine.system.names(folder) or ():
            if matched := _MODULE.fullmatch(name):
                found.append((folder, matched[1]))
    return found


def _not_imported(machine: Machine, there: list[tuple[str, str | None]], said: str) -> Result:
    """There is a pyxrt that this Python does not import: another version, folder, damage."""
    mine = machine.system.python()
    fitting = [folder for folder, tag in there if tag in (mine.abi, "abi3")]
    if not fitting and (tags := [tag for _, tag in there if tag]):
        other = tags[0].removeprefix("cpython-")
        other = f"{other[0]}.{other[1:]}"
        text = (
            f"pyxrt in {there[0][0]} is built for Python {other}; this is {mine.version}. Use that "
            "Python for a new environment and install the package there."
        )
        commands = (
            f"python{other} -m venv ~/npu-venv",
            "~/npu-venv/bin/pip install .   # in this project's folder",
        )
        if there[0][0].startswith("/usr/"):
            commands = (f"python{other} -m venv --system-site-packages ~/npu-venv", commands[1])
        return broken(f"for Python {other}, this is {mine.version}", Fix(text, commands))
    folder = (fitting or [there[0][0]])[0]
    if "No module named 'pyxrt'" in said or not said:
        text = f"pyxrt lies in {folder}, where this Python does not look."
        command = _SETUP if folder.startswith(_OPT) else f"export PYTHONPATH={folder}"
        return broken(f"not on this Python's path: {folder}", Fix(text, (command,)))
    text = f"pyxrt in {folder} does not load: {shown(said.strip().splitlines()[-1])}"
    return broken("does not load", Fix(text, install.install_pyxrt(machine.distribution)))
