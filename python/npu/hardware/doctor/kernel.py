"""The Linux kernel, the container and the driver amdxdna, which is in the kernel since 6.14.

Messages of the kernel's log as the drivers print them.
"""

from __future__ import annotations

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.firmware import LOG, firmware_file, message
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown, version, written
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown

_IN_TREE = (6, 14)
_ADVISED = (6, 17)  # restarts the watchdog at every completion
_MODULE = "/sys/module/amdxdna"
_DRM = (0, 6)
_IOMMU_LOG = ("Enable PASID failed", "SVA bind device failed", "iommu_sva")
_START_LOG = ("Hardware init failed", "probe with driver amdxdna failed")
_SIGNATURE = ("rejected", "unsigned module loading is restricted")
_OTHER_KERNEL = (
    "amdxdna: version magic", "amdxdna: disagrees about version of symbol",
    "amdxdna: Unknown symbol",
)  # fmt: skip


def probe_kernel(machine: Machine) -> Result:
    """Its version: new enough for the driver, unless a driver from elsewhere is loaded."""
    kernel, release = machine.kernel, machine.kernel_release
    if kernel is None:
        return unknown("its version cannot be read")
    if kernel < _IN_TREE and not loaded(machine):
        text = "The NPU's driver is part of Linux 6.14 and newer; 6.17 and newer are advised."
        fix = Fix(text, install.install_driver(machine.distribution))
        return broken(f"{release} is too old, 6.14 has the driver", fix, release=release)
    notes = (
        []
        if kernel >= _ADVISED
        else ["Linux 6.17 or newer is advised: older ones do not watch over runs"]
    )
    return ok(f"Linux {release}", *notes, release=release)


def probe_container(machine: Machine) -> Result:
    """Its kind; what a container lacks shows in the layers below."""
    kind = machine.container
    return ok(f"inside {kind}", kind=kind) if kind else ok("none", kind=None)


def loaded(machine: Machine) -> bool:
    return machine.system.names(_MODULE) is not None


def probe_driver(machine: Machine) -> Result:
    """amdxdna: there, loaded, bound to the NPU; in tree or not; the DRM version."""
    bound = machine.driver_name
    if bound not in (None, "amdxdna"):
        text = f"The driver {bound} holds the NPU, for a virtual machine for example. Give it back."
        assert machine.npu is not None
        address, root = machine.npu.address, "sudo tee /sys/bus/pci"
        back = (
            f"echo {address} | {root}/drivers/{bound}/unbind",
            f"echo {address} | {root}/drivers_probe",
        )
        return broken(f"{bound} holds the NPU, not amdxdna", Fix(text, back))
    if not loaded(machine) and bound is None:
        return _not_loaded(machine)
    kind = _kind(machine)
    return _bound(machine, kind) if bound else _unbound(machine, kind)


def _unbound(machine: Machine, kind: str) -> Result:
    """Loaded, but without the NPU: is it this layer's fault."""
    if cause(machine) != "driver":
        return ok(f"amdxdna, {kind}, loaded; did not start the NPU", kind=kind)
    if line := machine.system.log(*_START_LOG):
        text = f'The driver is loaded but does not start the NPU: "{message(line)}".'
        commands = ("sudo dmesg | grep amdxdna", *install.install_driver(machine.distribution))
        return broken("amdxdna does not start the NPU", Fix(text, commands), kind=kind)
    text = "The driver is loaded but has not taken the NPU. Load it again and read what it says."
    fix = Fix(text, (install.RELOAD, "sudo dmesg | grep amdxdna"))
    return broken("amdxdna has not taken the NPU", fix, kind=kind)


