"""XRT: its library and NPU plugin, and how it gets along with the driver."""

from __future__ import annotations

import re

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.firmware import message
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import Smi, loader_folders, smi_examine, version, written
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown

_CORE = "libxrt_coreutil.so.2"
_PLUGIN = "libxrt_driver_xdna.so.2"
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
OPT = "/opt/xilinx/xrt"
_NPU_XRT = (2, 17)  # the first with run lists and ELF modules; older ones are for FPGA cards
# What an old driver answers to a request that a newer XRT makes.
_OLD_DRIVER = re.compile(r"GET_(?:INFO|ARRAY) IOCTL failed \(err=-?(95|22)\)")


def _folders(machine: Machine) -> tuple[list[str], list[str]]:
    """Where the loader looks first (LD_LIBRARY_PATH), and where XRT is installed otherwise."""
    first = [f for f in (machine.system.environment("LD_LIBRARY_PATH") or "").split(":") if f]
    root = machine.system.environment("XILINX_XRT") or OPT
    known = machine.system.command("ldconfig", "-p")
    listed = loader_folders(known.output, (_CORE, _PLUGIN)) if known else ()
    later = dict.fromkeys((*listed, *_SYSTEM, f"{root}/lib", f"{OPT}/lib"))
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
    # A failed resume is reported as an error of the request that asked for it (xdna-driver#1566).
    if (line := machine.system.log("Resume failed")) and "IOCTL failed" in done.output:
        text = (
            f'The driver could not wake the NPU ("{message(line)}"). End what uses it and load the '
            "driver again."
        )
        fix = Fix(text, (f"sudo fuser -v {machine.node}", install.RELOAD))
        return broken("the driver cannot wake the NPU", fix)
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
