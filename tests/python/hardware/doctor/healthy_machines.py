"""Healthy machines as records, which machine_records.py breaks. None was recorded on an NPU."""

from __future__ import annotations

import json
import shlex
from typing import Any

from npu.hardware.doctor import bindings, command
from npu.hardware.doctor.record import SCHEMA

Record = dict[str, Any]

UBUNTU_26 = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="26.04"\nPRETTY_NAME="Ubuntu 26.04 LTS"\n'
UBUNTU_24 = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.4 LTS"\n'
DEBIAN_12 = 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n'
DEBIAN_13 = 'ID=debian\nVERSION_ID="13"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n'
FEDORA_44 = 'ID=fedora\nVERSION_ID=44\nPRETTY_NAME="Fedora Linux 44 (Workstation Edition)"\n'
BAZZITE = (
    "ID=bazzite\nID_LIKE=fedora\nVERSION_ID=43\nVARIANT_ID=bazzite\nOSTREE_VERSION='43.20260309.1'\n"
    'PRETTY_NAME="Bazzite"\n'
)
ARCH = 'ID=arch\nPRETTY_NAME="Arch Linux"\n'
CACHYOS = 'ID=cachyos\nID_LIKE=arch\nPRETTY_NAME="CachyOS"\n'

# (device, revision, name, firmware folder and version, generation, cpu family, model, cpu)
PHOENIX = (
    "1502", "00", "NPU Phoenix", "1502_00", "1.5.5.391", "npu1", 25, 116,
    "AMD Ryzen 7 7840U w/ Radeon 780M Graphics",
)  # fmt: skip
STRIX = (
    "17f0", "10", "NPU Strix", "17f0_10", "1.1.2.65", "npu2", 26, 36,
    "AMD Ryzen AI 9 HX 370 w/ Radeon 890M",
)  # fmt: skip
HALO = (
    "17f0", "11", "NPU Strix Halo", "17f0_11", "1.1.2.65", "npu2", 26, 112,
    "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
)  # fmt: skip
KRACKAN = (
    "17f0", "20", "NPU Krackan 1", "17f0_10", "1.1.2.65", "npu2", 26, 96,
    "AMD Ryzen AI 7 350 w/ Radeon 860M",
)  # fmt: skip

WHEELS = "/home/USER/venv/lib/python3.14/site-packages"
AIECC, PEANO = f"{WHEELS}/mlir_aie/bin/aiecc", f"{WHEELS}/llvm-aie/bin/clang++"
XCLBINUTIL = "/usr/bin/xclbinutil"
TOOLS = (AIECC, PEANO, XCLBINUTIL)
BDF = "0000:c5:00.1"
PCI = f"/sys/bus/pci/devices/{BDF}"
NODE = "/dev/accel/accel0"
LIB = {"ubuntu": "/usr/lib/x86_64-linux-gnu", "fedora": "/usr/lib64", "arch": "/usr/lib"}
PYXRT = shlex.join(("python", "-c", bindings._PYXRT))
DEVICE = shlex.join(command._WORDS)
MODULE = shlex.join(bindings._LIBRARY)
MODULE_FILE = "/home/USER/.cache/npu-xdna/xrt/libnpu_xrt.so"
NO_PYXRT = (
    "Traceback (most recent call last):\n"
    '  File "<string>", line 1, in <module>\n'
    "ModuleNotFoundError: No module named 'pyxrt'\n"
)


def done(output: str, exit: int | None = 0) -> dict[str, Any]:
    return {"exit": exit, "output": output}


def examine(npu: tuple[Any, ...], kernel: str, xrt: str, driver: str) -> str:
    return (
        "System Configuration\n"
        "  OS Name              : Linux\n"
        f"  Release              : {kernel}\n"
        "  Machine              : x86_64\n"
        "  CPU Cores            : 24\n"
        "  Memory               : 31492 MB\n"
        f"  Processor            : {npu[8]}\n\n"
        "XRT\n"
        f"  Version              : {xrt}\n"
        "  Branch               : HEAD\n"
        "  Hash Date            : 2026-06-20 09:47:56\n"
        f"  amdxdna Version      : {driver}\n"
        f"  NPU Firmware Version : {npu[4]}\n\n"
        "Device(s) Present\n"
        "|BDF             |Name           |Architecture  |Topology  |\n"
        "|----------------|---------------|--------------|----------|\n"
        f"|[{BDF}]  |{npu[2]:15}|{'aie2' if npu[5] == 'npu1' else 'aie2p':14}|6x8       |\n\n\n"
    )


def platform(npu: tuple[Any, ...], mode: str = "default") -> str:
    line = "-" * 27
    return (
        f"\n{line}\n[{BDF}] : {npu[2]}\n{line}\nPlatform\n  Name                   : {npu[2]} \n"
        f"  Power Mode             : {mode} \n  Total Columns          : 8 \n"
    )


def partitions(npu: tuple[Any, ...], processes: list[int]) -> str:
    line = "-" * 27
    text = f"\n{line}\n[{BDF}] : {npu[2]}\n{line}\nAIE Partitions\n"
    if not processes:
        return text + "  No hardware contexts running on device\n"
    text += (
        "  Partition Index: 0\n    Columns: [0, 1, 2, 3, 4, 5, 6, 7]\n    HW Contexts:\n"
        "      |PID     |Ctx ID  |Status  |Instr BO  |Sub  |Compl  |Migr  |Err  |Prio  |\n"
        "      |--------|--------|--------|----------|-----|-------|------|-----|------|\n"
    )
    rows = (
        f"      |{pid:<8}|{n + 1:<8}|Active  |N/A       |105  |104    |0     |0    |Low   |\n"
        for n, pid in enumerate(processes)
    )
    return text + "".join(rows)


