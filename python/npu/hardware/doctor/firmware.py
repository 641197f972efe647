"""The NPU's firmware: the file that the driver loads, the version that runs, whether both fit.

Firmware: amdnpu/FOLDER/{npu.dev,npu_7,npu}.sbin, tried in this order by drivers that know the name;
messages as the drivers print them.
"""

from __future__ import annotations

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown, version, written
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown

_NAMES = ("npu.dev.sbin", "npu_7.sbin", "npu.sbin")
_PACKED = ("", ".zst", ".xz")
_NPU2_FIRMWARE = (1, 1)  # 1.0.0.63 and older: refused by today's XRT programs
LOG = (
    "Direct firmware load", "failed to request_firmware", "firmware protocol",
    "firmware is not alive",
)  # fmt: skip


def message(line: str) -> str:
    """A line of the kernel's log without what stands before the message."""
    return shown(line.rpartition("*ERROR*")[2], 90)


def probe_firmware(machine: Machine) -> Result:
    """The file the driver loads, the version that runs, and how they fit the driver."""
    assert machine.npu is not None
    place = f"amdnpu/{machine.npu.firmware}"
    file = firmware_file(machine)
    runs = machine.driver_name == "amdxdna"
    if not runs and (result := _refused(machine, place, file)):
        return result
    text = machine.system.text(f"{machine.npu.folder}/fw_version")
    running = version(text)
    if running and machine.npu.generation == "npu2" and running < _NPU2_FIRMWARE:
        advice = (
            f"Firmware {written(running)} is too old for today's driver and XRT: commands abort "
            "or are refused. Install 1.1 or newer, then restart."
        )
        fix = Fix(advice, install.install_firmware(machine.distribution))
        return broken(
            f"{written(running)} is too old, 1.1 is needed", fix, version=written(running)
        )
    if running:
        return ok(f"{written(running)} runs", version=written(running), file=file)
    if text:
        return unknown("fw_version of the driver is damaged", file=file)
    return unknown(
        f"{(file or 'no file seen').rpartition('/')[2]}, not known which runs", file=file
    )


def _refused(machine: Machine, place: str, file: str | None) -> Result | None:
    """The driver does not run: is the firmware the reason?"""
    system, commands = machine.system, install.install_firmware(machine.distribution)
    if line := system.log("firmware protocol"):
        text = (
            f'The firmware file does not fit the driver ("{message(line)}"): firmware and driver '
            "must be of one time. Linux 7.0 and newer load new firmware; or install the newest "
            "driver with its firmware."
        )
        fix = Fix(text, install.dkms_driver(machine.distribution))
        return broken("firmware and driver do not fit together", fix, file=file)
    if file is None and not machine.container:
        text = f"The driver finds no firmware: /lib/firmware/{place} has none of its files."
        return broken(f"no firmware in {place}", Fix(text, commands), file=None)
    if line := system.log(*LOG):
        text = (
            f'The firmware did not start ("{message(line)}"). Install the current one; if the '
            "files are there since the last start, they are missing from the initramfs: keep "
            "amdxdna out of it. Power off completely, not only restart."
        )
        return broken(f"{place} does not start", Fix(text, commands), file=file)
    return None


def firmware_file(machine: Machine) -> str | None:
    """The file that the driver would take, in the kernel's order of folders."""
    if machine.npu is None:
        return None
    roots = [f"/lib/firmware{middle}" for middle in (
        f"/updates/{machine.kernel_release}", "/updates", f"/{machine.kernel_release}", ""
    )]  # fmt: skip
    for name in _NAMES:
        for root in (*roots, "/run/current-system/firmware"):
            folder = f"{root}/amdnpu/{machine.npu.firmware}"
            there = set(machine.system.names(folder) or ())
            for ending in _PACKED:
                file = f"{folder}/{name}{ending}"
                found = machine.system.stat(file) if name + ending in there else None
                if found and found.size > 0:
                    return file
    return None
