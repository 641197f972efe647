"""npu-xdna: an open NPU backend for AMD Ryzen AI, with an embedded emulated NPU.

``npu.matmul(a, b)`` multiplies on the current device, ``npu.devices()`` lists what there is,
``with npu.device("emu:npu1"):`` chooses, ``npu.stats()`` counts what happened. ``npu.emulator``
replays anyone's command streams.
"""

import importlib
from typing import Any

from npu import errors
from npu._npu import version as __version__
from npu.dequantize import dequantize
from npu.devices import Device, DeviceDescription, current_device, device, devices
from npu.errors import NpuError
from npu.gemv import BoundWeights, bind, gemv, gemv_top
from npu.matmul import PackedMatrix, matmul, pack
from npu.stats import Stats, stats

__all__ = [
    "BoundWeights",
    "Device",
    "DeviceDescription",
    "GemmTrace",
    "NpuError",
    "PackedMatrix",
    "SimulatedDequantize",
    "SimulatedGemm",
    "SimulatedGemv",
    "Stats",
    "__version__",
    "bind",
    "current_device",
    "dequantize",
    "device",
    "devices",
    "emulator",
    "errors",
    "gemma3",
    "gemv",
    "gemv_top",
    "matmul",
    "pack",
    "q4nx",
    "simulate_dequantize",
    "simulate_gemm",
    "simulate_gemv",
    "stats",
    "stream",
    "trace_gemm",
]


def __getattr__(name: str) -> Any:
    if name in ("emulator", "gemma3", "q4nx", "stream"):
        return importlib.import_module(f"npu.{name}")
    if name in ("simulate_gemm", "SimulatedGemm"):
        return getattr(importlib.import_module("npu.simulate"), name)
    if name in ("simulate_dequantize", "SimulatedDequantize"):
        return getattr(importlib.import_module("npu.dequant_simulation"), name)
    if name in ("simulate_gemv", "SimulatedGemv"):
        return getattr(importlib.import_module("npu.gemv_simulation"), name)
    if name in ("trace_gemm", "GemmTrace"):
        return getattr(importlib.import_module("npu.trace"), name)
    raise AttributeError(f"module 'npu' has no attribute {name!r}")
