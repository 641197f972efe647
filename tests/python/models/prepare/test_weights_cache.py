"""The cache of prepared weights: found again, never stale, never trusted, never in the way.

Every case compares the blocks that a model ends up with against those prepared without a cache.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gemma3_files import Shape, random_weights, small_vocabulary, write_model
from limits import HANG
from process_mappings import mapping_flags, needs_huge_pages

from npu import gemma3
from npu.errors import FileError
from npu.models.gemma3.model import Model
from npu.models.prepare import folder, kept, prepare, unsynced
from npu.models.sources import open_source

SHAPE = Shape(layers=2, width=96, ffn_width=160)
prepare_module = sys.modules[prepare.__module__]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("NPU_CACHE", str(place))
    return place


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return model_file(tmp_path / "some-model.gguf")


def model_file(path: Path, seed: int = 0) -> Path:
    types = {f"blk.{i}.ffn_down.weight": gguf.GGMLQuantizationType.Q8_0 for i in range(2)}
    weights = random_weights(SHAPE, len(small_vocabulary().pieces), seed)
    return write_model(path, SHAPE, weights=weights, types=types)


def blocks_of(model: Model) -> list[np.ndarray]:
    layers = [(x.qkv, x.output, x.gate_up, x.down) for x in model._layers]
    projections = [p for layer in layers for p in layer] + [model._head]
    return [tensor.blocks for p in projections for tensor in p.tensors]


def loaded(path: Path, weights: str = "auto", use: bool = True) -> tuple[Model, list[str]]:
    notes: list[str] = []
    return Model(open_source(path), None, weights, use, notes.append), notes


def assert_right(model: Model, path: Path, weights: str = "auto") -> None:
    for found, expected in zip(
        blocks_of(model), blocks_of(loaded(path, weights, False)[0]), strict=True
    ):
        assert np.array_equal(found, expected)


def entries(place: Path) -> list[Path]:
    return sorted(place.glob("*" + folder.SUFFIX)) if place.is_dir() else []


def test_the_second_load_prepares_nothing(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, notes = loaded(file)
    (entry,) = entries(cache)
    assert len(notes) == 1 and "preparing" in notes[0] and str(entry) in notes[0]
    assert entry.name.startswith("some-model.auto.")
    assert_right(first, file)
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "convert", None)
        second, notes = loaded(file)
    assert notes == [f"weights: prepared before, {entry}"]
    assert_right(second, file)
    assert second.weights_report == first.weights_report
    assert second.weights_report.location == str(entry)
    for tensor in blocks_of(second):  # mapped, on pages
        assert not tensor.flags.writeable and tensor.ctypes.data % 4096 == 0
    assert all(w.bound.in_place for w in second._head.weights if w.bound)


@needs_huge_pages
def test_kept_blocks_ask_for_huge_pages(cache: Path, file: Path) -> None:
    model, _ = loaded(file)
    (entry,) = entries(cache)
    assert "hg" in mapping_flags(entry)
    assert model.weights_report.location == str(entry)


def test_logits_do_not_depend_on_where_the_weights_are(cache: Path, file: Path) -> None:
    models = [loaded(file)[0], loaded(file)[0], loaded(file, use=False)[0]]
    logits = [model.forward([5, 6, 7], model.new_cache()) for model in models]
    assert np.array_equal(logits[0], logits[1]) and np.array_equal(logits[0], logits[2])


@pytest.mark.parametrize("same_times", [False, True])
def test_a_changed_model_file_is_prepared_again(cache: Path, file: Path, same_times: bool) -> None:
    loaded(file)
    (old,) = entries(cache)
    before = os.stat(file)
    model_file(file, seed=1)
    if same_times:  # then only the bytes tell
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    model, notes = loaded(file)
    assert "preparing" in notes[0]
    assert_right(model, file)
    (new,) = entries(cache)
    assert new != old


def test_a_changed_header_is_seen(cache: Path, file: Path) -> None:
    """A byte of the metadata, the file's size and times as before."""
    loaded(file)
    before, raw = os.stat(file), bytearray(file.read_bytes())
    raw[raw.index(b"gemma3.rope.freq_base") + 27] ^= 1
    file.write_bytes(raw)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "preparing" in loaded(file)[1][0]


def test_choices_have_entries_of_their_own(cache: Path, file: Path) -> None:
    for choice in ("auto", "q8", "q4nx", "bf16"):
        assert_right(loaded(file, choice)[0], file, choice)
    assert len(entries(cache)) == 4
    for choice in ("auto", "q8", "q4nx", "bf16"):
        model, notes = loaded(file, choice)
        assert "prepared before" in notes[0]
        assert_right(model, file, choice)


