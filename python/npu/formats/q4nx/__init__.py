"""Q4NX: 4-bit weights in the block format of the NPU kernels (docs/q4nx.md).

``Tensor.from_blocks(data, shape)`` wraps raw blocks, ``quantize(array)`` makes a Tensor,
``dequantize_host(t)`` and ``t.to_numpy()`` give its values, ``Q4nxFile`` opens a file.
"""

import importlib
from typing import Any

from npu.formats.q4nx.quantizer import quantize
from npu.formats.q4nx.tensor import ADDITIVE, ZERO_POINT, Tensor, concatenate, dequantize_host

__all__ = [
    "ADDITIVE",
    "ZERO_POINT",
    "Q4nxFile",
    "Tensor",
    "concatenate",
    "dequantize_host",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name == "Q4nxFile":
        return importlib.import_module("npu.formats.q4nx.container").Q4nxFile
    raise AttributeError(f"module 'npu.formats.q4nx' has no attribute {name!r}")
