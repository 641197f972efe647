"""Machines that are broken from XRT up: XRT, pyxrt, tools, what is built, commands; and files that
say nothing."""

from __future__ import annotations

import base64
import json
from typing import Any

from healthy_machines import (
    AIECC,
    BDF,
    DEBIAN_12,
    DEVICE,
    HALO,
    KRACKAN,
    NO_PYXRT,
    NODE,
    PCI,
    PEANO,
    PYXRT,
    UBUNTU_24,
    UBUNTU_26,
    XCLBINUTIL,
    Record,
    done,
    halo_fedora,
    healthy,
    partitions,
    phoenix_arch,
    strix_ubuntu,
)
from machine_base import (
    fails,
    machine,
    with_module,
    without_tools,
    without_xrt,
)


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


@machine(halo_fedora, "amd/xdna-driver#1566 (resume fails; GET_INFO reports it)")
def resume_failed(record: Record) -> None:
    record["kernel_log"] += [
        f"amdxdna {BDF}: [drm] *ERROR* aie2_config_cu: Lookup GEM object failed",
        f"amdxdna {BDF}: [drm] *ERROR* amdxdna_pm_resume_get: Resume failed: -22",
    ]
    record["commands"]["xrt-smi examine"] = done(
        "XRT build version: 2.25.0\n[xrt-smi] ERROR: DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed "
        "(err=-22): Invalid argument\n", 1,
    )  # fmt: skip


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


@machine(strix_ubuntu, "Ubuntu 26.04, whose XRT has no Python bindings, after npu build --xrt")
def module_instead_of_pyxrt(record: Record) -> None:
    with_module(record, abi=2, wanted=2)


@machine(strix_ubuntu, "the same after an update of this package")
def module_of_another_version(record: Record) -> None:
    with_module(record, abi=1, wanted=2)


@machine(strix_ubuntu, "the same after an update of XRT")
def module_does_not_load(record: Record) -> None:
    error = "libxrt_coreutil.so.2: cannot open shared object file: No such file or directory"
    with_module(record, error=error)
    record["stats"]["/usr/include/xrt"] = dict(record["stats"]["/usr/bin/xclbinutil"])


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
    record["xclbins"] = ["npu2/gemm_i8_i32-npu2-0123456789abcdef"]


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
    without_tools(record)


@machine(strix_ubuntu, "Ubuntu 24.04, whose xclbinutil is in the PPA; wheels in an environment")
def no_xclbinutil(record: Record) -> None:
    record["files"]["/etc/os-release"] = UBUNTU_24
    record["files"]["/proc/sys/kernel/osrelease"] = "6.17.0-22-generic\n"
    record["xclbins"] = []
    without_tools(record, XCLBINUTIL)


@machine(halo_fedora, "a Python for which mlir-aie has no wheel")
def no_wheels_for_python(record: Record) -> None:
    record["xclbins"] = []
    without_tools(record, AIECC, PEANO)
    record["python"] |= {"version": "3.15.0", "program": "/home/USER/npu/bin/python"}


@machine(phoenix_arch, "PEANO_INSTALL_DIR of an LLVM that was removed")
def variable_names_no_tool(record: Record) -> None:
    record["xclbins"] = []
    record["environment"]["PEANO_INSTALL_DIR"] = "/home/USER/llvm-aie"


@machine(strix_ubuntu, "a clang++ on PATH that is the host's, and Peano nowhere")
def clang_of_the_host(record: Record) -> None:
    record["xclbins"] = []
    without_tools(record, PEANO)
    host = "/usr/bin/clang++"
    record["programs"]["clang++"] = host
    record["stats"][host] = record["stats"][AIECC]
    record["commands"][f"{host} --print-targets"] = done("    x86-64 - 64-bit X86\n")


@machine(strix_ubuntu, "an mlir-aie without the libraries it needs")
def aiecc_does_not_start(record: Record) -> None:
    record["xclbins"] = []
    record["commands"][f"{AIECC} --help"] = done(
        "aiecc: error while loading shared libraries: libstdc++.so.6: cannot open shared object "
        "file: No such file or directory\n", 127,
    )  # fmt: skip


@machine(strix_ubuntu, "a disk that has changed bits of the cache")
def damaged_cache(record: Record) -> None:
    names = record["xclbins"]
    record["xclbins"], record["damaged_xclbins"] = names[:1], names[1:]


@machine(strix_ubuntu, "nix-amd-ai#79 (Krackan, in-tree 0.8, clean validate, no context)")
def context_refused(record: Record) -> None:
    krackan = healthy(KRACKAN, "ubuntu", UBUNTU_26, "7.1.0-9-generic", "2.25.0")
    record.update({**krackan, "origin": record["origin"]})
    fails(record, "context", "[load] a hardware context for configuration \"gemm\": the firmware "
          "refuses it (DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22): Invalid "
          "argument)")  # fmt: skip


@machine(strix_ubuntu, "amd/xdna-driver#1670 (a change of the clock failed)")
def clock_change_failed(record: Record) -> None:
    record["kernel_log"] += [
        f"amdxdna {BDF}: [drm] *ERROR* Set hclock to 1600 failed, ret -110",
        "genirq: Flags mismatch irq 95. 00200000 (xdna_mailbox) vs. 00200000 (xdna_mailbox)",
        "xdna_mailbox.95: Failed to request irq 95 ret -16",
    ]
    fails(record, "context", "[load] a hardware context for configuration \"gemm\": "
          "(DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-16): Device or resource "
          "busy)")  # fmt: skip


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
