"""A model's decode step on the array, all of a token (npu.designs.decoder)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npu import _npu
from npu.devices import current_device
from npu.errors import ShapeError
from npu.formats.blocks import BlockTensor
from npu.models.gemma3 import names
from npu.models.gemma3.array_model import arguments, rotations
from npu.models.gemma3.config import Config
from npu.models.gemma3.weights import HEAD
from npu.models.interface import MOST_SEQUENCES
from npu.models.kv_cache import PAGE, Cache
from npu.models.sources.interface import Source
from npu.ops.registry import operation

MAX_TOP = 64  # logits that leave the array, at most, where not all do


class Decoder:
    """Decode steps of a model on one device. Raises ShapeError for sizes that the array does not
    run."""

    @classmethod
    def of(
        cls,
        config: Config,
        source: Source,
        blocks: Mapping[str, Sequence[BlockTensor]],
        embedding_scale: float,
    ) -> Decoder | None:
        """The decoder on the current device; None for other sizes than it runs."""
        try:
            return cls(config, source, blocks, embedding_scale)
        except ShapeError:
            return None

    def __init__(
        self,
        config: Config,
        source: Source,
        blocks: Mapping[str, Sequence[BlockTensor]],
        embedding_scale: float,
    ) -> None:
        self._config, self._source = config, source
        self._device = current_device()
        decoder = operation("decoder")
        size = decoder.choices_of(blocks[HEAD][0].format)  # that of all matrices
        configuration = decoder.configuration(self._device.generation, **size)
        self._native = _npu.ops.Decoder(
            self._device.handle, configuration,
            **arguments(config, source, blocks, embedding_scale),
        )  # fmt: skip
        self._device.attach(self, self._native)
        # Cosines, then sines, of a page's positions: for global and for sliding layers.
        self._rotations = functools.lru_cache(maxsize=MOST_SEQUENCES)(
            lambda page: rotations(config, page * PAGE, PAGE)
        )

    def logits(self, tokens: Sequence[int], caches: Sequence[Cache]) -> np.ndarray:
        """The float32 logits (tokens, vocabulary) of tokens of different sequences, each at the
        position of its cache's pass. The caches are of one model."""
        out = np.empty((len(tokens), self._config.vocabulary), np.float32)
        with caches[0].pinned():
            inputs = [self._input(*of) for of in zip(tokens, caches, strict=True)]
            self._native.logits(inputs, caches[0].pool, out.reshape(-1).view(np.uint8))
        return out

    def last_logits(self, tokens: Sequence[int], cache: Cache) -> np.ndarray:
        """The float32 logits (1, vocabulary) of the last of tokens from the position of the
        cache's pass on."""
        out = np.empty((1, self._config.vocabulary), np.float32)
        with cache.pinned():
            inputs = self._inputs(tokens, cache)
            self._native.last_logits(inputs, cache.pool, out.reshape(-1).view(np.uint8))
        return out

    def extend(self, tokens: Sequence[int], cache: Cache) -> None:
        """The same tokens without logits."""
        with cache.pinned():
            self._native.extend(self._inputs(tokens, cache), cache.pool)

    def top(
        self, tokens: Sequence[int], cache: Cache, k: int, rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k largest of the first ``rows`` logits of the last token and their ids, largest
        first."""
        with cache.pinned():
            found = self._native.top(self._inputs(tokens, cache), cache.pool, k, rows)
        values, ids = zip(*found, strict=True)
        return np.array(values, np.float32), np.array(ids, np.int64)

    def _inputs(self, tokens: Sequence[int], cache: Cache) -> list[tuple[Any, ...]]:
        return [self._input(token, cache, ahead) for ahead, token in enumerate(tokens)]

    def _input(self, token: int, cache: Cache, ahead: int = 0) -> tuple[Any, ...]:
        """Position, embedding, rotations of global and of sliding layers, pages of each layer."""
        at = cache.length + ahead
        whole, sliding = self._rotations(at // PAGE)
        row = self._source.float32(names.EMBEDDING, np.array([token]))[0]
        pages = [cache.page_table(layer) for layer in range(self._config.layers)]
        return at, np.ascontiguousarray(row), whole[at % PAGE], sliding[at % PAGE], pages
