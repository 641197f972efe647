"""What generation needs of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from npu import _npu
from npu.models.kv_cache import Cache

# Prompt tokens per forward pass: bounds the activations of a long prompt.
PREFILL_CHUNK = 2048
# Sequences of a batch, and tokens of each of them in a step.
MOST_SEQUENCES: int = _npu.ops.Prefill.MOST_SEQUENCES
MOST_NEW: int = _npu.ops.Prefill.MOST_NEW


class ModelConfig(Protocol):
    @property
    def vocabulary(self) -> int: ...


class Model(Protocol):
    """A loaded model: runs tokens at a cache's next positions and gives the last one's logits."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def identity(self) -> str:
        """What keys and values depend on: a cache of another identity is of no use."""

    def new_cache(self, context: int | None = None) -> Cache:
        """An empty cache for up to ``context`` positions (default: the model's context)."""

    def prefill(
        self, tokens: Sequence[int], cache: Cache, chunk: int = PREFILL_CHUNK
    ) -> np.ndarray:
        """Runs tokens in chunks; returns the logits (1, vocabulary) of the last one."""

    def top(
        self, tokens: Sequence[int], cache: Cache, k: int, size: int, chunk: int = PREFILL_CHUNK
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like ``prefill``, for the k largest of the first ``size`` logits and their ids."""

    def extend(self, tokens: Sequence[int], cache: Cache, chunk: int = PREFILL_CHUNK) -> None:
        """Runs tokens in chunks, without logits."""

    @property
    def joined_tokens(self) -> int:
        """How many of a prompt's last tokens, 1 to ``MOST_NEW``, are best left to the next
        ``decode_batch``."""

    def decode_batch(
        self, tokens: Sequence[int | Sequence[int]], caches: Sequence[Cache]
    ) -> np.ndarray:
        """Runs 1 to ``MOST_NEW`` tokens of each of 1 to ``MOST_SEQUENCES`` sequences; returns the
        logits (sequences, vocabulary) of each one's last token."""
