"""Machines that are broken below XRT: NPU, driver, firmware, IOMMU, device node, memory lock."""

from __future__ import annotations

from healthy_machines import (
    BAZZITE,
    BDF,
    CACHYOS,
    DEBIAN_13,
    NODE,
    PCI,
    UBUNTU_24,
    Record,
    done,
    halo_fedora,
    phoenix_arch,
    strix_ubuntu,
)
from machine_base import (
    machine,
    not_started,
    without_driver,
    without_npu,
    without_xrt,
)


@machine(strix_ubuntu, "/proc/cpuinfo of a Ryzen AI machine; NPU switched off in the BIOS")
def bios_disabled(record: Record) -> None:
    without_npu(record)


@machine(strix_ubuntu, "a processor without an NPU")
def no_npu_intel(record: Record) -> None:
    without_npu(record)
    record["files"]["/proc/cpuinfo"] = (
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 170\n"
        "model name\t: Intel(R) Core(TM) Ultra 7 155H\n"
    )


@machine(strix_ubuntu, "a virtual machine")
def virtual_machine(record: Record) -> None:
    without_npu(record)
    record["files"]["/proc/cpuinfo"] += "flags\t\t: hypervisor\n"


@machine(strix_ubuntu, "WSL 2, which shows no PCI NPU")
def wsl(record: Record) -> None:
    without_npu(record)
    record["files"]["/proc/sys/kernel/osrelease"] = "6.6.87.2-microsoft-standard-WSL2\n"
    record["files"]["/proc/cpuinfo"] += "flags\t\t: hypervisor\n"


@machine(strix_ubuntu, "the ids of AIE4 in amd/xdna-driver")
def aie4(record: Record) -> None:
    record["files"][f"{PCI}/device"] = "0x17f1\n"


@machine(strix_ubuntu, "a revision that no driver names")
def unknown_revision(record: Record) -> None:
    record["files"][f"{PCI}/revision"] = "0x30\n"


@machine(strix_ubuntu, "Ubuntu 24.04 with its first kernel")
def kernel_too_old(record: Record) -> None:
    without_driver(record)
    without_xrt(record)
    record["files"]["/etc/os-release"] = UBUNTU_24
    record["files"]["/proc/sys/kernel/osrelease"] = "6.8.0-31-generic\n"
    record["commands"]["modinfo amdxdna"] = done("modinfo: ERROR: Module amdxdna not found.\n", 1)


@machine(strix_ubuntu, "a kernel configured without CONFIG_DRM_ACCEL_AMDXDNA")
def no_driver(record: Record) -> None:
    without_driver(record)
    record["files"]["/etc/os-release"] = DEBIAN_13
    record["files"]["/proc/sys/kernel/osrelease"] = "6.16.3+deb13-amd64\n"
    record["commands"]["modinfo amdxdna"] = done("modinfo: ERROR: Module amdxdna not found.\n", 1)


@machine(halo_fedora, "a driver that nothing has loaded")
def driver_not_loaded(record: Record) -> None:
    without_driver(record)


@machine(phoenix_arch, "a line in /etc/modprobe.d")
def driver_blacklisted(record: Record) -> None:
    without_driver(record)
    record["folders"]["/etc/modprobe.d"] = ["blacklist.conf", "no-npu.conf"]
    record["files"]["/etc/modprobe.d/no-npu.conf"] = "blacklist amdxdna"


@machine(strix_ubuntu, "DKMS modules under Secure Boot")
def secure_boot(record: Record) -> None:
    without_driver(record)
    record["files"]["/etc/os-release"] = UBUNTU_24
    record["files"]["/proc/sys/kernel/osrelease"] = "6.17.0-22-generic\n"
    record["commands"]["modinfo amdxdna"] = done(
        "filename:       /lib/modules/6.17.0-22-generic/updates/dkms/amdxdna.ko.zst\n"
    )
    record["kernel_log"] = [
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"
    ]


@machine(phoenix_arch, "amd/xdna-driver#1257 (module of an older kernel in the initramfs)")
def module_of_another_kernel(record: Record) -> None:
    without_driver(record)
    record["files"]["/etc/os-release"] = CACHYOS
    record["commands"]["modinfo amdxdna"] = done(
        "filename:       /lib/modules/7.1.4-arch1-1/updates/dkms/amdxdna.ko.zst\n"
    )
    record["kernel_log"] = [
        "amdxdna: version magic '7.1.3-arch1-1 SMP preempt mod_unload ' should be '7.1.4-arch1-1 "
        "SMP preempt mod_unload '"
    ]


