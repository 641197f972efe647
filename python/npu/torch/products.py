"""What npu.torch.operators compute: products on a device, of tensors where they lie.

All three products of a linear layer run on the device. The transpose of a row-major tensor is a
view, which ``npu.matmul`` takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npu.ops.gemm_product import LAYER_LEAST
from npu.ops.matmul import product_of as device_matmul
from npu.torch.device_words import device_of
from npu.torch.packed_weights import beside_weight, right_operand
from npu.torch.tensors import array_of
from npu.torch.threads import end_idle

Choices = tuple[str | None, str, str]  # bf16, accumulate, a word for the device


def matmul(a: Tensor, b: Tensor, out_dtype: torch.dtype, choices: Choices) -> Tensor:
    """a (..., M, K) @ b (..., K, N)."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = torch.empty((*batch, a.shape[-2], b.shape[-1]), dtype=out_dtype)
    return _multiply(a, array_of(b), out, choices)


def matmul_gradients(
    gradient: Tensor, a: Tensor, b: Tensor, wanted: list[bool], choices: Choices
) -> list[Tensor]:
    """Of a and b, those that are wanted."""
    found = []
    if wanted[0]:
        out = torch.empty((*gradient.shape[:-1], a.shape[-1]), dtype=a.dtype)
        _multiply(gradient, array_of(b.mT), out, choices)
        found.append(out.sum_to_size(a.shape))
    if wanted[1]:
        left, right = a.mT, gradient
        if b.dim() == 2:  # one sum over the rows of the whole batch
            left, right = _rows(a).T, _rows(gradient)
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        out = torch.empty((*batch, left.shape[-2], right.shape[-1]), dtype=b.dtype)
        _multiply(left, array_of(right), out, choices)
        found.append(out.sum_to_size(b.shape))
    return found


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    input_first: bool,
    out_dtype: torch.dtype,
    choices: Choices,
) -> Tensor:
    """x (..., K) @ weight (N, K)^T + bias; ``input_first``: the weight is (K, N)."""
    bf16, _, device = choices
    b = weight if input_first else weight.T
    out = torch.empty((*x.shape[:-1], b.shape[1]), dtype=out_dtype)
    right = right_operand(b, device_of(device), bf16)
    added = None if bias is None else array_of(bias)
    layer = of_layer(x, weight)
    _multiply(_rows(x), right, _rows(out), choices, bias=added, layer=layer)
    return out


def linear_gradients(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    wanted: list[bool],
    input_first: bool,
    choices: Choices,
) -> list[Tensor]:
    """Of x and of the weight, those that are wanted."""
    bf16, _, word = choices
    found, rows, device = [], _rows(gradient), device_of(word)
    of_inputs = weight.T if input_first else weight
    layer = of_layer(gradient, weight) and of_layer(x, weight)
    if wanted[0]:
        right = right_operand(of_inputs, device, bf16)
        out = torch.empty(x.shape, dtype=x.dtype)
        _multiply(rows, right, _rows(out), choices, layer=layer)
        found.append(out)
    if wanted[1]:
        a, b = (_rows(x), rows) if input_first else (rows, _rows(x))
        out = torch.empty(weight.shape, dtype=weight.dtype)
        right = beside_weight(b, of_inputs, device, bf16)
        found.append(_multiply(a.T, right, out, choices, layer=layer))
    return found


def of_layer(x: Tensor, weight: Tensor) -> bool:
    """Whether the products of a layer are to share the configuration that reads bfloat16 by rows
    and by columns (Product.layer): rows and widths fill its blocks, so that it wastes little."""
    rows = x.shape[:-1].numel()
    return x.dtype is weight.dtype is torch.bfloat16 and min(rows, *weight.shape) >= LAYER_LEAST


def _multiply(a: Tensor, b: Any, out: Tensor, choices: Choices, **more: Any) -> Tensor:
    """a @ b into ``out``, which is contiguous; b: an array, or what it has been packed to."""
    bf16, accumulate, word = choices
    device = device_of(word)
    if device.emulated:
        end_idle()
    device_matmul(
        array_of(a), b, out=array_of(out), bf16=bf16, accumulate=accumulate, device=device, **more
    )
    return out


def _rows(x: Tensor) -> Tensor:
    """All dimensions but the last as one."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])
