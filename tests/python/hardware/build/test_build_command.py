"""`npu build` as a user runs it, with doubles of the tools.

Asserts what is built, kept, skipped, listed and printed; that every tool's failure and every broken
limit is one line that says where and leaves the cache as it was; that a build that was killed or
interrupted goes on where it was, and that two processes at once do not disturb each other.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import doubles
import pytest

from npu import memory
from npu.designs.lowering import stack
from npu.hardware.build import aiecc, builder, cache, one, targets
from npu.hardware.doctor import live, record


def entry() -> cache.Xclbin:
    (found,) = cache.entries()
    return found


def failure(npu, *words: str) -> str:
    """What the failing build of one configuration says; nothing is in the cache afterwards."""
    code, _, err = npu("--device", "npu2", "geglu", *words)
    assert code == 1
    assert cache.entries() == []
    lines = [line for line in err.splitlines() if line.startswith("npu:")]
    assert len(lines) == 1, err
    return lines[0]


def test_a_build_is_kept_with_its_checks(either, npu, xclbins):
    code, out, err = npu("--device", "npu2", "geglu")
    assert code == 0, err
    assert "npu2-geglu" in out and "1 built, 0 were there, 0 failed" in out
    about = entry().manifest
    assert about["generation"] == "npu2" and about["name"] == "geglu"
    assert entry().folder == xclbins / "npu2" / about["artefact"]
    assert about["tools"]["aiecc"].startswith("aiecc version 1.2.3")
    assert about["ports"][0] == ["X0", 0, "mm2s", 0, None]
    counted = {name: 0 for name in ("program memory", "stack", "buffer addresses", "ports")}
    for check in about["checks"]:
        counted[check["name"]] = counted.get(check["name"], 0) + 1
        assert not check["problem"]
    assert counted["program memory"] == counted["stack"] == 32
    assert counted["kernel arguments"] == counted["stream words"] == counted["ports"] == 1
    assert {c["value"] for c in about["checks"] if c["name"] == "program memory"} == {600}
    assert (entry().folder / "sample.bin").stat().st_size == about["files"]["sample.bin"]["bytes"]
    names = {p.name for p in entry().folder.iterdir()}
    assert names == {*about["files"], "manifest.json"}
    assert {"design.xclbin", "sample.bin"} <= names and not any("work" in name for name in names)
    assert not list((xclbins / "npu2" / ".logs").iterdir())


MACHINES = Path(__file__).parents[1] / "doctor" / "machines"


@pytest.mark.parametrize("variable", ["", "xrt", "xrt+module", "xrt+pyxrt"])
@pytest.mark.parametrize(
    ("machine", "generation"),
    [("healthy_npu1_arch", "npu1"), ("healthy_npu2_fedora", "npu2"), ("no_xrt_device", "npu2")],
)
def test_the_npu_of_this_machine_is_built_for(
    machine, generation, variable, tools, npu, monkeypatch
):
    """Without being opened, and whatever is wrong with it; NPU_DEVICE=xrt is the same, whatever way
    it names."""
    system = record.load(str(MACHINES / f"{machine}.json"))
    monkeypatch.setattr(live, "LiveSystem", lambda: system)
    monkeypatch.setattr(sys.modules["npu.devices"], "open_device", None)
    monkeypatch.setenv("NPU_DEVICE", variable)
    code, out, err = npu("--dry-run", "geglu")
    assert code == 0 and f"# {generation}-geglu" in out
    assert err.startswith(f"npu: building for {generation}: NPU ") and err.count("\n") == 1


@pytest.mark.parametrize("variable", ["xrt:npu1", "xrt:npu1+module", "xrt:npu1+pyxrt"])
def test_the_generation_that_a_name_says_is_built_for(variable, tools, npu, monkeypatch):
    """Neither is anything opened nor the machine asked, which has another NPU."""
    system = record.load(str(MACHINES / "healthy_npu2_fedora.json"))
    monkeypatch.setattr(live, "LiveSystem", lambda: system)
    monkeypatch.setattr(sys.modules["npu.devices"], "open_device", None)
    monkeypatch.setenv("NPU_DEVICE", variable)
    code, out, err = npu("--dry-run", "geglu")
    assert (code, err) == (0, "") and "# npu1-geglu" in out


def test_what_is_built_for_where_there_is_no_npu(tools, npu, monkeypatch):
    """npu2, which is said; what is named goes first, and without a word."""
    system = record.load(str(MACHINES / "no_npu_intel.json"))
    monkeypatch.setattr(live, "LiveSystem", lambda: system)
    code, out, err = npu("--dry-run", "geglu")
    assert code == 0 and "# npu2-geglu" in out
    assert "no NPU to go by (no AMD NPU on the PCI bus): building for npu2; --device npu1" in err
    monkeypatch.setenv("NPU_DEVICE", "xrt")
    code, _, err = npu("--dry-run", "geglu")
    assert (
        code == 1 and "[build] device is xrt, and this machine's NPU" in err and "--device" in err
    )
    for variable, words in (("xrt", ["--device", "npu1"]), ("emu:npu1", [])):
        monkeypatch.setenv("NPU_DEVICE", variable)
        code, out, err = npu("--dry-run", *words, "geglu")
        assert (code, err) == (0, "") and "# npu1-geglu" in out


def test_a_tool_that_linux_killed_names_the_cure(tools, npu):
    doubles.set_faults(tools, clang={"killed": True})
    line = failure(npu)
    assert "clang++ was killed by signal 9" in line and "-j 1" in line


def test_what_is_there_is_not_built_again(tools, npu):
    npu("geglu")
    before = doubles.runs(tools)
    assert before == ["clang++", "clang++", "aiecc", "xclbinutil"]
    code, out, _ = npu("geglu")
    assert code == 0 and "0 built, 1 were there" in out
    assert doubles.runs(tools) == before


def test_what_is_there_is_built_again_on_request(tools, npu):
    """Kernels once per command, though designs share them; by the command of messages, too."""
    pair = [t.key for t in targets.select("npu1", ["gemm"]) if t.name == "gemm_i16_i32"][:2]
    npu("--device", "npu1", *pair)
    before = doubles.runs(tools)
    assert (before.count("clang++"), before.count("aiecc")) == (2, 2)
    code, out, err = npu("--device", "npu1", "--force", *pair, "-j", "2")
    assert code == 0 and "2 built, 0 were there" in out, err
    assert sorted(doubles.runs(tools)) == sorted(before * 2)
    made = entry_of("gemm_i16_i32")
    words = made.again.split()
    assert words[:2] == ["npu", "build"] and "--force" in words
    code, out, err = npu(*words[2:])
    assert code == 0 and "1 built, 0 were there" in out and made.manifest["key"] in out, err


def entry_of(name: str) -> cache.Xclbin:
    return next(one for one in cache.entries() if one.manifest["name"] == name)


@pytest.mark.parametrize("name", [cache.DESIGN, "sample.bin", cache.MANIFEST])
def test_a_damaged_entry_is_built_again(name, tools, npu):
    """A bit of a file, whose size stays; then a plain build mends it, and no other."""
    npu("geglu", "rope")
    path = entry_of("geglu").folder / name
    before = path.read_bytes()
    path.write_bytes(bytes([before[0] ^ 1]) + before[1:])
    assert npu("geglu", "--list")[1].startswith("damaged ")
    code, out, _ = npu("geglu", "rope")
    assert code == 0 and "1 built, 1 were there" in out
    assert npu("geglu", "--list")[1].startswith("built ")
    assert len(path.read_bytes()) == len(before) or name == cache.MANIFEST


def of_other_versions(count: int) -> list[Path]:
    """Damaged entries whose names no configuration of this version has."""
    old = [entry().folder.with_name(f"geglu-npu2-{i:016x}") for i in range(count)]
    for folder in old:
        shutil.copytree(entry().folder, folder)
    return old


@pytest.mark.parametrize(("count", "said"), [(1, "1 damaged entry "), (2, "2 damaged entries ")])
def test_damaged_entries_of_other_versions_go(count, said, tools, npu):
    """Nothing would replace them."""
    npu("geglu")
    old = of_other_versions(count)
    listed = npu("geglu", "--list")[1]
    assert all(one.exists() for one in old) and listed.startswith("built ")
    code, out, err = npu("geglu")
    assert code == 0 and f"{said}removed" in out and "1 were there" in out and "damaged" not in err
    assert not any(one.exists() for one in old) and cache.damaged() == []


def test_an_entry_that_cannot_be_removed_ends_no_build(tools, npu, monkeypatch):
    """It is said, in one line."""
    npu("geglu")
    (old,) = of_other_versions(1)

    def refused(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(cache, "_remove", refused)
    code, out, err = npu("geglu")
    assert code == 0 and "1 were there" in out and "removed" not in out
    (line,) = [line for line in err.splitlines() if "damaged" in line]
    assert (
        line.startswith("npu:")
        and f"{old} is damaged and cannot be removed" in line
        and "Permission denied" in line
    )
    assert old.exists()


def test_what_is_not_the_packages_stays(tools, npu, xclbins):
    """A user's folders and files, entries of another form, folders without a manifest, damaged
    entries of the other generation; in both folders."""
    npu("geglu")
    there = []
    for generation in cache.GENERATIONS:
        folder = xclbins / generation
        named = f"geglu-{generation}-"
        (folder / "my_notes").mkdir(parents=True)
        (folder / "my_notes" / cache.MANIFEST).write_text("{")
        (folder / "readme.txt").write_text("mine")
        (folder / f"{named}00000000000000aa").write_text("a file")
        (folder / f"{named}00000000000000bb").mkdir()
        (folder / f"{named}00000000000000cc").mkdir()
        (folder / f"{named}00000000000000cc" / cache.MANIFEST).write_text('{"format": 99}')
        (folder / f"backup-of-{named}0123").mkdir()
        there += [path for path in folder.rglob("*") if ".lock" not in path.name]
    other = xclbins / "npu1" / "geglu-npu1-00000000000000dd"
    other.mkdir()
    (other / cache.MANIFEST).write_text("{")
    code, out, err = npu("geglu")
    assert code == 0 and "removed" not in out and "damaged" not in err
    assert all(path.exists() for path in there) and cache.damaged() == [other]
    assert "1 damaged entry removed" in npu("--device", "npu1", "geglu")[1]
    assert not other.exists() and all(path.exists() for path in there)


@pytest.mark.parametrize(("cpus", "free", "jobs"), [(8, 64, 8), (16, 9, 4), (4, 1, 1), (2, 0, 1)])
def test_as_many_builds_as_memory_holds(cpus, free, jobs, tools, npu, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cpus)))
    monkeypatch.setattr(memory, "available_bytes", lambda: free << 30)
    asked = []
    monkeypatch.setattr(builder, "build_all", lambda *words: asked.append(words) or [])
    assert npu("geglu")[0] == 0 and asked[0][2] == jobs
    assert asked[0][1].threads == jobs  # of the one build
    npu("geglu", "-j", "3")
    assert asked[1][2] == 3


def test_a_damaged_object_is_compiled_again(tools, npu, xclbins):
    npu("geglu")
    doubles.set_faults(tools, aiecc={"version": "2"})
    before = doubles.runs(tools).count("clang++")
    for path in sorted((xclbins / "npu2" / ".objects").glob("*.o")):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert npu("geglu")[0] == 0
    assert doubles.runs(tools).count("clang++") == before + 2


def test_kernels_are_compiled_once_for_designs_that_share_them(tools, npu):
    assert npu("--device", "npu1", "dequant", "-j", "2")[0] == 0
    doubles.set_faults(tools, aiecc={"version": "2"})
    assert npu("--device", "npu1", "dequant")[0] == 0
    assert doubles.runs(tools).count("clang++") == 2 and doubles.runs(tools).count("aiecc") == 2


@pytest.mark.parametrize("program", ["aiecc", "clang", "xclbinutil"])
def test_another_version_of_a_tool_makes_it_stale(program, tools, npu):
    npu("geglu")
    doubles.set_faults(tools, **{program: {"version": "9.9"}})
    assert "stale" in npu("geglu", "--list")[1]
    assert "1 built" in npu("geglu")[1]
    assert "9.9" in json.dumps(entry().manifest["tools"])
    assert npu("geglu", "--list")[1].startswith("built ")


def test_other_kernels_make_it_stale(tools, npu):
    npu("geglu")
    path = entry().folder / cache.MANIFEST
    path.write_text(path.read_text().replace(entry().manifest["kernels"], "0" * 64))
    assert npu("geglu", "--list")[1].startswith("stale ")
    assert "1 built" in npu("geglu")[1]


def test_the_list(tools, npu):
    code, out, _ = npu("--device", "npu1", "--list", "--json", "geglu", "rope")
    rows = json.loads(out)["configurations"]
    assert code == 0 and [(r["operation"], r["state"]) for r in rows] == [
        ("geglu", "missing"), ("rope", "missing"),
    ]  # fmt: skip
    npu("--device", "npu1", "rope")
    rows = json.loads(npu("--device", "npu1", "--list", "--json", "geglu", "rope")[1])
    assert [r["state"] for r in rows["configurations"]] == ["missing", "built"]


def test_the_list_without_tools(xclbins, npu):
    code, out, _ = npu("--list", "geglu")
    assert code == 0 and out.startswith("missing") and "tools are not found" in out


def test_results_as_json(tools, npu):
    doubles.set_faults(tools, aiecc={"exit": 3})
    code, out, _ = npu("--json", "geglu")
    (row,) = json.loads(out)
    assert code == 1 and row["state"] == "failed" and "exit code 3" in row["error"]
    doubles.set_faults(tools)
    (row,) = json.loads(npu("--json", "geglu")[1])
    assert row["state"] == "built" and Path(row["path"]).is_file()


def test_a_dry_run_prints_what_would_run(either, npu):
    code, out, _ = npu("--dry-run", "geglu")
    assert code == 0 and doubles.runs(either) == []
    lines = out.splitlines()
    assert lines[0] == "# npu2-geglu" and len(lines) == 4
    assert "--target=aie2p-none-unknown-elf" in lines[1] and "-fstack-size-section" in lines[2]
    assert f"--peano={either}/peano" in lines[3]
    new = "--get-xclbin" in lines[3]
    assert new != ("--aie-generate-xclbin" in lines[3])
    assert new == ("--xclbinutil-path=" in lines[3])
    assert json.loads(npu("--dry-run", "--json", "geglu")[1])["npu2-geglu"][2][0].endswith("aiecc")


def test_files_between_the_steps_are_kept_on_request(tools, npu, tmp_path):
    assert npu("geglu", "--keep", str(tmp_path / "kept"))[0] == 0
    (folder,) = (tmp_path / "kept").iterdir()
    assert "aie.runtime_sequence @sample" in (folder / "design.mlir").read_text()
    assert (folder / "geglu.o").is_file() and (folder / "out-main" / "design.xclbin").is_file()
    doubles.set_faults(tools, aiecc={"version": "2"})
    assert npu("geglu", "--keep", str(tmp_path / "kept"))[0] == 0  # over what was kept


def test_overlays_become_images(either, npu):
    code, _, err = npu("--device", "npu1", "prefill")
    assert code == 0, err
    names = entry().manifest["overlays"]
    assert len(names) >= 4
    for name in names:
        image = entry().overlay(name)
        assert image[:600] == b"\7" * 600 and len(image) % 16 == 0 and not any(image[600:])
    assert doubles.runs(either).count("aiecc") == 1 + len(names)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"move_last": True}, "of attention: aiecc moved 1 of"),
        ({"byte": 8}, "a stream loads one image into all cores"),
        ({"data": True}, "section .data puts 8 bytes into data memory"),
        ({"text": 16384}, "streams of this configuration load"),
    ],
)
def test_overlays_that_streams_cannot_load_are_refused(fault, said, tools, npu):
    doubles.set_faults(tools, aiecc=fault)
    code, _, err = npu("--device", "npu1", "prefill")
    assert code == 1 and said in err and ("overlay products" in err or "move_last" in fault)
    assert cache.entries() == []


@pytest.mark.parametrize(
    ("program", "fault", "said"),
    [
        ("aiecc", {"text": 16388}, "core (0, 2): its program takes 16388 bytes, program memory"),
        ("aiecc", {"text": 0}, "core (0, 2): the linked program has no code"),
        ("aiecc", {"move": 8}, "aiecc moved 1 of"),
        ("aiecc", {"unplaced": True}, "without an address instead of at"),
        ("aiecc", {"port": 1}, "X0 has column 0 mm2s 1 instead of column 0 mm2s 0"),
        ("aiecc", {"rename_device": True}, "aiecc's module has no device main"),
        ("aiecc", {"buffers": 2}, "it declares 2 buffers, streams of the operation pass 3"),
        ("aiecc", {"buffers": 17}, "it declares 17 buffers, at most 16"),
        ("aiecc", {"kernels": 2}, "the xclbin has 2 kernels"),
        ("aiecc", {"word": 8}, "1 of 290 words differ, first word 8: 0x00000001 (WRITE core("),
        ("aiecc", {"word": 2}, "(header)"),
        ("aiecc", {"short": 4}, "instead of aiecc's nothing"),
        ("aiecc", {"short": 2}, "no whole number of words"),
        ("aiecc", {"no_words": True}, "made no instruction words"),
        ("aiecc", {"no_xclbin": True}, "without an error and without design.xclbin"),
        ("aiecc", {"missing_core": True}, "linked no program for core (0, 2)"),
        ("aiecc", {"cut": 100}, "cut off"),
        ("aiecc", {"nothing": True}, "left no input_with_addresses.mlir"),
        ("aiecc", {"exit": 1}, "aiecc failed with exit code 1: error: no such thing"),
        ("clang", {"exit": 1}, "clang++ failed with exit code 1: error: no such thing"),
        ("clang", {"stack": 5000}, "kernel geglu and the core's own program need 5"),
        ("clang", {"forget": 1}, "the object states no stack size of kernel geglu"),
        ("clang", {"cut": 300}, "cut off"),
        ("clang", {"nothing": True}, "No such file"),
        ("xclbinutil", {"exit": 2}, "aiecc failed with exit code 2"),
        ("xclbinutil", {"cut": 460}, "[design.xclbin] the header says"),
    ],
)
def test_what_goes_wrong_is_said_and_not_kept(program, fault, said, tools, npu):
    doubles.set_faults(tools, **{program: fault})
    line = failure(npu)
    assert "npu2-geglu failed: " in line and said in line


def test_nothing_of_a_failure_stays(tools, npu):
    doubles.set_faults(tools, aiecc={"text": 20000}, clang={"stack": 5000})
    assert "stack" in failure(npu)
    doubles.set_faults(tools, aiecc={"text": 20000}, clang={"version": "2"})
    assert "its program takes 20000 bytes" in failure(npu)
    doubles.set_faults(tools, clang={"version": "2"})
    assert npu("geglu")[0] == 0 and len(cache.entries()) == 1


def test_an_object_without_a_kernel_is_not_kept(tools, npu, xclbins):
    doubles.set_faults(tools, clang={"forget": 1})
    failure(npu)
    assert not list((xclbins / "npu2" / ".objects").iterdir())
    doubles.set_faults(tools)
    assert npu("geglu")[0] == 0


def test_a_failed_tool_leaves_its_output(tools, npu, xclbins):
    doubles.set_faults(tools, aiecc={"exit": 1})
    line = failure(npu)
    (log,) = (xclbins / "npu2" / ".logs").glob("*aiecc*")
    assert str(log) in line and "more words" in log.read_text()
    assert log.read_text().startswith(str(tools / "mlir_aie" / "bin" / "aiecc"))


def test_the_old_driver_declares_too_few_buffers_for_gemm(tmp_path, xclbins, npu, monkeypatch):
    """Eight buffers need the newer form, which counts those of the sequence."""
    for options, code in (("old", 1), ("new", 0)):
        folder = doubles.install(tmp_path / options, options)
        for name, value in doubles.variables(folder).items():
            monkeypatch.setenv(name, value)
        found = npu("npu2-gemm_bf16_f32-64x64x64-128-c11-l21")
        assert found[0] == code, found
        if code:
            assert "declares 5 buffers, streams of the operation pass 8" in found[2]


def test_a_design_without_room_is_refused_before_any_tool_runs(tools, npu, monkeypatch):
    monkeypatch.setattr(stack, "data_section", lambda lowered, core: (65536, 0))
    assert "a compiled program gets at least" in failure(npu)
    assert doubles.runs(tools) == []


def test_a_tool_that_hangs_is_stopped(tools, npu):
    doubles.set_faults(tools, aiecc={"sleep": 60})
    begin = time.monotonic()
    assert "aiecc was stopped after 2 s" in failure(npu, "--timeout", "2")
    assert time.monotonic() - begin < 30
    assert not alive(int((tools / "sleeping").read_text()))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def start(*words: str) -> subprocess.Popen[str]:
    """`npu build` as a process."""
    code = f"import sys\nfrom npu import cli\nsys.exit(cli.main(['build', *{list(words)!r}]))"
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_an_interrupt_ends_the_tools(tools, xclbins):
    doubles.set_faults(tools, aiecc={"sleep": 60})
    process = start("geglu", "rope", "-j", "2")
    wait_for(tools / "sleeping")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err
    assert not alive(int((tools / "sleeping").read_text()))
    assert [p for p in (xclbins / "npu2").iterdir() if p.name.endswith(".partial")] == []


def test_a_killed_build_goes_on_where_it_was(tools, npu, xclbins):
    doubles.set_faults(tools, aiecc={"sleep": 60})
    assert npu("rope", "--timeout", "0.5")[0] == 1  # kernels of rope are compiled
    process = start("geglu")
    (tools / "sleeping").unlink()
    wait_for(tools / "sleeping")
    process.kill()
    process.communicate(timeout=60)
    os.kill(int((tools / "sleeping").read_text()), signal.SIGKILL)
    left = [p for p in (xclbins / "npu2").iterdir() if p.name.endswith(".partial")]
    assert len(left) == 1 and cache.entries() == []
    doubles.set_faults(tools)
    before = doubles.runs(tools).count("clang++")
    code, out, _ = npu("geglu", "rope")
    assert code == 0 and "2 built" in out
    assert doubles.runs(tools).count("clang++") == before  # objects were complete
    assert [p for p in (xclbins / "npu2").iterdir() if p.name.endswith(".partial")] == []


def test_two_processes_build_a_configuration_once(tools):
    doubles.set_faults(tools, aiecc={"sleep": 2})
    both = [start("geglu"), start("geglu")]
    outs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert doubles.runs(tools).count("aiecc") == 1
    assert sorted("1 built" in out for out in outs) == [False, True]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written(tools, npu, xclbins):
    xclbins.mkdir()
    xclbins.chmod(0o500)
    try:
        assert "Permission denied; name another folder" in failure(npu)
    finally:
        xclbins.chmod(0o700)


def test_a_cache_that_is_a_file(tools, npu, xclbins):
    xclbins.write_text("")
    assert "NPU_XCLBINS" in failure(npu)


def test_a_cache_without_permission(tools, npu, monkeypatch):
    def refused(*words, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(cache.Path, "mkdir", refused)
    assert "Permission denied; name another folder for xclbins in NPU_XCLBINS" in failure(npu)


def test_a_full_disk(tools, npu, monkeypatch):
    def full(source, target):
        Path(target).write_bytes(Path(source).read_bytes()[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(one.shutil, "copyfile", full)
    assert "No space left on device" in failure(npu)
    monkeypatch.undo()


def test_one_failure_does_not_stop_the_rest(tools, npu, monkeypatch):
    real = aiecc.command

    def broken(tools, job):
        return ["/bin/false"] if "geglu" in str(job.folder) else real(tools, job)

    monkeypatch.setattr(aiecc, "command", broken)
    code, out, err = npu("geglu", "rope", "-j", "1")
    assert code == 1 and "1 built, 0 were there, 1 failed" in out
    assert "npu2-geglu failed" in err and entry().manifest["name"] == "rope"


@pytest.mark.parametrize("words", [("nothing",), ("npu1-geglu",), ("--list", "a/../b")])
def test_names_that_are_none(words, tools, npu):
    code, _, err = npu("--device", "npu2", *words)
    assert code == 1 and "is no operation and no configuration of npu2" in err


@pytest.mark.parametrize(
    "words",
    [
        ("-j", "0"),
        ("--timeout", "-1"),
        ("--timeout", "x"),
        ("--list", "--dry-run"),
        ("--force", "--list"),
    ],
)
def test_wrong_command_lines(words, tools, npu):
    assert npu(*words)[0] == 2


def test_sources_of_another_version_are_refused(tools, npu, tmp_path, monkeypatch):
    other = tmp_path / "aie_kernels"
    shutil.copytree(os.environ["NPU_AIE_KERNELS"], other)
    (other / "zero.cc").write_text("// other\n")
    monkeypatch.setenv("NPU_AIE_KERNELS", str(other))
    assert "are not those this package was built from" in npu("geglu")[2]
    monkeypatch.setenv("NPU_AIE_KERNELS", str(tmp_path))
    assert "name the folder aie_kernels" in npu("geglu")[2]
