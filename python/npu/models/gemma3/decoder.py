"""A model's decode step on the array: one submission per token (npu.designs.decoder)."""

from __future__ import annotations

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
        configuration = operation("decoder").configuration(self._device.generation)
        self._native = _npu.ops.Decoder(
            self._device.handle, configuration,
            **arguments(config, source, blocks, embedding_scale),
        )  # fmt: skip
        self._device.attach(self, self._native)
        self._rotated: tuple[int, tuple[np.ndarray, np.ndarray]] | None = None

    def logits(self, token: int, cache: Cache) -> np.ndarray:
        """The float32 logits (vocabulary,) of a token at the position of the cache's pass."""
        out = np.empty(self._config.vocabulary, np.float32)
        with cache.pinned():
            self._native.logits(**self._inputs(token, cache), result=out.view(np.uint8))
        return out

    def top(self, token: int, cache: Cache, k: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """The k largest of the first ``rows`` logits and their ids, largest first."""
        with cache.pinned():
            found = self._native.top(**self._inputs(token, cache), k=k, rows=rows)
        values, ids = zip(*found, strict=True)
        return np.array(values, np.float32), np.array(ids, np.int64)

    def _inputs(self, token: int, cache: Cache) -> dict[str, Any]:
        c = self._config
        at = cache.length
        rotations = self._rotations(at // PAGE)
        row = self._source.float32(names.EMBEDDING, np.array([token]))[0]
        return {
            "position": at,
            "embedding": np.ascontiguousarray(row),
            "global_rotation": rotations[0][at % PAGE],
            "sliding_rotation": rotations[1][at % PAGE],
            "pool": cache.pool,
            "pages": [cache.page_table(layer) for layer in range(c.layers)],
        }

    def _rotations(self, page: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines, then sines, of a page's positions: for global and for sliding layers."""
        latest = self._rotated  # other threads may replace it
        if latest is None or latest[0] != page:
            self._rotated = latest = page, rotations(self._config, page * PAGE, PAGE)
        return latest[1]
