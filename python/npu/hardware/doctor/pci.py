"""Is there an NPU, which generation, and could there be one that is switched off."""

from __future__ import annotations

import re

from npu.hardware.doctor.distribution import no_hardware
from npu.hardware.doctor.machine import Machine, Npu
from npu.hardware.doctor.parse import Processor, hex_id
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown
from npu.hardware.known_npus import AIE4, DEVICES, KNOWN, VENDOR

_DEVICES = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
# (family, model) of processors whose NPU a BIOS can switch off.
_WITH_NPU = {
    (25, 116): "Phoenix", (25, 117): "Hawk Point", (26, 36): "Strix",
    (26, 96): "Krackan", (26, 104): "Krackan", (26, 112): "Strix Halo",
}  # fmt: skip


def probe_npu(machine: Machine) -> Result:
    """The PCI device, its generation; without one, why."""
    if machine.system.names(_DEVICES) is None and not machine.wsl:
        return unknown("the PCI bus cannot be read")
    found, damaged = _amd_devices(machine)
    npus = [(address, ids) for address, ids in found if ids in KNOWN]
    if npus:
        address, ids = npus[0]
        kind = KNOWN[ids]
        shown = machine.system.text(f"{_DEVICES}/{address}/vbnv")  # the driver's own name
        name = shown if re.fullmatch(r"[\w+ -]{1,32}", shown, re.ASCII) else kind.name
        machine.npu = Npu(address, *ids, kind.generation, name, kind.firmware)
        others = len(npus) - 1
        return ok(
            f"{machine.npu.name} ({machine.npu.generation}), 1022:{ids[0]:04x} rev {ids[1]:02x}",
            *([f"{others} more NPU(s) are there; the first is examined"] if others else []),
            address=address, device=f"{ids[0]:04x}", revision=f"{ids[1]:02x}",
            generation=machine.npu.generation,
        )  # fmt: skip
    for _, (device, revision) in found:
        if device in AIE4:
            text = "This NPU is of the AIE4 generation, for which the package has no programs."
            return broken(f"1022:{device:04x} is an AIE4 NPU, not supported", no_hardware(text))
        if device in DEVICES:
            return _unknown_revision(device, revision)
    if damaged:
        return unknown(f"the ids of {damaged} PCI device(s) cannot be read")
    return _absent(machine)


def _amd_devices(machine: Machine) -> tuple[list[tuple[str, tuple[int, int]]], int]:
    """(address, (device, revision)) of AMD's PCI devices, and how many devices say nothing."""
    found, damaged = [], 0
    for address in machine.system.names(_DEVICES) or ():
        if not _ADDRESS.fullmatch(address):
            continue
        words = ("vendor", "device", "revision")
        texts = [machine.system.text(f"{_DEVICES}/{address}/{word}") for word in words]
        vendor, device, revision = (hex_id(text) for text in texts)
        if vendor is None or (vendor == VENDOR and (device is None or revision is None)):
            damaged += 1
        elif vendor == VENDOR and device is not None and revision is not None:
            found.append((address, (device, revision)))
    return found, damaged


def _unknown_revision(device: int, revision: int) -> Result:
    text = (
        f"Revision {revision:02x} of 1022:{device:04x} is not one that this package knows; a "
        "configuration for another revision can hang the NPU, so none is loaded. Please report "
        "it with `npu doctor --record FILE`."
    )
    return broken(f"1022:{device:04x} rev {revision:02x} is not known", no_hardware(text))


def _absent(machine: Machine) -> Result:
    """No NPU on the bus: why."""
    processor = machine.processor
    if machine.wsl:
        text = "WSL does not pass the NPU on to Linux. Start Linux itself on this machine to use it"
        return broken("none: WSL has no access to the NPU", no_hardware(text + "."))
    if processor.virtual:
        text = "This is a virtual machine without an NPU. If its host has one, use the host."
        return broken("none: this is a virtual machine", no_hardware(text))
    if name := _has_npu(processor):
        text = (
            f"{processor.name} ({name}) has an NPU as a rule, but none is on the PCI bus. Switch "
            'it on in the firmware set-up ("NPU", "IPU" or "Ryzen AI", often below Advanced or '
            "CPU Configuration), update the BIOS, then power off completely and start again."
        )
        commands = ("systemctl reboot --firmware-setup", "lspci -nn -d 1022: | grep -i signal")
        return broken("none, though this processor has one: off in the BIOS?", Fix(text, commands))
    text = f"This processor ({processor.name}) has no AMD NPU."
    return broken("no AMD NPU on the PCI bus", no_hardware(text))


def _has_npu(processor: Processor) -> str | None:
    """The family of a processor that has an NPU, None for others."""
    if processor.vendor != "AuthenticAMD":
        return None
    known = _WITH_NPU.get((processor.family or 0, processor.model or 0))
    return known or ("Ryzen AI" if "ryzen ai" in processor.name.lower() else None)
