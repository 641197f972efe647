"""Tokens that the array computes as a whole (npu.models.gemma3.decoder): one submission each, or
one per layer where runs are repeated.

Against Hugging Face's model in float32, within the bound derived in compare.py, and about as far
away as the reference itself with the same numbers rounded; against float32 on the host for
quantised weights. What a prompt leaves in the cache, forks, reloads and failures, page borders and
windows; nothing is loaded between tokens.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare
import gguf
import numpy as np
import pytest
import reference_case
from devices_under_test import DEVICES
from exact_projection import ExactCache, ExactProjection
from gemma3_files import Shape, random_weights, small_vocabulary, write_model

import npu
from npu import gemma3
from npu.errors import ArgumentError
from npu.models.gemma3 import model as model_module
from npu.models.gemma3.decoder import Decoder
from npu.models.gemma3.model import MOST_STEPS, Model
from npu.models.generation import Generation
from npu.models.kv_cache import Cache
from npu.models.sources import open_source

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "examples/demo_model/demo-gemma3.gguf"
SHAPES = {
    "2:1, heads of 32 spread to 64": Shape(layers=6),
    "1:1, six heads of 64": Shape(layers=6, heads=6, kv_heads=6, head_dim=64),
    "4:1, heads of 128": Shape(layers=6, width=128, heads=4, kv_heads=1, head_dim=128),
    "8:1, heads of 256": Shape(layers=6, heads=8, kv_heads=1, head_dim=256, window=5),
    "linear scaling, heads of 80 spread to 128": Shape(
        layers=6, head_dim=80, rope_factor=8.0, ffn_width=352
    ),
}
TOKENS = 36
SIZE = len(small_vocabulary().pieces)


def tokens_of(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, SIZE, count).tolist()


def decoded(model: Model, tokens: list[int], cache: Cache) -> np.ndarray:
    """Logits (T, vocabulary), token by token on the array."""
    assert model.decodes_on_array
    return np.concatenate([model.forward([token], cache) for token in tokens])


def without_decoder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_module.Decoder, "of", lambda *_: None)


def without_prefill(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_module.Prefill, "of", lambda *_: None)


def float32_logits(path: Path, tokens: list[int]) -> np.ndarray:
    """Of the weights as the device has them, everything in float32 on the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "Projection", ExactProjection)
        ExactCache().install(patch)
        without_decoder(patch)
        without_prefill(patch)
        model = Model(open_source(path))
        return model.forward(tokens, model.new_cache(), all_logits=True)


def check_bound(actual: np.ndarray, expected: np.ndarray, layers: int) -> None:
    compare.assert_logits(actual, expected, compare.decoder_logits_max(layers))
    assert compare.rms_error(actual, expected) <= compare.decoder_logits_rms(layers)


@dataclasses.dataclass
class Case(reference_case.Case):
    rounded: np.ndarray  # logits with the array's roundings


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    shape = SHAPES[request.param]
    weights = random_weights(shape, SIZE)
    path = write_model(tmp_path_factory.mktemp("m") / "m.gguf", shape, weights=weights)
    hf, tokens = reference.hf_model(shape, weights), tokens_of(TOKENS)
    with reference.rounded_everywhere(hf):
        rounded = reference.hf_logits(hf, tokens)
    return Case(shape, path, tokens, reference.hf_logits(hf, tokens), rounded)


@pytest.mark.parametrize("device", DEVICES)
def test_logits_are_the_references_within_the_bound(case: Case, device: str) -> None:
    with npu.device(device):
        model = Model(open_source(case.path))
        actual = decoded(model, case.tokens, model.new_cache())
    check_bound(actual, case.expected, case.shape.layers)
    # Calibration: the reference, rounded where the array rounds, is as far away.
    error, rounding = (compare.rms_error(x, case.expected) for x in (actual, case.rounded))
    assert rounding / 1.25 < error < rounding * 1.25


