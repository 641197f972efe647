"""A model as the array runs it whole: what decode steps and prompts give the extension.

Both read the same blocks of weights where they lie, and rotation tables by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npu.formats.blocks import BlockTensor
from npu.models.gemma3 import names
from npu.models.gemma3.config import Config
from npu.models.gemma3.weights import HEAD
from npu.models.sources.interface import Source
from npu.ops import host
from npu.ops.attention import array_head_dim

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
    """The memory that blocks of weights lie in: a mapped file, or what was prepared in memory.

    All of it, as streams read beyond small blocks (npu.models.prepare makes room for that)."""

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


def arguments(
    config: Config,
    source: Source,
    blocks: Mapping[str, Sequence[BlockTensor]],
    embedding_scale: float,
) -> dict[str, Any]:
    """The model for ``_npu.ops.Decoder`` and ``_npu.ops.Prefill``."""
    regions = Regions()

    def segments(key: str) -> list[tuple[int, int, int, int, str]]:
        return [
            (*regions.place(tensor.blocks), *tensor.shape, tensor.format) for tensor in blocks[key]
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
    return {
        "shape": shape,
        "layers": layers,
        "head": head,
        "regions": regions.arrays,
        "norms": [*norms, source.float32(names.OUTPUT_NORM)],
    }


def rotations(config: Config, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines, then sines, (count, head_dim) float32 from position ``first`` on: of the global and
    of the sliding layers."""
    tables = (
        host.rope_table(first, count, config.head_dim, config.rope_base, config.rope_factor),
        host.rope_table(first, count, config.head_dim, config.rope_base_sliding),
    )
    whole, sliding = (np.concatenate(table, axis=1) for table in tables)
    return whole, sliding
