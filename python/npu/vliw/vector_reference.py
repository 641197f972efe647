"""What the kernels of vector_kernels.py must give: random operands and the results of the C++
kernels in `silicon`, through npu's operations. All arrays are bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dequant_q4nx(device: str, blocks: int, seed: int) -> list[np.ndarray]:
    """Blocks in a column, and their tiles."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (blocks, 4096), dtype=np.uint8)
    exponents = rng.integers(-20, 8, (blocks, 512))
    planes = np.ldexp(rng.standard_normal(exponents.shape), exponents).astype(BFLOAT16)
    data = np.concatenate([planes.view(np.uint8), codes], axis=1)
    return [data, _dequantized(device, data, 256, "q4nx")]


def _dequantized(device: str, data: np.ndarray, columns: int, format: str) -> np.ndarray:
    import npu

    with npu.device(f"emu:{device}", arithmetic="silicon"):
        values = npu.dequantize((data, (32 * len(data), columns), format))
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)
