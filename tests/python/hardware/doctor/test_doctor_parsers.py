"""The readers of versions, os-release, sysfs ids, cpuinfo and xrt-smi's reports: they return what
was written, take the layouts of XRT 2.17 to 2.26, and take any other text without an exception.
"""

from __future__ import annotations

import pytest
from healthy_machines import STRIX, examine, partitions, platform
from hypothesis import given
from hypothesis import strategies as st

from npu.hardware.doctor import parse

NUMBER = st.integers(0, 10**6)
ANY = st.text(max_size=400)
# Text that is near what is parsed, so that the readers go deep.
NEAR = st.lists(
    st.sampled_from(
        ["XRT", "\n", "  Version", ":", " 2.25.0", "|", "[0000:c5:00.1]", "|NPU Strix|", "ID=", '"',
         "ERROR:", "AIE Partitions", "|1 |2 |", "Power Mode : ", "\x00", "9" * 30, ".", "0x", "\t",
         "  amdxdna Version : 0.6, x", "vendor_id : AuthenticAMD", "VERSION_ID='1"]
    ),
    max_size=40,
).map("".join)  # fmt: skip


@given(st.lists(NUMBER, min_size=2, max_size=4), st.sampled_from(["", "-generic", "_2025", ", ab"]))
def test_a_version_is_found_in_text(parts: list[int], rest: str) -> None:
    text = ".".join(str(part) for part in parts)
    assert parse.version(f"Version {text}{rest}") == tuple(parts)
    assert parse.version(parse.written(tuple(parts))) == tuple(parts)


@pytest.mark.parametrize("text", ["", "7", "a.b", "v.1", "." * 50, "1" * 100 + ".2", "x1.2"])
def test_what_is_no_version(text: str) -> None:
    assert parse.version(text) is None
    assert parse.written(None) == "?"


@given(st.integers(0, 0xFFFFFFFF))
def test_sysfs_ids(number: int) -> None:
    assert parse.hex_id(f"0x{number:04x}\n") == number
    assert parse.hex_id(f"{number:04x}\n") is None
    assert parse.hex_id(f"0x{number:04x} 0x1") is None


@given(st.sampled_from(["ubuntu", "debian", "fedora", "arch"]), st.integers(0, 99), st.booleans())
def test_os_release(name: str, release: int, quoted: bool) -> None:
    quote = '"' if quoted else ""
    text = f'# a comment\nNAME="x"\nID={quote}{name}{quote}\nVERSION_ID={quote}{release}{quote}\n'
    found = parse.os_release(text)
    assert (found.id, found.family, found.version) == (name, name, (release,))


def test_derivatives_have_the_family_and_release_of_what_they_are_cut_from() -> None:
    mint = 'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22.1"\nUBUNTU_CODENAME=noble\n'
    found = parse.os_release(mint)
    assert (found.id, found.family, found.version) == ("linuxmint", "ubuntu", (24, 4))
    assert parse.os_release("ID=foo\nID_LIKE=bar\n").family == "other"
    assert parse.os_release("").name == "unknown system"


def test_xrt_smi_of_2_25() -> None:
    found = parse.smi_examine(examine(STRIX, "7.0.0-14-generic", "2.25.0", "0.8"))
    assert found.xrt == (2, 25, 0)
    assert found.driver == "0.8"
    assert found.firmware == (1, 1, 2, 65)
    assert found.devices == (("0000:c5:00.1", "NPU Strix"),)
    assert found.error is None


def test_at_most_16_devices() -> None:
    rows = "".join(f"|[0000:{n:02x}:00.1]  |NPU  |\n" for n in range(20))
    found = parse.smi_examine(f"Device(s) Present\n{rows}").devices
    assert [address for address, _ in found] == [f"0000:{n:02x}:00.1" for n in range(16)]


def test_xrt_smi_of_2_19() -> None:
    """Two columns, the driver's name without "Version", warnings in between."""
    found = parse.smi_examine(
        "System Configuration\n  OS Name : Linux\n  Version : 1.2\n\nXRT\n"
        "  Version              : 2.19.0\n  xocl                 : unknown, unknown\n"
        "WARNING: xclmgmt version is unknown. Is xclmgmt driver loaded?\n"
        "  amdxdna              : 2.19.0_20250330, 7c1d273ef99\n"
        "  NPU Firmware Version : 1.0.0.63\n\nDevice(s) Present\n"
        "|BDF             |Name          |\n|----------------|--------------|\n"
        "|[0000:67:00.1]  |RyzenAI-npu4  |\n"
    )
    assert (found.xrt, found.driver) == ((2, 19, 0), "2.19.0_20250330")
    assert found.firmware == (1, 0, 0, 63)
    assert found.devices == (("0000:67:00.1", "RyzenAI-npu4"),)


