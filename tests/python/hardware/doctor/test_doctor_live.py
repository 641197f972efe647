"""The present machine through LiveSystem: commands that hang, flood or leave children behind end in
time; files that are missing, huge, endless or binary give a bounded answer; nothing raises.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from limits import HANG

from npu.hardware.build import cache
from npu.hardware.doctor import live, open_node, privacy
from npu.hardware.doctor.examine import ALL_LAYERS, examine
from npu.hardware.doctor.live import LiveSystem
from npu.hardware.doctor.result import State
from npu.hardware.doctor.system import LIMIT, OpenedNode, Stat

SECONDS = 0.5  # given to a command that never ends
PATIENCE = 30.0  # until a test says that a time limit does not work


@pytest.fixture
def system() -> LiveSystem:
    return LiveSystem()


def test_a_command_that_hangs_is_stopped(system: LiveSystem) -> None:
    start = time.monotonic()
    done = system.command("sh", "-c", "echo begin; sleep 600", seconds=SECONDS)
    assert done is not None and done.timed_out and done.output == "begin\n"
    assert time.monotonic() - start < PATIENCE


def test_what_a_stopped_command_started_is_stopped_too(system: LiveSystem, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {note}; wait"
    assert system.command("sh", "-c", script, seconds=SECONDS) is not None
    child = int(note.read_text())
    end = time.monotonic() + PATIENCE
    while _runs(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")")[-1].split()[0]
    except OSError:
        return False


def test_a_child_that_keeps_the_output_does_not_delay(system: LiveSystem) -> None:
    start = time.monotonic()
    done = system.command("sh", "-c", "sleep 60 & echo $!", seconds=40.0)
    assert done is not None and done.exit == 0
    assert time.monotonic() - start < PATIENCE
    os.kill(int(done.output), 9)


def test_a_flood_is_cut(system: LiveSystem) -> None:
    start = time.monotonic()
    done = system.command("sh", "-c", "while :; do echo yes; done", seconds=PATIENCE)
    assert done is not None and len(done.output) == LIMIT
    assert not done.timed_out and done.exit != 0
    assert time.monotonic() - start < PATIENCE


def test_exit_code_both_outputs_and_missing_commands(system: LiveSystem) -> None:
    done = system.command("sh", "-c", "echo out; echo err >&2; exit 3")
    assert done is not None and (done.exit, done.output) == (3, "out\nerr\n")
    assert system.command("no-such-command-anywhere") is None
    python = system.command("python", "-c", "import sys; print(sys.executable)")
    assert python is not None and python.exit == 0


def test_input_is_empty(system: LiveSystem) -> None:
    done = system.command("cat", seconds=PATIENCE)
    assert done is not None and (done.exit, done.output) == (0, "")


def test_files_of_all_kinds(system: LiveSystem, tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(b"a" * (LIMIT + 5))
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    read = {name: system.read(str(tmp_path / name)) for name in os.listdir(tmp_path)}
    assert len(read["huge"] or "") == LIMIT
    assert "\ufffd" in (read["binary"] or "")
    assert read["empty"] == read["pipe"] == ""
    assert system.read("/dev/zero") == "\0" * LIMIT
    for path in (str(tmp_path), str(tmp_path / "none"), "/proc/self/mem"):
        assert system.read(path) is None
    names = system.names(str(tmp_path))
    assert names == ("binary", "empty", "huge", "pipe")
    assert system.names(str(tmp_path / "none")) is None


def test_links_and_stats(system: LiveSystem, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("12345")
    file.chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    assert system.link(str(tmp_path / "link")) == "file"
    assert system.link(str(file)) is None
    found = system.stat(str(tmp_path / "link"))
    assert found is not None
    assert (found.kind, found.mode, found.size, found.access) == ("file", 0o640, 5, True)
    null = system.stat("/dev/null")
    assert null is not None and (null.kind, null.owner) == ("character device", "root")
    assert system.stat(str(tmp_path / "none")) is None


def test_opening_nodes(system: LiveSystem, tmp_path: Path) -> None:
    """A node that is no DRM device opens, and tells no version; errors have their names."""
    null = system.opened("/dev/null")
    assert null is not None and (null.error, null.driver, null.version) == (None, None, None)
    folder = system.opened(str(tmp_path))
    assert folder is not None and folder.error == "EISDIR"
    assert system.opened(str(tmp_path / "none")) is None


def test_opening_a_node_that_hangs(
    system: LiveSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_OPEN_SECONDS", SECONDS)
    script = tmp_path / "open_node.py"
    script.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(live, "__file__", str(tmp_path / "live.py"))
    opened = system.opened("/dev/null")
    assert opened is not None and opened.error == "TIMEOUT"


def test_the_version_of_a_drm_driver(
    system: LiveSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """struct drm_version: three ints, then length and address of the name (linux/drm.h)."""

    def ioctl(_node: int, request: int, version: bytearray) -> None:
        assert request == open_node._DRM_IOCTL_VERSION and len(version) == 64
        length, address = struct.unpack_from("QQ", version, 16)
        assert length >= 20
        ctypes.memmove(address, b"amdxdna_accel_driver", 20)
        struct.pack_into("iii4xQ", version, 0, 0, 6, 1, 20)

    monkeypatch.setattr(open_node.fcntl, "ioctl", ioctl)
    open_node.main("/dev/null")
    printed = capsys.readouterr().out
    script = tmp_path / "open_node.py"
    script.write_text(f"print({printed!r})")
    monkeypatch.setattr(live, "__file__", str(tmp_path / "live.py"))
    opened = system.opened("/dev/null")
    assert opened == OpenedNode(None, "amdxdna_accel_driver", (0, 6, 1))
    script.write_text("print('[]')")
    assert system.opened("/dev/null") == OpenedNode("EIO")


def test_the_request_for_the_version_is_that_of_the_kernel() -> None:
    """_IOWR('d', 0, 64 bytes) of asm-generic/ioctl.h; struct drm_version has 64 bytes."""
    assert (3 << 30) | (64 << 16) | (ord("d") << 8) == open_node._DRM_IOCTL_VERSION


def test_facts(system: LiveSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    for limits, said in (
        ((4096, 8192), (4096, 8192)),
        ((-1, -1), (-1, -1)),
        ((4096, -1), (4096, -1)),
    ):
        monkeypatch.setattr("resource.getrlimit", lambda _, limits=limits: limits)
        assert system.memory_lock() == said
    assert system.user().root == (os.geteuid() == 0)
    python = system.python()
    assert python.version == ".".join(map(str, sys.version_info[:3]))
    assert python.abi == f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("XILINX_XRT", "/home/anna/xrt")
    assert system.environment("XILINX_XRT") == "/home/anna/xrt"
    assert system.home() == "/home/anna"
    assert LiveSystem().private("export A=/home/anna/xrt") == "export A=/home/USER/xrt"
    with pytest.raises(AssertionError):
        system.environment("PATH")


def test_this_machine_is_examined_without_a_failed_probe(system: LiveSystem) -> None:
    results = examine(system).results
    assert set(results) == {layer.name for layer in ALL_LAYERS}
    assert [r.found for r in results.values() if r.found.startswith("the probe failed")] == []


class Rooted(LiveSystem):
    """This machine with the files of a folder: of another one's /sys, /proc, /etc and /lib."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = str(root)

    def read(self, path: str) -> str | None:
        return super().read(self._root + path)

    def names(self, path: str) -> tuple[str, ...] | None:
        return super().names(self._root + path)

    def link(self, path: str) -> str | None:
        return super().link(self._root + path)

    def stat(self, path: str) -> Stat | None:
        return super().stat(self._root + path)

    def opened(self, path: str) -> OpenedNode | None:
        return super().opened(self._root + path)


