"""What npu.torch.operators compute: products on a device, of tensors where they lie.

All three products of a linear layer run on the device, both gradients in one submission. The
transpose of a row-major tensor is a view, which ``npu.matmul`` takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npu.ops.gemm_calls import Call, run_both
from npu.ops.gemm_designs import serves_layers
from npu.ops.gemm_product import LAYER_LEAST
from npu.ops.matmul import call_of
from npu.torch.device_words import device_of
from npu.torch.packed_weights import beside_weight, right_operand, rounded, rounded_weight
from npu.torch.tensors import array_of
from npu.torch.threads import end_idle

Choices = tuple[str | None, str, str]  # bf16, accumulate, a word for the device


def matmul(a: Tensor, b: Tensor, out_dtype: torch.dtype, choices: Choices) -> Tensor:
    """a (..., M, K) @ b (..., K, N)."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = torch.empty((*batch, a.shape[-2], b.shape[-1]), dtype=out_dtype)
    _run([_call(a, array_of(b), out, choices)])
    return out


def matmul_gradients(
    gradient: Tensor, a: Tensor, b: Tensor, wanted: list[bool], choices: Choices
) -> list[Tensor]:
    """Of a and b, those that are wanted."""
    calls, found = [], []
    if wanted[0]:
        out = torch.empty((*gradient.shape[:-1], a.shape[-1]), dtype=a.dtype)
        calls.append(_call(gradient, array_of(b.mT), out, choices))
        found.append((out, a.shape))
    if wanted[1]:
        left, right = a.mT, gradient
        if b.dim() == 2:  # one sum over the rows of the whole batch
            left, right = _rows(a).T, _rows(gradient)
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        out = torch.empty((*batch, left.shape[-2], right.shape[-1]), dtype=b.dtype)
        calls.append(_call(left, array_of(right), out, choices))
        found.append((out, b.shape))
    _run(calls)
    return [out.sum_to_size(shape) for out, shape in found]


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    input_first: bool,
    out_dtype: torch.dtype,
    choices: Choices,
) -> Tensor:
    """x (..., K) @ weight (N, K)^T + bias; ``input_first``: the weight is (K, N)."""
    bf16, _, word = choices
    device = device_of(word)
    layer = is_layer(x, weight, choices)
    out = torch.empty((*x.shape[:-1], weight.shape[1 if input_first else 0]), dtype=out_dtype)
    if layer:
        x, weight = rounded(x, device), rounded_weight(weight, device)
    right = right_operand(weight if input_first else weight.T, device, bf16)
    # Products of a layer in bfloat16 share a configuration, whose results the bias is added to.
    after = layer and out_dtype is torch.bfloat16
    added = None if bias is None or after else array_of(bias)
    _run([_call(_rows(x), right, _rows(out), choices, bias=added, layer=layer)])
    if bias is not None and after:
        out.add_(bias.detach())
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
    device = device_of(word)
    layer = is_layer(x, weight, choices)
    # Of the types before rounding; nothing for what nobody wants.
    of_x, of_weight = (
        torch.empty(one.shape if asked else 0, dtype=one.dtype)
        for one, asked in zip((x, weight), wanted, strict=True)
    )
    if layer:
        gradient = rounded(gradient, device)
        weight = rounded_weight(weight, device) if wanted[0] else weight
        x = rounded(x, device) if wanted[1] else x
    of_inputs = weight.T if input_first else weight
    rows, inputs = _rows(gradient), _rows(x)
    calls = []
    if wanted[0]:
        right = right_operand(of_inputs, device, bf16)
        calls.append(_call(rows, right, _rows(of_x), choices, layer=layer))
    if wanted[1]:
        a, b = (inputs, rows) if input_first else (rows, inputs)
        right = beside_weight(b, of_inputs, device, bf16)
        calls.append(_call(a.T, right, of_weight, choices, layer=layer))
    _run(calls)
    return [one for one, asked in zip((of_x, of_weight), wanted, strict=True) if asked]


def is_layer(x: Tensor, weight: Tensor, choices: Choices) -> bool:
    """Whether the products of a layer are to share the configuration that reads bfloat16 by rows
    and by columns (Product.layer): the device has one, and rows and widths fill its blocks, so that
    it wastes little. Then other types are rounded as they lie, not packed."""
    _, accumulate, device = choices
    rows = x.shape[:-1].numel()
    large = min(rows, *weight.shape) >= LAYER_LEAST
    return large and serves_layers(device_of(device).generation, accumulate)


def _call(a: Tensor, b: Any, out: Tensor, choices: Choices, **more: Any) -> Call:
    """a @ b into ``out``, which is contiguous; b: an array, or what it has been packed to."""
    bf16, accumulate, device = choices
    return call_of(
        array_of(a), b, out=array_of(out), bf16=bf16, accumulate=accumulate,
        device=device_of(device), **more,
    )  # fmt: skip


def _run(calls: list[Call]) -> None:
    """One product, or the two gradients of one."""
    if any(call.device.emulated for call in calls):
        end_idle()
    if len(calls) == 2:
        run_both(*calls)
    else:
        for call in calls:
            call.run()


def _rows(x: Tensor) -> Tensor:
    """All dimensions but the last as one."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])