def test_one_layer_rounds_where_the_reference_rounds(tmp_path: Path) -> None:
    """On npu1, whose GELU is float32: most rows are nearer to the reference that rounds at the same
    places than that is to float32."""
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    shape = Shape(layers=1)
    weights = random_weights(shape, SIZE)
    hf, tokens = reference.hf_model(shape, weights), tokens_of(TOKENS)
    expected = reference.hf_logits(hf, tokens)
    with reference.rounded_everywhere(hf):
        rounded = reference.hf_logits(hf, tokens)
    with npu.device("emu:npu1"):
        model = Model(open_source(write_model(tmp_path / "m.gguf", shape, weights=weights)))
        actual = decoded(model, tokens, model.new_cache())
    check_bound(actual, expected, 1)
    apart = np.abs(actual - rounded).std(axis=-1)
    rounding = np.abs(rounded - expected).std(axis=-1)
    assert np.median(apart / rounding) < 0.5


def test_bit_exact_arithmetic_gives_the_logits(tmp_path: Path) -> None:
    shape, tokens = Shape(layers=1, width=64, ffn_width=64), tokens_of(3)
    path = write_model(tmp_path / "m.gguf", shape)
    expected = float32_logits(path, tokens)
    for device in DEVICES:
        with npu.device(device, arithmetic="silicon"):
            model = Model(open_source(path))
            check_bound(decoded(model, tokens, model.new_cache()), expected, 1)


KINDS = gguf.GGMLQuantizationType