def test_a_tree_of_files_as_linux_has_it(tmp_path: Path) -> None:
    """Symbolic links of sysfs, a packed firmware file, a DRM node (here a plain file)."""
    real = tmp_path / "sys/devices/pci0000:00/0000:00:08.2/0000:c5:00.1"
    for folder in (
        real / "accel/accel0", tmp_path / "sys/bus/pci/devices", tmp_path / "sys/class/iommu/ivhd0",
        tmp_path / "sys/bus/pci/drivers/amdxdna", tmp_path / "sys/module/amdxdna/parameters",
        tmp_path / "sys/kernel/iommu_groups/23", tmp_path / "proc/sys/kernel", tmp_path / "etc",
        tmp_path / "lib/firmware/amdnpu/17f0_11", tmp_path / "dev/accel",
        tmp_path / "usr/lib/x86_64-linux-gnu",
    ):  # fmt: skip
        folder.mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:c5:00.1").symlink_to(real)
    (real / "driver").symlink_to("../../../../bus/pci/drivers/amdxdna")
    (real / "iommu_group").symlink_to("../../../../kernel/iommu_groups/23")
    texts = {
        real / "vendor": "0x1022\n", real / "device": "0x17f0\n", real / "revision": "0x11\n",
        real / "fw_version": "1.1.2.65\n", real / "vbnv": "RyzenAI-npu5\n",
        tmp_path / "sys/kernel/iommu_groups/23/type": "DMA-FQ\n",
        tmp_path / "sys/module/amdxdna/taint": "OE\n",
        tmp_path / "sys/module/amdxdna/version": "2.25.0_20260601\n",
        tmp_path / "proc/sys/kernel/osrelease": "6.17.0-22-generic\n",
        tmp_path / "etc/os-release": "ID=arch\n",
        tmp_path / "lib/firmware/amdnpu/17f0_11/npu_7.sbin.xz": "x",
        tmp_path / "lib/firmware/amdnpu/17f0_11/npu.sbin.zst": "x",
        tmp_path / "dev/accel/accel0": "",
        tmp_path / "usr/lib/x86_64-linux-gnu/libxrt_coreutil.so.2.25.0": "",
    }  # fmt: skip
    for path, text in texts.items():
        path.write_text(text)
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libxrt_coreutil.so.2"
    library.symlink_to("libxrt_coreutil.so.2.25.0")
    results = examine(Rooted(tmp_path)).results
    assert results["npu"].found == "RyzenAI-npu5 (npu2), 1022:17f0 rev 11"
    assert results["kernel"].found == "Linux 6.17.0-22-generic"
    assert results["driver"].found == "amdxdna 2.25.0, out of tree"
    assert results["firmware"].values["file"] == "/lib/firmware/amdnpu/17f0_11/npu_7.sbin.xz"
    assert results["iommu"].found == "on, DMA-FQ"
    assert results["node"].found.startswith("/dev/accel/accel0 ")
    assert results["xrt"].values["version"] == "2.25.0"
    assert (results["xrt"].state, results["xrt"].found) == (State.BROKEN, "no NPU plugin")
    assert results["command"].state is State.UNKNOWN


