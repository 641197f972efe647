"""Choosing the next token from logits: greedy, or temperature with top-k, top-p and min-p."""

from __future__ import annotations

import numpy as np

from npu.errors import ArgumentError, FormatError


def largest(logits: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` largest of logits (vocabulary,), largest first, equal by index."""
    threshold = np.partition(logits, logits.size - count)[logits.size - count]
    ids = np.flatnonzero(logits >= threshold)
    return ids[np.argsort(-logits[ids], kind="stable")][:count]


def check_finite(logits: np.ndarray) -> None:
    """Raises FormatError if a logit is NaN or infinite."""
    if not np.isfinite(logits).all():
        raise FormatError(
            "[generate] the model computed logits that are not finite; its weights are corrupted "
            "or exceed what bfloat16 can hold"
        )


class Sampler:
    """Draws tokens. ``temperature`` 0 is greedy; 0 top-k, 1 top-p and 0 min-p switch a filter off.

    The filters apply to the probabilities after the temperature, in the order top-k, top-p (the
    smallest set of most likely tokens that reaches p), min-p (at least p times the most likely).
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
    ) -> None:
        _require("temperature", temperature, temperature >= 0 and np.isfinite(temperature), ">= 0")
        _require("top-k", top_k, top_k >= 0, ">= 0")
        _require("top-p", top_p, 0 < top_p <= 1, "in (0, 1]")
        _require("min-p", min_p, 0 <= min_p <= 1, "in [0, 1]")
        _require("seed", seed, seed is None or seed >= 0, ">= 0")
        self._temperature = temperature
        self._top_k = top_k
        self._top_p = top_p
        self._min_p = min_p
        self._random = np.random.default_rng(seed)

    def choose(self, logits: np.ndarray) -> int:
        """A token id for logits (vocabulary,)."""
        check_finite(logits)
        if self._temperature == 0:
            return int(np.argmax(logits))
        ids, p = self.distribution(logits)
        return int(ids[self._random.choice(len(ids), p=p)])

    @property
    def candidates(self) -> int:
        """How many of the largest logits decide: 1 if greedy, top-k, or 0 for all."""
        return 1 if self._temperature == 0 else self._top_k

    def choose_among(self, values: np.ndarray, ids: np.ndarray) -> int:
        """Like ``choose``, from the ``candidates`` largest logits in order, and their ids."""
        if self._temperature == 0:
            return int(ids[0])
        kept, p = self._filtered(values)
        return int(ids[kept[self._random.choice(len(kept), p=p)]])

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


def _require(name: str, value: object, good: bool, rule: str) -> None:
    if not good:
        raise ArgumentError(f"[generate] {name} is {value}, it must be {rule}")