@machine(halo_fedora, "PCI passthrough to a virtual machine")
def vfio(record: Record) -> None:
    not_started(record)
    record["links"][f"{PCI}/driver"] = "../../../../bus/pci/drivers/vfio-pci"


@machine(phoenix_arch, "amd/xdna-driver#389 (driver does not start)")
def driver_does_not_start(record: Record) -> None:
    not_started(
        record,
        f"amdxdna {BDF}: enabling device (0000 -> 0002)",
        f"amdxdna {BDF}: [drm] *ERROR* aie2_smu_exec: smu cmd 4 failed, 0xff",
        f"amdxdna {BDF}: [drm] *ERROR* amdxdna_probe: Hardware init failed, ret -22",
    )


@machine(strix_ubuntu, "a driver that failed, with a kernel log that may not be read")
def driver_silent(record: Record) -> None:
    not_started(record)
    record["kernel_log"] = None


@machine(phoenix_arch, "amd/xdna-driver#421 and #282 (no firmware)")
def no_firmware(record: Record) -> None:
    not_started(
        record,
        f"amdxdna {BDF}: Direct firmware load for amdnpu/1502_00/npu.sbin failed with error -2",
        f"amdxdna {BDF}: [drm] *ERROR* aie2_init: failed to request_firmware "
        "amdnpu/1502_00/npu.sbin, ret -2",
        f"amdxdna {BDF}: [drm] *ERROR* amdxdna_probe: Hardware init failed, ret -2",
    )
    record["folders"].pop("/lib/firmware/amdnpu/1502_00")


@machine(strix_ubuntu, "amd/xdna-driver#421; the user may not read the kernel's log")
def no_firmware_no_log(record: Record) -> None:
    not_started(record)
    record["kernel_log"] = None
    record["folders"]["/lib/firmware/amdnpu/17f0_10"] = []


@machine(
    strix_ubuntu, "hpenedones/fastflowlm-docker#4 (Ubuntu 24.04, kernel 6.17, firmware of 7.0)"
)
def firmware_mismatch(record: Record) -> None:
    record["files"]["/etc/os-release"] = UBUNTU_24
    record["files"]["/proc/sys/kernel/osrelease"] = "6.17.0-19-generic\n"
    not_started(
        record,
        f"amdxdna {BDF}: [drm] *ERROR* aie2_check_protocol: Incompatible firmware protocol "
        "major 7 minor 2",
        f"amdxdna {BDF}: [drm] *ERROR* aie2_hw_start: firmware is not alive",
        f"amdxdna {BDF}: [drm] *ERROR* amdxdna_probe: Hardware init failed, ret -22",
    )


@machine(halo_fedora, "ublue-os/bazzite#4356 (an image whose firmware its kernel does not take)")
def image_firmware_mismatch(record: Record) -> None:
    record["files"]["/etc/os-release"] = BAZZITE
    record["files"]["/proc/sys/kernel/osrelease"] = "6.17.7-ba25.fc43.x86_64\n"
    not_started(
        record,
        f"amdxdna {BDF}: [drm] *ERROR* aie2_check_protocol: Incompatible firmware protocol "
        "major 7 minor 2",
        f"amdxdna {BDF}: [drm] *ERROR* aie2_hw_start: firmware is not alive",
    )


@machine(halo_fedora, "amd/xdna-driver#389 (mailbox of the firmware is damaged)")
def firmware_not_alive(record: Record) -> None:
    not_started(
        record,
        f"amdxdna {BDF}: [drm] *ERROR* aie2_get_mgmt_chann_info: Invalid mbox magic 0x30ec000",
        f"amdxdna {BDF}: [drm] *ERROR* aie2_hw_start: firmware is not alive",
    )


@machine(strix_ubuntu, "amd/xdna-driver#958 (firmware 1.0.0.63)")
def firmware_too_old(record: Record) -> None:
    record["files"][f"{PCI}/fw_version"] = "1.0.0.63\n"


@machine(halo_fedora, "recipes with amd_iommu=off; amd/xdna-driver#299 (Enable PASID failed)")
def iommu_off(record: Record) -> None:
    not_started(
        record,
        f"amdxdna {BDF}: aie2_init: Enable PASID failed, ret -19",
        f"amdxdna {BDF}: amdxdna_probe: Hardware init failed, ret -19",
    )
    record["files"]["/proc/cmdline"] = "amd_iommu=off"
    record["folders"]["/sys/class/iommu"] = []


