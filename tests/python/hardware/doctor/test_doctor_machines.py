"""Every recorded machine gives exactly its first broken layer, and a fix with the words and the
commands that matter on its distribution; the screen fits 80 x 24.

A new machine: a function in machine_records.py, its file (run that script), a line here.
"""

from __future__ import annotations

import json

import pytest
from healthy_machines import BAZZITE, MODULE, done
from machine_records import FOLDER, MACHINES, as_text, fails, module

from npu.hardware.build.targets import select
from npu.hardware.doctor import record, report
from npu.hardware.doctor.examine import ALL_LAYERS, Diagnosis, examine
from npu.hardware.doctor.result import State

# name -> first broken layer (None: none), words of what was found and of the fix
EXPECTED: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "healthy_npu2_ubuntu": (None, ()),
    "healthy_npu2_fedora": (None, ()),
    "healthy_npu1_arch": (None, ()),
    "bios_disabled": ("npu", ("off in the BIOS", "HX 370", "--firmware-setup")),
    "no_npu_intel": ("npu", ("no AMD NPU", "Ultra 7 155H", "emulated NPU works", "npu devices")),
    "virtual_machine": ("npu", ("virtual machine", "emulated NPU works")),
    "wsl": ("npu", ("WSL", "Start Linux itself", "emulated NPU works")),
    "aie4": ("npu", ("1022:17f1", "AIE4", "emulated NPU works")),
    "unknown_revision": ("npu", ("17f0 rev 30", "can hang the NPU", "--record")),
    "kernel_too_old": (
        "kernel", ("6.8.0-31-generic is too old", "6.14", "linux-generic-hwe-24.04",
                   "ppa:amd-team/xrt", "amdxdna-dkms"),
    ),
    "no_driver": ("driver", ("not installed", "-t trixie-backports linux-image-amd64")),
    "driver_not_loaded": ("driver", ("installed, not loaded", "sudo modprobe amdxdna")),
    "driver_blacklisted": ("driver", ("blacklisted in /etc/modprobe.d/no-npu.conf", "sudoedit")),
    "secure_boot": ("driver", ("Secure Boot", "mokutil --import /var/lib/shim-signed/mok/MOK.der")),
    "module_of_another_kernel": (
        "driver", ("of another kernel", "version magic 7.1.3-arch1-1", "sudo dkms autoinstall",
                   "sudo mkinitcpio -P"),
    ),
    "vfio": ("driver", ("vfio-pci holds the NPU", "drivers/vfio-pci/unbind", "drivers_probe")),
    "driver_does_not_start": (
        "driver", ("does not start", "Hardware init failed, ret -22", "pacman -Syu"),
    ),
    "driver_silent": ("driver", ("has not taken the NPU", "modprobe -r amdxdna", "dmesg")),
    "no_firmware": ("firmware", ("no firmware in amdnpu/1502_00", "pacman -Syu linux-firmware")),
    "no_firmware_no_log": ("firmware", ("amdnpu/17f0_10", "apt install linux-firmware")),
    "firmware_mismatch": (
        "firmware", ("do not fit together", "Incompatible firmware protocol major 7 minor 2",
                     "Linux 7.0", "apt install amdxdna-dkms"),
    ),
    "image_firmware_mismatch": (
        "firmware", ("do not fit together", "rpm-ostree upgrade", "rpm-ostree rollback"),
    ),
    "firmware_not_alive": (
        "firmware", ("does not start", "firmware is not alive", "Power off completely",
                     "dnf upgrade --refresh linux-firmware"),
    ),
    "firmware_too_old": ("firmware", ("1.0.0.63 is too old", "1.1", "linux-firmware")),
    "iommu_off": (
        "iommu", ("off by amd_iommu=off", 'grubby --update-kernel=ALL --remove-args="amd_iommu'),
    ),
    "iommu_without_sva": ("iommu", ("SVA fails (ENODEV)", "add amd_iommu=on iommu=pt", "grub")),
    "pasid_failed": ("iommu", ("SVA fails (-19)", "grubby", "amd_iommu=on iommu=pt")),
    "iommu_cannot_sva": ("iommu", ("SVA fails (EOPNOTSUPP)", "just updated needs a restart")),
    "iommu_off_in_bios": ("iommu", ("the kernel has no IOMMU", "firmware set-up", "update-grub")),
    "container_without_sva": (
        "iommu", ("no SVA in this container (EOPNOTSUPP)", "on the host",
                  "--device /dev/accel/accel0 --ulimit memlock=-1:-1"),
    ),
    "container_without_node": (
        "node", ("not in this container", "--device /dev/accel/accel0", "--group-add"),
    ),
    "no_permission": ("node", ("root:root 0600: root only", "70-npu.rules", "usermod -aG render")),
    "not_in_render": ("node", ("not in group render", "sudo usermod -aG render $USER", "log out")),
    "not_logged_in_again": ("node", ("log in again", "newgrp render")),
    "node_missing": ("node", ("/dev/accel/accel0 is missing", "udevadm trigger")),
    "node_hangs": ("node", ("hangs", "sudo modprobe -r amdxdna && sudo modprobe amdxdna")),
    "node_fails": ("node", ("cannot be opened: EIO", "dmesg")),
    "memlock_64k": ("memlock", ("64 KB", "@render - memlock unlimited", "limits.d/90-npu.conf")),
    "memlock_fedora": (
        "memlock", ("8 MB", "LimitMEMLOCK=infinity", "/etc/systemd/system/user@.service.d"),
    ),
    "memlock_soft": ("memlock", ("8 MB (hard limit: none)", "ulimit -l unlimited")),
    "memlock_container": ("memlock", ("64 KB", "--ulimit memlock=-1:-1")),
    "no_xrt": ("xrt", ("not installed", "sudo apt install libxrt2 libxrt-npu2")),
    "xrt_without_plugin": (
        "xrt", ("no NPU plugin", "libxrt_driver_xdna.so.2", "pacman -S xrt xrt-plugin-amdxdna"),
    ),
    "debian12_fpga_xrt": (
        "xrt", ("2.13.0 is for FPGA cards only", "Debian 13", "github.com/amd/xdna-driver"),
    ),
    "library_path_hides_plugin": (
        "xrt", ("LD_LIBRARY_PATH hides", "/opt/rocm/lib",
                'export LD_LIBRARY_PATH="/home/USER/lib"'),
    ),
    "old_driver_new_xrt": (
        "xrt-smi", ("driver older than XRT (error 95)", "newer driver", "amdxdna-dkms"),
    ),
    "resume_failed": (
        "xrt-smi", ("cannot wake the NPU", "Resume failed: -22", "modprobe -r amdxdna"),
    ),
    "xrt_smi_hangs": ("xrt-smi", ("hangs", "power off completely", "modprobe -r amdxdna")),
    "xrt_smi_finds_nothing": ("xrt-smi", ("finds no NPU", "same version", "dnf install xrt")),
    "pyxrt_missing": (
        "pyxrt", ("not installed", "no package", "sudo apt install libxrt-dev g++ cmake",
                  "npu build --xrt"),
    ),
    "module_instead_of_pyxrt": (None, ()),
    "module_of_another_version": (
        "pyxrt", ("libnpu_xrt.so cannot be used", "another version", "npu build --xrt"),
    ),
    "module_does_not_load": (
        "pyxrt", ("does not load (libxrt_coreutil.so.2: cannot open", "npu build --xrt"),
    ),
    "pyxrt_other_python": (
        "pyxrt", ("for Python 3.12, this is 3.14.1", "ppa:amd-team/xrt", "libxrt-dev",
                  "npu build --xrt"),
    ),
    "pyxrt_not_on_path": (
        "pyxrt", ("not on this Python's path", "source /opt/xilinx/xrt/setup.sh"),
    ),
    "pyxrt_does_not_load": ("pyxrt", ("does not load", "undefined symbol", "dnf install xrt")),
    "contexts_taken": ("users", ("all 16 contexts", "ps -fp 2000 2001 2002 2003")),
    "no_build_tools": (
        "tools", ("aiecc, Peano, xclbinutil not installed", "python3 -m pip install mlir_aie -f",
                  "latest-wheels-4", "pip install llvm-aie==21.0.0.2026080301",
                  "sudo apt install libxrt-utils\n", "npu build --device npu2"),
    ),
    "no_xclbinutil": (
        "tools", ("xclbinutil not installed", "ppa:amd-team/xrt", "sudo apt install libxrt-utils"),
    ),
    "no_wheels_for_python": (
        "tools", ("aiecc, Peano not", "for Python 3.11 to 3.14, this is 3.15.0",
                  "python3.14 -m venv ~/npu-tools", "~/npu-tools/bin/python -m pip install",
                  "export PEANO_INSTALL_DIR=~/npu-tools/lib/python3.14/site-packages/llvm-aie"),
    ),
    "variable_names_no_tool": (
        "tools", ("PEANO_INSTALL_DIR names no tool", " ~/llvm-aie/bin/clang++ is no",
                  "unset PEANO_INSTALL_DIR"),
    ),
    "clang_of_the_host": ("tools", ("Peano not installed", "pip install llvm-aie==21")),
    "aiecc_does_not_start": (
        "tools", ("does not start", "libstdc++.so.6", "python3 -m pip install mlir_aie"),
    ),
    "damaged_cache": (
        "xclbins", ("1 of 2 damaged", "npu2/gemm_i8_i32-npu2-0123456789abcdef",
                    "npu build --device npu2 gemm_i8_i32"),
    ),
    "empty_cache": ("xclbins", ("empty", "npu build --device npu2")),
    "cache_of_npu2": ("xclbins", ("empty", "npu build --device npu1")),
    "command_not_built": (
        "command", ("its configuration is not built", "npu build --device npu2 gemm"),
    ),
    "context_refused": (
        "command", ("refuses every context", "CREATE_HWCTX", "err=-22", "apt full-upgrade"),
    ),
    "clock_change_failed": (
        "command", ("the driver refuses every context", "Set hclock to 1600 failed, ret -110",
                    "sudo modprobe -r amdxdna && sudo modprobe amdxdna", "since 2026-09"),
    ),
    "command_times_out": (
        "command", ("no answer within 60 s", "modprobe -r amdxdna", "power off completely"),
    ),
    "command_aborts": ("command", ("aborted", "of different times", "amdxdna-dkms")),
    "command_without_memory": ("command", ("memory", "err=-11", "ulimit -l", "limits.d")),
    "command_crashes": ("command", ("the command failed", "Segmentation fault", "--record")),
    "wrong_result": ("command", ("4096 of 4096 wrong", "another generation", "--force gemm")),
    "other_generation": ("command", ("device says npu1, PCI says npu2", "npu build")),
    "no_xrt_device": (None, ()),
    "sysfs_garbage": (None, ()),
    "sysfs_empty": (None, ()),
    "sysfs_huge": (None, ()),
    "no_sysfs": (None, ()),
    "driver_files_garbage": (None, ()),
}  # fmt: skip
RUNS = (
    "healthy_npu2_ubuntu", "healthy_npu2_fedora", "healthy_npu1_arch", "driver_files_garbage",
    "module_instead_of_pyxrt",
)  # fmt: skip
TITLE_COLUMN, FOUND_COLUMNS = 25, 55

