"""Linear projections on the device: y = x W^T with the weight packed once into device memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npu.devices import Device, current_device
from npu.matmul import PackedMatrix, matmul, pack
from npu.q4nx import Tensor, concatenate, dequantize_host, layout


class Weight:
    """A projection's weight, (N, K) as checkpoints store it, rounded to bfloat16 and packed.

    ``array`` is float32, bfloat16 or float16, or a Q4NX Tensor, kept as ``q4nx``. The transposition
    happens while packing, without a copy in between. Tied to the device it was made for (default:
    the current one). A Q4NX weight stays in its file until it is used the first time. ``bf16`` is
    how products with it are computed, as in ``npu.matmul``.
    """

    def __init__(
        self,
        array: np.ndarray | Tensor,
        device: str | Device | None = None,
        bf16: str | None = None,
    ) -> None:
        self.q4nx = array if isinstance(array, Tensor) else None
        self._device = current_device() if device is None else device
        self._bf16 = bf16
        self._packed: PackedMatrix | None = None
        self.shape: tuple[int, int] = (array.shape[0], array.shape[1])
        if not isinstance(array, Tensor):
            self._packed = self._pack(array)

    @property
    def packed(self) -> PackedMatrix:
        """The weight in device memory.

        Reference path of Q4NX: expanded on the host by the formula, and the bfloat16 copy is kept.
        """
        if self._packed is None:
            assert self.q4nx is not None
            self._packed = self._pack(dequantize_host(self.q4nx))
        return self._packed

    def _pack(self, array: np.ndarray) -> PackedMatrix:
        return pack(np.asarray(array).T, bf16=self._bf16, device=self._device)

    @property
    def nbytes(self) -> int:
        """Device memory used, padding included."""
        return self._packed.nbytes if self._packed else 0


def joined(parts: Sequence[np.ndarray | Tensor]) -> np.ndarray | Tensor:
    """The rows of several projections of one input as one weight.

    Q4NX parts stay blocks (a view when they are neighbours in the file), unless one of them ends
    inside a row-block or another is not Q4NX: then all become bfloat16.
    """
    tensors = [part for part in parts if isinstance(part, Tensor)]
    whole = all(tensor.shape[0] % layout.ROWS == 0 for tensor in tensors[:-1])
    if len(tensors) == len(parts) and whole:
        return concatenate(tensors)
    arrays = [dequantize_host(part) if isinstance(part, Tensor) else part for part in parts]
    return np.concatenate(arrays)


def linear(x: np.ndarray, weight: Weight) -> np.ndarray:
    """x (T, K) float32, rounded to bfloat16 -> (T, N) float32, accumulated in float32."""
    return matmul(x, weight.packed, out_dtype=np.float32)
