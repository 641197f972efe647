"""Streams that are patched on the device xrt: a generated token writes a few words of its stream to
the device, not a new one. Wherever the stream lies - with the configuration's setup before it, in
another BO after an eviction, in none - it runs as one that was built with those words; a stream
that a run uses is left alone; a patch that raises changes nothing. Models that were interrupted at
any of these places compute right afterwards."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import submission_cost
from gemma3_files import Shape, write_model
from xrt_cases import backend

import npu
from npu import _npu
from npu.hardware.xrt import instructions, memory
from npu.models.gemma3.model import Model
from npu.models.sources import open_source
from npu.ops.registry import operation

SIZES = (3 << 16, 1 << 16)


class Copies:
    """A copy's stream, of the first of two sizes at first, on memory of a backend."""

    def __init__(self, **options: Any) -> None:
        self.backend = backend(**options)
        self.handle = _npu.device.open_python(self.backend)
        copy = operation("copy")
        data = copy.configuration("npu2")
        self.configuration = _npu.device.Configuration.parse(data)
        self.handle.load(self.configuration)
        self.words = [
            np.frombuffer(copy.submissions(data, {"bytes": size})[0].stream, np.uint32)
            for size in SIZES
        ]
        self.stream = self.new()
        self.memory = [self.handle.allocate(max(SIZES)) for _ in range(2)]
        self.memory[0].array[:] = np.random.default_rng(2).integers(1, 256, max(SIZES), np.uint8)
        self.memory[0].sync_to_device(0, max(SIZES))

    def new(self) -> Any:
        return self.handle.prepare(self.words[0].tobytes())

    def patch(self, size: int) -> bool:
        places = np.flatnonzero(self.words[0] != self.words[1]).tolist()
        return self.handle.patch(self.stream, [(at, int(self.words[size][at])) for at in places])

    def start(self, stream: Any = None) -> Any:
        arguments = [
            (self.memory[0], 0, max(SIZES), "read"), (self.memory[1], 0, max(SIZES), "write")
        ]  # fmt: skip
        return self.handle.submit(self.stream if stream is None else stream, arguments)

    def copied(self) -> int:
        """Bytes that a run copies."""
        self.memory[1].array[:] = 0
        self.memory[1].sync_to_device(0, max(SIZES))
        self.start().finish()
        self.memory[1].sync_from_device(0, max(SIZES))
        equal = self.memory[0].array == self.memory[1].array
        assert equal[: equal.sum()].all()
        return int(equal.sum())


def test_a_patched_stream_is_not_written_anew(machine):
    case = Copies()
    assert case.copied() == SIZES[0]
    bos, before = machine.counts["bos"], machine.counts["stream bytes"]
    for size in (1, 0, 1):
        assert case.patch(size) and case.copied() == SIZES[size]
    assert machine.counts["bos"] == bos
    length = 4 * len(case.words[0])
    assert 0 < machine.counts["stream bytes"] - before < 3 * length


def test_what_lies_before_a_stream_shifts_its_words():
    """Streams of the decoder begin with a setup, before which only the header lies."""
    decoder = operation("decoder")
    data = decoder.configuration("npu2")
    request = {
        "sliding": 1, "global": 1, "width": 64, "heads": 4, "kv_heads": 2, "head_dim": 64,
        "ffn": 96, "vocabulary": 200,
    }  # fmt: skip
    old, new = (
        np.frombuffer(decoder.submissions(data, {**request, "position": at})[0].stream, np.uint32)
        for at in (70, 71)
    )
    made = backend()
    made.load(_npu.device.Configuration.parse(data))
    prepared = made.prepare(old.tobytes())
    (places,) = np.nonzero(old != new)
    assert len(places) and prepared.shift == 224
    assert made.patch(prepared, np.stack([places, new[places]], 1).astype(np.uint32))
    now = np.frombuffer(prepared.words, np.uint32)
    assert np.array_equal(now[4 + prepared.shift :], new[4:])
    fresh = made.prepare(new.tobytes())
    assert prepared.words == fresh.words


def test_a_stream_that_is_nowhere_or_was_evicted_keeps_its_patch(machine):
    case = Copies(heap_bytes=2 * instructions.GRANULE)
    assert case.patch(1)  # before it was anywhere
    assert case.copied() == SIZES[1]
    others = [case.new() for _ in range(2)]
    for other in others:
        case.start(other).finish()
    assert case.backend.pool.evictions == 1
    assert case.patch(0) and case.copied() == SIZES[0]
    assert case.patch(1)
    for other in others:
        case.start(other).finish()
    assert case.copied() == SIZES[1]


def test_a_stream_that_a_run_uses_is_not_patched():
    case = Copies()
    run = case.start()
    assert not case.patch(1)
    run.finish()
    assert case.copied() == SIZES[0]
    assert case.patch(1) and case.copied() == SIZES[1]


def test_after_a_run_that_failed_a_stream_is_as_it_was_patched(machine):
    case = Copies()
    assert case.copied() == SIZES[0] and case.patch(1)
    machine.inject("run", "timeout")
    with pytest.raises(npu.NpuError):
        case.start().finish()
    case.handle.load(case.configuration)
    assert case.copied() == SIZES[1]
    assert case.patch(0) and case.copied() == SIZES[0]


