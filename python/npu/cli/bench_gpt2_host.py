"""The measured part of `npu bench gpt2`: what npu.torch does on this host for the products of a
step, and torch's own products in float32, in turns.

The device computes nothing (null:npu1, null:npu2): what is left is packing, transposing, copying
results, and the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from npu.cli import bench_gemm_sweep, common
from npu.devices import Device, open_device
from npu.perf.gpt2_products import KINDS, Product
from npu.stats import stats
from npu.torch import products as npu_products
from npu.torch.device_words import word_of
from npu.torch.threads import end_idle

_COUNTERS = {
    "transposition": "transpose_ns",
    "input_copy": "pack_ns",
    "output_copy": "result_copy_ns",
}


def measure(
    devices: Sequence[str],
    of: Sequence[Product],
    dtype: str,
    repeats: int,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Per device and product the milliseconds of each part, "cpu" per product those of torch; one
    call for a layer's result and one for its gradients, of which each product has half, ``repeats``
    times after a warm-up, everything in turns."""
    opened = {name: open_device(f"null:{name}", designs="array") for name in devices}
    cpu: dict[Product, list[float]] = {one: [] for one in of}
    parts: dict[str, dict[Product, list[dict[str, float]]]] = {
        name: {one: [] for one in of} for name in devices
    }
    layers: dict[str, list[Product]] = {}
    for one in of:
        layers.setdefault(one.layer, []).append(one)
    before = torch.get_num_threads()
    torch.set_num_threads(bench_gemm_sweep.threads())
    try:
        for repeat in range(repeats + 1):
            for layer in layers.values():
                taken = {one: _torch_seconds(one) for one in layer}
                operands = _operands(layer[0], getattr(torch, dtype))
                found = {name: _npu_parts(layer, operands, opened[name]) for name in devices}
                if repeat:
                    for one in layer:
                        cpu[one].append(1e3 * taken[one])
                        for name in devices:
                            parts[name][one].append(found[name][one])
                advance(len(layer))
    finally:
        threads = torch.get_num_threads()
        torch.set_num_threads(before)
    spreads: dict[str, Any] = {
        name: {one: _spreads(values) for one, values in found.items()}
        for name, found in parts.items()
    }
    spreads["cpu"] = {one: common.spread(values) for one, values in cpu.items()}
    return spreads | {"threads": threads, "repeats": repeats}


def _spreads(values: list[dict[str, float]]) -> dict[str, Any]:
    names = [name for name in values[0] if name != "copied_bytes"]
    found: dict[str, Any] = {
        name: common.spread([value[name] for value in values]) for name in names
    }
    return found | {"copied_bytes": values[0]["copied_bytes"]}


def _torch_seconds(one: Product) -> float:
    """Of the product in float32, transposed views as torch's own layers have them."""
    x, weight, gradient = _operands(one, torch.float32)
    with torch.no_grad():
        begin = time.perf_counter()
        if one.kind == KINDS[0]:
            torch.matmul(x, weight.T)
        elif one.kind == KINDS[1]:
            torch.matmul(gradient, weight)
        else:
            torch.matmul(gradient.T, x)
        return time.perf_counter() - begin


def _operands(one: Product, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight (outputs, inputs) and dy of the layer."""
    m, k, n = one.size
    rows, inputs, outputs = {KINDS[0]: (m, k, n), KINDS[1]: (m, n, k)}.get(one.kind, (k, n, m))
    shapes = (rows, inputs), (outputs, inputs), (rows, outputs)
    x, weight, gradient = (torch.full(shape, 0.5, dtype=dtype) for shape in shapes)
    return x, weight, gradient


def _npu_parts(
    layer: list[Product], operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor], device: Device
) -> dict[Product, dict[str, float]]:
    """Milliseconds of the calls of npu.torch for a layer on a device that computes nothing, with a
    weight that the optimiser has changed; and the bytes that they copied."""
    x, weight, gradient = operands
    choices = (None, "wide", word_of(device))
    increment_version(weight)
    forward = _counted(lambda: npu_products.linear(x, weight, None, False, x.dtype, choices))
    both = [True, True]
    backward = _counted(
        lambda: npu_products.linear_gradients(gradient, x, weight, both, False, choices)
    )
    half = {name: value / 2 for name, value in backward.items()}
    return {one: forward if one.kind == KINDS[0] else half for one in layer}


def _counted(call: Callable[[], object]) -> dict[str, float]:
    end_idle()  # what an emulated device does first, at the cost of threads that torch just used
    before, begin = stats(), time.perf_counter()
    call()
    taken = time.perf_counter() - begin
    counted = stats() - before
    found = {name: 1e-6 * getattr(counted, field) for name, field in _COUNTERS.items()}
    found["call"] = 1e3 * taken - sum(found.values())
    return found | {"copied_bytes": counted.host_copy_bytes}