def cpu(npu: tuple[Any, ...]) -> str:
    return (
        f"vendor_id\t: AuthenticAMD\ncpu family\t: {npu[6]}\nmodel\t\t: {npu[7]}\n"
        f"model name\t: {npu[8]}\n"
    )


def healthy(
    npu: tuple[Any, ...], system: str, release: str, kernel: str, xrt: str, driver: str = "0.8"
) -> Record:
    """A machine where all is right, ``system`` naming where its libraries lie."""
    device, revision, _, folder, firmware, generation = npu[:6]
    lib, drm = LIB[system], [0, int(driver.split(".")[1]), 0]
    ids = {"vendor": "0x1022\n", "device": f"0x{device}\n", "revision": f"0x{revision}\n"}
    bridge = {"vendor": "0x1022\n", "device": "0x1507\n", "revision": "0x00\n"}
    files = {
        **{f"/sys/bus/pci/devices/0000:00:00.0/{name}": text for name, text in bridge.items()},
        **{f"{PCI}/{name}": text for name, text in ids.items()},
        f"{PCI}/fw_version": f"{firmware}\n",
        f"{PCI}/iommu_group/type": "DMA-FQ\n",
        "/etc/os-release": release,
        "/proc/cpuinfo": cpu(npu),
        "/proc/cmdline": "",
        "/proc/sys/kernel/osrelease": f"{kernel}\n",
    }
    file = {"kind": "file", "mode": "0644", "owner": "root", "group": "root", "access": False}
    sbin = f"/lib/firmware/amdnpu/{folder}/npu.sbin.zst"
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "origin": "made up: all is right",
        "files": files,
        "folders": {
            "/sys/bus/pci/devices": ["0000:00:00.0", BDF],
            f"{PCI}/accel": ["accel0"],
            "/sys/module/amdxdna": ["drivers", "parameters", "taint"],
            "/sys/class/iommu": ["ivhd0"],
            f"/lib/firmware/amdnpu/{folder}": ["npu.sbin.zst"],
            "/etc/modprobe.d": ["blacklist.conf"],
        },
        "links": {
            f"{PCI}/driver": "../../../../bus/pci/drivers/amdxdna",
            f"{lib}/libxrt_coreutil.so.2": f"libxrt_coreutil.so.{xrt}",
        },
        "stats": {
            NODE: {"kind": "character device", "mode": "0660", "owner": "root", "group": "render",
                   "size": 0, "access": True},
            sbin: {**file, "size": 73000},
            f"{lib}/libxrt_coreutil.so.2": {**file, "size": 2500000},
            f"{lib}/libxrt_driver_xdna.so.2": {**file, "size": 900000},
            **{tool: {**file, "mode": "0755", "size": 9 << 20} for tool in TOOLS},
        },
        "commands": {
            "xrt-smi examine": done(examine(npu, kernel, xrt, driver)),
            "xrt-smi examine -r platform": done(platform(npu)),
            "xrt-smi examine -r aie-partitions": done(partitions(npu, [])),
            "modinfo amdxdna": done(
                f"filename:       /lib/modules/{kernel}/kernel/drivers/accel/amdxdna/"
                "amdxdna.ko.zst\nlicense:        GPL\n"
            ),
            PYXRT: done("/usr/lib/python3/dist-packages/pyxrt.cpython-314-x86_64-linux-gnu.so\n"),
            f"{AIECC} --help": done("  --get=<name>  - Request outputs (e.g. --get-xclbin)\n"),
            DEVICE: done(
                json.dumps({"outcome": "ok", "seconds": 0.0021, "generation": generation}) + "\n"
            ),
        },
        "opened": {NODE: {"error": None, "driver": "amdxdna_accel_driver", "version": drm}},
        "kernel_log": [
            "AMD-Vi: Interrupt remapping enabled",
            f"amdxdna {BDF}: [drm] Load firmware amdnpu/{folder}/npu.sbin",
            f"amdxdna {BDF}: enabling device (0000 -> 0002)",
            f"[drm] Initialized amdxdna_accel_driver {driver}.0 for {BDF} on minor 0",
        ],
        "environment": {},
        "programs": {"xclbinutil": XCLBINUTIL},
        "packages": {"mlir_aie": f"{WHEELS}/mlir_aie", "llvm-aie": f"{WHEELS}/llvm-aie"},
        "user": {"root": False, "groups": ["render"], "granted": ["render"]},
        "memory_lock": [-1, -1],
        "python": {
            "version": "3.14.1", "abi": "cpython-314", "virtual": True, "program": "python3",
        },
        "damaged_xclbins": [],
        "xclbins": [
            f"{generation}/{name}-{generation}-0123456789abcdef"
            for name in ("decoder", "gemm_i8_i32")
        ],
    }  # fmt: skip


def strix_ubuntu() -> Record:
    return healthy(STRIX, "ubuntu", UBUNTU_26, "7.0.0-14-generic", "2.25.0")


def halo_fedora() -> Record:
    return healthy(HALO, "fedora", FEDORA_44, "7.1.3-200.fc44.x86_64", "2.25.0")


def phoenix_arch() -> Record:
    return healthy(PHOENIX, "arch", ARCH, "7.1.4-arch1-1", "2.21.75")
