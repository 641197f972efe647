"""npu.tune: finds the published designs or better ones, and reports what the simulations say.

References: the designs of arXiv 2512.13282 (npu/perf/published.csv) and
npu.simulate_gemm, one by one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

import npu
from npu.designs import gemm_limits
from npu.errors import ArgumentError, ShapeError
from npu.perf import published, tune
from npu.perf.tune.search import SATURATED

PAIRS = [("int8", "int8"), ("int8", "int16"), ("bfloat16", "bfloat16")]
SPACES = [(device, *pair) for device in ("npu1", "npu2") for pair in PAIRS]


def _published_tiles(device: str, a: str, c: str, core: bool) -> list[tuple[tuple[int, ...], int]]:
    rows = [r for r in published.figures() if r.metric == "macs_per_cycle" and r.device == device]
    rows = [r for r in rows if (r.where == "table 1") == core]
    designs = [r.design for r in rows]
    return [(d.tile, d.k_mt) for d in designs if (d.a_dtype, d.c_dtype) == (a, c)]


@pytest.mark.parametrize("space", SPACES, ids="-".join)
def test_array_optimum_is_no_worse_than_published(space: tuple[str, str, str]) -> None:
    """Emulated TOPS about 4K: the best found against each published tile with its k_mt."""
    device, a, c = space
    evaluator = tune.Evaluator(tune.Space(*space, designs="published"))
    result = tune.gemm(evaluator, top=4, emulated=4, details=False)
    tiles = _published_tiles(device, a, c, core=False)
    assert tiles
    assert sorted(tiles) == sorted((e.tile, e.k_mt) for e in result.published)
    columns = 4 if device == "npu1" else 8
    for tile, k_mt in tiles:
        unit = 4 * tile[0], k_mt, columns * tile[2]
        size = [math.ceil(4000 / u) * u for u in unit]
        run = npu.simulate_gemm(
            device, *size, dtype_in=a, dtype_out=c, tile=tile, k_mt=k_mt, b_layout="col"
        )
        assert result.best.emulator_tops >= run.tops
    tops = [e.emulator_tops for e in result.entries]
    assert tops == sorted(tops, reverse=True)
    assert [e.rank for e in result.entries] == [1, 2, 3, 4]


@pytest.mark.parametrize("space", SPACES, ids="-".join)
def test_core_optimum_is_no_worse_than_published(space: tuple[str, str, str]) -> None:
    """MACs per cycle of the kernel; on npu2 the published tiles need 8 bytes per cycle."""
    device, a, c = space
    stream = 4 if device == "npu1" else 8
    evaluator = tune.Evaluator(tune.Space(*space, designs="published"), stream_bytes=stream)
    best = tune.gemm(evaluator, "core").best
    for tile, _ in _published_tiles(device, a, c, core=True):
        run = npu.simulate_gemm(
            device, 512, 512, 512, dtype_in=a, dtype_out=c, tile=tile, k_mt=tile[1],
            model="closed-form",
        )  # fmt: skip
        assert best.macs_per_cycle >= run.macs_per_cycle
    m, k, n = best.tile
    size = 1 if a == "int8" else 2
    assert m * k * n / best.macs_per_cycle >= max(m, n) * k * size / stream  # equation 4
    if device == "npu2":
        narrow = tune.gemm(tune.Evaluator(tune.Space(*space, designs="published")), "core")
        assert all(e.rank == 0 for e in narrow.published)


def test_batch_equals_one_at_a_time() -> None:
    rng = np.random.default_rng(1)
    for device, a, c in [("npu1", "int16", "int32"), ("npu2", "int8", "int8")]:
        space = tune.Space(device, a, c, b_layout="row")
        sizes = ((512, 1024, 2048), (4096, 100, 700))
        evaluator = tune.Evaluator(space, tune.Workload(sizes))
        tiles = space.tiles(space.variants[-1])
        tiles = tiles[rng.integers(0, len(tiles), 20)]
        found = evaluator.estimate(tiles)
        for i in range(len(tiles)):
            runs = [
                npu.simulate_gemm(device, *size, design=tiles.point(i), model="closed-form")
                for size in sizes
            ]  # fmt: skip
            assert found.tops[i] == pytest.approx(math.sqrt(runs[0].tops * runs[1].tops))
            assert found.macs_per_cycle[i] == pytest.approx(runs[0].macs_per_cycle)
            assert tune.evaluator.BOUNDS[found.bound[i]] == runs[0].bound  # the size with more work


def test_best_depth_of_every_tile() -> None:
    """The k_mt of a reported tile: no other depth is faster by the closed form."""
    evaluator = tune.Evaluator(tune.Space("npu1", "int8", "int8", designs="published"))
    best = tune.gemm(evaluator, top=1, emulated=1, details=False).best
    m, k, n = best.tile
    for k_mt in range(k, 2 * best.k_mt, k):
        unit = 4 * m, k_mt, 4 * n
        if not gemm_limits.fits(dataclasses.replace(best.design, k_mt=k_mt)):
            continue
        size = [math.ceil(4000 / u) * u for u in unit]
        run = npu.simulate_gemm(
            "npu1", *size, dtype_in="int8", dtype_out="int8", tile=best.tile, k_mt=k_mt,
            b_layout="col", c_buffers=best.c_buffers, model="closed-form",
        )  # fmt: skip
        assert run.tops <= best.closed_form_tops * (1 + 1e-12)


def test_walk_and_k_mt_curve() -> None:
    """From the single-core optimum k falls and m n grows, until a design is worse."""
    space = tune.Space("npu1", "bfloat16", "bfloat16", designs="published")
    result = tune.gemm(tune.Evaluator(space), top=2, emulated=2)
    core = tune.gemm(tune.Evaluator(space), "core", top=1).best
    walk = result.walk
    assert walk[0].tile == core.tile
    for before, after in itertools.pairwise(walk):
        assert after.tile[1] < before.tile[1]
        assert after.tile[0] * after.tile[2] > before.tile[0] * before.tile[2]
    best = max(walk, key=lambda e: e.tops)
    assert best is not walk[0] and best is not walk[-1]
    assert walk[-1].bound == "compute"
    assert best.tops <= result.best.tops
    depths = dict(result.k_mt_curve)
    assert result.best.k_mt in depths
    assert list(depths) == sorted(depths)
    assert depths[result.k_mt_saturated] >= SATURATED * max(depths.values())
    assert depths[result.best.k_mt] == result.best.emulator_tops


def test_c_buffers_and_memory() -> None:
    """Only designs with the asked number of buffers; L1 as equation 5 has it, with C twice."""
    space = tune.Space("npu2", "int8", "int16", designs="published")
    result = tune.gemm(tune.Evaluator(space), top=3, emulated=3, c_buffers=(2,), details=False)
    assert len(result.entries) == 3 and len(result.published) == 2
    for e in result.entries:
        m, k, n = e.tile
        assert e.c_buffers == 2
        assert e.l1_bytes == 2 * m * k + 2 * k * n + 2 * 2 * m * n <= 63 * 1024
        assert e.l1_share == e.l1_bytes / 65536
        assert e.l2_bytes == 2 * (4 * m + 8 * n) * e.k_mt + 8 * 4 * m * n * 2


def test_errors() -> None:
    space = tune.Space("npu1", "int8", "int8")
    with pytest.raises(ArgumentError, match="stream_bytes is 5"):
        tune.Evaluator(space, stream_bytes=5)
    with pytest.raises(ShapeError, match="size 0 x 1 x 1"):
        tune.Workload(((0, 1, 1),))
    with pytest.raises(ShapeError, match="16777216"):
        tune.Workload(((1, 1, 1 << 40),))
    for arguments in ({"objective": "x"}, {"top": 0}, {"emulated": 0}, {"c_buffers": (3,)}):
        with pytest.raises(ArgumentError, match="tune"):
            tune.gemm(tune.Evaluator(space), **arguments)  # type: ignore[arg-type]
