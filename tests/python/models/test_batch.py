"""Batches of sequences on the array (Model.decode_batch): one submission per step for all.

Logits against Hugging Face's model in float32, or float32 on the host for quantised weights, within
the bound derived in compare.py; different positions, lengths and windows, forks that share pages.
What a step leaves in memory and costs; steps that fail; sequences do not depend on one another.
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import compare
import gguf
import numpy as np
import pytest
from devices_under_test import DEVICES
from gemma3_files import Shape, random_weights, write_model
from reference_case import Case, case_of
from test_decoder import DEMO, SHAPES, SIZE, float32_logits, tokens_of, without_prefill
from test_prompts import rows_of

import npu
from npu import gemma3
from npu.devices import Device
from npu.errors import ArgumentError, FormatError
from npu.models.batch import BatchGeneration
from npu.models.gemma3.model import MOST_STEPS, Model
from npu.models.gemma3.prefill import Prefill
from npu.models.generation import Generation
from npu.models.kv_cache import Cache
from npu.models.sampling import Sampler
from npu.models.sources import open_source

# Where sequences stand and how many tokens they run: before, in and behind windows of 5 to 21, and
# across the border of a page.
STEPS = [(0, 1), (3, 8), (17, 1), (40, 5), (1, 2), (255, 3), (260, 1), (30, 7)]
KINDS = gguf.GGMLQuantizationType


def batching(device: str, designs: str = "array") -> AbstractContextManager[Device]:
    """A device on which batches are those of the array, or where designs="host" may be decode
    steps."""
    return npu.device(device, designs=designs)


def check_bound(
    actual: np.ndarray, expected: np.ndarray, layers: int, device: str, rounded: bool = False
) -> None:
    bound = compare.batch_logits_rms(layers, bfp16="npu2" in device, rounded_weights=rounded)
    assert compare.max_error(actual, expected) <= 6 * bound
    assert compare.rms_error(actual, expected) <= bound


def caches_at(model: Model, tokens: list[int], positions: list[int]) -> list[Cache]:
    """Caches that hold the first tokens of the same text."""
    caches = []
    for position in positions:
        caches.append(model.new_cache())
        model.extend(tokens[:position], caches[-1])
    return caches


def stepped(model: Model, tokens: list[int], steps: list[tuple[int, int]]) -> np.ndarray:
    """Logits of a step of sequences (position, new tokens) of the same text."""
    caches = caches_at(model, tokens, [position for position, _ in steps])
    out = model.decode_batch([tokens[at : at + count] for at, count in steps], caches)
    for cache, (at, count) in zip(caches, steps, strict=True):
        assert cache.length == at + count and cache.tokens.tolist() == tokens[: at + count]
    return out


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    shape = dataclasses.replace(SHAPES[request.param], context=300)
    if shape.head_dim == 80:  # no whole number of blocks of 32 columns
        shape = dataclasses.replace(shape, head_dim=96)
    weights, tokens = random_weights(shape, SIZE), tokens_of(261)
    path = write_model(tmp_path_factory.mktemp("m") / "m.gguf", shape, weights=weights)
    return case_of(shape, path, weights, tokens)


@pytest.mark.parametrize("device", DEVICES)
def test_logits_are_the_references_within_the_bound(case: Case, device: str) -> None:
    with batching(device):
        model = Model(open_source(case.path))
        assert model.batches_on_array
        actual = stepped(model, case.tokens, STEPS)
    expected = case.expected[[at + count - 1 for at, count in STEPS]]
    check_bound(actual, expected, case.shape.layers, device)


@pytest.mark.parametrize("device", DEVICES)
def test_steps_follow_each_other(case: Case, device: str) -> None:
    """Sequences that started apart, token by token, each from the cache of the step before."""
    starts = [0, 20, 33]
    with batching(device):
        model = Model(open_source(case.path))
        caches, rows = caches_at(model, case.tokens, starts), []
        for i in range(12):
            rows.append(model.decode_batch([case.tokens[at + i] for at in starts], caches))
    expected = [case.expected[[at + i for at in starts]] for i in range(12)]
    check_bound(np.concatenate(rows), np.concatenate(expected), case.shape.layers, device)


@pytest.mark.parametrize("device", DEVICES)
def test_formats_may_be_mixed(tmp_path: Path, device: str) -> None:
    """q and k in 4, v in 8 bits, others bfloat16; the head in 8 bits."""
    shape = Shape(layers=2, width=128, ffn_width=256, kv_heads=2, head_dim=64)
    kinds = {"attn_q": KINDS.Q4_0, "attn_k": KINDS.Q4_0, "attn_v": KINDS.Q8_0,
             "ffn_up": KINDS.Q8_0, "ffn_down": KINDS.Q4_0}  # fmt: skip
    types = {f"blk.{i}.{name}.weight": kind for i in range(2) for name, kind in kinds.items()}
    types["token_embd.weight"] = KINDS.Q8_0
    path, tokens = write_model(tmp_path / "m.gguf", shape, types=types), tokens_of(60)
    expected = float32_logits(path, tokens)
    steps = [step for step in STEPS if sum(step) <= 60]
    with batching(device):
        actual = stepped(Model(open_source(path)), tokens, steps)
    check_bound(actual, expected[[at + n - 1 for at, n in steps]], 2, device, rounded=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(layers=6, width=64, ffn_width=64, context=700, window=21)
    return write_model(tmp_path_factory.mktemp("small") / "m.gguf", shape)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_does_not_depend_on_the_others(small: Path, device: str) -> None:
    """Nor on their number and order: the same bits, also those of keys and values."""
    tokens = tokens_of(300)
    with batching(device):
        model = Model(open_source(small))
        positions = [position for position, _ in STEPS]
        new = [tokens[at : at + count] for at, count in STEPS]
        caches = caches_at(model, tokens, positions)
        forks = [[cache.fork() for cache in caches] for _ in range(2)]
        together = model.decode_batch(new, caches)
        orders = [3, 0, 7, 5, 1, 2, 6, 4]
        shuffled = model.decode_batch([new[i] for i in orders], [forks[0][i] for i in orders])
        assert np.array_equal(shuffled, together[orders])
        for i, cache in enumerate(forks[1]):
            assert np.array_equal(model.decode_batch([new[i]], [cache])[0], together[i])
            after = [model.decode_batch([5], [one])[0] for one in (caches[i], forks[0][i], cache)]
            assert np.array_equal(after[0], after[1]) and np.array_equal(after[0], after[2])


@pytest.mark.parametrize("device", DEVICES)
def test_where_the_host_counts_one_token_is_a_decode_step(small: Path, device: str) -> None:
    """With the bits of one: logits, keys and values. Several tokens are a batch all the same."""
    tokens = tokens_of(300)
    new = [tokens[at : at + count] for at, count in STEPS]
    with batching(device):
        model = Model(open_source(small))
        caches = caches_at(model, tokens, [position for position, _ in STEPS])
        forks = [[cache.fork() for cache in caches] for _ in range(2)]
        on_the_array = model.decode_batch(new, forks[0])
        with npu.device(device, designs="host"):
            actual = model.decode_batch(new, caches)
    for i, own in enumerate(new):
        alone = len(own) == 1
        with batching(device):
            expected = model.forward(own, forks[1][i])[0] if alone else on_the_array[i]
        assert np.array_equal(actual[i], expected)
        other = forks[1][i] if alone else forks[0][i]
        assert caches[i].tokens.tolist() == other.tokens.tolist()
        page = [cache.page_table(5)[-1] * cache.page_bytes for cache in (caches[i], other)]
        size = caches[i].page_bytes
        assert np.array_equal(*(model._pool.buffer[at : at + size] for at in page))
    assert any(np.array_equal(on_the_array[i], actual[i]) for i in range(8))
    assert not np.array_equal(on_the_array, actual)


@pytest.mark.parametrize("designs", ["array", "host"])
@pytest.mark.parametrize("device", DEVICES)
def test_forks_share_pages_until_they_are_written(small: Path, device: str, designs: str) -> None:
    """A text and its forks run on in one step with tokens of their own."""
    tokens, endings = tokens_of(260), [tokens_of(4, seed) for seed in range(2, 7)]
    with batching(device, designs):
        model = Model(open_source(small))
        cache = model.new_cache()
        model.extend(tokens, cache)
        caches = [cache, *(cache.fork() for _ in endings[1:])]
        kept = cache.fork()
        rows = [model.decode_batch([end[i] for end in endings], caches) for i in range(4)]
        assert kept.tokens.tolist() == tokens
    for number, end in enumerate(endings):
        expected = float32_logits(small, tokens + end)[260:]
        check_bound(np.stack([row[number] for row in rows]), expected, 6, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_writes_its_own_positions_only(
    small: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, real = tokens_of(300), Prefill.run_batch
    seen: list[np.ndarray] = []

    def own(caches: Any) -> np.ndarray:
        marks = [
            rows_of(cache, cache.pool, at, at + count)
            for cache, (at, count) in zip(caches, STEPS, strict=True)
        ]
        return np.logical_or.reduce(marks)

    def watched(self: Prefill, x: np.ndarray, counts: Any, caches: Any) -> np.ndarray:
        caches[0].pool[own(caches)] = 0x5B
        seen.append(caches[0].pool.copy())
        out = real(self, x, counts, caches)
        seen.extend([caches[0].pool.copy(), own(caches)])
        return out

    with batching(device):
        model = Model(open_source(small))
        monkeypatch.setattr(Prefill, "run_batch", watched)
        stepped(model, tokens, STEPS)
    before, after, mine = seen
    assert np.array_equal(before[~mine], after[~mine])
    # Every element of a row is new: two bytes that were 0x5B are a value no key has.
    assert not (after[mine].view(np.uint16) == 0x5B5B).any()


@pytest.mark.parametrize("designs", ["array", "host"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("on_array", [True, False])
def test_a_step_that_fails_leaves_all_caches_as_they_were(
    small: Path, device: str, on_array: bool, monkeypatch: pytest.MonkeyPatch, designs: str
) -> None:
    tokens = tokens_of(300)
    if not on_array:
        without_prefill(monkeypatch)
    with batching(device, designs):
        model = Model(open_source(small))
        assert model.batches_on_array is on_array
        caches = caches_at(model, tokens, [250, 3, 254])
        fork = caches[0].fork()
        new = [tokens[250:258], tokens[3], tokens[254:256]]
        expected = model.decode_batch(new, [cache.fork() for cache in caches])
        pages = [[cache.page_table(layer).copy() for layer in range(6)] for cache in caches]
        used = model._pool.used

        def stopped(_: np.ndarray) -> np.ndarray:
            raise KeyboardInterrupt

        def interrupted_after(name: str) -> None:
            real = getattr(Cache, name)

            def failing(self: Cache, *rest: Any) -> Any:
                out = real(self, *rest)
                if self is caches[1]:
                    raise KeyboardInterrupt
                return out

            patch.setattr(Cache, name, failing)

        # While passes begin, when the device has written, before and while they are committed.
        for name in ("begin", "_committed", "logits"):
            with monkeypatch.context() as patch:
                if name == "logits":
                    patch.setattr(model, "_capped", stopped)
                else:
                    interrupted_after(name)
                with pytest.raises(KeyboardInterrupt):
                    model.decode_batch(new, caches)
            for cache, at, before in zip(caches, (250, 3, 254), pages, strict=True):
                assert cache.length == at and cache.tokens.tolist() == tokens[:at]
                for layer in range(6):
                    assert np.array_equal(cache.page_table(layer), before[layer])
            assert model._pool.used == used
        assert np.array_equal(model.decode_batch(new, caches), expected)
        assert fork.tokens.tolist() == tokens[:250]


@pytest.mark.parametrize("designs", ["array", "host"])
def test_an_interrupt_between_two_commits_is_taken_back(
    small: Path, monkeypatch: pytest.MonkeyPatch, designs: str
) -> None:
    tokens = tokens_of(300)
    with batching("emu:npu2", designs):
        model = Model(open_source(small))
        caches = caches_at(model, tokens, [255, 3, 17])
        expected = model.decode_batch([1, 2, 3], [cache.fork() for cache in caches])
        armed = [True]

        class Watched(Cache):
            def __setattr__(self, name: str, value: Any) -> None:
                commits = name == "_now" and self.length < value[0].length and value[1] is None
                if commits and armed[0]:
                    armed[0] = False
                    raise KeyboardInterrupt
                super().__setattr__(name, value)

        caches[1].__class__ = Watched
        with pytest.raises(KeyboardInterrupt):
            model.decode_batch([1, 2, 3], caches)
        assert [cache.length for cache in caches] == [255, 3, 17] and not armed[0]
        assert np.array_equal(model.decode_batch([1, 2, 3], caches), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("no_replays")
def test_a_step_is_one_submission_and_loads_nothing(small: Path, device: str) -> None:
    tokens = tokens_of(120)
    with batching(device):
        model = Model(open_source(small))
        caches = caches_at(model, tokens, [30, 5, 60, 61])
        before = npu.stats()
        for i in range(3):
            model.decode_batch([tokens[61 + i]] * 4, caches)
        model.extend(tokens[:20], model.new_cache())
        used = npu.stats() - before
    assert used.submissions == 3 + 1 and used.configuration_loads == 0


@pytest.mark.parametrize("device", ["emu:npu1", "emu:npu2"])
def test_reloads_change_no_bit(small: Path, device: str) -> None:
    tokens, outs = tokens_of(300), []
    for name in (device, device + "+reload", device + "+reload-random-3"):
        with batching(name):
            outs.append(stepped(Model(open_source(small)), tokens, STEPS))
    assert all(np.array_equal(out, outs[0]) for out in outs)


def test_bit_exact_arithmetic_gives_the_logits(tmp_path: Path) -> None:
    tokens, starts = tokens_of(32), [0, 16]
    path = write_model(tmp_path / "m.gguf", Shape(layers=1, width=64, ffn_width=64))
    expected = float32_logits(path, tokens)
    for device in ("emu:npu1", "emu:npu2"):
        with npu.device(device, arithmetic="silicon", designs="array"):
            model = Model(open_source(path))
            caches, rows = caches_at(model, tokens, starts), []
            for i in range(16):
                rows.append(model.decode_batch([tokens[at + i] for at in starts], caches))
        at = [start + i for i in range(16) for start in starts]
        check_bound(np.concatenate(rows), expected[at], 1, device)


@pytest.mark.parametrize("designs", ["array", "host"])
def test_a_logit_cap_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, designs: str
) -> None:
    tokens = tokens_of(20)
    path = write_model(tmp_path / "m.gguf", Shape(layers=1, width=64, ffn_width=64))
    with batching("emu:npu2", designs):
        model = Model(open_source(path))
        plain = stepped(model, tokens, [(0, 3), (11, 1)])
        model.config = dataclasses.replace(model.config, logit_softcap=2.0)
        capped = stepped(model, tokens, [(0, 3), (11, 1)])
    np.testing.assert_allclose(capped, 2 * np.tanh(plain / 2), rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_other_models_run_one_after_the_other(
    small: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_of(300)
    expected = float32_logits(small, tokens)[[at + count - 1 for at, count in STEPS]]
    without_prefill(monkeypatch)
    with batching(device):
        model = Model(open_source(small))
        assert not model.batches_on_array
        actual = stepped(model, tokens, STEPS)
    assert compare.rms_error(actual, expected) <= compare.decoder_logits_rms(6)


def test_refusals(small: Path) -> None:
    tokens = tokens_of(300)
    with batching("emu:npu2"):
        model, other = Model(open_source(small)), Model(open_source(small))
        caches = [model.new_cache() for _ in range(9)]

        def refused(tokens: Any, caches: Any, match: str) -> None:
            with pytest.raises(ArgumentError, match=match):
                model.decode_batch(tokens, caches)

        refused([1] * 9, caches, "of 9 sequences and 9 caches were given; give 1 to 8")
        refused([], [], "of 0 sequences")
        refused([1, 2], caches[:1], "of 2 sequences and 1 caches")
        refused([1, 2], [caches[0], caches[0]], "cache 1 is among those before it; .* use fork")
        refused([1, 2], [caches[0], other.new_cache()], "cache 1 is of another model")
        refused([1, [2] * 9], caches[:2], "9 tokens of a sequence were given, a step runs up to 8")
        refused([1, []], caches[:2], "non-empty list of token ids")
        refused([1, SIZE + 999], caches[:2], "token ids span")
        full = model.new_cache(20)
        model.extend(tokens[:18], full)
        refused([1, [1, 2, 3]], [caches[0], full], "3 more tokens after 18 do not fit .* of 20")
        assert all(cache.length == 0 for cache in caches) and full.length == 18
        with npu.device("emu:npu1"):
            refused([1], [caches[0]], "cache 0 is of another model, device")


# --- generations ----------------------------------------------------------------------------------

QUESTIONS = [
    "How many centimetres are in 7 metres?", "What is 3 plus 4?", "How many days are in 2 weeks?",
    "What is 12 minus 5?", "Say hello.", "How many metres are in 3 kilometres?", "What is 9 + 6?",
    "Name a colour.", "What is 20 minus 4?", "How many days are in 5 weeks?", "What is 2 plus 2?",
]  # fmt: skip


def generations(
    model: Model, tokenizer: Any, sampler: Any = Sampler, **options: Any
) -> list[Generation]:
    made = []
    for number, question in enumerate(QUESTIONS):
        text = tokenizer.render_chat([{"role": "user", "content": question}])
        limits = {"max_tokens": 5 + 3 * number, **options}
        made.append(Generation(model, tokenizer, tokenizer.encode(text), sampler(), **limits))
    return made


def texts_of(batch: BatchGeneration) -> list[str]:
    texts = [""] * len(batch.generations)
    for index, text in batch:
        assert index not in batch.ended
        texts[index] += text
    assert sorted(batch.ended) == list(range(len(texts)))
    return texts


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("size", "designs"), [(8, "host"), (8, "array"), (3, "array")])
def test_greedy_texts_are_those_of_each_alone(device: str, size: int, designs: str) -> None:
    with npu.device(device, designs=designs):
        model, tokenizer = gemma3.load(DEMO)
        alone = generations(model, tokenizer, stop=["kilo"])
        expected = ["".join(one) for one in alone]
        batch = BatchGeneration(generations(model, tokenizer, stop=["kilo"]), size)
        assert texts_of(batch) == expected and not batch.errors
    for one, other in zip(batch.generations, alone, strict=True):
        assert one.tokens == other.tokens and one.finish_reason == other.finish_reason
        assert one.timings.generated_tokens == other.timings.generated_tokens
        assert one.timings.decode_steps == other.timings.decode_steps
        assert one.timings.first_token > 0 and one.cache is None
    assert model._pool.used == 0 or all(one.cache is not None for one in alone)


def test_prompts_leave_tokens_to_a_batch_and_one_to_decode_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    real = Model.decode_batch

    def watched(self: Model, tokens: Any, caches: Any) -> np.ndarray:
        counts.extend(len(own) for own in tokens)
        return real(self, tokens, caches)

    monkeypatch.setattr(Model, "decode_batch", watched)
    for designs, last in (("host", 1), ("array", 8)):
        with npu.device("emu:npu2", designs=designs):
            model, tokenizer = gemma3.load(DEMO)
            texts_of(BatchGeneration(generations(model, tokenizer, max_tokens=2)))
        assert set(counts) == {1, last}
        counts.clear()


def test_short_prompts_have_the_logits_of_a_run_alone_where_the_host_counts(small: Path) -> None:
    with npu.device("emu:npu2", designs="host"):
        model = Model(open_source(small))
        prompts = [tokens_of(count, seed=count) for count in (2, 9, MOST_STEPS)]
        alone = [model.forward(prompt, model.new_cache())[0] for prompt in prompts]
        caches = [model.new_cache() for _ in prompts]
        for prompt, cache in zip(prompts, caches, strict=True):
            model.extend(prompt[:-1], cache)
        together = model.decode_batch([prompt[-1] for prompt in prompts], caches)
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("designs", ["host", "array"])
def test_draws_are_those_of_each_samplers_seed(designs: str) -> None:
    """Whatever runs beside: each sampler sees the logits of its own sequence only."""
    with npu.device("emu:npu2", designs=designs):
        model, tokenizer = gemma3.load(DEMO)
        texts = [
            texts_of(BatchGeneration(generations(model, tokenizer, lambda: Sampler(3, seed=4)), n))
            for n in (8, 5, 1)
        ]
    assert texts[0] == texts[1] == texts[2] and len(set(texts[0])) > 5


def test_a_generation_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with npu.device("emu:npu2"):
        model, tokenizer = gemma3.load(DEMO)
        expected = texts_of(BatchGeneration(generations(model, tokenizer)))
        made = generations(model, tokenizer)
        made[1].context = 4
        long = made[6]
        real = long.choose

        def broken(logits: np.ndarray) -> int:
            return real(logits if len(long.tokens) < 3 else logits * np.float32(np.nan))

        monkeypatch.setattr(long, "choose", broken)
        batch = BatchGeneration(made)
        texts = texts_of(batch)
    assert sorted(batch.errors) == [1, 6]
    assert isinstance(batch.errors[1], ArgumentError) and "context of 4" in str(batch.errors[1])
    assert isinstance(batch.errors[6], FormatError)
    others = [i for i in range(len(texts)) if i not in batch.errors]
    assert [texts[i] for i in others] == [expected[i] for i in others]


def test_caches_that_were_given_are_continued() -> None:
    with npu.device("emu:npu2"):
        model, tokenizer = gemma3.load(DEMO)
        made = generations(model, tokenizer)
        made[0].cache = model.new_cache()
        texts_of(BatchGeneration(made))
        cache = made[0].cache
        assert cache is not None
        assert cache.tokens.tolist() == [*made[0].prompt, *made[0].tokens[: cache.length - 18]]
        again = Generation(model, tokenizer, made[0].prompt, max_tokens=3, cache=cache)
        texts_of(BatchGeneration([again]))
        assert again.timings.reused_tokens == len(again.prompt) - 1


def test_refused_batches() -> None:
    with npu.device("emu:npu2"):
        model, tokenizer = gemma3.load(DEMO)
        other, _ = gemma3.load(DEMO)
        made, cache = generations(model, tokenizer), model.new_cache()
        for size in (0, 9):
            with pytest.raises(ArgumentError, match=f"a batch of {size} was asked for"):
                BatchGeneration(made, size)
        with pytest.raises(ArgumentError, match="of 2 models"):
            BatchGeneration([*made, *generations(other, tokenizer)])
        for same in ([made[0], made[0]], [made[0], made[1]]):
            made[0].cache = made[1].cache = cache
            with pytest.raises(ArgumentError, match="the same cache"):
                BatchGeneration(same)