def test_xbutil_without_devices_and_errors() -> None:
    found = parse.smi_examine("XRT\n  Version : 2.17.0\n  AMDXDNA : 2.17.0_2024, 31\n\n0 devices\n")
    assert (found.xrt, found.driver, found.devices) == ((2, 17, 0), "2.17.0_2024", ())
    old = "[xrt-smi] ERROR: DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed (err=95): Operation not\n"
    error = parse.smi_examine(old).error
    assert error is not None and error.startswith("DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed")


@given(st.lists(st.integers(1, 10**6), max_size=20))
def test_contexts_are_counted(processes: list[int]) -> None:
    assert parse.smi_contexts(partitions(STRIX, processes)) == tuple(processes)


def test_contexts_of_2_26_take_several_lines() -> None:
    rows = "".join(
        f"      |{pid}           |{n}        |78           |0            |0  |N/A  |\n"
        "      |xrt-smi      |Active    |78           |0            |   |0    |\n"
        "      |1953 KB      |64 KB     |             |             |   |0    |\n"
        "      |             |          |             |             |   |0    |\n"
        for n, pid in enumerate((3598269, 11644))
    )
    head = "AIE Partitions\n  Partition Index   : 0\n    HW Contexts:\n"
    assert parse.smi_contexts(head + rows) == (3598269, 11644)
    assert parse.smi_contexts("ERROR: no such report") is None


@pytest.mark.parametrize("mode", ["default", "Turbo", "powersaver", "Performance", "balanced"])
def test_power_mode(mode: str) -> None:
    assert parse.smi_power_mode(platform(STRIX, mode)) == mode.lower()
    assert parse.smi_power_mode("Power Mode") is None


def test_folders_of_the_loader() -> None:
    text = (
        "1542 libs found in cache\n"
        "\tlibxrt_coreutil.so.2 (libc6,x86-64) => /nix/xrt/lib/libxrt_coreutil.so.2\n"
        "\tlibxrt_coreutil.so (libc6,x86-64) => /dev/lib/libxrt_coreutil.so\n"
        "\tlibxrt_driver_xdna.so.2 (libc6,x86-64) => /nix/xdna/lib/libxrt_driver_xdna.so.2\n"
        "\tlibxrt_coreutil.so.2 => \n\tlibxrt_coreutil.so.2 => libxrt_coreutil.so.2\n"
    )
    names = ("libxrt_coreutil.so.2", "libxrt_driver_xdna.so.2")
    assert parse.loader_folders(text, names) == ("/nix/xrt/lib", "/nix/xdna/lib")


def test_processors() -> None:
    text = (
        "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 36\n"
        "model name\t: AMD Ryzen AI 9 HX 370 w/ Radeon 890M\nflags\t\t: fpu hypervisor sse\n"
    )
    found = parse.cpuinfo(text)
    assert (found.name, found.vendor) == ("AMD Ryzen AI 9 HX 370", "AuthenticAMD")
    assert (found.family, found.model, found.virtual) == (26, 36, True)
    assert parse.cpuinfo("").family is None


@given(st.one_of(ANY, NEAR))
def test_any_text_is_taken(text: str) -> None:
    parse.version(text)
    parse.hex_id(text)
    parse.smi_power_mode(text)
    parse.smi_contexts(text)
    parse.cpuinfo(text)
    parse.loader_folders(text, ("x",))
    system = parse.os_release(text)
    assert system.family in ("ubuntu", "debian", "fedora", "rhel", "arch", "other")
    smi = parse.smi_examine(text)
    assert len(smi.devices) <= 16
    for shown in (system.name, smi.error or "", smi.driver or "", parse.shown(text)):
        assert shown.isprintable() and len(shown) <= 120


@pytest.mark.parametrize("line", ["|[0000:c5:00.1]|x|\n", "  a : b\n", "|1|1|\n", "ID=a\n", "1."])
def test_large_text_is_read_in_time(line: str) -> None:
    """Without backtracking: 64 KB, which is all that is ever read."""
    text = ("XRT\nAIE Partitions\n" + line * (65536 // len(line)))[:65536]
    parse.smi_examine(text)
    parse.smi_contexts(text)
    parse.os_release(text)
    parse.cpuinfo(text)
    parse.version(text)
