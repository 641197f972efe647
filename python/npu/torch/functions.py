"""``npu.torch.matmul`` and ``npu.torch.linear``: arguments checked, then one operator."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from npu.devices import Device, current_device
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.torch import operators
from npu.torch.device_words import word_of
from npu.torch.tensors import FLOATS, check_tensor

ACCUMULATE = ("wide", "narrow")


def matmul(
    a: Tensor,
    b: Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    bf16: str | None = None,
    accumulate: str = "wide",
    device: str | Device | None = None,
) -> Tensor:
    """``a @ b`` on the current device, with gradients, which are products on it as well.

    a: (..., M, K), b: (..., K, N), float32, bfloat16 or float16 tensors of the host, any strides;
    leading dimensions broadcast. Operands are rounded to bfloat16 and summed in float32.
    ``out_dtype``: of the result, one of the three; default: under autocast its type, else the
    common type of a and b, float32 where they differ. ``bf16``, ``accumulate``: as in
    ``npu.matmul``. A gradient has the type of its operand; it has none itself (ArgumentError).
    ``device``: default the current one, when the call is made (under torch.compile: when the graph
    runs). Raises ArgumentError, DeviceError, DtypeError, ShapeError.
    """
    for tensor, name in ((a, "a"), (b, "b")):
        check_tensor("torch.matmul", tensor, name)
        if tensor.dim() < 2:
            raise ShapeError(
                f"[torch.matmul] {name} has shape {tuple(tensor.shape)}; at least two dimensions "
                "are needed: reshape vectors to (1, K) or (K, 1)"
            )
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"[torch.matmul] a is {tuple(a.shape)} and b is {tuple(b.shape)}; the last dimension "
            "of a must equal the second last of b"
        )
    try:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError as error:
        raise ShapeError(
            f"[torch.matmul] leading dimensions {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])} do "
            "not broadcast"
        ) from error
    choices = checked_choices("torch.matmul", bf16, accumulate, device)
    wanted = _result_dtype("torch.matmul", a, b, out_dtype)
    return operators.matmul(a, b, wanted, *choices.now())


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    bf16: str | None = None,
    accumulate: str = "wide",
    device: str | Device | None = None,
) -> Tensor:
    """``x @ weight.T + bias`` on the current device, with all three gradients.

    x: (..., K), weight: (N, K), bias: (N). A weight in bfloat16 is read where it lies if the device
    can; others are packed once for all calls until they change: the version counter of the tensor
    counts, and a sample of the values, for writes through ``.data``. Everything else is as in
    ``matmul``; the bias is added in float32.
    """
    choices = checked_choices("torch.linear", bf16, accumulate, device)
    return layer(x, weight, bias, False, choices, out_dtype)


def layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    input_first: bool,
    choices: Choices,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``linear`` for modules; ``input_first``: the weight is (K, N)."""
    named = [(x, "x"), (weight, "weight"), *([] if bias is None else [(bias, "bias")])]
    for tensor, name in named:
        check_tensor("torch.linear", tensor, name)
    sizes = "(K, N)" if input_first else "(N, K)"
    k, n = (0, 1) if input_first else (1, 0)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[k]:
        raise ShapeError(
            f"[torch.linear] x is {tuple(x.shape)} and weight is {tuple(weight.shape)}; expected "
            f"(..., K) and {sizes}"
        )
    if bias is not None and bias.shape != weight.shape[n : n + 1]:
        raise ShapeError(
            f"[torch.linear] bias is {tuple(bias.shape)} with a weight of {tuple(weight.shape)}; "
            f"expected ({weight.shape[n]},)"
        )
    wanted = _result_dtype("torch.linear", x, weight, out_dtype)
    return operators.linear(x, weight, bias, input_first, wanted, *choices.now())


@dataclasses.dataclass(frozen=True)
class Choices:
    """How products are computed, as operators take it. ``device``: a word for one, or "", the
    current device."""

    bf16: str | None
    accumulate: str
    device: str

    def now(self) -> tuple[str | None, str, str]:
        """The same with the device that is current now: gradients are computed on it, too. A graph
        that is being compiled keeps the choice open."""
        if self.device or torch.compiler.is_compiling():
            return self.bf16, self.accumulate, self.device
        return self.bf16, self.accumulate, word_of(current_device())


def checked_choices(
    function: str, bf16: Any, accumulate: Any, device: str | Device | None
) -> Choices:
    """Raises ArgumentError, DeviceError."""
    if not isinstance(accumulate, str) or accumulate not in ACCUMULATE:
        raise ArgumentError(f'[{function}] accumulate is {accumulate!r}; use "wide" or "narrow"')
    if torch.compiler.is_compiling() and device is None:
        return Choices(bf16, accumulate, "")
    chosen = current_device(device)
    if bf16 is not None:
        chosen.checked_bf16(bf16, function)
    return Choices(bf16, accumulate, "" if device is None else word_of(chosen))


def _result_dtype(function: str, a: Tensor, b: Tensor, wanted: torch.dtype | None) -> torch.dtype:
    if wanted is None:
        if torch.is_autocast_enabled("cpu"):
            return torch.get_autocast_dtype("cpu")
        return a.dtype if a.dtype == b.dtype else torch.float32
    if wanted not in FLOATS:
        raise DtypeError(f"[{function}] out_dtype is {wanted!r}; use {', '.join(map(str, FLOATS))}")
    return wanted
