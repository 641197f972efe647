"""What npu.matmul expects of a GEMM configuration before it runs: the closed form's seconds."""

from __future__ import annotations

import functools

from npu import _npu
from npu.designs.gemm import DesignPoint
from npu.ops.gemm_product import Size


@functools.lru_cache(maxsize=1 << 14)
def seconds(o: DesignPoint, size: Size, packed: bool = False) -> float:
    """The predicted time of all submissions of a problem, dispatch included, no load.

    packed: B is a packed copy, whose runs are as long as those of a column-major B.
    """
    return float(_npu.gemm_choice.seconds(o, size, packed))


@functools.cache
def load_seconds(generation: str) -> float:
    """Of changing the array's configuration."""
    from npu.perf.execution import constant

    return constant(f"load_{generation}") * 1e-3
