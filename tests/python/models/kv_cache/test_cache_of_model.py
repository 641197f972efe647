"""Caches of the demo model: forked, truncated and reloaded ones give the logits of a fresh run bit
for bit; a prompt reuses what is common, never what another model or device has made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from gemma3_files import Shape, random_weights, small_vocabulary, write_model

import npu
from npu import gemma3
from npu.cli import common
from npu.errors import ArgumentError, FormatError
from npu.models.gemma3.prefill import Prefill
from npu.models.identity import fingerprint
from npu.models.kv_cache import Cache
from npu.models.kv_cache import cache as cache_module

TEXT = "What is 17 + 25?"


@pytest.fixture(scope="module")
def demo() -> tuple[gemma3.Model, gemma3.Tokenizer]:
    path = common.default_model()
    if path is None:
        pytest.skip("no demo model")
    return gemma3.load(path)


def prompt_of(tokenizer: gemma3.Tokenizer, *turns: str) -> list[int]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return tokenizer.encode(tokenizer.render_chat(messages))


def fresh(model: gemma3.Model, pieces: list[list[int]]) -> np.ndarray:
    """Logits of the last piece, after the others, in a cache of their own."""
    cache = model.new_cache()
    return [model.forward(piece, cache) for piece in pieces][-1]


def test_forks_files_and_truncation_give_a_fresh_runs_logits(
    demo: tuple[gemma3.Model, gemma3.Tokenizer], tmp_path: Path
) -> None:
    model, _ = demo
    random = np.random.default_rng(1)
    base = random.integers(0, 500, 290).tolist()
    cache = model.new_cache()
    model.forward(base, cache)
    cache.save(tmp_path / "c.kv")
    fork, second = cache.fork(), cache.fork()
    for tokens in ([7], [8, 9, 10]):  # both continue what they share
        expected = fresh(model, [base, tokens])
        assert np.array_equal(model.forward(tokens, cache if len(tokens) == 1 else fork), expected)
    model.forward([1, 2, 3], second)
    second.truncate(290)
    loaded = model.new_cache()
    loaded.load(tmp_path / "c.kv")
    expected = fresh(model, [base, [11]])
    for other in (second, loaded):
        assert np.array_equal(model.forward([11], other), expected)


def test_a_token_runs_where_sliding_layers_have_just_what_it_needs(
    demo: tuple[gemma3.Model, gemma3.Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SLIDING_HISTORY", 0)
    model, _ = demo
    base = np.random.default_rng(2).integers(0, 500, 330).tolist()
    cache = model.new_cache()
    model.forward(base, cache)
    assert cache.start(0) == 256
    cache.truncate(cache.shortest)
    assert cache.length < len(base)
    expected = fresh(model, [base[: cache.length], [7]])
    assert np.array_equal(model.forward([7], cache), expected)


def test_an_interrupted_pass_leaves_no_trace(
    demo: tuple[gemma3.Model, gemma3.Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = demo
    base = list(range(5, 60))
    cache = model.new_cache()
    model.forward(base, cache)
    used, before = model._pool.used, cache.tokens.tolist()
    real = Prefill.run

    def failing(self: Prefill, x: np.ndarray, cache: Cache) -> np.ndarray:
        real(self, x, cache)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Prefill, "run", failing)
        with pytest.raises(KeyboardInterrupt):
            model.prefill(list(range(300)), cache)
    assert (cache.length, cache.tokens.tolist()) == (55, before) and model._pool.used == used
    assert np.array_equal(model.forward([9], cache), fresh(model, [base, [9]]))


def test_a_second_turn_reuses_the_first(demo: tuple[gemma3.Model, gemma3.Tokenizer]) -> None:
    model, tokenizer = demo
    first = prompt_of(tokenizer, TEXT)
    generation = gemma3.Generation(model, tokenizer, first)
    answer = "".join(generation)
    assert generation.timings.reused_tokens == 0
    cache = generation.cache
    assert cache is not None and cache.tokens.tolist() == [*first, *generation.tokens]
    again = prompt_of(tokenizer, TEXT, answer, "And what is 3 + 4?")
    held = cache.tokens.tolist()
    common_length = next(i for i in range(len(again)) if i == len(held) or held[i] != again[i])
    second = gemma3.Generation(model, tokenizer, again, cache=cache)
    reused = "".join(second)
    assert second.timings.reused_tokens == common_length >= len(first)
    assert reused == "".join(gemma3.Generation(model, tokenizer, again))
    # Another conversation: what differs is forgotten. The same one: its last token is run.
    other = prompt_of(tokenizer, "What is 17 + 31?")
    third = gemma3.Generation(model, tokenizer, other, cache=cache)
    assert "".join(third) == "".join(gemma3.Generation(model, tokenizer, other))
    assert 0 < third.timings.reused_tokens < len(first)
    fourth = gemma3.Generation(model, tokenizer, other, cache=cache)
    assert "".join(fourth) == "".join(third)
    assert fourth.timings.reused_tokens == len(other) - 1


def test_caches_of_others_are_refused(
    demo: tuple[gemma3.Model, gemma3.Tokenizer], tmp_path: Path
) -> None:
    model, tokenizer = demo
    prompt = prompt_of(tokenizer, TEXT)
    generation = gemma3.Generation(model, tokenizer, prompt)
    text, cache = "".join(generation), generation.cache
    assert cache is not None
    cache.save(tmp_path / "c.kv")
    for device, options in (("emu:npu1", {}), ("emu:npu2", {"arithmetic": "silicon"})):
        with npu.device(device, **options):
            with pytest.raises(ArgumentError, match="of another model, device or arithmetic"):
                list(gemma3.Generation(model, tokenizer, prompt, cache=cache))
            with pytest.raises(FormatError, match="another model or arithmetic: device npu2, fast"):
                model.new_cache().load(tmp_path / "c.kv")
    tokens = cache.tokens.tolist()
    for wrong in ([], list(range(cache.context + 1))):
        with pytest.raises(ArgumentError, match="context allows"):
            list(gemma3.Generation(model, tokenizer, wrong, cache=cache))
        assert cache.tokens.tolist() == tokens
    assert "".join(gemma3.Generation(model, tokenizer, prompt, cache=cache)) == text


def test_identity_tells_models_apart(tmp_path: Path) -> None:
    """Other weights under the same header, other configurations, other weights choices; a copy of a
    file that keeps its time is the same model."""
    import os

    shape = Shape(layers=1, width=32, heads=2, kv_heads=1, head_dim=8, ffn_width=32)
    size = len(small_vocabulary().pieces)
    weights = random_weights(shape, size)
    first = write_model(tmp_path / "a.gguf", shape, weights=weights)
    name = "blk.0.ffn_down.weight"
    other = write_model(tmp_path / "b.gguf", shape, weights=weights | {name: -weights[name]})
    (tmp_path / "sub").mkdir()
    copied = tmp_path / "sub" / "c.gguf"
    copied.write_bytes(Path(first).read_bytes())
    status = os.stat(first)
    for path in (other, copied):
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    load = {str(path): gemma3.load(path)[0] for path in (first, other, copied)}
    one, two, three = load.values()
    assert one.identity != two.identity and one.identity == three.identity
    assert fingerprint([str(first)]) == fingerprint([str(copied)]) != fingerprint([str(other)])
    assert gemma3.load(first, weights="q8")[0].identity != one.identity
    os.utime(copied)
    assert gemma3.load(copied)[0].identity != one.identity
    changed = gemma3.load(first)[0]
    changed.config = dataclasses.replace(changed.config, rope_base=5e5)
    assert changed.identity != one.identity
