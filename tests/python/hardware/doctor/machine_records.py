"""Writes the records of machines/: `python machine_records.py` (the package importable).

None was recorded on an NPU: each is put together from the public report or page that its `origin`
names, from three healthy machines and what that report changes. The kernel's messages and the
layout of xrt-smi's output are those of the reports. test_doctor_machines.py says what is expected.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from healthy_machines import (
    BDF,
    CACHYOS,
    DEBIAN_12,
    DEBIAN_13,
    DEVICE,
    HALO,
    KRACKAN,
    NO_PYXRT,
    NODE,
    PCI,
    PYXRT,
    UBUNTU_24,
    UBUNTU_26,
    Record,
    done,
    halo_fedora,
    healthy,
    package,
    partitions,
    phoenix_arch,
    strix_ubuntu,
)

FOLDER = Path(__file__).parent / "machines"


# What the machines have in common that is broken in one way.


def without_npu(record: Record) -> None:
    record["folders"]["/sys/bus/pci/devices"] = ["0000:00:00.0"]
    record["files"] = {p: t for p, t in record["files"].items() if not p.startswith(PCI)}
    without_driver(record)


def without_driver(record: Record) -> None:
    """Nothing has loaded amdxdna."""
    record["folders"].pop("/sys/module/amdxdna", None)
    not_started(record)
    record["kernel_log"] = ["AMD-Vi: Interrupt remapping enabled"]


def not_started(record: Record, *log: str) -> None:
    """amdxdna is loaded and gave the NPU up."""
    for part, name in (
        ("links", f"{PCI}/driver"), ("folders", f"{PCI}/accel"), ("files", f"{PCI}/fw_version"),
        ("stats", NODE), ("opened", NODE),
    ):  # fmt: skip
        record[part].pop(name, None)
    record["commands"]["xrt-smi examine"] = done("XRT\n  Version : 2.25.0\n  0 devices found\n")
    record["kernel_log"] = list(log)


def without_xrt(record: Record) -> None:
    for part in ("stats", "links"):
        record[part] = {p: v for p, v in record[part].items() if "libxrt" not in p}
    record["commands"] = {n: v for n, v in record["commands"].items() if "xrt-smi" not in n}
    record["commands"][PYXRT] = done(NO_PYXRT, 1)


def fails(record: Record, kind: str, message: str) -> None:
    outcome = {"outcome": "error", "kind": kind, "message": message}
    record["commands"][DEVICE] = done(json.dumps(outcome) + "\n")


MACHINES: dict[str, Callable[[], Record]] = {
    "healthy_npu2_ubuntu": strix_ubuntu,
    "healthy_npu2_fedora": halo_fedora,
    "healthy_npu1_arch": phoenix_arch,
}


def machine(base: Callable[[], Record], origin: str) -> Callable[..., Callable[[], Record]]:
    """Registers a machine: a base, and a function that breaks it."""

    def register(change: Callable[[Record], None]) -> Callable[[], Record]:
        def make() -> Record:
            record = copy.deepcopy(base())
            record["origin"] = f"put together after {origin}"
            change(record)
            return record

        MACHINES[change.__name__] = make
        return make

    return register


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


@machine(strix_ubuntu, "a system without XRT")
def no_xrt(record: Record) -> None:
    without_xrt(record)


@machine(phoenix_arch, "Arch with xrt and without xrt-plugin-amdxdna")
def xrt_without_plugin(record: Record) -> None:
    record["stats"].pop("/usr/lib/libxrt_driver_xdna.so.2")
    record["commands"]["xrt-smi examine"] = done("XRT\n  Version : 2.21.75\n  0 devices found\n")


@machine(strix_ubuntu, "Debian 12's libxrt 2.13, for FPGA cards, with a kernel of backports")
def debian12_fpga_xrt(record: Record) -> None:
    core = "/usr/lib/x86_64-linux-gnu/libxrt_coreutil.so.2"
    record["files"]["/etc/os-release"] = DEBIAN_12
    record["files"]["/proc/sys/kernel/osrelease"] = "6.17.8+deb12-amd64\n"
    stat = record["stats"][core]
    without_xrt(record)
    record["stats"][core] = stat
    record["links"][core] = "libxrt_coreutil.so.2.13.0"


@machine(strix_ubuntu, "ROCm's LD_LIBRARY_PATH, which hides the plugin")
def library_path_hides_plugin(record: Record) -> None:
    record["environment"]["LD_LIBRARY_PATH"] = "/opt/rocm/lib:/home/USER/lib"
    lib = "/usr/lib/x86_64-linux-gnu/libxrt_coreutil.so.2"
    record["stats"]["/opt/rocm/lib/libxrt_coreutil.so.2"] = record["stats"][lib]


@machine(strix_ubuntu, "amd/xdna-driver#118 and #1448 (driver of 6.14, XRT 2.25)")
def old_driver_new_xrt(record: Record) -> None:
    record["files"]["/etc/os-release"] = UBUNTU_24
    record["files"]["/proc/sys/kernel/osrelease"] = "6.14.0-37-generic\n"
    record["opened"][NODE]["version"] = [0, 0, 0]
    record["commands"]["xrt-smi examine"] = done(
        "XRT build version: 2.25.0\n[xrt-smi] ERROR: DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed "
        "(err=95): Operation not supported\n",
        1,
    )


@machine(halo_fedora, "an NPU that no longer answers")
def xrt_smi_hangs(record: Record) -> None:
    record["commands"]["xrt-smi examine"] = done("", None)


@machine(halo_fedora, "amd/xdna-driver#957 (XRT of another version than its plugin)")
def xrt_smi_finds_nothing(record: Record) -> None:
    record["commands"]["xrt-smi examine"] = done(
        "XRT\n  Version              : 2.25.0\n\nDevice(s) Present\n  0 devices found\n"
    )


@machine(strix_ubuntu, "XRT without its Python bindings")
def pyxrt_missing(record: Record) -> None:
    record["commands"][PYXRT] = done(NO_PYXRT, 1)


@machine(halo_fedora, "a pyxrt of another XRT")
def pyxrt_does_not_load(record: Record) -> None:
    record["folders"]["/usr/lib64"] = ["python3.14"]
    record["folders"]["/usr/lib64/python3.14/site-packages"] = [
        "pyxrt.cpython-314-x86_64-linux-gnu.so"
    ]
    error = "ImportError: pyxrt.cpython-314-x86_64-linux-gnu.so: undefined symbol: _ZN3xrt2boD1Ev"
    record["commands"][PYXRT] = done(f"Traceback (most recent call last):\n{error}\n", 1)


@machine(strix_ubuntu, "the PPA's pyxrt, built for Python 3.12 only")
def pyxrt_other_python(record: Record) -> None:
    folder = "/usr/lib/python3/dist-packages"
    record["files"]["/etc/os-release"] = UBUNTU_24
    record["folders"][folder] = ["pyxrt.cpython-312-x86_64-linux-gnu.so"]
    record["commands"][PYXRT] = done(NO_PYXRT, 1)


@machine(strix_ubuntu, "XRT of AMD's build in /opt, setup.sh not sourced")
def pyxrt_not_on_path(record: Record) -> None:
    record["folders"]["/opt/xilinx/xrt/python"] = ["pyxrt.cpython-314-x86_64-linux-gnu.so"]
    record["commands"][PYXRT] = done(NO_PYXRT, 1)


@machine(halo_fedora, "16 contexts of the firmware (mlir-aie#3526)")
def contexts_taken(record: Record) -> None:
    text = partitions(HALO, [2000 + n // 4 for n in range(16)])
    record["commands"]["xrt-smi examine -r aie-partitions"] = done(text)


@machine(strix_ubuntu, "a machine before `npu build`, its tools there")
def empty_cache(record: Record) -> None:
    record["xclbins"] = []


@machine(phoenix_arch, "a cache that was filled for the other generation")
def cache_of_npu2(record: Record) -> None:
    record["xclbins"] = ["npu2/gemm_i8_i32-0123456789abcdef"]


@machine(strix_ubuntu, "a cache without the configuration of the command")
def command_not_built(record: Record) -> None:
    message = (
        '[load] configuration "gemm_i8_i32" for npu2 has not been built (x is not in the cache); '
        "build it: npu build --device npu2 gemm"
    )
    fails(record, "build", message)


@machine(strix_ubuntu, "a machine before `npu build`, without its tools")
def no_build_tools(record: Record) -> None:
    record["xclbins"] = []
    record["commands"].pop("xclbinutil --version")
    for name in ("mlir_aie", "llvm-aie"):
        record["commands"][package(name)] = done("\n")


@machine(strix_ubuntu, "nix-amd-ai#79 (Krackan, in-tree 0.8, clean validate, no context)")
def context_refused(record: Record) -> None:
    krackan = healthy(KRACKAN, "ubuntu", UBUNTU_26, "7.1.0-9-generic", "2.25.0")
    record.update({**krackan, "origin": record["origin"]})
    fails(record, "context", "[load] a hardware context for configuration \"gemm\": the firmware "
          "refuses it (DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22): Invalid "
          "argument)")  # fmt: skip


@machine(strix_ubuntu, "an NPU that takes commands and does not finish them")
def command_times_out(record: Record) -> None:
    record["commands"][DEVICE] = done("", None)


@machine(phoenix_arch, "amd/xdna-driver#1448 (ERT_CMD_STATE_ABORT right after load)")
def command_aborts(record: Record) -> None:
    fails(record, "aborted", "[matmul] xrt: the command was aborted (ERT_CMD_STATE_ABORT)")


@machine(strix_ubuntu, "memory that cannot be locked (EXEC, err -11)")
def command_without_memory(record: Record) -> None:
    message = "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-11): Resource temporarily unavailable"
    fails(record, "memory", message)


@machine(strix_ubuntu, "more buffers than the xclbin declares, which crashes XRT")
def command_crashes(record: Record) -> None:
    record["commands"][DEVICE] = done("Segmentation fault (core dumped)\n", -11)


@machine(strix_ubuntu, "a device of another generation than PCI says")
def other_generation(record: Record) -> None:
    record["commands"][DEVICE] = done('{"outcome": "ok", "seconds": 0.1, "generation": "npu1"}\n')


@machine(halo_fedora, "configurations of the other generation: all-zero output, no error")
def wrong_result(record: Record) -> None:
    record["commands"][DEVICE] = done('{"outcome": "wrong", "wrong": 4096, "of": 4096}\n')


@machine(strix_ubuntu, "a version of this package without the XRT device")
def no_xrt_device(record: Record) -> None:
    message = '[device] "xrt" was requested, but this version has no XRT device'
    outcome = {"outcome": "unavailable", "message": message}
    record["commands"][DEVICE] = done(json.dumps(outcome) + "\n")


GARBAGE = bytes(range(256)) * 8


def damage(record: Record, content: Any) -> None:
    """Of everything below /sys and /proc that is read."""
    for path in record["files"]:
        if path.startswith(("/sys/", "/proc/")):
            record["files"][path] = content


@machine(strix_ubuntu, "sysfs files of binary garbage")
def sysfs_garbage(record: Record) -> None:
    damage(record, {"base64": base64.b64encode(GARBAGE).decode()})


@machine(strix_ubuntu, "empty sysfs files")
def sysfs_empty(record: Record) -> None:
    damage(record, "")


@machine(strix_ubuntu, "sysfs files that do not end")
def sysfs_huge(record: Record) -> None:
    record["files"][f"{PCI}/vendor"] = "0x1022 " * 10000


@machine(strix_ubuntu, "a sandbox without /sys")
def no_sysfs(record: Record) -> None:
    for part in ("files", "folders", "links"):
        record[part] = {p: v for p, v in record[part].items() if not p.startswith("/sys")}


@machine(strix_ubuntu, "a healthy machine whose NPU's driver and kernel files are damaged")
def driver_files_garbage(record: Record) -> None:
    garbage = {"base64": base64.b64encode(GARBAGE).decode()}
    for path in (f"{PCI}/fw_version", f"{PCI}/iommu_group/type", "/proc/sys/kernel/osrelease"):
        record["files"][path] = garbage
    record["files"]["/etc/os-release"] = garbage
    record["commands"]["xrt-smi examine -r platform"] = done(GARBAGE.decode(errors="replace"))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in MACHINES.items():
        (FOLDER / f"{name}.json").write_text(as_text(make()))


def as_text(record: Record) -> str:
    """One line per file, folder or command."""
    parts = []
    for name, value in record.items():
        text = json.dumps(value)
        if isinstance(value, dict) and value:
            rows = (f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
            text = "{\n" + ",\n".join(rows) + "\n }"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
