"""Selection without a sort of the vocabulary gives the draws of the plain definition, for the same
seed; penalties are those of their definition; and the device's few candidates suffice where
``Sampler.candidates_after`` says so."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu.errors import ArgumentError
from npu.models import sampling
from npu.models.sampling import Sampler


def plain_draw(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> int:
    """Sorts everything, then Generator.choice: the definition that Sampler must reproduce."""
    order = np.argsort(-logits, kind="stable")[: top_k or logits.size]
    scaled = logits[order].astype(np.float64)
    p = np.exp((scaled - scaled[0]) / temperature)
    p /= p.sum()
    keep = (np.cumsum(p) - p < top_p) & (p >= min_p * p[0])
    keep[0] = True
    kept = p[keep] / p[keep].sum()
    return int(order[keep][np.random.default_rng(seed).choice(len(kept), p=kept)])


def logits_of(kind: str, size: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.normal(0, 1, size)
    if kind == "peaked":
        values = 4 * values
        values[random.integers(0, size, 3)] = 20
    if kind == "ties":
        values = np.round(values * 4) / 4
    if kind == "constant":
        values = np.full(size, 2.5)
    return values.astype(np.float32)


FILTERS = [
    (0, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.05), (0, 0.7, 0.02), (40, 0.95, 0.05), (65, 1.0, 0.0),
    (1500, 1.0, 0.0), (2000, 0.8, 0.1), (10**6, 0.5, 0.0), (0, 1e-9, 0.0), (0, 1.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["flat", "peaked", "ties", "constant"])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), FILTERS)
@pytest.mark.parametrize("temperature", [0.05, 0.8, 1.0, 30.0])
def test_draws_are_those_of_the_plain_definition(
    kind: str, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    for seed in range(6):
        logits = logits_of(kind, 5000 + 977 * seed, seed)
        expected = plain_draw(logits, temperature, top_k, top_p, min_p, seed)
        drawn = Sampler(temperature, top_k, top_p, min_p, seed).choose(logits)
        if expected != drawn and kind == "constant":
            # Equal tokens: only the rounding of their sum may move a draw, to a neighbour.
            assert abs(expected - drawn) <= 1
        else:
            assert drawn == expected


@given(
    st.integers(1, 700), st.floats(0.01, 50), st.integers(0, 800), st.floats(0.001, 1),
    st.floats(0, 1), st.integers(0, 10**6),
)  # fmt: skip
def test_draws_of_any_size_and_options(
    size: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = logits_of("ties" if seed % 2 else "flat", size, seed)
    expected = plain_draw(logits, temperature, top_k, top_p, min_p, seed)
    drawn = Sampler(temperature, top_k, top_p, min_p, seed).choose(logits)
    # Rounding may move a limit across one token, and with it the draw to its neighbour.
    rank = {int(token): place for place, token in enumerate(np.argsort(-logits, kind="stable"))}
    assert abs(rank[drawn] - rank[expected]) <= 1


def test_one_number_is_drawn_per_token_whatever_the_path() -> None:
    logits = logits_of("flat", 9000, 1)
    for options in ((0.8, 0, 1.0, 0.0), (0.8, 40, 0.9, 0.0), (0.8, 3000, 0.9, 0.05)):
        sampler, random = Sampler(*options, seed=9), np.random.default_rng(9)
        for _ in range(5):
            sampler.choose(logits)
        expected = random.random(6)[5]
        assert sampler._random.random() == expected


def test_extremes() -> None:
    logits = logits_of("peaked", 30000, 3)
    logits[7] = 21
    assert Sampler(1e-300, seed=1).choose(logits) == logits.argmax()
    assert Sampler(5e-324, top_p=0.5, seed=1).choose(logits) == logits.argmax()
    seen = {Sampler(1e30, seed=s).choose(logits) for s in range(40)}
    assert len(seen) == 40  # uniform
    assert Sampler(0.7, seed=0).choose(logits[:1]) == 0


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 40000])
@pytest.mark.parametrize("kind", ["flat", "ties", "constant"])
def test_the_largest_are_those_of_a_sort(size: int, kind: str) -> None:
    logits = logits_of(kind, size, size)
    order = np.argsort(-logits, kind="stable")
    for count in {1, 2, size // 3, size - 1, size} - {0}:
        assert sampling.largest(logits, count).tolist() == order[:count].tolist()


def test_the_vocabulary_is_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The histogram leaves a small part of a flat distribution to be sorted."""
    sizes: list[int] = []
    argsort = np.argsort

    def counted(values: np.ndarray, **options: Any) -> np.ndarray:
        sizes.append(len(values))
        return argsort(values, **options)

    monkeypatch.setattr(np, "argsort", counted)
    for kind in ("flat", "peaked"):
        logits = logits_of(kind, 262144, 2)
        for options in ((0.8, 0, 1.0, 0.0), (0.8, 0, 0.9, 0.0), (0.8, 65, 0.9, 0.0)):
            Sampler(*options, seed=4).choose(logits)
    assert sizes and max(sizes) < 4000


