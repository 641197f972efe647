"""What no tile of the GEMM designs can exceed at 4096 cubed, row-major B: simulated, upper bounds.

    python examples/gemm_bounds.py

Of every legal tile: all reads at the DRAM's read ceiling, and all kernel calls without a wait. The
slower of the two and the dispatch bound its TOPS; padding counts. What a run adds (filling the
memtiles, C leaving a core, the last C, runs shorter than the DRAM likes) is left out, so designs
stay a few per cent below.
"""

from __future__ import annotations

import numpy as np

from npu import _npu
from npu.perf.execution import constant
from npu.perf.tune import Space
from npu.perf.tune.space import Points

SIZE = 4096
CASES = [
    ("npu2", "int8", "int8", "wide", "native"),
    ("npu2", "int8", "int16", "narrow", "native"),
    ("npu2", "int8", "int32", "wide", "native"),
    ("npu2", "bfloat16", "bfloat16", "narrow", "bfp16"),
    ("npu2", "bfloat16", "bfloat16", "wide", "bfp16"),
    ("npu2", "bfloat16", "float32", "wide", "bfp16"),
    ("npu1", "int8", "int8", "narrow", "native"),
    ("npu1", "bfloat16", "bfloat16", "narrow", "native"),
]


def seconds(points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Of reading, and of computing, for each tile."""
    v = points.variant
    rounds = -(-SIZE // (4 * points.m)) * -(-SIZE // (v.columns * points.n))
    depth = -(-SIZE // points.k) * points.k
    read = rounds * (4 * points.m + v.columns * points.n) * depth * v.a_bytes
    sizes = (points.m, points.k, points.n, points.k_mt, points.c_buffers, SIZE, SIZE, SIZE)
    table = np.stack([np.broadcast_to(x, len(points)) for x in sizes], axis=1).astype(np.int64)
    out = np.empty((len(points), 3))
    _npu.tune.estimate(v, {}, table, out)
    clock = _npu.arch.device_geometry(v.generation)["clock_hz"]
    compute = rounds * (depth // points.k) * out[:, 1] / clock
    return read / (constant(f"dram_read_{v.generation}") * 1e9), compute


def main() -> None:
    print("bound   DRAM  cores  TOPS of the tile that may be fastest: reads, calls alone")
    for generation, a, c, sums, bf16 in CASES:
        space = Space(generation, a, c, "row", bf16, sums)
        best: tuple[float, ...] = (0.0,)
        for variant in space.variants:
            points = space.tiles(variant)
            read, compute = seconds(points)
            dispatch = constant("dispatch") * 1e-6
            tops = 2 * SIZE**3 / 1e12 / (dispatch + np.stack([read, compute]))
            at = int(np.argmax(tops.min(axis=0)))
            best = max(best, (float(tops[:, at].min()), *tops[:, at], *points.point(at).tile))
        bound, dram, cores, m, k, n = best
        print(
            f"{bound:5.2f}  {dram:5.2f}  {cores:5.2f}  {generation} {a} -> {c} {sums}, "
            f"tile {m:g}x{k:g}x{n:g}"
        )


if __name__ == "__main__":
    main()
