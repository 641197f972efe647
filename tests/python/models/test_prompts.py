"""Prompts on the array (npu.models.gemma3.prefill): a submission per chunk, of long ones some.

Logits against Hugging Face's model in float32, or float32 on the host for quantised weights, within
the bound derived in compare.py: one and several chunks, chunks at any position, tokens after them,
forks and files. What a chunk leaves in memory, and what it costs in submissions and loads.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import compare
import gguf
import numpy as np
import pytest
from devices_under_test import DEVICES
from gemma3_files import Shape, random_weights, write_model
from reference_case import Case, case_of
from test_decoder import (
    DEMO,
    ROOT,
    SHAPES,
    SIZE,
    decoded,
    float32_logits,
    tokens_of,
    without_prefill,
)

import npu
from npu import gemma3
from npu.models.gemma3 import model as model_module
from npu.models.gemma3.model import Model
from npu.models.gemma3.prefill import Prefill
from npu.models.generation import Generation
from npu.models.kv_cache import Cache
from npu.models.sources import open_source

TOKENS = 70


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on the array as long ones do."""
    monkeypatch.setattr(model_module, "MOST_STEPS", 1)


CHUNKS = {"one chunk": (70,), "three chunks": (33, 20, 17)}
KINDS = gguf.GGMLQuantizationType


def check_bound(
    actual: np.ndarray, expected: np.ndarray, layers: int, device: str, rounded: bool = False
) -> None:
    bound = compare.prompt_logits_rms(layers, bfp16="npu2" in device, rounded_weights=rounded)
    compare.assert_logits(actual, expected, 6 * bound)
    assert compare.rms_error(actual, expected) <= bound


def in_chunks(model: Model, tokens: list[int], sizes: tuple[int, ...], cache: Cache) -> np.ndarray:
    """Logits (T, vocabulary) of prompts one after the other."""
    assert model._prefill() is not None
    parts, at = [], 0
    for size in sizes:
        parts.append(model.forward(tokens[at : at + size], cache, all_logits=True))
        at += size
    return np.concatenate(parts)


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    shape = SHAPES[request.param]
    if shape.head_dim == 80:  # no whole number of blocks of 32 columns
        shape = dataclasses.replace(shape, head_dim=96)
    weights, tokens = random_weights(shape, SIZE), tokens_of(TOKENS)
    path = write_model(tmp_path_factory.mktemp("m") / "m.gguf", shape, weights=weights)
    return case_of(shape, path, weights, tokens)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_logits_are_the_references_within_the_bound(case: Case, device: str, chunks: str) -> None:
    with npu.device(device):
        model = Model(open_source(case.path))
        actual = in_chunks(model, case.tokens, CHUNKS[chunks], model.new_cache())
    check_bound(actual, case.expected, case.shape.layers, device)


