"""A model in float32 on the host: projections from the blocks that it has prepared for the device,
keys and values as they were computed instead of rounded to bfloat16."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from npu.formats.blocks import BlockTensor
from npu.models.kv_cache import Cache
from npu.ops import host


class ExactProjection:
    """In place of ``npu.models.gemma3.model.Projection``."""

    def __init__(self, tensors: Sequence[BlockTensor], bf16: str = "native") -> None:
        self.values = np.concatenate([tensor.to_numpy(np.float32) for tensor in tensors])

    def multiply(self, x: np.ndarray) -> np.ndarray:
        return x @ self.values.T

    def top(self, x: np.ndarray, k: int, rows: int) -> None:
        """The model looks at all logits instead."""


class ExactCache:
    """Float32 K and V of all positions of every cache; attention over those put last."""

    def __init__(self) -> None:
        self._rows: weakref.WeakKeyDictionary[Cache, dict[int, np.ndarray]]
        self._rows = weakref.WeakKeyDictionary()
        self._last = np.empty(0, np.float32)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        rows = self

        def put(cache: Cache, layer: int, position: int, k: np.ndarray, v: np.ndarray) -> None:
            rows.put(cache, layer, position, k, v)

        patch.setattr(Cache, "put", put)
        patch.setattr(host, "paged_attention", self.attention)

    def put(self, cache: Cache, layer: int, position: int, k: np.ndarray, v: np.ndarray) -> None:
        layers = self._rows.setdefault(cache, {})
        old = layers.get(layer, np.empty((2, 0, *k.shape[1:]), np.float32))
        layers[layer] = np.concatenate([old[:, :position], np.stack([k, v])], axis=1)
        self._last = layers[layer]

    def attention(
        self, q: np.ndarray, *_: Any, kv_heads: int, start: int, **options: Any
    ) -> np.ndarray:
        k, v = np.ascontiguousarray(self._last.transpose(0, 2, 1, 3))
        assert len(k) == kv_heads
        return host.attention(q, k, v, query_start=start, key_start=0, **options)
