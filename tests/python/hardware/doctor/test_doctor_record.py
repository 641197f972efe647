"""Records: what was recorded replays to the same diagnosis; names of users and hosts, serial
numbers and unused parts of files are not in them; damaged, huge and foreign files are refused with
one sentence, and no change of a record makes a probe fail.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_records import MACHINES

from npu.errors import FileError, FormatError
from npu.hardware.doctor import privacy, record, report
from npu.hardware.doctor.examine import examine
from npu.hardware.doctor.live import LiveSystem
from npu.hardware.doctor.result import State
from npu.hardware.doctor.system import Command

SCRUB = privacy.Scrubber("/home/alice", ["alice", "alice-laptop"])


@pytest.mark.parametrize("name", MACHINES)
def test_a_record_of_a_machine_replays_to_its_diagnosis(name: str, tmp_path: Path) -> None:
    recorder = record.Recorder(record.ReplaySystem(MACHINES[name]()))
    first = examine(recorder)
    path = tmp_path / "npu.json"
    assert record.save(recorder, str(path)) == path.stat().st_size
    assert report.document(examine(record.load(str(path)))) == report.document(first)
    assert report.verbose(examine(record.load(str(path)))) == report.verbose(first)


def test_this_machine_replays_too(tmp_path: Path) -> None:
    recorder = record.Recorder(LiveSystem())
    first = examine(recorder)
    path = tmp_path / "npu.json"
    record.save(recorder, str(path))
    assert report.plain(examine(record.load(str(path)))) == report.plain(first)


@pytest.mark.parametrize(
    "text",
    [
        "/home/alice/xrt/lib:/opt/xrt",
        "/home/alice",
        "HOST: alice-laptop",
        "user alice logged in on alice-laptop.",
        "/var/home/alice/venv and /run/user/alice",
        "/home/bob/venv",
        "EXE: /home/alice/bin/xrt-smi",
        "  Serial Number        : PF3XYZ12",
        "uuid 4782e00b-8bbc-3db8-9909-d8cd6007d77f, mac 3c:7c:3f:12:34:56",
    ],
)
def test_names_and_serial_numbers_are_taken_out(text: str) -> None:
    found = SCRUB(text)
    for word in ("alice", "bob", "PF3XYZ12", "4782e00b", "3c:7c:3f"):
        assert word not in found


@pytest.mark.parametrize(
    "text",
    [
        "/usr/lib/x86_64-linux-gnu/libxrt_coreutil.so.2",
        "amdxdna 0000:c5:00.1: [drm] *ERROR* aie2_hw_start: firmware is not alive",
        "|[0000:c5:00.1]  |NPU Strix  |",
        "  NPU Firmware Version : 1.1.2.65",
        "0x1022",
    ],
)
def test_what_probes_need_stays(text: str) -> None:
    assert SCRUB(text) == text
    assert privacy.Scrubber("/root", ["root", "npu", "amd"])(text) == text


def test_homes_anywhere_are_taken_out_and_that_of_root_stays() -> None:
    assert privacy.Scrubber("/data/me", [])("/data/me/xrt /data") == "/home/USER/xrt /data"
    assert privacy.Scrubber("/", [])("/usr/lib") == "/usr/lib"
    assert privacy.Scrubber("/root", [])("/root/xrt") == "/root/xrt"


def test_only_the_needed_parts_of_files_are_read() -> None:
    boot = "root=UUID=1b2c ro quiet amd_iommu=off user=alice module_blacklist=amdxdna"
    assert privacy.reduced("/proc/cmdline", boot) == "amd_iommu=off module_blacklist=amdxdna"
    block = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 36\nflags\t\t: fpu hypervisor\n"
    reduced = privacy.reduced("/proc/cpuinfo", block + "\n" + block)
    assert reduced == "vendor_id\t: AuthenticAMD\nmodel\t\t: 36\nflags\t\t: hypervisor\n"
    assert privacy.reduced("/run/.containerenv", 'name="alices-box"') == ""
    lines = "options usb secret=1\nblacklist amdxdna\n"
    assert privacy.reduced("/etc/modprobe.d/a.conf", lines) == "blacklist amdxdna"


def test_a_live_record_names_neither_user_nor_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody-private")
    monkeypatch.setenv("USER", "somebody-private")
    monkeypatch.setenv("LOGNAME", "somebody-private")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/home/somebody-private/lib:/opt/rocm/lib")
    monkeypatch.setattr("socket.gethostname", lambda: "private-host")
    recorder = record.Recorder(LiveSystem())
    recorder.environment("LD_LIBRARY_PATH")
    assert recorder.record["environment"]["LD_LIBRARY_PATH"] == "/home/USER/lib:/opt/rocm/lib"
    done = recorder.command("sh", "-c", "echo HOST: private-host, somebody-private; echo kept")
    assert done is not None and done.output == "HOST: private-host, somebody-private\nkept\n"
    stored = next(iter(recorder.record["commands"].values()))
    assert stored == {"exit": 0, "output": "\nkept\n"}
    examine(recorder)
    path = tmp_path / "npu.json"
    record.save(recorder, str(path))
    assert "private" not in path.read_text()


class OfAnna(record.ReplaySystem):
    """A recorded machine as it was: with the home folder of its user."""

    def __init__(self, made: dict[str, Any]) -> None:
        super().__init__(json.loads(json.dumps(made).replace(privacy.HOME, "/home/anna")))

    def home(self) -> str:
        return "/home/anna"

    def private(self, text: str) -> str:
        return privacy.Scrubber("/home/anna", ["anna", "xilinx"])(text)


def test_commands_of_a_live_machine_can_be_typed_and_those_in_json_name_nobody() -> None:
    made = MACHINES["library_path_hides_plugin"]()
    made = json.loads(json.dumps(made).replace("/opt/rocm/lib", "/home/USER/rocm"))
    diagnosis = examine(OfAnna(made))
    screen = report.plain(diagnosis)
    assert '  export LD_LIBRARY_PATH="/home/anna/lib"' in screen.splitlines()
    assert "the XRT of /home/anna/rocm" in " ".join(screen.split())
    layers = {layer["name"]: layer for layer in report.document(diagnosis)["layers"]}
    assert layers["xrt"]["fix"]["commands"] == ['export LD_LIBRARY_PATH="$HOME/lib"']
    assert "the XRT of /home/USER/rocm" in layers["xrt"]["fix"]["text"]


def test_a_home_folder_whose_name_a_shell_quotes() -> None:
    class Quoted(OfAnna):
        def command(self, *words: str, seconds: float = 1.0) -> Command:
            return Command(0, "")

        def private(self, text: str) -> str:
            return privacy.Scrubber("/home/anna k", [])(text)

    recorder = record.Recorder(Quoted(HEALTHY))
    recorder.command("/home/anna k/bin/aiecc", "--help")
    assert list(recorder.record["commands"]) == [f"{privacy.HOME}/bin/aiecc --help"]


@pytest.mark.parametrize("name", MACHINES)
def test_what_leaves_a_machine_names_nobody(name: str, tmp_path: Path) -> None:
    """Record and JSON; a record replays to the same diagnosis as on the machine itself, also where
    the user is called like a folder of XRT."""
    recorder = record.Recorder(OfAnna(MACHINES[name]()))
    document = report.document(examine(recorder))
    path = tmp_path / "npu.json"
    record.save(recorder, str(path))
    assert "anna" not in path.read_text() + json.dumps(document)
    assert report.document(examine(record.load(str(path)))) == document


def refused(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "damaged.json"
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        record.load(str(path))
    message = str(caught.value)
    assert message.startswith(f"[doctor] replay of {path}: ") and "npu doctor --record" in message
    return message


HEALTHY = MACHINES["healthy_npu2_ubuntu"]()


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("schema", "npu-doctor-record/2", "npu-doctor-record/2"),
        ("schema", ["x"], "schema"),
        ("files", ["x"], "'files'"),
        ("files", {"/a": 5}, "'files'"),
        ("files", {"/a": {"base64": "???"}}, "'files'"),
        ("folders", {"/a": "name"}, "'folders'"),
        ("folders", {"/a": [1]}, "'folders'"),
        ("links", {"/a": None}, "'links'"),
        ("stats", {"/a": {"mode": "0660"}}, "'stats'"),
        ("stats", {"/a": {"kind": "file", "mode": "9", "owner": "a", "group": "b", "size": 1,
                          "access": True}}, "'stats'"),
        ("commands", {"a": {"exit": "0", "output": ""}}, "'commands'"),
        ("commands", {"a": {"exit": 0}}, "'commands'"),
        ("opened", {"/a": {"error": None, "driver": None, "version": [1, 2]}}, "'opened'"),
        ("kernel_log", "text", "'kernel_log'"),
        ("environment", {"A": 1}, "'environment'"),
        ("user", {"root": 1, "groups": [], "granted": []}, "'user'"),
        ("memory_lock", [1], "'memory_lock'"),
        ("python", {"version": "3"}, "'python'"),
        ("xclbins", {"a": 1}, "'xclbins'"),
    ],
)  # fmt: skip
def test_a_record_with_a_wrong_part_is_refused(
    part: str, value: Any, words: str, tmp_path: Path
) -> None:
    data = json.dumps({**HEALTHY, part: value}).encode()
    assert words in refused(tmp_path, data)


def test_files_that_are_no_records(tmp_path: Path) -> None:
    whole = json.dumps(HEALTHY).encode()
    for data in (b"", b"\xff\xfe", b"[" * 100000, b"[]", b"null", b"5", whole[:-5], b"{}"):
        refused(tmp_path, data)
    assert "more than 16 MB" in refused(tmp_path, b" " * ((16 << 20) + 1))
    for path in (tmp_path / "none", tmp_path, "/proc/self/mem", "a\0b"):
        with pytest.raises(FormatError, match="replay of"):
            record.load(str(path))


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    recorder = record.Recorder(record.ReplaySystem(HEALTHY))
    for path in (tmp_path / "none" / "a.json", tmp_path):
        with pytest.raises(FileError, match="name a file that can be written"):
            record.save(recorder, str(path))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_machine_is_examined() -> None:
    """A record with nothing in it: a sandbox in which nothing can be read."""
    diagnosis = examine(record.ReplaySystem({"schema": record.SCHEMA}))
    assert diagnosis.verdict is State.UNKNOWN
    assert len(report.plain(diagnosis).splitlines()) <= 23


TEXTS = st.one_of(st.none(), st.just(""), st.text(max_size=60), st.just("9" * 5000))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)
@given(st.sampled_from(sorted(MACHINES)), st.integers(0, 2**32), TEXTS)
def test_no_damage_makes_a_probe_fail(name: str, seed: int, text: str | None) -> None:
    """A few answers of a machine replaced or gone: there is a diagnosis, it fits the screen, and
    what it prints is printable."""
    made = MACHINES[name]()
    chance = random.Random(seed)
    for part in ("files", "folders", "links", "stats", "commands", "opened"):
        for key in chance.sample(sorted(made[part]), min(2, len(made[part]))):
            if text is None or part in ("stats", "opened"):
                made[part].pop(key)
            elif part == "commands":
                made[part][key] = {"exit": chance.choice((0, 1, None)), "output": text}
            else:
                made[part][key] = [text] if part == "folders" else text
    diagnosis = examine(record.ReplaySystem(made))
    failed = [r.found for r in diagnosis.results.values() if r.found.startswith("the probe failed")]
    assert failed == []
    screen = report.plain(diagnosis)
    assert len(screen.splitlines()) <= 23
    assert screen.replace("\n", "").isprintable()
    json.dumps(report.document(diagnosis))