def test_a_patch_that_raises_changes_nothing(monkeypatch, machine):
    """Half of it may have reached the device: the stream is written again as it was."""
    case = Copies()
    assert case.copied() == SIZES[0]
    for name in ("synchronise", "fence"):
        with monkeypatch.context() as broken:
            broken.setattr(instructions, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                case.patch(1)
        assert case.copied() == SIZES[0]
    assert case.patch(1) and case.copied() == SIZES[1]


def test_a_patch_needs_its_sync(monkeypatch):
    """The double keeps host and device apart: without it the old words run."""
    case = Copies()
    assert case.copied() == SIZES[0]
    monkeypatch.setattr(instructions, "_ranges", lambda _: [])
    assert case.patch(1) and case.copied() == SIZES[0]


def test_ranges_are_those_of_the_words():
    words = np.array([7, 4, 5000, 1027, 5001, 9000], np.int64)
    assert instructions._ranges(words) == [(16, 4112), (20000, 20008), (36000, 36004)]
    assert instructions._ranges(words[:1]) == [(28, 32)]
    assert instructions._ranges(np.array([0, 1025])) == [(0, 4), (4100, 4104)]


def _raise_once(owner: Any, name: str, when: str, wanted: Any = lambda *_: True) -> Any:
    """A method that raises KeyboardInterrupt once, before or after it has done its work."""
    real, left = getattr(owner, name), [1]

    def broken(*arguments: Any) -> Any:
        if not left or not wanted(*arguments):
            return real(*arguments)
        left.clear()
        if when == "after":
            real(*arguments)
        raise KeyboardInterrupt

    return broken


def _small_model(tmp_path: Path, **shape: int) -> Path:
    sizes = {"layers": 2, "width": 64, "ffn_width": 96, "heads": 4, "kv_heads": 2, "head_dim": 32}
    return write_model(tmp_path / "m.gguf", Shape(**{**sizes, "window": 6, "context": 96, **shape}))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", ["patch", "workspace"])
def test_a_token_that_was_interrupted_harms_no_other_cache(when, place, machine, tmp_path: Path):
    """Tokens of all caches take turns with one workspace, and where attention is divided alike with
    one stream. Ctrl-C while the stream is patched, or while another division of the attention is
    written, is the other cache's loss."""
    model_path = _small_model(tmp_path, head_dim=256, window=1000, context=1200)

    def run(interrupt: bool) -> list[bytes]:
        model = Model(open_source(model_path))
        one, other = model.new_cache(), model.new_cache()
        # So long a cache has the attention of its tokens divided otherwise.
        model.forward(np.arange(3 if place == "patch" else 700) % 200, one)
        model.forward([1, 2, 3], other)
        logits = [model.forward([token], cache) for token, cache in ((5, one), (4, other))]
        logits.append(model.forward([6], one))
        if interrupt:
            with pytest.MonkeyPatch.context() as broken:
                owner, name = {
                    "patch": (instructions.InstructionPool, "patch"),
                    "workspace": (memory.XrtBuffer, "sync_to_device"),
                }[place]
                broken.setattr(owner, name, _raise_once(owner, name, when))
                with pytest.raises(KeyboardInterrupt):
                    model.forward([9], other)
        logits.append(model.forward([7], one))
        return [one.tobytes() for one in logits]

    with npu.device("emu:npu2", designs="array"):  # where prompts run as on an NPU
        expected = run(False)
    name = f"double:interrupted-{place}-{when}"
    npu.register_device(name, lambda: backend("npu2"))
    with npu.device(name):
        assert run(True) == expected


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(12))
def test_a_prompt_that_was_interrupted_harms_none_after_it(when, number, machine, tmp_path: Path):
    """Ctrl-C in any of the first synchronisations of prefill: its buffers are written again."""
    model_path = _small_model(tmp_path)
    tokens = np.random.default_rng(3).integers(0, 200, 20)

    def run(interrupt: bool) -> bytes:
        model = Model(open_source(model_path))
        if interrupt:
            count = itertools.count()
            with pytest.MonkeyPatch.context() as broken:
                owner, name = memory.XrtBuffer, "sync_to_device"
                broken.setattr(
                    owner, name, _raise_once(owner, name, when, lambda *_: next(count) == number)
                )
                with pytest.raises(KeyboardInterrupt):
                    model.forward(tokens, model.new_cache(), all_logits=True)
        return model.forward(tokens, model.new_cache(), all_logits=True).tobytes()

    with npu.device("emu:npu2"):
        expected = run(False)
    name = f"double:prompt-{number}-{when}"
    npu.register_device(name, lambda: backend("npu2"))
    with npu.device(name):
        assert run(True) == expected


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_generated_tokens_upload_no_stream(generation, machine, tmp_path: Path):
    """Only words that changed go to the device, and the logits are the emulated NPU's."""
    path = _small_model(tmp_path)
    tokens = np.random.default_rng(1).integers(0, 200, 20)

    def run() -> tuple[list[bytes], list[int]]:
        model, written = Model(open_source(path)), []
        assert model.decodes_on_array
        cache, logits = model.new_cache(), []
        for token in tokens:
            before = machine.counts["stream bytes"]
            logits.append(model.forward([int(token)], cache).tobytes())
            written.append(machine.counts["stream bytes"] - before)
        return logits, written

    with npu.device(f"emu:{generation}"):
        expected, _ = run()
    machine.reset(seed=7)  # with reloads
    name = f"double:patches-{generation}"
    npu.register_device(name, lambda: backend(generation))
    with npu.device(name):
        found, written = run()
    assert found == expected
    assert written[0] > 5000 and max(written[1:]) < 100 and min(written[1:]) > 0


def test_a_token_of_a_large_model_writes_what_it_changes():
    """26 layers: a word each, apart from each other."""
    found = submission_cost.measure_token(repeats=1)
    assert found["changed"] == 26 and found["patched bytes"] == 4 * 26
    assert found["anew bytes"] > 4 * found["words"] > 300_000