@pytest.mark.parametrize("device", DEVICES)
def test_formats_may_be_mixed(tmp_path: Path, device: str) -> None:
    """q and k in 4, v in 8 bits, others bfloat16."""
    shape = Shape(layers=2, width=128, ffn_width=256, kv_heads=2, head_dim=64)
    kinds = {"attn_q": KINDS.Q4_0, "attn_k": KINDS.Q4_0, "attn_v": KINDS.Q8_0,
             "ffn_up": KINDS.Q8_0, "ffn_down": KINDS.Q4_0}  # fmt: skip
    types = {f"blk.{i}.{name}.weight": kind for i in range(2) for name, kind in kinds.items()}
    path, tokens = write_model(tmp_path / "m.gguf", shape, types=types), tokens_of(40)
    expected = float32_logits(path, tokens)
    with npu.device(device):
        model = Model(open_source(path))
        actual = in_chunks(model, tokens, (40,), model.new_cache())
    check_bound(actual, expected, 2, device, rounded=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(layers=6, width=64, ffn_width=64, context=700, window=21)
    return write_model(tmp_path_factory.mktemp("small") / "m.gguf", shape)


@pytest.fixture(scope="module")
def expected_small(small: Path) -> np.ndarray:
    return float32_logits(small, tokens_of(300))


@pytest.mark.parametrize("device", DEVICES)
def test_chunks_begin_at_any_position_after_a_token(
    small: Path, expected_small: np.ndarray, device: str
) -> None:
    tokens = tokens_of(300)
    with npu.device(device):
        model = Model(open_source(small))
        whole = model.new_cache()
        model.forward(tokens[:260], whole)
        for start in (*range(1, 18), 255, 256, 257):
            cache = whole.fork()
            cache.truncate(start - 1)
            model.forward([tokens[start - 1]], cache)
            actual = in_chunks(model, tokens[start : start + 20], (20,), cache)
            check_bound(actual, expected_small[start : start + 20], 6, device)


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_after_a_prompt(small: Path, expected_small: np.ndarray, device: str) -> None:
    """Across a page's border, in the cache itself, a fork and a file: the same bits."""
    tokens = tokens_of(300)
    with npu.device(device):
        model = Model(open_source(small))
        cache = model.new_cache()
        model.prefill(tokens[:253], cache, 100)
        fork = cache.fork()
        cache.save(small.parent / "c")
        first = decoded(model, tokens[253:260], cache)
        after = in_chunks(model, tokens[260:], (40,), cache)
        loaded = model.new_cache()
        loaded.load(small.parent / "c")
        for other in (fork, loaded):
            assert np.array_equal(decoded(model, tokens[253:260], other), first)
            assert np.array_equal(in_chunks(model, tokens[260:], (40,), other), after)
    actual = np.concatenate([first, after])
    check_bound(actual, expected_small[253:], 6, device)


def rows_of(cache: Cache, pool: np.ndarray, first: int, last: int) -> np.ndarray:
    """Which bytes of the pool are keys and values of the positions, bool."""
    marked = np.zeros(pool.size, bool)
    layout = cache.layout
    size = 4096 // layout.head_dim
    for layer in range(len(layout.windows)):
        table = cache.page_table(layer)
        shape = (-1, layout.kv_heads, 256 // size, 2, size, layout.head_dim * 2)
        pages = marked[: pool.size // layout.page_bytes * layout.page_bytes].reshape(shape)
        for at in range(first, last):
            pages[table[at // 256], :, at % 256 // size, :, at % size] = True
    return marked


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start, count", [(0, 5), (3, 30), (17, 1 + 22), (250, 13), (256, 40)])
def test_a_chunk_writes_its_own_positions_only(
    small: Path, device: str, start: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, real = tokens_of(300), Prefill.run
    seen: list[np.ndarray] = []

    def watched(self: Prefill, x: np.ndarray, cache: Cache) -> np.ndarray:
        cache.pool[rows_of(cache, cache.pool, start, start + count)] = 0x5B
        seen.append(cache.pool.copy())
        out = real(self, x, cache)
        seen.append(cache.pool.copy())
        seen.append(rows_of(cache, cache.pool, start, start + count))
        return out

    with npu.device(device):
        model = Model(open_source(small))
        cache = model.new_cache()
        if start > 0:
            model.forward(tokens[:start], cache)
        cache.fork()
        monkeypatch.setattr(Prefill, "run", watched)
        model.forward(tokens[start : start + count], cache)
    before, after, own = seen
    assert np.array_equal(before[~own], after[~own])
    # Every element of a row is new: two bytes that were 0x5B are a value no key has.
    assert not (after[own].view(np.uint16) == 0x5B5B).any()


@pytest.mark.parametrize("device", DEVICES)
def test_an_interrupted_chunk_leaves_the_cache_as_it_was(
    small: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, real = tokens_of(300), Prefill.run

    def after(self: Prefill, x: np.ndarray, cache: Cache) -> np.ndarray:
        real(self, x, cache)  # the device has written keys and values
        raise KeyboardInterrupt

    def before(*_: Any) -> np.ndarray:
        raise RuntimeError("device")

    with npu.device(device):
        model = Model(open_source(small))
        cache = model.new_cache()
        model.prefill(tokens[:250], cache)
        other = cache.fork()
        expected = in_chunks(model, tokens[250:], (50,), cache.fork())
        pages = [cache.page_table(layer).copy() for layer in range(6)]
        for failing, error in ((after, KeyboardInterrupt), (before, RuntimeError)):
            with monkeypatch.context() as patch:
                patch.setattr(Prefill, "run", failing)
                with pytest.raises(error):
                    model.forward(tokens_of(30, seed=2), cache)
            assert cache.length == 250 and cache.tokens.tolist() == tokens[:250]
            for layer in range(6):
                assert np.array_equal(cache.page_table(layer), pages[layer])
        for one in (cache, other):
            assert np.array_equal(in_chunks(model, tokens[250:], (50,), one), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("no_replays")
def test_a_chunk_is_one_submission_and_loads_nothing(small: Path, device: str) -> None:
    tokens = tokens_of(120)
    with npu.device(device):
        model = Model(open_source(small))
        model.forward(tokens[:30], model.new_cache())
        before = npu.stats()
        model.prefill(tokens, model.new_cache(), 40)
        used = npu.stats() - before
        # The configuration of prompts, and that of the head's product.
        assert used.submissions == 3 + 1 and used.configuration_loads <= 2
        cache = model.new_cache()
        model.forward(tokens[:40], cache)
        before = npu.stats()
        model._without_last(tokens, cache, 40)
        used = npu.stats() - before
        assert used.submissions == 2 and used.configuration_loads <= 1


@pytest.mark.parametrize("device", ["emu:npu1", "emu:npu2"])
@pytest.mark.usefixtures("no_replays")
def test_a_chunk_of_many_rows_is_two_submissions(tmp_path: Path, device: str) -> None:
    """Of one layer and of two."""
    shape = Shape(layers=3, width=64, ffn_width=64, context=1200, window=600)
    path, tokens = write_model(tmp_path / "m.gguf", shape), tokens_of(1100)
    with npu.device(device):
        model = Model(open_source(path))
        actual = in_chunks(model, tokens, (1100,), model.new_cache())
        before = npu.stats()
        model.extend(tokens, model.new_cache())
        used = npu.stats() - before
        assert used.submissions == 2 and used.configuration_loads <= 1
        before = npu.stats()
        model.extend(tokens[:1024], model.new_cache())
        assert (npu.stats() - before).submissions == 1
    check_bound(actual, float32_logits(path, tokens), 3, device)


@pytest.mark.parametrize("device", ["emu:npu1", "emu:npu2"])
def test_reloads_change_no_bit(small: Path, device: str) -> None:
    tokens, outs = tokens_of(90), []
    for name in (device, device + "+reload", device + "+reload-random-3"):
        with npu.device(name):
            model = Model(open_source(small))
            cache = model.new_cache()
            outs.append(in_chunks(model, tokens, (50, 3, 37), cache))
            outs[-1] = np.concatenate([outs[-1], decoded(model, tokens[:2], cache)])
    assert all(np.array_equal(out, outs[0]) for out in outs)


def test_native_products_keep_the_way_between_host_operations(small: Path) -> None:
    tokens, outs = tokens_of(40), []
    for host in (False, True):
        with pytest.MonkeyPatch.context() as patch, npu.device("emu:npu2", bf16="native"):
            if host:
                without_prefill(patch)
            model = Model(open_source(small))
            assert model._prefill() is None
            outs.append(model.forward(tokens, model.new_cache(), all_logits=True))
    assert np.array_equal(outs[0], outs[1])
    expected = float32_logits(small, tokens)
    assert compare.rms_error(outs[0], expected) <= compare.bf16_logits_rms(6)


# --- the demo model -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_greedy_text_is_that_of_the_host_path(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    question = [{"role": "user", "content": "How many centimetres are in 7 metres?"}]
    texts = []
    for host in (False, True):
        with monkeypatch.context() as patch, npu.device(device):
            if host:
                without_prefill(patch)
            model, tokenizer = gemma3.load(DEMO)
            assert (model._prefill() is None) is host
            prompt = tokenizer.encode(tokenizer.render_chat(question))
            texts.append("".join(Generation(model, tokenizer, prompt, max_tokens=40)))
    assert texts[0] == texts[1] and len(texts[0]) > 5


@pytest.mark.parametrize("device", DEVICES)
def test_perplexity_is_that_of_the_host_path(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of held-out answers, within 0.5 %."""
    monkeypatch.syspath_prepend(str(ROOT / "examples/demo_model"))
    perplexity = pytest.importorskip("perplexity")
    with npu.device(device):
        actual = perplexity.perplexity(DEMO, 2)
        without_prefill(monkeypatch)
        assert actual == pytest.approx(perplexity.perplexity(DEMO, 2), rel=5e-3)