def _bound(machine: Machine, kind: str) -> Result:
    opened = machine.opened
    drm = opened.version if opened and opened.version else _logged_version(machine)
    notes = []
    if drm and drm < _DRM:
        notes.append(f"DRM version {written(drm)}: 0.6 and newer (Linux 6.19) can preempt")
    text = f", DRM {written(drm)}" if drm else ""
    own = version(machine.system.text(f"{_MODULE}/version"))
    name = f"amdxdna {written(own)}" if own else "amdxdna"
    return ok(
        f"{name}, {kind}{text}", *notes, kind=kind, drm=list(drm) if drm else None,
        version=written(own) if own else None,
    )  # fmt: skip


def _logged_version(machine: Machine) -> tuple[int, ...] | None:
    line = machine.system.log("Initialized amdxdna_accel_driver") or ""
    return version(line.partition("amdxdna_accel_driver")[2])


def _kind(machine: Machine) -> str:
    return "out of tree" if "O" in machine.system.text(f"{_MODULE}/taint") else "in tree"


def cause(machine: Machine) -> str:
    """The layer that keeps the driver from starting the NPU: firmware, iommu or driver."""
    system = machine.system
    if system.log(*LOG):
        return "firmware"
    if system.log(*_IOMMU_LOG) or iommu_off(machine):
        return "iommu"
    if system.kernel_log() is None and firmware_file(machine) is None:
        return "firmware"
    return "driver"


def iommu_off(machine: Machine) -> str | None:
    """The word of the kernel's command line that switches the IOMMU off."""
    words = machine.system.text("/proc/cmdline").split()
    return next((word for word in words if word in ("amd_iommu=off", "iommu=off")), None)


def _not_loaded(machine: Machine) -> Result:
    """The module is not loaded: forbidden, refused, there, or missing."""
    system = machine.system
    if file := _blacklist(machine):
        text = f"{file} keeps the driver from being loaded. Remove the line and load it."
        commands = (f"sudoedit {file}", "sudo modprobe amdxdna")
        return broken(f"amdxdna is blacklisted in {file}", Fix(text, commands))
    info = system.command("modinfo", "amdxdna")
    if info and info.exit == 0:
        line = system.log(*_SIGNATURE)
        if line and "/updates/" in info.output:
            text = "Secure Boot refuses the driver, which was built on this machine. Enrol the key "
            fix = Fix(text + "that signed it and confirm at the next start.", _enrol(machine))
            return broken("Secure Boot refuses the module amdxdna", fix)
        if line := system.log(*_OTHER_KERNEL):
            line = shown(line.partition(": ")[2].partition(" SMP")[0].replace("'", ""), 70)
            text = (
                f'The kernel refuses the driver ("{line}"): it is of another kernel, and an old '
                "initramfs may hold it."
            )
            dkms = "/updates/" in info.output
            fix = Fix(text, install.rebuild_module(machine.distribution, dkms=dkms))
            return broken("the module amdxdna is of another kernel", fix)
        text = "The driver is installed but not loaded."
        fix = Fix(text, ("sudo modprobe amdxdna", "sudo dmesg | grep amdxdna"))
        return broken("amdxdna is installed, not loaded", fix)
    if machine.container:
        text = "Drivers are loaded by the host of this container: run `npu doctor` there."
        return broken("amdxdna is not loaded on the host", Fix(text, ("sudo modprobe amdxdna",)))
    text = "This kernel comes without the driver amdxdna."
    fix = Fix(text, install.install_driver(machine.distribution))
    return broken("amdxdna is not installed", fix)


def _enrol(machine: Machine) -> tuple[str, ...]:
    shim = "/var/lib/shim-signed/mok/MOK.der"
    key = shim if machine.distribution.family == "ubuntu" else "/var/lib/dkms/mok.pub"
    return (f"sudo mokutil --import {key}", install.REBOOT)


def _blacklist(machine: Machine) -> str | None:
    folder = "/etc/modprobe.d"
    for name in machine.system.names(folder) or ():
        lines = machine.system.text(f"{folder}/{name}").splitlines()
        if any(line.split() == ["blacklist", "amdxdna"] for line in lines):
            return f"{folder}/{shown(name, 40)}"
    return None
