"""A model's prompts on the array, chunk by chunk (npu.designs.prefill). And the next tokens of
several sequences, one submission for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npu import _npu
from npu.devices import current_device
from npu.errors import ShapeError
from npu.formats.blocks import BlockTensor
from npu.models.gemma3.array_model import arguments, rotations
from npu.models.gemma3.config import Config
from npu.models.kv_cache import Cache
from npu.models.sources.interface import Source
from npu.ops.registry import operation

_MOST = _npu.ops.Prefill.MOST  # tokens of a chunk
_ALIGN = _npu.ops.Prefill.ALIGN  # positions that a chunk's rows begin at


def chunk_length(position: int, most: int) -> int:
    """Tokens of a chunk of up to ``most`` from ``position`` on: after a long one, the next needs no
    rows before its first token."""
    return most - position % _ALIGN if most >= 16 * _ALIGN else most


class Prefill:
    """Chunks of prompts of a model on one device. Raises ShapeError for sizes that the array does
    not run."""

    @classmethod
    def of(
        cls, config: Config, source: Source, blocks: Mapping[str, Sequence[BlockTensor]]
    ) -> Prefill | None:
        """Prompts on the current device; None for other sizes than it runs."""
        try:
            return cls(config, source, blocks)
        except ShapeError:
            return None

    def __init__(
        self, config: Config, source: Source, blocks: Mapping[str, Sequence[BlockTensor]]
    ) -> None:
        self._config = config
        device = current_device()
        configuration = operation("prefill").configuration(device.generation)
        self._native = _npu.ops.Prefill(
            device.handle, configuration, **arguments(config, source, blocks, 1.0)
        )
        device.attach(self, self._native)

    def run(self, x: np.ndarray, cache: Cache) -> np.ndarray:
        """Embeddings (T, width) float32, scaled, contiguous, at the next positions of the cache's
        pass: writes their keys and values, chunk by chunk, and returns the last layer's
        output in the same memory."""
        pages = [cache.page_table(layer) for layer in range(self._config.layers)]
        position, left = cache.length, x
        while len(left):
            count = chunk_length(position, _MOST)
            rows, left = left[:count], left[count:]
            whole, sliding = rotations(self._config, position, len(rows))
            with cache.pinned():
                self._native.run(
                    position, len(rows), rows.reshape(-1).view(np.uint8), whole.reshape(-1),
                    sliding.reshape(-1), cache.pool, pages,
                )  # fmt: skip
            position += len(rows)
        return x

    def run_batch(
        self, x: np.ndarray, counts: Sequence[int], caches: Sequence[Cache]
    ) -> np.ndarray:
        """Embeddings of all caches' passes, one behind the other, (sum of counts, width) float32,
        scaled, contiguous: writes their keys and values and returns the logits (sequences,
        vocabulary) float32 of each one's last token, without their cap."""
        config = self._config
        tables = [
            rotations(config, cache.length, count)
            for cache, count in zip(caches, counts, strict=True)
        ]
        whole, sliding = (np.concatenate(parts).reshape(-1) for parts in zip(*tables, strict=True))
        logits = np.empty((len(caches), config.vocabulary), np.float32)
        with caches[0].pinned():
            sequences = [
                (cache.length, count, [cache.page_table(layer) for layer in range(config.layers)])
                for cache, count in zip(caches, counts, strict=True)
            ]
            self._native.run_sequences(
                sequences, x.reshape(-1), whole, sliding, caches[0].pool,
                logits.reshape(-1).view(np.uint8),
            )  # fmt: skip
        return logits
