"""Choosing the next token from logits: greedy, or temperature with top-k, top-p and min-p, after
penalties for repetition.

The vocabulary is not sorted for it. A few candidates are found by the maxima of blocks; where any
token may be drawn, a histogram over the distance from the largest logit tells which few tokens the
drawn mass falls among, and only those are sorted. One uniform number is drawn per token, and the
result is the token at which the sum of the probabilities, the most likely first and equal ones by
id, exceeds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from npu.errors import ArgumentError, FormatError

_BLOCK = 64  # logits per maximum
_SORTED = 1024  # up to so many candidates are sorted
_BINS = 4096
_NEGLIGIBLE = 64.0  # exp(-64) of 2^20 tokens is less than a float64 sum of 1 resolves


def largest(logits: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` largest of logits (vocabulary,), largest first, equal by index."""
    ids = _at_least(logits, count)
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def _at_least(logits: np.ndarray, count: int) -> np.ndarray:
    """Ascending indices of a superset of the ``count`` largest; a small one if count is small."""
    blocks = logits.size // _BLOCK
    if 2 * count > blocks:
        threshold = np.partition(logits, logits.size - count)[logits.size - count]
    else:
        # Each of the blocks with the largest maxima has an element of at least the last of these.
        maxima = logits[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        threshold = np.partition(maxima, blocks - count)[blocks - count]
    return np.flatnonzero(logits >= threshold)


def check_finite(logits: np.ndarray) -> None:
    """Raises FormatError if a logit is NaN or infinite."""
    if not np.isfinite(logits).all():
        raise FormatError(
            "[generate] the model computed logits that are not finite; its weights exceed what "
            "bfloat16 can hold or are corrupted, in the file or in the cache, which --no-cache or "
            "NPU_CACHE=off leaves aside"
        )


class Sampler:
    """Draws tokens. ``temperature`` 0 is greedy; 0 top-k, 1 top-p and 0 min-p switch a filter off.

    The filters apply to the probabilities after the temperature, in the order top-k, top-p (the
    smallest set of most likely tokens that reaches p), min-p (at least p times the most likely).

    Before that, each token among the last ``repeat_last_n`` of prompt and answer (0: none, -1: all)
    has its logit divided by ``repeat_penalty`` if it is positive, else multiplied by it, and then
    lowered by ``presence_penalty`` and by ``frequency_penalty`` times its number of occurrences.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        *,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
    ) -> None:
        _require("temperature", temperature, temperature >= 0 and np.isfinite(temperature), ">= 0")
        _require("top-k", top_k, top_k >= 0, ">= 0")
        _require("top-p", top_p, 0 < top_p <= 1, "in (0, 1]")
        _require("min-p", min_p, 0 <= min_p <= 1, "in [0, 1]")
        _require("seed", seed, seed is None or seed >= 0, ">= 0")
        good = repeat_penalty > 0 and np.isfinite(repeat_penalty)
        _require("repeat-penalty", repeat_penalty, good, "> 0")
        _require("repeat-last-n", repeat_last_n, repeat_last_n >= -1, ">= -1")
        _require("presence-penalty", presence_penalty, np.isfinite(presence_penalty), "finite")
        _require("frequency-penalty", frequency_penalty, np.isfinite(frequency_penalty), "finite")
        self._temperature = temperature
        self._top_k = top_k
        self._top_p = top_p
        self._min_p = min_p
        self._repeat_penalty = repeat_penalty
        self._repeat_last_n = repeat_last_n
        self._presence_penalty = presence_penalty
        self._frequency_penalty = frequency_penalty
        self._random = np.random.default_rng(seed)

    def choose(self, logits: np.ndarray, history: Sequence[int] = ()) -> int:
        """A token id for logits (vocabulary,) after the tokens of ``history``, prompt included."""
        check_finite(logits)
        ids, counts = self._repeated(history)
        inside = ids < logits.size
        if inside.any():
            ids = ids[inside]
            logits = logits.copy()
            logits[ids] = self._penalised(logits[ids], counts[inside])
        if self._temperature == 0:
            return int(np.argmax(logits))
        if 0 < min(self._top_k, logits.size) <= _SORTED:
            return self._draw(*self.distribution(logits))
        return self._draw_from_all(logits)

    @property
    def candidates(self) -> int:
        """How many of the largest logits decide: 1 if greedy, top-k, or 0 for all."""
        return 1 if self._temperature == 0 else self._top_k

    def candidates_after(self, history: Sequence[int]) -> int:
        """``candidates``, and as many more as tokens may fall behind by a penalty; 0 for all."""
        wanted = self.candidates
        changed = len(self._repeated(history)[0])
        if not wanted or not changed:
            return wanted
        lowest = min(self._presence_penalty, self._frequency_penalty)
        raises = self._repeat_penalty < 1 or lowest < 0
        return 0 if raises else wanted + changed

    def choose_among(self, values: np.ndarray, ids: np.ndarray, history: Sequence[int] = ()) -> int:
        """Like ``choose``, from the ``candidates_after`` largest logits in order, and their
        ids."""
        repeated, counts = self._repeated(history)
        if len(repeated):
            places = np.minimum(np.searchsorted(repeated, ids), len(repeated) - 1)
            found = repeated[places] == ids
            values = values.copy()
            values[found] = self._penalised(values[found], counts[places[found]])
            order = np.lexsort((ids, -values))[: self.candidates]
            values, ids = values[order], ids[order]
        if self._temperature == 0:
            return int(ids[0])
        kept, p = self._filtered(values)
        return self._draw(ids[kept], p)

    def distribution(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The candidates, most likely first, and their probabilities (float64, sum 1)."""
        count = logits.size if self._top_k == 0 else min(self._top_k, logits.size)
        ids = largest(logits, count)
        kept, p = self._filtered(logits[ids])
        return ids[kept], p

    def _filtered(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the logits left by top-k, largest first, stay, and their probabilities."""
        scaled = values.astype(np.float64)
        # The maximum is subtracted first: a tiny temperature must not overflow.
        p = np.exp((scaled - scaled[0]) / self._temperature)
        p /= p.sum()
        keep = (np.cumsum(p) - p < self._top_p) & (p >= self._min_p * p[0])
        keep[0] = True
        return np.flatnonzero(keep), p[keep] / p[keep].sum()

    def _draw(self, ids: np.ndarray, p: np.ndarray) -> int:
        reached = np.cumsum(p)
        place = int(np.searchsorted(reached / reached[-1], self._random.random(), side="right"))
        return int(ids[place])

    def _draw_from_all(self, logits: np.ndarray) -> int:
        """What ``_draw`` gives for the distribution over all tokens, or very many."""
        ids = np.arange(logits.size)
        if 0 < self._top_k < logits.size:
            ids = np.flatnonzero(_are_largest(logits, self._top_k))
        scaled = logits[ids].astype(np.float64)
        with np.errstate(over="ignore"):  # a tiny temperature
            distance = (scaled.max() - scaled) / self._temperature
        weights = np.exp(-distance)
        mass = self._top_p * weights.sum()
        if self._min_p > 0:
            kept = np.flatnonzero(weights >= self._min_p)
            ids, distance, weights = ids[kept], distance[kept], weights[kept]
        ranking = _Ranking(distance, weights)
        mass = ranking.find(mass, "left")[1] if self._top_p < 1 else ranking.mass
        return int(ids[ranking.find(self._random.random() * mass, "right")[0]])

    def _repeated(self, history: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Ascending ids of the tokens to penalise, and how often each occurs."""
        penalties = (self._repeat_penalty - 1, self._presence_penalty, self._frequency_penalty)
        recent: Sequence[int] = ()
        if any(penalties) and self._repeat_last_n:
            recent = history if self._repeat_last_n < 0 else history[-self._repeat_last_n :]
        return np.unique(np.asarray(recent, np.int64), return_counts=True)

    def _penalised(self, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        divided = np.where(values > 0, values / self._repeat_penalty, values * self._repeat_penalty)
        lowered = divided - (counts * self._frequency_penalty + self._presence_penalty)
        return lowered.astype(values.dtype)


def _are_largest(logits: np.ndarray, count: int) -> np.ndarray:
    """Which elements are the ``count`` largest, equal ones by index."""
    threshold = np.partition(logits, logits.size - count)[logits.size - count]
    chosen = logits > threshold
    equal = np.flatnonzero(logits == threshold)
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen


class _Ranking:
    """Tokens by rising ``distance`` (equal ones by index), sorted only where a mass is looked up.

    ``weights``: exp(-distance). ``mass``: their sum.
    """

    def __init__(self, distance: np.ndarray, weights: np.ndarray) -> None:
        self._distance, self._weights = distance, weights
        span = min(float(distance.max()), _NEGLIGIBLE)
        scale = _BINS / span if span > _BINS / np.finfo(float).max else 0.0
        self._bins = np.minimum(distance * scale, _BINS - 1).astype(np.intp)
        self._ends = np.cumsum(np.bincount(self._bins, weights, _BINS))
        self.mass = float(self._ends[-1])

    def find(self, mass: float, side: Literal["left", "right"]) -> tuple[int, float]:
        """The token at which the sum of the weights reaches ("left") or exceeds ("right") ``mass``,
        and that sum."""
        last = int(self._bins.max())
        place = min(int(np.searchsorted(self._ends, mass, side=side)), last)
        members = np.flatnonzero(self._bins == place)
        members = members[np.argsort(self._distance[members], kind="stable")]
        before = self._ends[place - 1] if place else 0.0
        reached = before + np.cumsum(self._weights[members])
        at = min(int(np.searchsorted(reached, mass, side=side)), len(members) - 1)
        return int(members[at]), float(reached[at])


def _require(name: str, value: object, good: bool, rule: str) -> None:
    if not good:
        raise ArgumentError(f"[generate] {name} is {value}, it must be {rule}")
