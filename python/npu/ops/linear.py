"""Linear projections on the device: y = x W^T with the weight packed once into device memory."""

from __future__ import annotations

import numpy as np

from npu.devices import Device
from npu.matmul import PackedMatrix, matmul, pack


class Weight:
    """A projection's weight, (N, K) as checkpoints store it, rounded to bfloat16 and packed.

    ``array`` is float32, bfloat16 or float16; the transposition happens while packing, without a
    copy in between. Tied to the device it was made for (default: the current one). ``bf16`` is how
    products with it are computed, as in ``npu.matmul``.
    """

    def __init__(
        self, array: np.ndarray, device: str | Device | None = None, bf16: str | None = None
    ) -> None:
        self.packed: PackedMatrix = pack(np.asarray(array).T, bf16=bf16, device=device)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        k, n = self.packed.shape
        return n, k

    @property
    def nbytes(self) -> int:
        """Device memory used, padding included."""
        return self.packed.nbytes


def linear(x: np.ndarray, weight: Weight) -> np.ndarray:
    """x (T, K) float32, rounded to bfloat16 -> (T, N) float32, accumulated in float32."""
    return matmul(x, weight.packed, out_dtype=np.float32)
