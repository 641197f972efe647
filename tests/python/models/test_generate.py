"""Generation: sampling against a plain reading of its definition, stop conditions, counts, and
greedy decoding against the argmax of Hugging Face's model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exact_projection import ExactProjection
from gemma3_files import Shape, random_weights, small_vocabulary, write_model
from hypothesis import given
from hypothesis import strategies as st

from npu import gemma3
from npu.errors import ArgumentError, FormatError
from npu.formats.gguf_file import GgufFile
from npu.models.gemma3 import model as model_module
from npu.models.generation import Generation, StopScanner
from npu.models.sampling import Sampler
from npu.models.tokenizer import Tokenizer

END_OF_TURN = 5


def plain_distribution(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """The definition in words, as loops."""
    p = np.exp(logits.astype(float) / temperature - logits.astype(float).max() / temperature)
    order = sorted(range(len(p)), key=lambda index: -p[index])[: top_k or len(p)]
    total = sum(p[index] for index in order)
    kept, reached = {}, 0.0
    for index in order:
        if kept and (reached >= top_p or p[index] < min_p * p[order[0]]):
            break
        kept[index] = p[index] / total
        reached += p[index] / total
    return {index: value / sum(kept.values()) for index, value in kept.items()}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1, 0, 1, 0), (0.7, 5, 1, 0), (1.5, 0, 0.6, 0), (1, 0, 1, 0.2), (0.8, 40, 0.95, 0.1)],
)
def test_distribution_follows_its_definition(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 60).astype(np.float32)
    ids, p = Sampler(temperature, top_k, top_p, min_p).distribution(logits)
    expected = plain_distribution(logits, temperature, top_k, top_p, min_p)
    assert set(ids.tolist()) == set(expected)
    for index, value in zip(ids.tolist(), p, strict=True):
        assert value == pytest.approx(expected[index], rel=1e-12)


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(temperature=1.0, seed=11)
    draws = 20000
    counts = np.bincount([sampler.choose(logits) for _ in range(draws)], minlength=3)
    # Five standard deviations of a binomial count.
    for count, p in zip(counts, (0.5, 0.3, 0.2), strict=True):
        assert abs(count - draws * p) < 5 * np.sqrt(draws * p * (1 - p))


def test_greedy_seed_and_extremes() -> None:
    logits = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)
    assert Sampler().choose(logits) == logits.argmax()
    assert Sampler(temperature=1e-30).choose(logits) == logits.argmax()
    assert Sampler(temperature=5, top_k=1).choose(logits) == logits.argmax()
    assert Sampler(temperature=5, top_p=1e-9).choose(logits) == logits.argmax()
    runs = [[Sampler(1.0, seed=s).choose(logits) for s in range(20)] for _ in range(2)]
    assert runs[0] == runs[1] and len(set(runs[0])) > 5
    with pytest.raises(FormatError, match=r"not finite.* --no-cache"):
        Sampler().choose(np.array([0, np.nan], np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": 2},
        {"seed": -1},
    ],
)
def test_sampling_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"\[generate\] .* it must be"):
        Sampler(**options)


@given(st.text("ab ", max_size=30), st.text("ab ", min_size=1, max_size=5), st.data())
def test_stop_string_is_found_however_the_text_is_cut(text: str, stop: str, data: Any) -> None:
    scanner, out, rest = StopScanner([stop]), "", text
    while rest and not scanner.found:
        size = data.draw(st.integers(1, len(rest)))
        out += scanner.push(rest[:size])
        rest = rest[size:]
    out += "" if scanner.found else scanner.finish()
    assert scanner.found == (stop in text)
    assert out == text.split(stop)[0]


def test_several_stop_strings() -> None:
    scanner = StopScanner(["###", "\nUser:"])
    assert scanner.push("text #") == "text "
    assert scanner.push("# more\nUs") == "## more"
    assert scanner.push("er: next") == "" and scanner.found
    scanner = StopScanner(["late", "soon"])
    assert scanner.push("a soon and a late one") == "a " and scanner.found
    with pytest.raises(ArgumentError, match="empty stop string"):
        StopScanner([""])


class Script:
    """A model that says a fixed sequence of tokens and records what it was given."""

    def __init__(self, tokens: list[int], vocabulary: int, context: int = 100) -> None:
        self.config = SimpleNamespace(vocabulary=vocabulary, context=context)
        self.tokens, self.given = tokens, []

    def new_cache(self, context: int | None = None) -> Any:
        return SimpleNamespace(length=0, context=context or self.config.context)

    def top(self, tokens: list[int], cache: Any, k: int, size: int, chunk: int) -> Any:
        logits = self.forward(tokens, cache)[0, :size]
        ids = np.argsort(-logits, kind="stable")[:k]
        return logits[ids], ids

    def forward(self, tokens: list[int], cache: Any) -> np.ndarray:
        logits = np.zeros((1, self.config.vocabulary), np.float32)
        logits[0, self.tokens[len(self.given)]] = 1
        # Padding rows of the embedding look best and must not be chosen.
        logits[0, len(small_vocabulary().pieces) :] = 2
        self.given.append(list(tokens))
        cache.length += len(tokens)
        return logits


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    shape = Shape(layers=1, width=32, heads=1, kv_heads=1, head_dim=8, ffn_width=32)
    return Tokenizer(GgufFile(write_model(tmp_path_factory.mktemp("t") / "m.gguf", shape)))


def run(tokenizer: Tokenizer, text: str, prompt: str = "user", **options: Any) -> tuple:
    tokens = [*tokenizer.encode(text, add_special=False), END_OF_TURN]
    script = Script(tokens, len(tokenizer) + 3, options.pop("limit", 100))
    generation = Generation(script, tokenizer, tokenizer.encode(prompt), **options)  # type: ignore
    return "".join(generation), generation, script


def test_the_end_of_turn_ends(tokenizer: Tokenizer) -> None:
    text, generation, script = run(tokenizer, "hello world 😀")
    count = len(tokenizer.encode("hello world 😀", add_special=False))
    assert text == "hello world 😀"
    assert generation.finish_reason == "end"
    timings = generation.timings
    assert (timings.prompt_tokens, timings.generated_tokens) == (2, count)
    # Every drawn token but the end was run; the first came from the prefill.
    assert timings.decode_steps == count
    assert script.given == [tokenizer.encode("user"), *([t] for t in generation.tokens)]
    assert timings.first_token > 0 and timings.decode > 0
    assert timings.prefill_rate == pytest.approx(2 / timings.first_token)
    assert timings.decode_rate == pytest.approx(count / timings.decode)


def test_length_stop_and_context_end(tokenizer: Tokenizer) -> None:
    text, generation, _ = run(tokenizer, "a b c d", max_tokens=3)
    assert (text, generation.finish_reason, generation.timings.decode_steps) == ("a b", "length", 2)
    text, generation, _ = run(tokenizer, "a b c d", stop=["c"])
    assert (text, generation.finish_reason) == ("a b ", "stop")
    text, generation, _ = run(tokenizer, "a b c d", limit=4)
    assert (text, generation.finish_reason) == ("a b", "context")
    # Only the tokens that have a place in the context were run.
    assert generation.timings.decode_steps == 2
    text, generation, _ = run(tokenizer, "")
    assert (text, generation.finish_reason, generation.timings.decode_rate) == ("", "end", 0)


def test_incomplete_text_at_the_end_is_flushed(tokenizer: Tokenizer) -> None:
    text, _, _ = run(tokenizer, "😀", max_tokens=3)
    assert text == "\ufffd"
    text, generation, _ = run(tokenizer, "a#", stop=["##"])
    assert (text, generation.finish_reason) == ("a#", "end")


def test_options_out_of_range(tokenizer: Tokenizer) -> None:
    for options in ({"max_tokens": 0}, {"chunk": 0}):
        with pytest.raises(ArgumentError, match="must be >= 1"):
            run(tokenizer, "a", **options)
    with pytest.raises(ArgumentError, match="inconsistent"):
        Generation(Script([], 5), tokenizer, [1])  # type: ignore[arg-type]


def test_greedy_text_is_that_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole path from file and prompt to token ids, projections in float32."""
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    monkeypatch.setattr(model_module, "Projection", ExactProjection)
    monkeypatch.setattr(model_module.Decoder, "of", lambda *_: None)
    shape = Shape(layers=6)
    weights = random_weights(shape, len(small_vocabulary().pieces), seed=5)
    hf = reference.hf_model(shape, weights)
    model, tokenizer = gemma3.load(write_model(tmp_path / "m.gguf", shape, weights=weights))
    prompt = tokenizer.encode(tokenizer.render_chat([{"role": "user", "content": "hello 12?"}]))
    generation = Generation(model, tokenizer, prompt, max_tokens=30, chunk=4)
    text = "".join(generation)
    # A causal model judges all positions in one pass: each token must follow from those before.
    logits = reference.hf_logits(hf, prompt + generation.tokens)
    assert generation.tokens == logits.argmax(axis=-1)[len(prompt) - 1 : -1].tolist()
    assert len(generation.tokens) > 5
    assert text == tokenizer.decode(generation.tokens)