def edited(entry: Path, change: Callable[[dict], object]) -> None:
    """Rewrites the header of an entry, padded to its old length."""
    raw = entry.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode().ljust(length)
    assert len(text) == length or len(text) % 4096
    entry.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


def metadata(**values: str | None) -> Callable[[Path], object]:
    def change(header: dict) -> None:
        for name, value in values.items():
            key = f"npu.weights.{name}"
            assert key in header["__metadata__"]
            header["__metadata__"][key] = value
            if value is None:
                del header["__metadata__"][key]

    return lambda entry: edited(entry, change)


def smaller_row(header: dict) -> None:
    """Another shape of as many bytes."""
    entry = next(v for k, v in header.items() if k.endswith("ffn_down.weight"))
    rows, columns, size = entry["shape"]
    entry["shape"] = [columns, rows, size] if rows != columns else [1, rows * columns, size]


def shorter_end(entry: Path) -> None:
    """A file that is one byte shorter, as its header says: of what lies beyond the last blocks."""

    def change(header: dict) -> None:
        tensors = {name: v for name, v in header.items() if name != "__metadata__"}
        name = max(tensors, key=lambda name: tensors[name]["data_offsets"])
        assert name.endswith(".fill")
        header[name]["shape"][0] -= 1
        header[name]["data_offsets"][1] -= 1

    edited(entry, change)
    os.truncate(entry, entry.stat().st_size - 1)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda entry: entry.write_bytes(b""),
    "a folder": lambda entry: (entry.unlink(), entry.mkdir()),
    "no safetensors": lambda entry: entry.write_bytes(b"\x00" * 100_000),
    "short header": lambda entry: os.truncate(entry, 100),
    "cut by a byte": lambda entry: os.truncate(entry, entry.stat().st_size - 1),
    "cut by half": lambda entry: os.truncate(entry, entry.stat().st_size // 2),
    "too long": lambda entry: os.truncate(entry, entry.stat().st_size + 4096),
    "other version": metadata(version="0"),
    "without small blocks": metadata(version="1"),
    "no version": metadata(version=None),
    "other key": metadata(key="0" * 32),
    "no report": metadata(report=None),
    "odd report": metadata(report="[1, 2]"),
    "report of other rows": metadata(report='[{"kind": 1}]'),
    "report is no JSON": metadata(report="["),
    "formats exchanged": metadata(formats="{}"),
    "too little at the end": shorter_end,
    "another shape": lambda entry: edited(entry, smaller_row),
    "written before a crash": lambda entry: entry.with_name(entry.name + ".unsynced").write_text(
        "another boot"
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_off_is_made_again(damage: str, cache: Path, file: Path) -> None:
    loaded(file)
    (entry,) = entries(cache)
    wait_for_disk(entry)
    DAMAGE[damage](entry)
    model, notes = loaded(file)
    assert_right(model, file)
    if damage == "a folder":  # in the way: kept nowhere, said so
        assert "in memory" in notes[-1]
        return
    assert len(notes) == 1 and "preparing" in notes[0]
    assert "prepared before" in loaded(file)[1][0]


def wait_for_disk(entry: Path) -> None:
    deadline = time.monotonic() + HANG
    while entry.with_name(entry.name + ".unsynced").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_entry_reaches_the_disk(cache: Path, file: Path) -> None:
    """Until then it is trusted by the boot that wrote it."""
    loaded(file)
    (entry,) = entries(cache)
    wait_for_disk(entry)
    assert [path.name for path in cache.iterdir()] == [entry.name]
    unsynced.begin(entry)
    assert "prepared before" in loaded(file)[1][0]
    wait_for_disk(entry)


def test_another_version_replaces_the_entry(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(file)
    (old,) = entries(cache)
    monkeypatch.setattr(kept, "VERSION", "next")
    assert "preparing" in loaded(file)[1][0]
    (new,) = entries(cache)
    assert new != old


def test_entries_of_models_that_are_gone_are_removed(
    cache: Path, file: Path, tmp_path: Path
) -> None:
    other = model_file(tmp_path / "other.gguf", seed=2)
    loaded(file)
    file.unlink()
    loaded(other)
    assert [entry.name.split(".")[0] for entry in entries(cache)] == ["other"]


def test_the_least_recently_used_goes_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [model_file(tmp_path / f"m{i}.gguf", seed=i) for i in range(4)]
    loaded(files[0])
    size = entries(cache)[0].stat().st_size
    loaded(files[1])
    loaded(files[2])
    for age, name in ((30, "m0"), (20, "m1"), (10, "m2")):
        (entry,) = cache.glob(f"{name}.*{folder.SUFFIX}")
        os.utime(entry, (time.time() - age, time.time() - age))
    loaded(files[0])  # used: now m1 is the oldest
    monkeypatch.setenv("NPU_CACHE_LIMIT", str(3.5 * size / 1e9))
    loaded(files[3])
    assert [entry.name[:2] for entry in entries(cache)] == ["m0", "m2", "m3"]
    monkeypatch.setenv("NPU_CACHE_LIMIT", str(0.5 * size / 1e9))
    model, notes = loaded(files[1])
    assert "NPU_CACHE_LIMIT" in notes[-1] and "in memory" in notes[-1]
    asked = float(notes[-1].partition("not kept: ")[2].split()[0])
    assert 0.5 * size / 1e9 < asked < 1.01 * size / 1e9
    assert_right(model, files[1])
    monkeypatch.setenv("NPU_CACHE_LIMIT", "much")
    assert "give GB" in loaded(files[1])[1][-1]


def test_an_entry_is_not_on_disk_because_the_one_before_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may replace an entry while this one waits for the disk."""
    entry, other = tmp_path / "entry", tmp_path / "other"
    entry.write_bytes(b"ours")
    unsynced.begin(entry)
    other.write_bytes(b"theirs")
    with monkeypatch.context() as patch:
        patch.setattr(unsynced.os, "fsync", lambda number: os.replace(other, entry))
        unsynced._sync(entry)
    marker = entry.with_name("entry.unsynced")
    assert entry.read_bytes() == b"theirs" and marker.exists()
    unsynced._sync(entry)
    assert not marker.exists()


def in_memory(notes: list[str], model: Model, file: Path, reason: str) -> None:
    assert len(notes) == 2 and "in memory, not kept" in notes[1] and reason in notes[1]
    assert "[" not in notes[1]
    assert model.weights_report.location == "in memory"
    assert_right(model, file)


def test_too_little_space(cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = namedtuple("disk", "f_blocks f_bavail f_frsize")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstatvfs", lambda number: disk(10, 1, 1000))
        model, notes = loaded(file)
    in_memory(notes, model, file, "free")
    assert not list(cache.iterdir())


def test_a_disk_that_fills_up(cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = kept._Blocks.append, 0

    def append(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise FileError("[convert] the disk is full")
        real(*arguments)

    monkeypatch.setattr(kept._Blocks, "append", append)
    model, notes = loaded(file)
    in_memory(notes, model, file, "the disk is full")
    assert not list(cache.iterdir())


@pytest.mark.parametrize("place", ["a file", "/proc/npu-xdna"])
def test_a_folder_that_cannot_be_written(
    place: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("NPU_CACHE", str(tmp_path / place))
    model, notes = loaded(file)
    in_memory(notes, model, file, str(tmp_path / place))


def test_off(cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    model, _ = gemma3.load(file, cache=False, note=notes.append)
    assert_right(model, file)
    monkeypatch.setenv("NPU_CACHE", "off")
    assert_right(loaded(file)[0], file)
    assert not cache.exists() and not notes


def test_the_default_folder_keeps_no_small_models(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    loaded(file)
    assert not (tmp_path / "xdg").exists()
    monkeypatch.setattr(folder, "_SMALLEST", 0)
    loaded(file)
    assert len(entries(tmp_path / "xdg/npu-xdna")) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    loaded(file)
    assert len(entries(tmp_path / "home/.cache/npu-xdna")) == 1


def test_several_at_a_time(cache: Path, file: Path) -> None:
    models: list[Model] = []
    threads = [threading.Thread(target=lambda: models.append(loaded(file)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(models) == 4 and len(entries(cache)) == 1
    for model in models:
        assert_right(model, file)


def test_a_path_through_a_link_is_the_same_model(cache: Path, file: Path, tmp_path: Path) -> None:
    loaded(file)
    (tmp_path / "link.gguf").symlink_to(file)
    assert "prepared before" in loaded(tmp_path / "link.gguf")[1][0]


def test_another_process_finds_the_entry(cache: Path, file: Path) -> None:
    loaded(file)
    code = (
        "import sys; from npu import gemma3\n"
        "model, _ = gemma3.load(sys.argv[1], note=print)\n"
        "print(float(model.forward([5], model.new_cache()).sum()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=HANG
    )
    assert "prepared before" in found.stdout, found.stderr
    model = loaded(file, use=False)[0]
    assert float(found.stdout.split()[-1]) == float(model.forward([5], model.new_cache()).sum())