every_machine = pytest.mark.parametrize("name", MACHINES)


def diagnosis_of(name: str) -> Diagnosis:
    return examine(record.load(str(FOLDER / f"{name}.json")))


@every_machine
def test_the_first_broken_layer_and_its_fix(name: str) -> None:
    diagnosis = diagnosis_of(name)
    layer, words = EXPECTED[name]
    first = diagnosis.first_broken
    assert (first and first.name) == layer, report.plain(diagnosis)
    if first is None:
        assert diagnosis.verdict is (State.OK if name in RUNS else State.UNKNOWN)
        return
    result = diagnosis.results[first.name]
    assert result.fix is not None
    said = "\n".join((result.found, result.fix.text, *result.fix.commands))
    assert [word for word in words if word not in said] == [], said
    assert diagnosis.verdict is State.BROKEN


@every_machine
def test_the_screen_is_80_x_24_and_keeps_every_word(name: str) -> None:
    """With a line for the prompt; nothing of a table row is cut, every command is whole."""
    diagnosis = diagnosis_of(name)
    screen = report.plain(diagnosis)
    lines = screen.splitlines()
    assert len(lines) <= 23
    assert max(len(line) for line in lines) <= 80
    assert {r.found for r in diagnosis.results.values() if len(r.found) > FOUND_COLUMNS} == set()
    for layer in ALL_LAYERS:
        assert layer.title in screen.replace("\n        ", " ")
    first = diagnosis.first_broken
    fix = first and diagnosis.results[first.name].fix
    for command in fix.commands if fix else ():
        assert all(f"  {line}" in lines for line in command.splitlines())


