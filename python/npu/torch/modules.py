"""Linear layers on the NPU as modules: ``torch.nn.Linear`` and transformers' ``Conv1D``.

Parameters, state dictionaries and initialisation are those of the classes they stand for, so that
a layer can change its class and change back (npu.torch.offloading).
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from npu.devices import Device
from npu.errors import DeviceError
from npu.torch.functions import Choices, checked_choices, layer


class Linear(torch.nn.Linear):
    """``torch.nn.Linear`` whose products, forward and backward, run on the NPU.

    ``npu_device``, ``bf16``, ``accumulate``: as device, bf16 and accumulate of
    ``npu.torch.linear``; the rest as in torch, whose ``device`` must be the host. Raises
    ArgumentError, DeviceError.
    """

    npu: Choices

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        npu_device: str | Device | None = None,
        bf16: str | None = None,
        accumulate: str = "wide",
    ) -> None:
        if device is not None and str(device).partition(":")[0] not in ("cpu", "meta"):
            raise DeviceError(
                f"[torch.Linear] device is {str(device)!r}, where parameters lie: the host's, "
                '"cpu"; npu_device= chooses an NPU'
            )
        super().__init__(in_features, out_features, bias, device, dtype)
        self.npu = checked_choices("torch.Linear", bf16, accumulate, npu_device)

    def forward(self, input: Tensor) -> Tensor:
        return layer(input, self.weight, self.bias, False, self.npu)


class _Conv1D:
    """x (..., K) @ weight (K, N) + bias (N)."""

    npu: Choices
    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return layer(x, self.weight, self.bias, True, self.npu)


@functools.cache
def conv1d_of(base: type) -> type:
    """transformers' ``Conv1D`` on the NPU, a subclass of it."""
    about = {"__doc__": f"``{base.__name__}`` on the NPU.", "__module__": __name__}
    return type("Conv1D", (_Conv1D, base), about)


def __getattr__(name: str) -> Any:  # for pickle, which looks for the class here
    if name == "Conv1D":
        return conv1d_of(importlib.import_module("transformers.pytorch_utils").Conv1D)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
