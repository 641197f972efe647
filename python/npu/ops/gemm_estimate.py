"""What npu.matmul expects of a GEMM configuration before it runs: the closed form's seconds."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from npu import _npu
from npu.designs.gemm import Options, configuration_of
from npu.ops.gemm_product import Size
from npu.perf.simulate import GemmDesign, SimulatedGemm, constant, submissions, summary


def design_of(o: Options) -> GemmDesign:
    """The same design point as the simulations take it."""
    return GemmDesign(
        o.generation, o.a_dtype, o.c_dtype, o.tile, o.k_mt, o.b_layout, o.c_buffers, o.bf16,
        o.kernel, o.a_parts, o.accumulate,
    )  # fmt: skip


@functools.lru_cache(maxsize=1 << 14)
def seconds(o: Options, size: Size, packed: bool = False) -> float:
    """The predicted time of all submissions of a problem, dispatch included, no load.

    packed: B is a packed copy, whose runs are as long as those of a column-major B.
    """
    in_columns = packed or o.b_layout == "col"
    total = 0.0
    for block, count in submissions(design_of(o), size).items():
        found = _npu.model.estimate(
            o.generation, o.a_dtype, o.c_dtype, list(o.tile), list(block), o.k_mt, in_columns,
            o.c_buffers, True, o.bf16 == "native", o.kernel == "pipelined", o.a_parts,
            wide=o.accumulate == "wide",
        )  # fmt: skip
        total += count * float(found["seconds"])
    return total


def emulate(o: Options, size: Size, constants: Mapping[str, float] | None = None) -> SimulatedGemm:
    """The timed emulator on the streams that npu.matmul submits for row-major A and C and a B as
    the configuration has it: ragged edges, K tails and splits as they are."""
    m, k, n = size
    config = configuration_of(o)
    parts = []
    for one in _npu.operations.submissions("gemm", config, {"m": m, "k": k, "n": n}):
        sizes = [argument["bytes"] for argument in one["arguments"]]
        report = _npu.model.simulate(
            config, one["stream"], sizes, [], True, dict(constants or {}), None
        )
        parts.append((one["count"], report))
    return summary(design_of(o), size, parts)


@functools.cache
def load_seconds(generation: str) -> float:
    """Of changing the array's configuration."""
    return constant(f"load_{generation}", {}) * 1e-3
