"""Chooses entries of designs/gemm_catalogue.py: few configurations that serve many sizes together.

python examples/gemm_catalogue.py --device npu2 --dtype int8 --out-dtype int32 --b-layout row

Every legal tile and k_mt up to 1100 is rated on every size of `npu tune gemm --sizes mixed` by the
closed form. "large" is a design within 1.5 % of the most TOPS at 4096 cubed; two more are taken
greedily, so that the geometric mean over the sizes of the best of all of them is the highest;
"small", with a tile of up to 32 rows, is the best for 16, 64 and 128 rows of Gemma 3's layers.
"""

from __future__ import annotations

import argparse

import numpy as np

from npu.designs import gemm_limits
from npu.designs.gemm import DesignPoint
from npu.perf import tune
from npu.perf.tune.workload import PRESETS

LARGE = (4096, 4096, 4096)
FEW_ROWS = [(rows, k, n) for rows in (16, 64, 128) for m, k, n in PRESETS["gemma3"] if m == 512]
NEAR = 0.985  # of the most TOPS at LARGE
DEEPEST = 1100
KEPT = 60  # designs of the best mean that are kept of each piece of the space, 5 of each size


def rated(
    space: tune.Space, sizes: list[tuple[int, int, int]], rows: tuple[int, int], most_parts: int
) -> tuple[list[DesignPoint], np.ndarray]:
    """Designs with tile m in a range and A in so many parts at most, and their TOPS at every
    size."""
    found, tops = [], []
    for variant in space.variants:
        if variant.a_parts > most_parts:
            continue
        tiles = space.tiles(variant)
        tiles = tiles[(tiles.m >= rows[0]) & (tiles.m <= rows[1]) & (tiles.k >= 16)]
        tiles = tiles[gemm_limits.leaves_room(tiles.arrays)]
        for _, points in space.depths(tiles):
            points = points[points.k_mt <= DEEPEST]
            if not len(points):
                continue
            one = [tune.Evaluator(space, tune.Workload((size,))) for size in sizes]
            table = np.stack([evaluator.estimate(points).tops for evaluator in one], 1)
            kept = set(np.argsort(-np.log(table).mean(1))[:KEPT])
            for column in table.T:
                kept |= set(np.argsort(-column)[:5])
            index = sorted(kept)
            found += [points.point(i) for i in index]
            tops.append(table[index])
    return found, np.concatenate(tops)


def greedy(tops: np.ndarray, first: int, count: int) -> tuple[list[int], float]:
    """`first` and the others that raise the geometric mean of the best per size the most."""
    logs = np.log(tops)
    chosen, best = [first], logs[first]
    while len(chosen) < count:
        chosen.append(int(np.argmax(np.maximum(logs, best).mean(1))))
        best = np.maximum(best, logs[chosen[-1]])
    return chosen, float(np.exp(best.mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("npu1", "npu2"), default="npu2")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--out-dtype", default="int32")
    parser.add_argument("--b-layout", choices=("row", "col"), default="row")
    parser.add_argument("--accumulate", choices=("wide", "narrow"), default="wide")
    parser.add_argument("--bf16", choices=("bfp16", "native"), default="bfp16")
    parser.add_argument("--parts", type=int, default=8, help="of A at most (default: 8)")
    a = parser.parse_args()
    space = tune.Space(a.device, a.dtype, a.out_dtype, a.b_layout, a.bf16, a.accumulate)
    sizes = PRESETS["mixed"]
    designs, tops = rated(space, sizes, (48 if space.bf16 != "native" else 16, 1 << 16), a.parts)
    at_large = tops[:, sizes.index(LARGE)]
    near = np.flatnonzero(at_large >= NEAR * at_large.max())
    chosen, mean = max((greedy(tops, int(i), 3) for i in near), key=lambda found: found[1])
    few, few_tops = rated(space, FEW_ROWS, (1, 32), a.parts)
    small = int(np.argmax(np.log(few_tops).mean(1)))
    print(f"4096 cubed {at_large[chosen].max():.2f} TOPS, mixed {mean:.2f}; closed form")
    for role, point in [
        ("large", designs[chosen[0]]),
        *(("mixed", designs[i]) for i in chosen[1:]),
        ("small", few[small]),
    ]:
        print(f"  {role}: {point.text}, {point.c_buffers} C tiles")


if __name__ == "__main__":
    main()
