"""Repeated calls on emulated devices are replays (docs/architecture.md). Asserts that results of
products and of GEMV are those of NumPy's integers, and those of attention, of layers, of tokens and
of prompts of Gemma 3 the same as at register level, whatever was computed between and whichever
operands share memory; that npu.stats() counts replays, and that NPU_REPLAY=0 leaves every run at
register level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gemma3_files import Shape, small_vocabulary, write_model
from q4nx_blocks import random_integers, random_weights

import npu
from npu.devices import open_device
from npu.models.gemma3.model import Model
from npu.models.sources import open_source
from npu.ops.gemm_calls import run_both
from npu.ops.matmul import call_of

SIZES = ((64, 64, 64), (300, 200, 500), (130, 520, 70))
ROUNDS = 9


@pytest.fixture(autouse=True)
def replays(fresh_devices: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are opened with replays, also where the tests run with NPU_REPLAY=0."""
    monkeypatch.delenv("NPU_REPLAY", raising=False)


def products(name: str, **options: str) -> npu.Stats:
    """Multiplies other numbers of the same sizes again and again; what that counted."""
    rng = np.random.default_rng(7)
    before = npu.stats()
    with npu.device(name, **options):
        for _ in range(ROUNDS):
            for m, k, n in SIZES:
                a = rng.integers(-128, 128, (m, k)).astype(np.int8)
                b = rng.integers(-128, 128, (k, n)).astype(np.int8)
                assert np.array_equal(npu.matmul(a, b), a.astype(np.int64) @ b)
        return npu.stats() - before


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_repeated_products_are_replays(generation: str) -> None:
    counted = products(f"emu:{generation}")
    assert counted.submissions >= len(SIZES) * ROUNDS
    assert counted.replays >= counted.submissions // 3
    assert counted.replay_bytes > 0


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_repeated_gemv_is_replays(generation: str) -> None:
    rng = np.random.default_rng(3)
    weights = [
        (n, k, *random_weights(n, k, rng, exact=True)[:2]) for n, k in ((96, 512), (64, 300))
    ]
    before = npu.stats()
    with npu.device(f"emu:{generation}"):
        for turn in range(24):
            for n, k, blocks, w in weights:
                # Five vectors are two passes, the second of another setup.
                x = random_integers(1 if turn % 4 else 5, k, rng)
                y = npu.gemv((blocks, (n, k)), x, out_dtype=np.float32)
                assert np.array_equal(y, x.astype(np.float64) @ w.T)
    counted = npu.stats() - before
    assert counted.replays >= counted.submissions // 3


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_repeated_attention_is_replays(fresh_devices: Callable[[], None], generation: str) -> None:
    def attend(seed: int, keys: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        q, k, v = (rng.standard_normal((n, h, 64)) for n, h in ((3, 4), (keys, 2), (keys, 2)))
        return npu.attention(*(x.astype(np.float32) for x in (q, k, v)))

    with npu.device(f"emu:{generation}"):
        cases = [(seed, keys) for seed in range(4) for keys in (40, 150)]
        first = [attend(*case) for case in cases[:2]]  # at register level
        before = npu.stats()
        for _ in range(4):
            results = [attend(*case) for case in cases]
            assert all(np.array_equal(*pair) for pair in zip(results, first, strict=False))
        counted = npu.stats() - before
    assert counted.replays >= counted.submissions // 2


@pytest.mark.parametrize("name", ["emu:npu1", "emu:npu2+replay"])
def test_products_of_a_matrix_with_itself_are_replays(
    fresh_devices: Callable[[], None], name: str
) -> None:
    rng = np.random.default_rng(5)
    before = npu.stats()
    with npu.device(name):
        for turn in range(18):
            a, other = rng.integers(-128, 128, (2, 512, 512)).astype(np.int8)  # read in place
            b = a if turn % 3 else other
            assert np.array_equal(npu.matmul(a, b), a.astype(np.float32) @ b.astype(np.float32))
    counted = npu.stats() - before
    assert counted.replays >= counted.submissions // 3


@pytest.mark.parametrize("size", [(256, 768, 512), (256, 256, 768)], ids=str)
def test_layers_on_npu1_are_replays(
    fresh_devices: Callable[[], None], monkeypatch: pytest.MonkeyPatch, size: tuple[int, int, int]
) -> None:
    """All three products, of which memtiles keep an operand; both gradients in one submission share
    dy."""

    def steps(replayed: bool) -> list[np.ndarray]:
        monkeypatch.setenv("NPU_REPLAY", str(int(replayed)))
        rng = np.random.default_rng(6)
        rows, k, n = size
        device, results = open_device("emu:npu1"), []
        for _ in range(9):
            x, w, dy = (
                rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
                for shape in ((rows, k), (n, k), (rows, n))
            )
            calls = [
                call_of(a, b, device=device, layer=True) for a, b in ((x, w.T), (dy, w), (dy.T, x))
            ]
            results.append(calls[0].run())
            run_both(*calls[1:])
            results += [call.returned for call in calls[1:]]
        return results

    before = npu.stats()
    found = steps(replayed=True)
    counted = npu.stats() - before
    assert counted.replays >= counted.submissions // 2
    fresh_devices()
    for one, other in zip(found, steps(replayed=False), strict=True):
        assert np.array_equal(one.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_tokens_are_replays_but_where_attention_grows(
    fresh_devices: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    generation: str,
) -> None:
    """Two sequences in turns of several tokens, over borders of chunks, pages and the window, and
    the largest logits in between, which are another stream."""
    shape = Shape(layers=4, width=64, ffn_width=96, context=700, window=40)
    path = write_model(tmp_path / "m.gguf", shape)
    count = len(small_vocabulary().pieces)

    def logits(replayed: bool) -> list[np.ndarray]:
        monkeypatch.setenv("NPU_REPLAY", str(int(replayed)))
        rng, results = np.random.default_rng(8), []
        with npu.device(f"emu:{generation}"):
            model = Model(open_source(path))
            caches = [model.new_cache(), model.new_cache()]
            model.prefill(rng.integers(0, count, 245).tolist(), caches[1])
            for turn in range(10):
                for cache in caches:
                    for _ in range(9):
                        results.append(model.forward(rng.integers(0, count, 1).tolist(), cache))
                if turn % 3 == 2:
                    results += model.top([7], caches[0], 5, count)
        return results

    before = npu.stats()
    found = logits(replayed=True)
    counted = npu.stats() - before
    assert counted.replays >= counted.submissions // 2
    fresh_devices()
    for one, other in zip(found, logits(replayed=False), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("generation", "threads"), [("npu1", 2), ("npu2", 1), ("npu2", 3)])
def test_tokens_of_several_sequences_are_replays_beside_each_other(
    fresh_devices: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    generation: str,
    threads: int,
) -> None:
    """Sequences as long as others, shorter and longer ones, of which some grow by another group of
    keys meanwhile and some end: the logits of tokens at register level, one after the other. The
    copies of the array's memory that they need go when something else runs."""
    shape = Shape(layers=4, width=64, ffn_width=96, context=400, window=40)
    path = write_model(tmp_path / "m.gguf", shape)
    count = len(small_vocabulary().pieces)
    lengths = [17, 18, 1, 62, 190, 126, 260, 17]

    def logits(replayed: bool) -> list[np.ndarray]:
        rng, results = np.random.default_rng(8), []
        model = Model(open_source(path))
        caches = [model.new_cache() for _ in lengths]
        for cache, length in zip(caches, lengths, strict=True):
            model.extend(rng.integers(0, count, length).tolist(), cache)
        for step in range(8):
            tokens = rng.integers(0, count, 8 - step // 3).tolist()
            before = npu.stats().replays
            results += list(model.decode_batch(tokens, caches[: len(tokens)]))
        assert npu.stats().replays - before == (5 * len(tokens) if replayed else 0)
        return results

    npu.set_threads(threads)
    try:
        with npu.device(f"emu:{generation}"):
            found, held = logits(replayed=True), npu.stats().replay_bytes
            npu.matmul(np.ones((9, 9), np.int8), np.ones((9, 9), np.int8))
            columns = 8 if generation == "npu2" else 4
            copies = 7 * columns * (512 + 4 * 64) * 1024
            assert held - npu.stats().replay_bytes >= copies
        fresh_devices()
        monkeypatch.setenv("NPU_REPLAY", "0")
        with npu.device(f"emu:{generation}"):
            for one, other in zip(found, logits(replayed=False), strict=True):
                assert np.array_equal(one, other)
    finally:
        npu.set_threads(None)


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_layers_of_a_prompt_are_replays(
    fresh_devices: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    generation: str,
) -> None:
    """Of a prompt of a new length too: its first run, other lengths, other pages, behind the
    window, and tokens between prompts, which are another configuration; then several sequences, as
    a batch and as tokens in turn."""
    shape = Shape(layers=7, width=64, ffn_width=96, context=700, window=40)
    path = write_model(tmp_path / "m.gguf", shape)
    count = len(small_vocabulary().pieces)

    def logits(replayed: bool) -> tuple[list[np.ndarray], list[npu.Stats]]:
        monkeypatch.setenv("NPU_REPLAY", str(int(replayed)))
        rng, results, counted = np.random.default_rng(8), [], []
        with npu.device(f"emu:{generation}"):
            model = Model(open_source(path))
            caches = [model.new_cache() for _ in range(4)]
            for length, cache in ((70, 0), (70, 1), (33, 2), (70, 3), (300, 0)):
                before = npu.stats()
                ids = rng.integers(0, count, length).tolist()
                results.append(model.prefill(ids, caches[cache]))
                counted.append(npu.stats() - before)
                results.append(model.forward([3], caches[cache]))
            for designs in ("array", "host"):  # a batch; a decode step of each sequence in turn
                before = npu.stats()
                with npu.device(f"emu:{generation}", designs=designs):
                    for _ in range(8):
                        ids = rng.integers(0, count, 4).tolist()
                        results += list(model.decode_batch(ids, caches))
                counted.append(npu.stats() - before)
        return results, counted

    found, counted = logits(replayed=True)
    assert counted[0].replays >= 4  # of 7 layers of a first run, one of them of another kind
    assert counted[3].replays >= 7  # of one that was there before
    assert counted[-2].replays >= counted[-2].submissions // 2
    assert counted[-1].submissions == 8 * 4 * 8
    # Not the first head; of the global layer four lengths, as one sequence comes to another group
    # and two have one; of the first layer, and of the others, a window that lies in one group and
    # one in two.
    assert counted[-1].replays == 8 * 4 * 8 - 9
    fresh_devices()
    for one, other in zip(found, logits(replayed=False)[0], strict=True):
        assert np.array_equal(one, other)


def test_a_sequence_that_goes_on_leaves_no_recordings_behind(tmp_path: Path) -> None:
    """Where attention reads another group of keys, streams and recordings of layers are others,
    behind the window those of one of four tokens before; those of a longer sequence stay."""
    shape = Shape(layers=7, width=64, ffn_width=96, context=700, window=40)
    path = write_model(tmp_path / "m.gguf", shape)
    with npu.device("emu:npu2"):
        model = Model(open_source(path))
        one, other = model.new_cache(), model.new_cache()
        model.extend([at % 200 for at in range(690)], other)
        for cache in (one, other):
            model.forward([5], cache)
        held, grown = [], []
        for at in range(1, 660):
            before = npu.stats()
            model.forward([at % 200], one)
            if at in (340, 659):
                held.append(npu.stats().replay_bytes)
            if at > 330 and at % 64 == 0:
                counted = npu.stats() - before
                grown.append(counted.submissions - counted.replays)
        before = npu.stats()
        model.forward([6], other)
        assert (npu.stats() - before).replays == 8
    assert grown == [1] * 4 + [0]  # the global layer, at last with as many groups as the other's
    assert 0 < held[1] < 1.1 * held[0]


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_runs_are_replays_after_another_configuration(generation: str) -> None:
    rng = np.random.default_rng(4)
    before = npu.stats()
    with npu.device(f"emu:{generation}"):
        for _ in range(ROUNDS):
            for dtype in (np.int8, np.int16):  # a configuration each
                a, b = rng.integers(-99, 99, (2, 64, 64)).astype(dtype)
                assert np.array_equal(npu.matmul(a, b), a.astype(np.int64) @ b)
    counted = npu.stats() - before
    assert counted.configuration_loads >= 2 * ROUNDS - 1
    assert counted.replays >= counted.submissions // 2


def test_no_replays_where_they_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_REPLAY", "0")  # read when a device is opened
    counted = products("emu:npu2+replay", arithmetic="silicon")
    assert counted.replays == 0
    assert counted.replay_bytes == 0


def test_the_mode_that_compares_replays_with_runs() -> None:
    counted = products("emu:npu2+replay")
    assert counted.replays >= counted.submissions - 1
