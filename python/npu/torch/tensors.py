"""Tensors as arrays of the package: the same memory, whatever the strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from npu.errors import ArgumentError, DeviceError, DtypeError
from npu.ops.arrays import BFLOAT16

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_INSTEAD = {  # of types that NumPy has not: one of the same size to pass through, and the array's
    torch.bfloat16: (torch.int16, BFLOAT16)
}


def check_tensor(function: str, tensor: Any, name: str) -> None:
    """An operand that an operator can read: dense, in the host's memory, of one of FLOATS.

    Raises ArgumentError, DeviceError, DtypeError.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(
            f"[{function}] {name} is {type(tensor).__name__}; pass a torch.Tensor, or use "
            "npu.matmul for arrays"
        )
    if tensor.device.type != "cpu":
        raise DeviceError(
            f"[{function}] {name} is on {tensor.device}; the NPU reads the host's memory: move it "
            'with .to("cpu")'
        )
    if tensor.is_nested:
        raise ArgumentError(
            f"[{function}] {name} is a nested tensor; pad it with .to_padded_tensor(0)"
        )
    if tensor.layout is not torch.strided:
        raise ArgumentError(
            f"[{function}] {name} has the layout {tensor.layout}; make it dense with .to_dense()"
        )
    if not torch.compiler.is_compiling() and _is_transformed(tensor):
        raise ArgumentError(
            f"[{function}] {name} is differentiated by torch.func or in forward mode, which "
            "products of the device do not know: use torch.autograd or .backward()"
        )
    if tensor.dtype not in FLOATS:
        raise DtypeError(
            f"[{function}] {name} is {tensor.dtype}; supported are {', '.join(map(str, FLOATS))}"
        )


def _is_transformed(tensor: torch.Tensor) -> bool:
    """A tangent, which torch would drop without a word, or a level of torch.func, which custom
    operators have no rule for."""
    if torch._C._functorch.is_gradtrackingtensor(tensor):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array with its strides; transposed views stay views."""
    plain = tensor.detach().resolve_neg()
    instead = _INSTEAD.get(plain.dtype)
    if instead is None:
        return plain.numpy()
    return plain.view(instead[0]).numpy().view(instead[1])
