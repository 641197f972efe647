"""The operators ``npu::matmul``, ``npu::linear`` and their gradients, as torch.library has them:
arguments, shapes for tracing, derivatives. npu.torch.products computes.

A gradient is an operator of its own, which has none. The gradient of a bias is a sum over rows,
which the host computes. torch keeps these functions, and so this module, beyond the end of the
extension: it names nothing that holds a device.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from npu.errors import ArgumentError


def _products() -> Any:
    return importlib.import_module("npu.torch.products")


def _refusal(name: str) -> Any:
    def refuse(context: Any, *gradients: Any) -> Any:
        raise ArgumentError(
            f"[torch.{name}] a gradient of its gradient was asked for, and there is none: use "
            f"torch's own {name} where create_graph=True is needed"
        )

    return refuse


def _shapes_of(tensors: tuple[Tensor, Tensor], wanted: list[bool]) -> list[Tensor]:
    return [x.new_empty(x.shape) for x, one in zip(tensors, wanted, strict=True) if one]


@torch.library.custom_op("npu::matmul", mutates_args=(), device_types="cpu")
def matmul(
    a: Tensor, b: Tensor, out_dtype: torch.dtype, bf16: str | None, accumulate: str, device: str
) -> Tensor:
    return _products().matmul(a, b, out_dtype, (bf16, accumulate, device))


@matmul.register_fake
def _(
    a: Tensor, b: Tensor, out_dtype: torch.dtype, bf16: str | None, accumulate: str, device: str
) -> Tensor:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=out_dtype)


@torch.library.custom_op("npu::matmul_gradients", mutates_args=(), device_types="cpu")
def matmul_gradients(
    gradient: Tensor, a: Tensor, b: Tensor, wanted: list[bool], bf16: str | None, accumulate: str,
    device: str,
) -> list[Tensor]:  # fmt: skip
    return _products().matmul_gradients(gradient, a, b, wanted, (bf16, accumulate, device))


@matmul_gradients.register_fake
def _(
    gradient: Tensor, a: Tensor, b: Tensor, wanted: list[bool], bf16: str | None, accumulate: str,
    device: str,
) -> list[Tensor]:  # fmt: skip
    return _shapes_of((a, b), wanted)


def _keep_matmul(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, _, *ctx.choices = inputs
    ctx.save_for_backward(a, b)


def _matmul_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:2])
    found = iter(matmul_gradients(gradient, a, b, wanted, *ctx.choices))
    return (*(next(found) if one else None for one in wanted), None, None, None, None)


matmul.register_autograd(_matmul_backward, setup_context=_keep_matmul)
matmul_gradients.register_autograd(_refusal("matmul"))


@torch.library.custom_op("npu::linear", mutates_args=(), device_types="cpu")
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, input_first: bool, out_dtype: torch.dtype,
    bf16: str | None, accumulate: str, device: str,
) -> Tensor:  # fmt: skip
    choices = (bf16, accumulate, device)
    return _products().linear(x, weight, bias, input_first, out_dtype, choices)


@linear.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, input_first: bool, out_dtype: torch.dtype,
    bf16: str | None, accumulate: str, device: str,
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], weight.shape[int(input_first)]), dtype=out_dtype)


@torch.library.custom_op("npu::linear_gradients", mutates_args=(), device_types="cpu")
def linear_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, wanted: list[bool], input_first: bool,
    bf16: str | None, accumulate: str, device: str,
) -> list[Tensor]:  # fmt: skip
    choices = (bf16, accumulate, device)
    return _products().linear_gradients(gradient, x, weight, wanted, input_first, choices)


@linear_gradients.register_fake
def _(
    gradient: Tensor, x: Tensor, weight: Tensor, wanted: list[bool], input_first: bool,
    bf16: str | None, accumulate: str, device: str,
) -> list[Tensor]:  # fmt: skip
    return _shapes_of((x, weight), wanted)


def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, input_first, _, *choices = inputs
    ctx.choices = input_first, *choices
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wanted, of_bias = list(ctx.needs_input_grad[:2]), None
    found = iter(linear_gradients(gradient, x, weight, wanted, *ctx.choices))
    if ctx.needs_input_grad[2]:
        rows = gradient.reshape(gradient.shape[:-1].numel(), gradient.shape[-1])
        of_bias = rows.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    parts = (next(found) if one else None for one in wanted)
    return (*parts, of_bias, None, None, None, None, None)


linear.register_autograd(_linear_backward, setup_context=_keep_linear)
linear_gradients.register_autograd(_refusal("linear"))
