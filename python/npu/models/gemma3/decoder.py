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
from npu.models.gemma3.config import Config
from npu.models.gemma3.weights import HEAD
from npu.models.kv_cache import PAGE, Cache
from npu.models.sources.interface import Source
from npu.ops import host
from npu.ops.attention import array_head_dim
from npu.ops.registry import operation

MAX_TOP = 64  # logits that leave the array, at most, where not all do
# In the order in which the extension takes them.
_NORMS = (
    "attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm",
)  # fmt: skip
_MATRICES = ("qkv", "output", "gate_up", "down")


def spread_heads(x: np.ndarray, head_dim: int) -> np.ndarray:
    """Heads (..., d) as the array has them: their halves where the halves of head_dim begin, so
    that rotation pairs the same elements, and zeros."""
    size = x.shape[-1]
    if size == head_dim:
        return x
    out = np.zeros((*x.shape[:-1], head_dim), x.dtype)
    half = size // 2
    out[..., :half] = x[..., :half]
    out[..., head_dim // 2 : head_dim // 2 + half] = x[..., half:]
    return out


class Regions:
    """The memory that blocks of weights lie in: a mapped file, or what was prepared in memory."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._ranges: list[tuple[int, int]] = []

    def place(self, blocks: np.ndarray) -> tuple[int, int]:
        """(region, byte) of contiguous blocks."""
        at = blocks.ctypes.data
        for index, (begin, end) in enumerate(self._ranges):
            if begin <= at and at + blocks.nbytes <= end:
                return index, at - begin
        root: Any = blocks
        while (base := getattr(root, "base", None)) is not None:
            if isinstance(base, np.ndarray) and not base.flags.c_contiguous:
                break
            if not isinstance(base, np.ndarray) and not hasattr(base, "base"):
                break  # the map, or whose memory it is
            root = base
        whole = np.asarray(root).reshape(-1).view(np.uint8)
        begin = whole.ctypes.data
        self.arrays.append(whole)
        self._ranges.append((begin, begin + whole.nbytes))
        return len(self.arrays) - 1, at - begin


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
        regions = Regions()

        def segments(key: str) -> list[tuple[int, int, int, int, str]]:
            return [
                (*regions.place(tensor.blocks), *tensor.shape, tensor.format)
                for tensor in blocks[key]
            ]

        layers: list[Any] = [
            (window or 0, *(segments(f"{index}.{name}") for name in _MATRICES))
            for index, window in enumerate(config.windows)
        ]
        head = segments(HEAD)
        norms = [
            source.float32(f"blk.{index}.{name}.weight")
            for index in range(config.layers)
            for name in _NORMS
        ]
        shape = {
            "width": config.width,
            "heads": config.heads,
            "kv_heads": config.kv_heads,
            "dim": config.head_dim,
            "head_dim": array_head_dim(config.head_dim),
            "ffn": config.ffn_width,
            "vocabulary": config.vocabulary,
            "epsilon": config.eps,
            "attention_scale": config.attention_scale,
            "embedding_scale": embedding_scale,
        }
        configuration = operation("decoder").configuration(self._device.generation)
        self._native = _npu.ops.Decoder(
            self._device.handle, configuration, shape, layers, head, regions.arrays,
            [*norms, source.float32(names.OUTPUT_NORM)],
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
            c, first = self._config, page * PAGE
            tables = (
                host.rope_table(first, PAGE, c.head_dim, c.rope_base, c.rope_factor),
                host.rope_table(first, PAGE, c.head_dim, c.rope_base_sliding),
            )
            whole, sliding = (np.concatenate(table, axis=1) for table in tables)
            self._rotated = latest = page, (whole, sliding)
        return latest[1]
