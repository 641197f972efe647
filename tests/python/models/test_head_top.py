"""Choosing tokens from the device's top-k instead of from all logits: the same tokens.

``Weight.top`` against float64 products (dyadic values: sums are exact, many are equal) and against
the device's own full product; what it refuses, because an element that nobody sees might not be
finite; the sampler; whole generations on the demo model through either path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices_under_test import DEVICES
from gemma3_files import Shape, random_weights, small_vocabulary, write_model
from hypothesis import given, settings
from hypothesis import strategies as st
from q4nx_blocks import BF16, random_integers
from q4nx_blocks import random_weights as random_blocks

from npu import gemma3
from npu.errors import FormatError
from npu.formats.blocks import BlockTensor
from npu.formats.q4nx import Tensor
from npu.models.convert import convert
from npu.models.gemma3.model import MOST_STEPS, Model
from npu.models.gemma3.weights import Projection
from npu.models.sampling import Sampler, largest
from npu.models.sources import open_source
from npu.ops.linear import Weight

DEMO = Path(__file__).parents[3] / "examples/demo_model/demo-gemma3.gguf"


def exact_weight(n: int, k: int, seed: int, device: str | None = None) -> tuple[Weight, np.ndarray]:
    """A 4-bit weight whose products with small integers are exact, and its float64 values."""
    blocks, w, _, _ = random_blocks(n, k, np.random.default_rng(seed), exact=True)
    return Weight(Tensor.from_blocks(blocks, (n, k)), device=device), w


@given(
    n=st.integers(64, 1500), short=st.integers(0, 40), k=st.integers(1, 64),
    seed=st.integers(0, 2**32 - 1), device=st.sampled_from(DEVICES),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_top_is_what_all_elements_would_give(n, short, k, seed, device):
    """Few distinct sums, so most are ties: the first index comes first, as in np.argmax."""
    rows = n - short
    k = min(k, rows)
    weight, w = exact_weight(n, 40, seed, device)
    x = random_integers(1, 40, np.random.default_rng(seed))[0].astype(np.float32)
    values, ids = weight.top(x, k, rows)
    exact = (w @ x.astype(np.float64))[:rows]
    assert np.array_equal(ids, np.argsort(-exact, kind="stable")[:k]) and ids[0] == exact.argmax()
    assert np.array_equal(values, exact[ids])
    assert np.array_equal(values, weight.multiply(x[None])[0, ids])


def test_values_that_round_are_those_of_the_full_product():
    rng = np.random.default_rng(5)
    blocks, *_ = random_blocks(3000, 1152, rng)
    weight = Weight(Tensor.from_blocks(blocks, (3000, 1152)))
    for _ in range(5):
        x = rng.standard_normal(1152).astype(np.float32)
        y = weight.multiply(x[None])[0]
        values, ids = weight.top(x, 64, 3000)
        assert np.array_equal(ids, np.argsort(-y, kind="stable")[:64])
        assert np.array_equal(values, y[ids])


def with_number(blocks: np.ndarray, at: int, value: float) -> Tensor:
    """Blocks of (96, 256) with the at-th d (0 to 255) or m (from 256) of the second replaced."""
    changed = blocks.copy()
    changed[1, 2 * at : 2 * at + 2] = np.array([value], BF16).view(np.uint8)
    return Tensor.from_blocks(changed, (96, 256))


@pytest.mark.parametrize("at", [0, 255, 256, 511])
def test_elements_that_may_not_be_finite_are_not_left_on_the_device(at):
    blocks, *_ = random_blocks(96, 256, np.random.default_rng(1), exact=True)
    x = np.ones(256, np.float32)
    assert Weight(with_number(blocks, at, -16)).top(x, 1, 96) is not None
    for value in (np.nan, np.inf, -np.inf, -3e38):
        weight = Weight(with_number(blocks, at, value))
        assert weight.top(x, 1, 96) is None, value
    # The largest that is accepted stays finite whatever the signs are.
    weight = Weight(with_number(blocks, at, -(2.0**100)))
    edge = 2.0**127 / (512 * 2.0**100) / 256
    assert weight.top(x * np.float32(edge), 1, 96) is None
    signs = np.where(np.arange(256) % 2, 1, -1).astype(np.float32)
    for sign in (x, -x, signs):
        below = sign * np.float32(edge * 0.999)
        assert weight.top(below, 1, 96) is not None
        assert np.isfinite(weight.multiply(below[None])).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused(value):
    weight, _ = exact_weight(96, 256, 2)
    x = np.ones(256, np.float32)
    x[200] = value
    assert weight.top(x, 1, 96) is None


def test_where_there_is_no_top():
    weight, _ = exact_weight(96, 256, 3)
    x = np.ones(256, np.float32)
    assert weight.top(x, 65, 96) is None and weight.top(x, 5, 4) is None
    # Zeros: every element is a tie, and only sums that overflow bound x.
    zero = Weight(Tensor.from_blocks(np.zeros((3, 5120), np.uint8), (96, 256)))
    _, ids = zero.top(x * np.float32(1e30), 4, 96)
    assert zero.top(x * np.float32(1e36), 4, 96) is None
    assert ids.tolist() == [0, 1, 2, 3]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.data())
def test_largest_is_the_head_of_a_stable_sort(values, data):
    logits = np.array(values, np.float32)
    count = data.draw(st.integers(1, len(values)))
    assert np.array_equal(largest(logits, count), np.argsort(-logits, kind="stable")[:count])


@pytest.mark.parametrize(
    "options",
    [
        (0.0,), (0.0, 40), (1.0, 5), (0.7, 64, 0.6), (1.5, 20, 1.0, 0.3), (1.0, 1), (2.0, 64, 0.9),
    ],
)  # fmt: skip
def test_the_sampler_draws_alike(options):
    """Rounded logits: ties inside and at the edge of top-k."""
    rng = np.random.default_rng(4)
    one, other = Sampler(*options, seed=9), Sampler(*options, seed=9)
    assert one.candidates == (options[1] if options[0] else 1)
    for _ in range(200):
        logits = np.round(rng.normal(0, 2, 300), 1).astype(np.float32)
        ids = largest(logits, one.candidates)
        assert one.choose(logits) == other.choose_among(logits[ids], ids)


def test_without_top_k_all_logits_are_needed():
    assert Sampler(1.0).candidates == 0 and Sampler(0.5, 0, 0.9, 0.1).candidates == 0


class Spy:
    """Counts the answers of ``Projection.top``; ``off`` makes it answer None, and the decoder send
    all logits."""

    def __init__(self, real: Projection, off: bool) -> None:
        self.real, self.off, self.found = real, off, 0

    def multiply(self, x: np.ndarray) -> np.ndarray:
        return self.real.multiply(x)

    def finite_for(self, bound: float) -> bool:
        self.found += not self.off
        return not self.off and self.real.finite_for(bound)

    def top(self, x: np.ndarray, k: int, rows: int) -> Any:
        found = None if self.off else self.real.top(x, k, rows)
        self.found += found is not None
        return found


QUESTIONS = ("What is 17 + 25?", "Convert 3 hours to minutes.", "Who painted the Mona Lisa?")


@pytest.mark.parametrize("options", [(), (1.3, 40), (1.0, 64, 0.95)])
def test_the_demo_model_says_the_same(
    options: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = gemma3.load(convert(DEMO, tmp_path / "demo.q4nx"))
    texts: list[list[int]] = []
    real = model._head
    for off in (False, True):
        spy = Spy(real, off)
        monkeypatch.setattr(model, "_head", spy)
        for question in QUESTIONS:
            prompt = tokenizer.encode(
                tokenizer.render_chat([{"role": "user", "content": question}])
            )
            run = gemma3.Generation(model, tokenizer, prompt, Sampler(*options, seed=3))
            assert "".join(run)
            texts.append(run.tokens)
        if not off:
            assert spy.found >= sum(map(len, texts))  # every token was found on the device
    assert texts[:3] == texts[3:]


def test_padding_of_the_vocabulary_is_never_chosen(tmp_path: Path) -> None:
    """Rows of the head beyond the tokenizer, here the likeliest ones."""
    shape, size = Shape(layers=1), len(small_vocabulary().pieces)
    weights = random_weights(shape, size)
    rng = np.random.default_rng(1)
    for extra in (1, 40):
        table = weights["token_embd.weight"]
        tail = 50 * rng.choice([-1, 1], (extra, shape.width)).astype(np.float32)
        padded = weights | {"token_embd.weight": np.concatenate([table, tail])}
        source = write_model(tmp_path / f"{extra}.gguf", shape, weights=padded)
        model = Model(open_source(convert(source, tmp_path / f"{extra}.q4nx")))
        for token in range(8):
            logits = model.forward([token], model.new_cache())[0]
            values, ids = model.top([token], model.new_cache(), 3, size)
            assert np.array_equal(ids, largest(logits[:size], 3))
            assert np.array_equal(values, logits[ids])
            assert logits[size:].max() > values[0] or logits[size:].min() < -values[0]


def test_logits_that_are_not_finite_are_an_error_on_both_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = gemma3.load(
        convert(write_model(tmp_path / "m.gguf", Shape(layers=1)), tmp_path / "m.q4nx")
    )
    (head,) = model._head.tensors
    broken = head.blocks.copy()
    broken[3, 0, :2] = np.array([np.nan], BF16).view(np.uint8)  # d of one group of row 96
    monkeypatch.setattr(
        model, "_head", Projection([BlockTensor(broken, head.shape, "q4nx")], "native")
    )
    for sampler in (Sampler(), Sampler(1.0, 10), Sampler(1.0)):
        prompt = [2] + [7] * MOST_STEPS  # whose head is not the decoder's
        generation = gemma3.Generation(model, tokenizer, prompt, sampler)
        with pytest.raises(FormatError, match="not finite"):
            next(iter(generation))
