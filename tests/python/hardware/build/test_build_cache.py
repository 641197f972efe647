"""The cache of xclbins as devices use it.

Asserts where it is, that only complete entries are found, whatever a folder holds, and the command
that a missing entry's message gives.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from pathlib import Path

import pytest

from npu.errors import ArgumentError, FileError
from npu.hardware.build import cache
from npu.hardware.build.process import Stopped
from npu.hardware.build.targets import every, select

ARTEFACT = "geglu-npu2-0123456789abcdef"
FILES = (cache.DESIGN, "norm.overlay.bin")


def about(data: bytes) -> dict[str, object]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.fixture
def entry(xclbins):
    folder = xclbins / "npu2" / ARTEFACT
    folder.mkdir(parents=True)
    (folder / cache.DESIGN).write_bytes(b"1234")
    (folder / "norm.overlay.bin").write_bytes(b"code")
    files = {name: about((folder / name).read_bytes()) for name in FILES}
    manifest = {
        "format": cache.FORMAT, "artefact": ARTEFACT, "generation": "npu2", "tools": {},
        "kernels": "", "files": files, "key": "npu2-geglu",
    }  # fmt: skip
    (folder / cache.MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_an_entry_is_found(entry):
    found = cache.find("npu2", ARTEFACT)
    assert found is not None and found.path == entry / cache.DESIGN
    assert found.manifest["artefact"] == ARTEFACT and found.overlay("norm") == b"code"
    assert [one.path for one in cache.entries()] == [found.path]
    assert cache.find("npu1", ARTEFACT) is None
    assert found.again == "npu build --device npu2 --force npu2-geglu"
    with pytest.raises(FileError, match=r"other\.overlay\.bin.*--force npu2-geglu"):
        found.overlay("other")


def test_nothing_is_found_where_nothing_is(xclbins):
    assert cache.find("npu2", ARTEFACT) is None and cache.entries() == []


@pytest.mark.parametrize(
    "change",
    [
        {"artefact": "other"}, {"generation": "npu1"}, {"files": {}}, {"tools": 1},
        {"files": {cache.DESIGN: about(b"12345")}}, {"files": {cache.DESIGN: 4}}, {"files": 3},
        {"files": {cache.DESIGN: about(b"1234"), "none.bin": about(b"1234")}}, {"kernels": None},
        {"files": {cache.DESIGN: about(b"1234"), "../../x": about(b"1234")}}, {"key": 5},
        {"files": {cache.DESIGN: about(b"1235")}}, {"files": {cache.DESIGN: {"bytes": 4}}},
        {"files": {cache.DESIGN: about(b"1234") | {"sha256": 3}}},
    ],
)  # fmt: skip
def test_damaged_entries_are_none(change, entry):
    path = entry / cache.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert cache.find("npu2", ARTEFACT) is None and cache.entries() == []
    assert cache.damaged() == [entry]


def test_an_entry_of_another_form_is_none_of_ours(entry):
    path = entry / cache.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    assert cache.find("npu2", ARTEFACT) is None and cache.entries() == cache.damaged() == []


def test_what_is_damaged_is_told_from_what_is_missing(entry, xclbins):
    """One changed bit in any file; locks and half-made folders are no entries."""
    (xclbins / "npu2" / f".{ARTEFACT}.partial").mkdir()
    (xclbins / "npu2" / ".logs").mkdir()
    assert cache.damaged() == []
    for name in FILES:
        before = (entry / name).read_bytes()
        (entry / name).write_bytes(bytes([before[0] ^ 1]) + before[1:])
        assert cache.damaged() == [entry] and cache.find("npu2", ARTEFACT) is None
        (entry / name).write_bytes(before)
    assert cache.damaged() == [] and cache.find("npu2", ARTEFACT) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100000, "\udcff"])
def test_manifests_that_are_none(text, entry):
    (entry / cache.MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    assert cache.find("npu2", ARTEFACT) is None and cache.damaged() == [entry]


def test_an_xclbin_that_is_cut_or_gone(entry):
    (entry / cache.DESIGN).write_bytes(b"123")
    assert cache.find("npu2", ARTEFACT) is None
    (entry / cache.DESIGN).unlink()
    assert cache.find("npu2", ARTEFACT) is None


@pytest.mark.parametrize("pair", [("npu3", "a"), ("npu2", "../a"), ("npu2", ""), ("npu2", ".a")])
def test_names_that_no_configuration_has(pair, xclbins):
    with pytest.raises(ArgumentError, match="no generation and artefact"):
        cache.find(*pair)


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("NPU_XCLBINS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NPU_CACHE", "off")
    assert cache.root() == tmp_path / "npu-xdna" / "xclbins"
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / "weights"))
    assert cache.root() == tmp_path / "weights" / "xclbins"
    monkeypatch.setenv("NPU_XCLBINS", "~/there")
    assert cache.root().parts[-1] == "there" and "~" not in str(cache.root())
    monkeypatch.delenv("NPU_XCLBINS")
    monkeypatch.delenv("NPU_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root().parts[-3:] == (".cache", "npu-xdna", "xclbins")


def test_the_command_builds_the_configuration():
    for generation in cache.GENERATIONS:
        for target in every(generation):
            assert cache.command(generation, target.key).endswith(f" {target.key}")
            head = f"npu build --device {generation} "
            command = cache.command(generation, target.name)
            assert command.startswith(head) and " --all" not in command
            assert target.key in [t.key for t in select(generation, [command.removeprefix(head)])]
    assert cache.command("npu2", "prefill", "rope", "prefill", force=True) == (
        "npu build --device npu2 --force prefill rope"
    )
    assert cache.command("npu2", "prefill") == "npu build --device npu2 prefill"
    assert cache.command("npu2", "one of somebody's own") == "npu build --device npu2"


def test_what_is_built_by_default():
    page = " ".join((Path(__file__).parents[4] / "docs/building.md").read_text().split())
    for generation in cache.GENERATIONS:
        chosen = select(generation)
        assert re.search(rf"\b{len(chosen)}( configurations)? for {generation}", page)
        assert f"{len(every(generation))} for {generation}" in page
        operations = {target.operation for target in chosen}
        assert operations == {target.operation for target in every(generation)}
        names = {target.name for target in chosen}
        assert {"gemm_bf16_f32", "dequant_q4nx", "decoder", "prefill"} <= names
        assert any(name.startswith("gemm_i8_i32") for name in names)
        assert len(chosen) < len(select(generation, (), True)) == len(every(generation))
        assert not any("-1x" in target.key for target in every(generation))
        assert len(select(generation, ["gemm"], True)) > len(select(generation, ["gemm"]))


def test_who_waits_for_a_lock_can_be_stopped(xclbins):
    folder, stop = cache.place("npu2", ARTEFACT), threading.Event()
    with cache.locked(folder, stop):
        stop.set()
        with pytest.raises(Stopped), cache.locked(folder, stop):
            raise AssertionError


def test_an_entry_is_replaced_whole(entry):
    with cache.locked(entry, threading.Event()), cache.partial(entry) as made:
        (made / "new").write_text("")
        assert cache.find("npu2", ARTEFACT) is not None  # the old one, until the end
        cache.publish(made, entry)
    assert [path.name for path in entry.iterdir()] == ["new"]
    assert [p.name for p in entry.parent.iterdir() if not p.name.endswith(".lock")] == [ARTEFACT]


def test_a_partial_folder_goes_with_its_block(entry):
    with pytest.raises(ZeroDivisionError), cache.partial(entry) as made:
        (made / "new").write_text("")
        raise ZeroDivisionError
    assert not made.exists() and cache.find("npu2", ARTEFACT) is not None