def test_the_device_command_prints_one_outcome() -> None:
    """As the probe runs it; without a device: why."""
    words = (sys.executable, "-m", "npu.hardware.doctor.device_command")
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["outcome"] in ("ok", "unavailable", "error", "wrong")


def test_the_product_of_the_device_command_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the emulated NPU: right, and wrong when one word of the result is."""
    import npu
    from npu.devices import open_device
    from npu.hardware.doctor.device_command import product

    device = open_device("emu:npu1")
    outcome = product(device)
    assert outcome["outcome"] == "ok" and outcome["generation"] == "npu1"
    right = npu.matmul

    def one_word_off(*arguments, **options):
        result = right(*arguments, **options)
        result[5, 7] += 1
        return result

    monkeypatch.setattr(npu, "matmul", one_word_off)
    assert product(device) == {"outcome": "wrong", "wrong": 1, "of": 4096}


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_tools_are_found_on_the_path_and_in_the_folder_of_xrt(
    system: LiveSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "xrt-tool-of-a-test", "echo from XRT $LC_ALL")
    assert system.command("xrt-tool-of-a-test") is None
    monkeypatch.setenv("XILINX_XRT", str(tmp_path))
    done = system.command("xrt-tool-of-a-test")
    assert done is not None and done.output == "from XRT C\n"


LINE = "amdxdna 0000:c5:00.1: [drm] *ERROR* aie2_hw_start: firmware is not alive"


@pytest.mark.parametrize(
    ("journal", "messages", "found"),
    [
        (f"yes 'usb 1-1: noise' | head -n 20000; echo '{LINE}'", "exit 1", (LINE,)),
        ("yes 'usb 1-1: noise' | head -n 50", f"echo '[   12.5] {LINE}'", ()),
        ("echo '-- No entries --'", f"echo '[   12.5] {LINE}'; yes noise | head -n 99", (LINE,)),
        ("exit 1", f"yes noise | head -n 99; echo '[   12.5] {LINE}'", (LINE,)),
        ("echo '-- No entries --'", "echo 'dmesg: Operation not permitted'; exit 1", None),
    ],
)
def test_the_kernels_log(
    journal: str, messages: str, found: object, system: LiveSystem, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """From the journal, else from dmesg; None if neither may be read."""
    program(tmp_path, "journalctl", journal)
    program(tmp_path, "dmesg", messages)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert system.kernel_log() == found


def test_the_cache_of_npu_build(system: LiveSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Artefacts by generation; a cache that fails to read is not empty but unknown."""
    folder = Path("/home/me/.cache/npu-xdna/xclbins/npu2")
    found = [cache.Xclbin(folder / "gemm-0123/a.xclbin")], [folder / "rope-4567"]
    monkeypatch.setattr(cache, "examined", lambda: found)
    assert system.xclbins() == ("npu2/gemm-0123",)
    assert system.damaged_xclbins() == ("npu2/rope-4567",)
    monkeypatch.setattr(cache, "examined", lambda: 1 / 0)
    system = LiveSystem()
    assert system.xclbins() is None and system.damaged_xclbins() is None


def test_where_programs_and_packages_are(
    system: LiveSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As real paths, those of the home folder too: commands that name them are to be typed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "site" / "llvm-aie").mkdir(parents=True)
    program(tmp_path / "bin", "tool-of-a-test", "echo runs")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert system.program("tool-of-a-test") == f"{tmp_path}/bin/tool-of-a-test"
    assert system.package("llvm-aie") == f"{tmp_path}/site/llvm-aie"
    done = system.command(f"{tmp_path}/bin/tool-of-a-test", "--help")
    assert done is not None and done.output == "runs\n"
    assert system.program("no-such-tool") is None and system.package("no-such-package") is None


def test_kernel_lines_are_those_of_the_npu() -> None:
    text = "[    1.5] usb 1-1: SerialNumber: 123\n[   12.796147] amdxdna 0000:c4:00.1: [drm] Load\n"
    assert privacy.kernel_lines(text) == ("amdxdna 0000:c4:00.1: [drm] Load",)
    many = "\n".join(f"amdxdna line {n}" for n in range(1000))
    assert privacy.kernel_lines(many)[-1] == "amdxdna line 999"
    assert len(privacy.kernel_lines(many)) == 200