# Penalties


def plain_penalties(
    logits: np.ndarray, history: list[int], last: int, repeat: float, present: float, freq: float
) -> np.ndarray:
    out = logits.astype(np.float64)
    recent = history if last < 0 else history[len(history) - min(last, len(history)) :]
    for token, count in Counter(recent).items():
        value = out[token]
        out[token] = value / repeat if value > 0 else value * repeat
        out[token] -= count * freq + present
    return out


@pytest.mark.parametrize("last", [0, 1, 5, 64, -1])
@pytest.mark.parametrize(
    ("repeat", "present", "freq"),
    [(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (1.0, 0.7, 0.3), (1.1, 0.1, 0.2), (0.8, -0.5, 0.0)],
)
def test_penalties_follow_their_definition(
    last: int, repeat: float, present: float, freq: float
) -> None:
    random = np.random.default_rng(5)
    options: dict[str, Any] = {
        "repeat_penalty": repeat, "repeat_last_n": last, "presence_penalty": present,
        "frequency_penalty": freq,
    }  # fmt: skip
    for seed in range(20):
        logits = random.normal(0, 1, 50).astype(np.float32)
        history = random.integers(0, 50, 90).tolist()
        before = logits.copy()
        expected = plain_penalties(logits, history, last, repeat, present, freq)
        greedy = Sampler(**options)
        assert greedy.choose(logits, history) == expected.argmax()
        drawn = Sampler(0.8, seed=seed, **options).choose(logits, history)
        assert drawn == plain_draw(expected, 0.8, 0, 1, 0, seed)
        assert (logits == before).all()
        # From the few largest, as the device finds them.
        for temperature, top_k in ((0.0, 0), (0.8, 4)):
            whole = Sampler(temperature, top_k, seed=seed, **options)
            few = Sampler(temperature, top_k, seed=seed, **options)
            count = few.candidates_after(history)
            raised = (repeat < 1 or min(present, freq) < 0) and last != 0
            assert (count == 0) == raised
            if count:
                ids = sampling.largest(logits, min(count, 50))
                chosen = few.choose_among(logits[ids], ids, history)
                assert chosen == whole.choose(logits, history)


def test_candidates_count_what_may_fall_behind() -> None:
    assert Sampler().candidates_after([1, 2, 3]) == 1
    assert Sampler(0.8).candidates_after([1, 2, 3]) == 0
    assert Sampler(0.8, 40, repeat_penalty=1.1).candidates_after([1, 2, 1, 3]) == 43
    assert Sampler(repeat_penalty=1.1, repeat_last_n=2).candidates_after([7, 8, 9]) == 3
    # Exactly so many are needed: all penalised tokens were in front.
    logits = np.arange(10, 0, -1).astype(np.float32)
    sampler = Sampler(presence_penalty=100)
    ids = sampling.largest(logits, sampler.candidates_after([0, 1, 2]))
    assert len(ids) == 4 and sampler.choose_among(logits[ids], ids, [0, 1, 2]) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_penalty": 0.0},
        {"repeat_penalty": float("inf")},
        {"repeat_last_n": -2},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("inf")},
    ],
)
def test_penalties_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"\[generate\] .*-.* it must be"):
        Sampler(**options)
