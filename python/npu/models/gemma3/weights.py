"""Which projections of a model stay 4-bit: the ``weights`` choice of ``npu.gemma3.load``.

"auto": matrices that the file has in 4 bits with a scale per 32 columns, that is Q4NX, Q4_0 and
Q4_1, the latter two converted to Q4NX blocks while loading (codes kept; scales and minima become
bfloat16, -8 d of Q4_0 exactly). Everything else becomes bfloat16. "q4nx": all matrices, by least
squared error per group. "bf16": none.
"""

from __future__ import annotations

import numpy as np

from npu.errors import ArgumentError
from npu.formats.q4nx import Tensor, dequantize_host
from npu.models.convert_tensor import tensor_of
from npu.models.sources.interface import Source

CHOICES = ("auto", "q4nx", "bf16")


def check_choice(weights: str) -> None:
    if weights not in CHOICES:
        raise ArgumentError(f"[gemma3] weights is {weights!r}; use {', '.join(map(repr, CHOICES))}")


def projection(source: Source, name: str, weights: str) -> np.ndarray | Tensor:
    """A matrix (N, K) to multiply with."""
    if weights != "bf16" and source.stored_type(name) in ("Q4_0", "Q4_1"):
        return tensor_of(source, name)
    found = source.projection(name)
    if weights == "bf16" and isinstance(found, Tensor):
        return dequantize_host(found)
    if weights == "q4nx":
        return found.to_additive() if isinstance(found, Tensor) else tensor_of(source, name)
    return found