@every_machine
def test_no_probe_fails(name: str) -> None:
    results = diagnosis_of(name).results
    assert [r.found for r in results.values() if r.found.startswith("the probe failed")] == []


@every_machine
def test_what_lies_below_a_broken_layer_is_not_called_right(name: str) -> None:
    """No command runs unless all is right, and a fix belongs to every broken layer."""
    results = diagnosis_of(name).results
    broken = [layer for layer, result in results.items() if result.state is State.BROKEN]
    assert all(results[layer].fix is not None for layer in broken)
    if broken and broken != ["command"]:
        assert results["command"].state in (State.UNKNOWN, State.NOT_NEEDED)


def test_the_files_are_what_the_script_writes() -> None:
    """After a change: python tests/python/hardware/doctor/machine_records.py"""
    assert {path.stem for path in FOLDER.glob("*.json")} == set(MACHINES) == set(EXPECTED)
    for name, make in MACHINES.items():
        assert (FOLDER / f"{name}.json").read_text() == as_text(make()), name


def test_every_layer_breaks_somewhere() -> None:
    broken = {layer for layer, _ in EXPECTED.values()} - {None}
    never = {"container", "power"}  # which inform only
    assert broken | never == {layer.name for layer in ALL_LAYERS}


def test_remarks_break_nothing() -> None:
    """Slow power mode, other programs, an old kernel: said, and the verdict is all right."""
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["files"]["/proc/sys/kernel/osrelease"] = "6.14.0-37-generic\n"
    made["memory_lock"] = [1 << 30, 1 << 30]
    text = made["commands"]["xrt-smi examine -r platform"]["output"]
    made["commands"]["xrt-smi examine -r platform"]["output"] = text.replace(
        "default", "powersaver"
    )
    text = made["commands"]["xrt-smi examine"]["output"]
    made["commands"]["xrt-smi examine"]["output"] = text.replace(": 0.8", ": 2.21.0_2025, 7c1d")
    diagnosis = examine(record.ReplaySystem(json.loads(json.dumps(made))))
    assert diagnosis.verdict is State.OK
    notes = {name: result.notes for name, result in diagnosis.results.items() if result.notes}
    assert set(notes) == {"kernel", "memlock", "power", "xrt-smi"}
    assert "4 remark(s): npu doctor --verbose" in report.plain(diagnosis)
    assert "--pmode performance" in report.verbose(diagnosis)


