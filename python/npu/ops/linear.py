"""TEMPORARY NumPy stand-in for the device projection; replaced by the GEMM path at merge.

``Weight(array)``: array (N, K), rounded to bfloat16. ``linear(x, weight)``: x (T, K) float32 is
rounded to bfloat16 (nearest even), products are accumulated in float32; returns (T, N) float32.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np


class Weight:
    """A weight matrix (N, K) prepared for the device."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape = array.shape
        rounded = np.asarray(array).astype(ml_dtypes.bfloat16)
        self.transposed = np.ascontiguousarray(rounded.astype(np.float32).T)


def linear(x: np.ndarray, weight: Weight) -> np.ndarray:
    """x @ weight.T with bfloat16 operands and float32 accumulation."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32) @ weight.transposed
