"""What npu.matmul expects of a GEMM configuration before it runs: the closed form's seconds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from npu import _npu
from npu.designs.gemm import DesignPoint, configuration_of
from npu.ops.gemm_product import Size
from npu.perf.execution import constant, execute
from npu.perf.simulate import SimulatedGemm, summary


@functools.lru_cache(maxsize=1 << 14)
def seconds(o: DesignPoint, size: Size, packed: bool = False) -> float:
    """The predicted time of all submissions of a problem, dispatch included, no load.

    packed: B is a packed copy, whose runs are as long as those of a column-major B.
    """
    as_read = dataclasses.replace(o, b_layout="col") if packed else o
    blocks = _npu.model.gemm_blocks(o, size)
    return float(
        sum(count * _npu.model.estimate(as_read, block)["seconds"] for block, count in blocks)
    )


def emulate(
    o: DesignPoint, size: Size, constants: Mapping[str, float] | None = None
) -> SimulatedGemm:
    """The timed emulator on the streams that npu.matmul submits for row-major A and C and a B as
    the configuration has it: ragged edges, K tails and splits as they are."""
    m, k, n = size
    config = configuration_of(o)
    parts = []
    for one in _npu.operations.submissions("gemm", config, {"m": m, "k": k, "n": n}):
        sizes = [argument["bytes"] for argument in one["arguments"]]
        report = execute(config, one["stream"], sizes=sizes, constants=constants)
        parts.append((one["count"], report))
    return summary(o, size, parts)


@functools.cache
def load_seconds(generation: str) -> float:
    """Of changing the array's configuration."""
    return constant(f"load_{generation}") * 1e-3
