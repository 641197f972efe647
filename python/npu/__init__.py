"""npu-xdna: an open NPU backend for AMD Ryzen AI, with an embedded emulated NPU.

``npu.matmul(a, b)`` multiplies on the current device, ``npu.devices()`` lists the devices,
``with npu.device("emu:npu1"):`` chooses, ``npu.stats()`` counts what happened. ``npu.emulator``
replays command streams from any source.
"""

import importlib
from typing import Any

from npu import errors
from npu._npu import version as __version__
from npu.devices import (
    Device,
    DeviceDescription,
    current_device,
    device,
    devices,
    register_device,
)
from npu.errors import NpuError
from npu.ops.attention import attention
from npu.ops.bfp16 import Bfp16Matrix
from npu.ops.dequantize import dequantize
from npu.ops.geglu import geglu
from npu.ops.gemv import BoundWeights, bind, gemv, gemv_top
from npu.ops.matmul import PackedMatrix, last_gemm, matmul, pack
from npu.ops.rms_norm import rms_norm
from npu.ops.rope import rope
from npu.stats import Stats, stats
from npu.thread_pool import set_threads, threads

__all__ = [
    "Bfp16Matrix",
    "BoundWeights",
    "DecodeLayer",
    "DecodeShape",
    "Device",
    "DeviceDescription",
    "GemmTrace",
    "NpuError",
    "PackedMatrix",
    "PrefillTrace",
    "SimulatedAtb",
    "SimulatedDecode",
    "SimulatedDequantize",
    "SimulatedGemm",
    "SimulatedGemv",
    "SimulatedPrefill",
    "Stats",
    "TokenTrace",
    "__version__",
    "attention",
    "bind",
    "blocks",
    "current_device",
    "dequantize",
    "device",
    "devices",
    "emulator",
    "errors",
    "geglu",
    "gemma3",
    "gemv",
    "gemv_top",
    "last_gemm",
    "matmul",
    "pack",
    "q4nx",
    "register_device",
    "rms_norm",
    "rope",
    "set_threads",
    "simulate_batch",
    "simulate_decode",
    "simulate_dequantize",
    "simulate_gemm",
    "simulate_gemv",
    "simulate_prefill",
    "stats",
    "stream",
    "threads",
    "trace_gemm",
    "trace_prefill",
    "trace_token",
    "tune",
]


# Loaded on first use: `import npu` takes a tenth of a second.
_MODULES = {
    "blocks": "npu.formats.blocks",
    "emulator": "npu.emulator",
    "gemma3": "npu.models.gemma3",
    "q4nx": "npu.formats.q4nx",
    "stream": "npu.stream",
    "tune": "npu.perf.tune",
}
_FUNCTIONS = {
    "GemmTrace": "npu.perf.trace",
    "DecodeLayer": "npu.perf.decode_simulation",
    "DecodeShape": "npu.perf.decode_simulation",
    "PrefillTrace": "npu.perf.prefill_trace",
    "TokenTrace": "npu.perf.token_trace",
    "SimulatedAtb": "npu.perf.atb_simulation",
    "SimulatedBatch": "npu.perf.batch_simulation",
    "SimulatedDecode": "npu.perf.decode_simulation",
    "SimulatedDequantize": "npu.perf.dequant_simulation",
    "SimulatedGemm": "npu.perf.simulate",
    "SimulatedGemv": "npu.perf.gemv_simulation",
    "SimulatedPrefill": "npu.perf.prefill_simulation",
    "simulate_batch": "npu.perf.batch_simulation",
    "simulate_decode": "npu.perf.decode_simulation",
    "simulate_dequantize": "npu.perf.dequant_simulation",
    "simulate_gemm": "npu.perf.simulate",
    "simulate_gemv": "npu.perf.gemv_simulation",
    "simulate_prefill": "npu.perf.prefill_simulation",
    "trace_gemm": "npu.perf.trace",
    "trace_prefill": "npu.perf.prefill_trace",
    "trace_token": "npu.perf.token_trace",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'npu' has no attribute {name!r}")