@machine(phoenix_arch, "ROCm/FastFlowLM#403 (CachyOS, SVA bind -19)")
def iommu_without_sva(record: Record) -> None:
    record["files"]["/etc/os-release"] = CACHYOS
    record["opened"][NODE] = {"error": "ENODEV", "driver": None, "version": None}
    line = f"amdxdna {BDF}: [drm] *ERROR* amdxdna_drm_open: SVA bind device failed, ret -19"
    record["kernel_log"].append(line)


@machine(halo_fedora, "amd/xdna-driver#299 (Enable PASID failed)")
def pasid_failed(record: Record) -> None:
    not_started(
        record,
        f"amdxdna {BDF}: aie2_init: Enable PASID failed, ret -19",
        f"amdxdna {BDF}: amdxdna_probe: Hardware init failed, ret -19",
    )


@machine(strix_ubuntu, "amd/xdna-driver#1028 (SVA bind -95 on the host)")
def iommu_cannot_sva(record: Record) -> None:
    record["opened"][NODE] = {"error": "EOPNOTSUPP", "driver": None, "version": None}


@machine(strix_ubuntu, "an IOMMU that is switched off in the BIOS")
def iommu_off_in_bios(record: Record) -> None:
    record["folders"]["/sys/class/iommu"] = []
    record["opened"][NODE] = {"error": "ENODEV", "driver": None, "version": None}


@machine(strix_ubuntu, "lemonade-sdk/lemonade#1771 (Incus, SVA bind -95)")
def container_without_sva(record: Record) -> None:
    record["files"]["/run/systemd/container"] = "lxc\n"
    record["files"]["/etc/os-release"] = UBUNTU_24
    record["opened"][NODE] = {"error": "EOPNOTSUPP", "driver": None, "version": None}
    record["kernel_log"] = None


@machine(halo_fedora, "a container that was started without --device")
def container_without_node(record: Record) -> None:
    record["stats"]["/.dockerenv"] = {
        "kind": "file", "mode": "0755", "owner": "root", "group": "root", "size": 0,
        "access": False,
    }  # fmt: skip
    for part in ("stats", "opened"):
        record[part].pop(NODE)
    record["kernel_log"] = None


@machine(phoenix_arch, "a kernel without udev's rule for accel")
def no_permission(record: Record) -> None:
    record["stats"][NODE] |= {"mode": "0600", "group": "root", "access": False}
    record["opened"][NODE] = {"error": "EACCES", "driver": None, "version": None}


@machine(strix_ubuntu, "a user outside the group render")
def not_in_render(record: Record) -> None:
    record["stats"][NODE]["access"] = False
    record["opened"][NODE] = {"error": "EACCES", "driver": None, "version": None}
    record["user"] = {"root": False, "groups": ["video"], "granted": ["video"]}


@machine(strix_ubuntu, "a user who has joined render and not logged in again")
def not_logged_in_again(record: Record) -> None:
    record["stats"][NODE]["access"] = False
    record["opened"][NODE] = {"error": "EACCES", "driver": None, "version": None}
    record["user"] = {"root": False, "groups": [], "granted": ["render"]}


@machine(strix_ubuntu, "a system without udev")
def node_missing(record: Record) -> None:
    record["stats"].pop(NODE)
    record["opened"].pop(NODE)


@machine(halo_fedora, "an NPU whose driver fails to resume it")
def node_fails(record: Record) -> None:
    record["opened"][NODE] = {"error": "EIO", "driver": None, "version": None}


@machine(strix_ubuntu, "1bit-MONSTER/1bit-MONSTER#1920 (an NPU that needs a restart)")
def node_hangs(record: Record) -> None:
    record["opened"][NODE] = {"error": "TIMEOUT", "driver": None, "version": None}


@machine(strix_ubuntu, "the default limit of old systems; ROCm/FastFlowLM#437")
def memlock_64k(record: Record) -> None:
    record["memory_lock"] = [65536, 65536]


@machine(halo_fedora, "Fedora's user@.service, which limits.conf does not reach")
def memlock_fedora(record: Record) -> None:
    record["memory_lock"] = [8388608, 8388608]


@machine(strix_ubuntu, "a shell with a soft limit below its hard one")
def memlock_soft(record: Record) -> None:
    record["memory_lock"] = [8388608, -1]


@machine(strix_ubuntu, "a container that was started without --ulimit")
def memlock_container(record: Record) -> None:
    record["files"]["/run/systemd/container"] = "docker\n"
    record["memory_lock"] = [65536, 65536]
