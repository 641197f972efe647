"""Projections in float32 on the host, from the blocks that a model has prepared for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npu.formats.blocks import BlockTensor


class ExactProjection:
    """In place of ``npu.models.gemma3.model.Projection``."""

    def __init__(self, tensors: Sequence[BlockTensor], bf16: str = "native") -> None:
        self.values = np.concatenate([tensor.to_numpy(np.float32) for tensor in tensors])

    def multiply(self, x: np.ndarray) -> np.ndarray:
        return x @ self.values.T

    def top(self, x: np.ndarray, k: int, rows: int) -> None:
        """The model looks at all logits instead."""