@pytest.mark.parametrize("device", DEVICES)
def test_formats_may_be_mixed(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """q and k in 4, v in 8 bits: matrices of several segments; the head in 8 bits."""
    shape = Shape(layers=2, width=128, ffn_width=256, kv_heads=2, head_dim=64)
    kinds = {"attn_q": KINDS.Q4_0, "attn_k": KINDS.Q4_0, "attn_v": KINDS.Q8_0,
             "ffn_up": KINDS.Q8_0, "ffn_down": KINDS.Q4_0}  # fmt: skip
    types = {f"blk.{i}.{name}.weight": kind for i in range(2) for name, kind in kinds.items()}
    types["token_embd.weight"] = KINDS.Q8_0
    path, tokens = write_model(tmp_path / "m.gguf", shape, types=types), tokens_of(30)
    expected = float32_logits(path, tokens)
    blocks: dict[str, Any] = {}
    real = Decoder.of.__func__  # type: ignore[attr-defined]

    def kept(cls: Any, config: Any, source: Any, prepared: Any, scale: float) -> Any:
        blocks.update(prepared)
        return real(cls, config, source, prepared, scale)

    monkeypatch.setattr(Decoder, "of", classmethod(kept))
    with npu.device(device):
        model = Model(open_source(path))
        assert {t.format for layer in blocks.values() for t in layer} == {"q4nx", "q8", "bf16"}
        check_bound(decoded(model, tokens, model.new_cache()), expected, 2)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(layers=6, width=64, ffn_width=64, context=700, window=40)
    return write_model(tmp_path_factory.mktemp("small") / "m.gguf", shape)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("prompt", [254, 511])
def test_tokens_after_a_prompt_and_across_page_borders(
    small: Path, device: str, prompt: int
) -> None:
    """Far beyond the window; the bound is that of the prompt's keys and values."""
    tokens = tokens_of(prompt + 5)
    expected = float32_logits(small, tokens)[prompt:]
    with npu.device(device):
        model = Model(open_source(small))
        cache = model.new_cache()
        model.prefill(tokens[:prompt], cache)
        actual = decoded(model, tokens[prompt:], cache)
    bound = compare.prompt_logits_rms(6, bfp16="npu2" in device)
    assert compare.max_error(actual, expected) <= 6 * bound
    assert compare.rms_error(actual, expected) <= bound


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["", "+reload", "+reload-random-3", "+intruder"])
def test_tokens_in_one_stream_and_layer_by_layer_have_the_same_bits(
    small: Path,
    device: str,
    mode: str,
    fresh_devices: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever happens to the array between two submissions."""

    def logits(replay: str, name: str) -> np.ndarray:
        fresh_devices()
        monkeypatch.setenv("NPU_REPLAY", replay)
        with npu.device(name):
            model = Model(open_source(small))
            return decoded(model, tokens_of(70), model.new_cache())

    expected = logits("1", device)
    for replay in ("0", "1") if mode else ("0",):
        assert np.array_equal(logits(replay, device + mode), expected)


def test_every_position_from_the_first(small: Path) -> None:
    """300 tokens on the array alone: every length of a chunk, all ranges of the pairs."""
    tokens = tokens_of(300)
    model = Model(open_source(small))
    actual = decoded(model, tokens, model.new_cache())
    check_bound(actual, float32_logits(small, tokens), 6)


def test_forked_and_reloaded_caches_give_the_same_bits(small: Path, tmp_path: Path) -> None:
    model, tokens = Model(open_source(small)), tokens_of(262)
    cache = model.new_cache()
    model.prefill(tokens[:250], cache)
    fork = cache.fork()
    cache.save(tmp_path / "c")
    expected = decoded(model, tokens[250:], cache)
    other = decoded(model, tokens_of(9, seed=2), fork)
    assert not np.array_equal(other, expected[:9])
    loaded = model.new_cache()
    loaded.load(tmp_path / "c")
    assert np.array_equal(decoded(model, tokens[250:], loaded), expected)
    fork.truncate(250)
    # Two caches in turns: each token's stream has the pages of its own.
    both = [fork, cache.fork()]
    both[1].truncate(250)
    for i, token in enumerate(tokens[250:]):
        for one in both:
            assert np.array_equal(decoded(model, [token], one)[0], expected[i])


@pytest.mark.parametrize("replay", ["0", "1"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_token_is_one_submission_or_one_per_layer_and_loads_nothing(
    small: Path,
    device: str,
    replay: str,
    fresh_devices: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where runs are repeated, the head is another one."""
    monkeypatch.setenv("NPU_REPLAY", replay)
    with npu.device(device):
        model = Model(open_source(small))
        cache = model.new_cache()
        model.prefill(tokens_of(30), cache)
        model.forward([5], cache)
        before = npu.stats()
        decoded(model, tokens_of(20), cache)
        for token in tokens_of(20):
            model.top([token], cache, 5, SIZE)
        used = npu.stats() - before
        by_layer = replay == "1" and device.startswith("emu")
        assert used.submissions == 40 * (7 if by_layer else 1)
        assert used.configuration_loads == 0


def test_the_largest_logits_are_those_of_all(small: Path) -> None:
    model = Model(open_source(small))
    cache, other = model.new_cache(), model.new_cache()
    for token in tokens_of(12):
        row = model.forward([token], cache)[0]
        for k, size in ((64, SIZE), (1, SIZE), (7, 100), (3, 33), (3, 20)):
            if k != 64:
                other.truncate(other.length - 1)
            values, ids = model.top([token], other, k, size)
            order = np.argsort(-row[:size], kind="stable")[:k]
            assert np.array_equal(ids, order) and np.array_equal(values, row[order])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start, count", [(0, 2), (1, 8), (0, MOST_STEPS), (60, 9), (250, 17)])
def test_few_tokens_are_decode_steps_beside_each_other(
    small: Path, device: str, start: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever groups of keys, pages and windows begin among them, and as often as they come: the
    bits of one after the other."""
    tokens = tokens_of(300)
    few, behind = tokens[start : start + count], tokens[start + count : start + count + 3]
    with npu.device(device):
        model = Model(open_source(small))
        before = model.new_cache()
        if start > 0:
            model.extend(tokens[:start], before)
        single = before.fork()
        expected = decoded(model, few, single)[-1:]
        after = decoded(model, behind, single)
        size = model.config.vocabulary
        monkeypatch.delattr(Model, "_hidden")  # which runs prompts
        for _ in range(3):
            together = before.fork()
            assert np.array_equal(model.forward(few, together), expected)
            assert np.array_equal(decoded(model, behind, together), after)
            values, ids = model.top(few, before.fork(), 5, size)
            assert np.array_equal(ids, np.argsort(-expected[0], kind="stable")[:5])
            assert np.array_equal(values, expected[0, ids])


@pytest.mark.parametrize("replay", ["1", "0"])
def test_few_tokens_are_two_submissions_per_layer_and_one_head(
    small: Path,
    replay: str,
    fresh_devices: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where runs are repeated; elsewhere a token is one."""
    monkeypatch.setenv("NPU_REPLAY", replay)
    with npu.device("emu:npu2"):
        model = Model(open_source(small))
        expected = decoded(model, tokens_of(23), model.new_cache())[-1:]
        for tokens in (1, 2, 9, 20):
            cache, before = model.new_cache(), npu.stats()
            model.forward(tokens_of(20)[:tokens], cache)
            parts = 7 if tokens == 1 else 12
            run = (npu.stats() - before).submissions
            assert run == (tokens if replay == "0" else (tokens - 1) * 12 + parts + (tokens > 1))
            before = npu.stats()
            model.extend(tokens_of(23)[tokens:22], cache)
            run = (npu.stats() - before).submissions
            left = 22 - tokens
            assert run == (left if replay == "0" else left * 12)
            assert np.array_equal(model.forward(tokens_of(23)[22:], cache), expected)


def test_more_tokens_are_a_prompt(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are few on a device that is to run what an NPU would."""
    model = Model(open_source(small))
    monkeypatch.delattr(Model, "_hidden")
    for designs, count in (("host", MOST_STEPS + 1), ("array", 2)):
        with npu.device("emu:npu2", designs=designs):
            with pytest.raises(AttributeError, match="_hidden"):
                model.forward(tokens_of(count), model.new_cache())
            model.forward(tokens_of(count)[:1], model.new_cache())


def test_an_interrupted_token_leaves_the_cache_as_it_was(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = Model(open_source(small)), tokens_of(258)
    cache = model.new_cache()
    model.prefill(tokens[:256], cache)
    expected = decoded(model, tokens[256:], cache.fork())
    pages = [cache.page_table(layer).copy() for layer in range(6)]
    real = Decoder.last_logits

    def after(self: Decoder, tokens: list[int], cache: Cache) -> np.ndarray:
        real(self, tokens, cache)  # the device has written keys and values
        raise KeyboardInterrupt

    def before(*_: Any) -> np.ndarray:
        raise RuntimeError("device")

    for failing, error in ((after, KeyboardInterrupt), (before, RuntimeError)):
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "last_logits", failing)
            for passed in ([11], [11, 12, 13]):
                with pytest.raises(error):
                    model.forward(passed, cache)
        assert cache.length == 256 and cache.tokens.tolist() == tokens[:256]
        for layer in range(6):
            assert np.array_equal(cache.page_table(layer), pages[layer])
    assert np.array_equal(decoded(model, tokens[256:], cache), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_heads_in_more_parts_in_global_than_in_sliding_layers(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three heads one is in two parts within the window, all are in all of the context: a part
    that a sliding layer does not have is not what a global layer left there. The prompt is not
    rounded to BFP16, as the bound is that of decode steps."""
    without_prefill(monkeypatch)
    shape = Shape(layers=7, heads=3, kv_heads=3, head_dim=256, window=61, context=400)
    path, tokens = write_model(tmp_path / "m.gguf", shape), tokens_of(302)
    expected = float32_logits(path, tokens)[300:]
    with npu.device(device):
        model = Model(open_source(path))
        cache = model.new_cache()
        model.prefill(tokens[:300], cache)
        check_bound(decoded(model, tokens[300:], cache), expected, 7)


def test_parts_of_a_longer_sequence_do_not_count(tmp_path: Path) -> None:
    """Token 301 of one cache has three parts of every head, token 151 of another one three of the
    second head and two of the others: what is the third one then was a result before."""
    shape = Shape(layers=7, heads=3, kv_heads=3, head_dim=256, window=61, context=400)
    path, tokens = write_model(tmp_path / "m.gguf", shape), tokens_of(301)
    with npu.device("emu:npu2"):
        model = Model(open_source(path))
        short, long = model.new_cache(), model.new_cache()
        model.prefill(tokens[:150], short)
        expected = decoded(model, tokens[150:152], short.fork())
        model.prefill(tokens[:300], long)
        decoded(model, tokens[300:], long)
        assert np.array_equal(decoded(model, tokens[150:152], short), expected)


def test_a_token_runs_on_the_device_of_its_call(
    small: Path, fresh_devices: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_REPLAY", "0")
    with npu.device("emu:npu2"):
        model = Model(open_source(small))
        cache, tokens = model.new_cache(), tokens_of(24)
        expected = decoded(model, tokens, model.new_cache())
    with npu.device("emu:npu1"):
        before = npu.stats()
        check_bound(decoded(model, tokens, cache), expected, 6)
        assert (npu.stats() - before).submissions == len(tokens)


def test_wrong_tokens_are_refused(small: Path) -> None:
    model = Model(open_source(small))
    cache = model.new_cache()
    for bad in ([-1], [SIZE], [0.5]):
        with pytest.raises(ArgumentError, match=r"\[gemma3\]"):
            model.forward(bad, cache)  # type: ignore[arg-type]
    assert cache.length == 0


# Sizes that only the host path runs; a token must work all the same.
UNUSUAL = {
    "width": Shape(layers=1, width=72),
    "three heads of 40": Shape(layers=1, heads=3, kv_heads=3, head_dim=40),
    "16 key heads, whose queries fill the vector core": Shape(
        layers=1, heads=32, kv_heads=16, head_dim=128
    ),
    "8 key heads of 32": Shape(layers=1, heads=8, kv_heads=8),
    "one head of 64": Shape(layers=1, heads=1, kv_heads=1, head_dim=64),
    "heads of 36": Shape(layers=1, head_dim=36),
    "heads of 320": Shape(layers=1, heads=1, kv_heads=1, head_dim=320),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_other_sizes_run_on_either_path(tmp_path: Path, name: str) -> None:
    path, tokens = write_model(tmp_path / "m.gguf", UNUSUAL[name]), tokens_of(4)
    model = Model(open_source(path))
    cache = model.new_cache()
    actual = np.concatenate([model.forward([token], cache) for token in tokens])
    check_bound(actual, float32_logits(path, tokens), 1)


# --- the demo model -------------------------------------------------------------------------------


def test_greedy_text_is_that_of_the_host_path(monkeypatch: pytest.MonkeyPatch) -> None:
    question = [{"role": "user", "content": "How many centimetres are in 7 metres?"}]
    texts = []
    for host in (False, True):
        with monkeypatch.context() as patch:
            if host:
                without_decoder(patch)
            model, tokenizer = gemma3.load(DEMO)
            assert model.decodes_on_array is not host
            prompt = tokenizer.encode(tokenizer.render_chat(question))
            texts.append("".join(Generation(model, tokenizer, prompt, max_tokens=40)))
    assert texts[0] == texts[1] and len(texts[0]) > 5


def test_perplexity_is_that_of_the_host_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of held-out answers, within 0.5 %."""
    monkeypatch.syspath_prepend(str(ROOT / "examples/demo_model"))
    perplexity = pytest.importorskip("perplexity")
    expected = perplexity.perplexity(DEMO, 2)
    real = Model.forward

    def one_by_one(
        self: Model, tokens: list[int], cache: Cache, *, all_logits: bool = False
    ) -> np.ndarray:
        return np.concatenate([real(self, [token], cache) for token in tokens])

    monkeypatch.setattr(Model, "forward", one_by_one)
    before = npu.stats()
    assert perplexity.perplexity(DEMO, 2) == pytest.approx(expected, rel=5e-3)
    assert (npu.stats() - before).configuration_loads <= 1
    assert "perplexity" in sys.modules