@pytest.mark.parametrize(
    ("release", "packages"),
    [
        ('ID=ubuntu\nVERSION_ID="26.04"', "apt install libxrt2 libxrt-npu2"),
        ('ID=ubuntu\nVERSION_ID="24.04"', "add-apt-repository ppa:amd-team/xrt"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"\nUBUNTU_CODENAME=noble', "ppa:"),
        ('ID=debian\nVERSION_ID="13"', "apt install -t trixie-backports libxrt-npu2"),
        ('ID=debian\nVERSION_ID="12"', "git clone --recursive"),
        ("ID=fedora\nVERSION_ID=44", "dnf copr enable abn/amd-npu"),
        ("ID=fedora\nVERSION_ID=46", "dnf install xrt"),
        ("ID=fedora\nVERSION_ID=46\nOSTREE_VERSION='46.1'", "rpm-ostree install xrt"),
        ("ID=fedora\nVERSION_ID=44\nOSTREE_VERSION=44.1", "/fedora-44/abn-amd-npu-fedora-44.repo"),
        ('ID=rocky\nID_LIKE="rhel centos fedora"\nVERSION_ID="10.4"', "epel-release"),
        ('ID=rocky\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"', "git clone --recursive"),
        ("ID=arch", "pacman -S xrt xrt-plugin-amdxdna"),
        ("ID=endeavouros\nID_LIKE=arch", "pacman -S xrt xrt-plugin-amdxdna"),
        ("ID=nixos\nVERSION_ID=26.05", "git clone --recursive"),
        ("", "git clone --recursive"),
    ],
)
def test_every_distribution_gets_its_own_commands(release: str, packages: str) -> None:
    made = MACHINES["no_xrt"]()
    made["files"]["/etc/os-release"] = release
    fix = examine(record.ReplaySystem(made)).results["xrt"].fix
    assert fix is not None and packages in "\n".join(fix.commands)


@pytest.mark.parametrize("name", ["iommu_off", "pasid_failed", "no_firmware_no_log", "no_driver",
                                  "module_of_another_kernel", "no_xrt"])  # fmt: skip
def test_images_are_not_changed_by_dnf(name: str) -> None:
    made = MACHINES[name]()
    made["files"]["/etc/os-release"] = BAZZITE
    fix = diagnosis_fix(made)
    assert "rpm-ostree" in fix and "dnf" not in fix and "grubby" not in fix


def diagnosis_fix(made: dict) -> str:
    diagnosis = examine(record.ReplaySystem(made))
    assert diagnosis.first_broken is not None
    fix = diagnosis.results[diagnosis.first_broken.name].fix
    assert fix is not None
    return "\n".join(fix.commands)


@pytest.mark.parametrize(
    ("release", "packages"),
    [
        ('ID=ubuntu\nVERSION_ID="26.10"', "sudo apt install python3-xrt"),
        ('ID=ubuntu\nVERSION_ID="24.04"', "add-apt-repository ppa:amd-team/xrt"),
        ("ID=arch", "pacman -S xrt"),
        ('ID=ubuntu\nVERSION_ID="26.04"', "sudo apt install libxrt-dev g++ cmake\nnpu build --xrt"),
        ('ID=debian\nVERSION_ID="13"', "-t trixie-backports libxrt-dev g++ cmake\nnpu build --xrt"),
        ("ID=fedora\nVERSION_ID=44", "copr enable abn/amd-npu\nsudo dnf install xrt"),
    ],
)
def test_python_bindings_of_distributions(release: str, packages: str) -> None:
    made = MACHINES["pyxrt_missing"]()
    made["files"]["/etc/os-release"] = release
    fix = examine(record.ReplaySystem(made)).results["pyxrt"].fix
    assert fix is not None and packages in "\n".join(fix.commands)


def test_xrt_where_only_the_loader_finds_it() -> None:
    """Of another distribution's folders: from ldconfig; else xrt-smi shows that it is there."""
    made = MACHINES["healthy_npu2_ubuntu"]()
    for part in ("stats", "links"):
        for path in [path for path in made[part] if "libxrt" in path]:
            made[part][path.replace("/usr/lib/x86_64-linux-gnu", "/nix/lib")] = made[part].pop(path)
    diagnosis = examine(record.ReplaySystem(made))
    assert diagnosis.results["xrt"].state is State.UNKNOWN
    assert diagnosis.verdict is State.OK
    made["commands"]["ldconfig -p"] = done(
        "\tlibxrt_coreutil.so.2 (libc6,x86-64) => /nix/lib/libxrt_coreutil.so.2\n"
    )
    result = examine(record.ReplaySystem(made)).results["xrt"]
    assert (result.state, result.values["folder"]) == (State.OK, "/nix/lib")


@pytest.mark.parametrize(
    ("soft", "root", "state"),
    [
        (0, False, State.BROKEN),
        (64 << 20, False, State.BROKEN),
        (128 << 20, False, State.BROKEN),
        ((128 << 20) + 1, False, State.OK),
        (4 << 30, False, State.OK),
        (-1, False, State.OK),
        (65536, True, State.OK),
    ],
)
def test_memory_lock_limits(soft: int, root: bool, state: State) -> None:
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["memory_lock"], made["user"]["root"] = [soft, soft], root
    result = examine(record.ReplaySystem(made)).results["memlock"]
    assert result.state is state
    assert bool(result.notes) == (128 << 20 < soft < 4 << 30)


@pytest.mark.parametrize(
    ("vbnv", "name"),
    [("RyzenAI-npu4\n", "RyzenAI-npu4"), ("", "NPU Strix"), ("\x1b[2J", "NPU Strix")],
)
def test_the_drivers_name_of_the_npu(vbnv: str, name: str) -> None:
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["files"]["/sys/bus/pci/devices/0000:c5:00.1/vbnv"] = vbnv
    found = examine(record.ReplaySystem(made)).results["npu"].found
    assert found == f"{name} (npu2), 1022:17f0 rev 10"


@pytest.mark.parametrize("attribute", ["vendor", "device", "revision"])
def test_one_damaged_id_makes_the_answer_unsure(attribute: str) -> None:
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["files"][f"/sys/bus/pci/devices/0000:c5:00.1/{attribute}"] = "\x00\x01"
    diagnosis = examine(record.ReplaySystem(made))
    assert diagnosis.results["npu"].state is State.UNKNOWN
    assert "that is not sure" in " ".join(report.plain(diagnosis).split())


def test_a_cache_that_cannot_be_read_breaks_nothing() -> None:
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["xclbins"] = None
    diagnosis = examine(record.ReplaySystem(made))
    assert diagnosis.results["xclbins"].state is State.UNKNOWN
    assert diagnosis.verdict is State.OK


def test_only_the_module_is_built_where_headers_are() -> None:
    fix = diagnosis_of("module_does_not_load").results["pyxrt"].fix
    assert fix is not None and fix.commands == ("npu build --xrt",)


def test_a_module_serves_where_pyxrt_does_not() -> None:
    found = diagnosis_of("module_instead_of_pyxrt").results["pyxrt"].found
    assert found == "libnpu_xrt.so (pyxrt: not installed)"


def test_a_module_that_c_programs_cannot_use_is_a_remark_where_pyxrt_serves() -> None:
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["commands"][MODULE] = module(abi=1, wanted=2)
    diagnosis = examine(record.ReplaySystem(made))
    assert diagnosis.verdict is State.OK
    assert "npu build --xrt" in " ".join(diagnosis.results["pyxrt"].notes)


@pytest.mark.parametrize("output", ["", "[]", "null", "{", '{"path": 5}', "Segmentation fault\n"])
def test_a_module_of_which_nothing_is_said(output: str) -> None:
    """As if it were not there; what crashes while it is loaded included."""
    made = MACHINES["pyxrt_missing"]()
    made["commands"][MODULE] = done(output, -11)
    result = examine(record.ReplaySystem(made)).results["pyxrt"]
    assert result.found == "not installed" and result.values["module"] is None


def test_a_pyxrt_without_a_tag_of_python() -> None:
    made = MACHINES["pyxrt_not_on_path"]()
    made["folders"]["/opt/xilinx/xrt/python"] = ["pyxrt.so"]
    result = examine(record.ReplaySystem(made)).results["pyxrt"]
    assert result.found == "not on this Python's path: /opt/xilinx/xrt/python"


def test_an_old_kernel_with_a_driver_from_elsewhere_is_right() -> None:
    """Linux 6.11 ran the out-of-tree driver (mlir-aie#2167)."""
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["files"]["/proc/sys/kernel/osrelease"] = "6.11.0-21-generic\n"
    made["files"]["/sys/module/amdxdna/taint"] = "OE\n"
    diagnosis = examine(record.ReplaySystem(made))
    assert diagnosis.verdict is State.OK
    assert "out of tree" in diagnosis.results["driver"].found


def test_the_time_of_the_command_is_shown() -> None:
    screen = report.plain(diagnosis_of("healthy_npu2_ubuntu"))
    assert "a product is right in 2.1 ms" in screen


def test_without_xrt_smi_the_command_decides() -> None:
    """It is a package of its own on Ubuntu: its absence breaks nothing."""
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["commands"] = {n: v for n, v in made["commands"].items() if "xrt-smi" not in n}
    diagnosis = examine(record.ReplaySystem(made))
    assert diagnosis.results["xrt-smi"].state is State.UNKNOWN
    assert diagnosis.verdict is State.OK


@pytest.mark.parametrize(
    ("kind", "message", "found", "command"),
    [
        ("timeout", "[wait] the run did not end", "timed out", "modprobe -r amdxdna"),
        ("abort", "[wait] the run", "aborted", "full-upgrade"),
        ("versions", "[device] xrt: older", "do not fit", "full-upgrade"),
        ("firmware", "[wait] status 0x3000003", "firmware refused", "--device npu2 --force\n"),
        (
            "firmware",
            "PDI; build it again: npu build --device npu2 --force npu2-gemm-1x2; then",
            "firmware refused",
            "npu build --device npu2 --force npu2-gemm-1x2\n",
        ),
        ("memory_lock", "[allocate] 64 bytes", "cannot be locked", "limits.d"),
        ("generation", "[load] npu1", "generation", "npu build --device npu2"),
        ("pyxrt", "[device] xrt: XRT sees 0 devices", "finds no NPU", "libxrt-npu2"),
        ("context", "(err=-2)", "no device heap", "limits.d"),
        ("context", "(err=-12)", "no memory", "limits.d"),
        ("context", "(err=-19)", "no free columns", "aie-partitions"),
        ("context", "(err=-22)", "refuses every context", "full-upgrade"),
        ("context", "status 0x2000003", "refuses every context", "full-upgrade"),
        ("RuntimeError", "CREATE_HWCTX IOCTL failed (err=-12)", "no memory", "limits.d"),
        ("RuntimeError", "EXEC failed (err=-11): x", "cannot be locked", "limits.d"),
        ("RuntimeError", "failed to allocate BO", "cannot be locked", "limits.d"),
        ("RuntimeError", "No such device with index '0'", "finds no NPU", "libxrt-npu2"),
        ("RuntimeError", "ERT_CMD_STATE_ABORT", "aborted", "full-upgrade"),
        ("RuntimeError", "ERT_CMD_STATE_TIMEOUT", "timed out", "modprobe -r"),
        ("ImportError", "something else", "the command failed", "--record"),
        ("build", "no command in it", "not built", "npu build --device npu2"),
    ],
)
def test_what_a_failed_command_means(kind: str, message: str, found: str, command: str) -> None:
    made = MACHINES["healthy_npu2_ubuntu"]()
    fails(made, kind, message)
    result = examine(record.ReplaySystem(made)).results["command"]
    assert result.state is State.BROKEN and found in result.found
    assert result.fix is not None and command in "\n".join((*result.fix.commands, ""))


HCLOCK = "amdxdna 0000:c5:00.1: [drm] *ERROR* Set hclock to 1600 failed, ret -110"


@pytest.mark.parametrize(
    ("number", "line", "found"),
    [
        (16, HCLOCK, "the driver refuses every context"),
        (22, "xdna_mailbox.95: Failed to request irq 95 ret -16", "the driver refuses"),
        (12, HCLOCK, "no memory"),
        (19, "xdna_mailbox.95: Failed to request irq 95 ret -16", "no free columns"),
        (22, "xdna_mailbox.95: Mailbox channel stopped", "the firmware refuses"),
        (22, "i801_smbus: Failed to request irq 17", "the firmware refuses"),
    ],
)
def test_a_stuck_clock_is_told_by_number_and_line(number: int, line: str, found: str) -> None:
    """Numbers with a cause of their own go first; other lines of the mailbox say nothing."""
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["kernel_log"] = [line, "amdxdna 0000:c5:00.1: [drm] a later line"]
    fails(made, "context", f"CREATE_HWCTX IOCTL failed (err=-{number})")
    assert found in examine(record.ReplaySystem(made)).results["command"].found


LONG = "gemm_bf16_f32_" + "x" * 60


@pytest.mark.parametrize(
    ("names", "command"),
    [
        (["gone", LONG], "npu build --device npu2"),
        ([LONG, "rope"], "npu build --device npu2 rope"),
        (["geglu", "rope", "prefill", "gemm_i8_i32"], "npu build --device npu2 "
         "geglu rope prefill gemm_i8_i32"),
    ],
)  # fmt: skip
def test_the_command_for_damaged_entries_can_run(names: list[str], command: str) -> None:
    """Configurations that the package has no more need no name; no name is cut."""
    made = MACHINES["healthy_npu2_ubuntu"]()
    made["damaged_xclbins"] = [f"npu2/{name}-npu2-0123456789abcdef" for name in names]
    fix = examine(record.ReplaySystem(made)).results["xclbins"].fix
    assert fix is not None and fix.commands == (command,)
    assert f"npu2/{names[0]}-npu2-" in fix.text
    words = command.split()
    select(words[3], words[4:])


@pytest.mark.parametrize("base", ["healthy_npu2_ubuntu", "pyxrt_missing"])
def test_a_variable_that_names_no_module_is_to_be_unset(base: str) -> None:
    """It hides the module that `npu build --xrt` makes."""
    made = MACHINES[base]()
    made["commands"][MODULE] = module(path=None, named="/gone/libnpu_xrt.so")
    result = examine(record.ReplaySystem(made)).results["pyxrt"]
    commands = result.fix.commands if result.fix else ()
    said = " ".join((*result.notes, *commands, result.fix.text if result.fix else ""))
    assert "NPU_XRT_MODULE is /gone/libnpu_xrt.so" in said and "unset NPU_XRT_MODULE" in said
    assert (result.state is State.OK) == (base == "healthy_npu2_ubuntu") == (not commands)
