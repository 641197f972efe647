"""The matrices of a Gemma 3 model, prepared for the device (npu.models.prepare)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npu.formats.blocks import BlockTensor
from npu.models.gemma3 import names
from npu.models.gemma3.config import Config
from npu.models.prepare import Matrix
from npu.models.sources.interface import Source
from npu.ops.linear import Weight

HEAD = "head"
# Key within a layer, what it is called, its tensors; projections of one input are one matrix.
_LAYER = (
    ("qkv", "attention q, k, v", ("attn_q", "attn_k", "attn_v")),
    ("output", "attention output", ("attn_output",)),
    ("gate_up", "ffn gate, up", ("ffn_gate", "ffn_up")),
    ("down", "ffn down", ("ffn_down",)),
)


def matrices(source: Source, config: Config) -> list[Matrix]:
    """All matrices in the order in which a token passes them."""
    found = []
    for index in range(config.layers):
        for key, kind, parts in _LAYER:
            tensors = tuple(f"blk.{index}.{part}.weight" for part in parts)
            found.append(Matrix(f"{index}.{key}", kind, tensors))
    # A tied model has no head of its own: the embedding is used a second time.
    head = names.HEAD if names.HEAD in source.shapes else names.EMBEDDING
    return [*found, Matrix(HEAD, "head", (head,))]


class Projection:
    """A matrix (N, K) on the device: one weight, or several where its formats differ, whose
    results follow one another."""

    def __init__(self, tensors: Sequence[BlockTensor], bf16: str) -> None:
        self.tensors = list(tensors)
        self.weights = [Weight(tensor, bf16=bf16) for tensor in tensors]
        self.shape = sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Memory taken beyond the blocks given: 0 where they are read in place."""
        return sum(weight.nbytes for weight in self.weights)

    def multiply(self, x: np.ndarray) -> np.ndarray:
        """x (T, K) float32 -> (T, N) float32."""
        parts = [weight.multiply(x) for weight in self.weights]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def top(self, x: np.ndarray, k: int, rows: int) -> tuple[np.ndarray, np.ndarray] | None:
        """``Weight.top`` where the matrix is one weight."""
        return self.weights[0].top(x, k, rows) if len(self.weights) == 1 else None

    def finite_for(self, bound: float) -> bool:
        """Whether every element of W x is certainly finite where the sum of |x| is at most this."""
        return all(bound < weight.safe_sum for weight in self.weights)
