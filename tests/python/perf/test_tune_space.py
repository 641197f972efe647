"""npu.tune.Space and npu.designs.gemm_limits: what they call legal is what can be lowered, and they
miss nothing.

The references are the lowering itself, and equation 5 of arXiv 2512.13282 in nested loops.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu.designs import gemm, gemm_limits
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError
from npu.perf.tune import Space, what_stops
from npu.perf.tune.space import with_sizes

POINTS = 60


def _lowers(p: gemm.DesignPoint) -> bool:
    """Through the checks that users meet, on which a design point made here depends in nothing."""
    try:
        gemm.configuration(
            p.generation, p.a_dtype, p.c_dtype, tile=p.tile, k_mt=p.k_mt, c_buffers=p.c_buffers,
            b_layout=p.b_layout, accumulate=p.accumulate, bf16=p.bf16, kernel=p.kernel,
            a_parts=p.a_parts,
        )  # fmt: skip
    except DesignError:
        return False
    return True


@pytest.mark.slow
def test_legal_means_lowerable() -> None:
    """Designs at the edges of L1, L2 and the shim's wraps, on either side of them."""
    rng = np.random.default_rng(3)
    spaces = [
        Space(generation, a, c, layout, bf16, accumulate)
        for generation in ("npu1", "npu2")
        for a, c in gemm.PAIRS
        for layout in gemm.B_LAYOUTS
        for bf16 in gemm.BF16
        for accumulate in gemm.ACCUMULATE
    ]
    outcomes = set()
    for _ in range(POINTS):
        space = spaces[rng.integers(len(spaces))]
        variant = space.variants[rng.integers(len(space.variants))]
        tiles = space.tiles(variant)
        chosen = tiles.point(int(rng.integers(len(tiles))))
        tile = list(chosen.tile)
        if rng.random() < 0.5:  # one unit up: often beyond L1
            axis = rng.integers(3)
            tile[axis] += variant.granularity[axis]
        m, k, n = tile
        depths = np.arange(1, 4092 // k + 1) * k
        points = with_sizes(variant, m, k, n, depths, chosen.c_buffers)
        deepest = depths[gemm_limits.fits_memtiles(points) & gemm_limits.fits_shim(points)]
        k_mt = int(deepest.max(initial=k)) + (k if rng.random() < 0.4 else 0)  # beyond L2, shim
        point = with_sizes(variant, m, k, n, k_mt, chosen.c_buffers)
        legal = bool(gemm_limits.fits(point))
        assert legal == _lowers(point), point
        outcomes.add(legal)
    assert outcomes == {True, False}


def test_every_tile_of_equation_5() -> None:
    """npu2, int8 -> int8, one C buffer: 2 m k + 2 k n + m n <= 63 KiB, and L2 at k_mt = k."""
    expected = set()
    for m in range(16, 4096, 16):
        for n in range(16, 1023 * 4 + 1, 16):  # the run of a C row is at most 1023 words
            if 4 * m * n > 512 * 1024 or 2 * (m + n) * 8 + m * n > 63 * 1024:
                break
            deepest = (63 * 1024 - m * n) // (2 * (m + n))
            for k in range(8, deepest + 1, 8):
                # Even memtiles have two A, two B, C; odd ones take whole buffers of them, too.
                if 2 * (m * k + 2 * n * k) + 8 * m * n <= 2 * 512 * 1024:
                    expected.add((m, k, n))
    space = Space("npu2", "int8", "int8")
    tiles = space.tiles(space.variant(), (1,))
    found = set(zip(tiles.m.tolist(), tiles.k.tolist(), tiles.n.tolist(), strict=True))
    assert found == expected
    assert len(found) == len(tiles) > 1000


def test_every_depth() -> None:
    """k_mt: all multiples of k up to the shim's 1023 words or the memtiles' room, in one order."""
    space = Space("npu1", "bfloat16", "bfloat16")
    tiles = space.tiles(space.variant(), (1,))
    tiles = tiles[np.arange(0, len(tiles), 997)]
    found: dict[int, list[int]] = {}
    for index, points in space.depths(tiles):
        for tile, k_mt in zip(index, points.k_mt, strict=True):
            found.setdefault(int(tile), []).append(int(k_mt))
    for i in range(len(tiles)):
        m, k, n = int(tiles.m[i]), int(tiles.k[i]), int(tiles.n[i])
        room = 512 * 1024 - 8 * m * n
        assert found[i] == [d for d in range(k, 2 * 1023 + 1, k) if 4 * d * (m + n) <= room]


def test_limits_name_what_stops() -> None:
    space = Space("npu2", "int8", "int8")

    def stops(m: int, k: int, n: int, k_mt: int, kernel: str = "published") -> tuple[str, str]:
        return what_stops(with_sizes(space.variant(kernel), m, k, n, k_mt, 1))

    assert stops(144, 72, 144, 432)[0] == "L1"
    assert stops(16, 64, 16, 4032) == ("-", "shim")
    assert stops(192, 72, 96, 1152)[1] == "L2"
    assert stops(64, 64, 64, 64, "pipelined")[0] == "-/kernel/-"


def test_errors() -> None:
    with pytest.raises(DeviceError, match="npu3"):
        Space("npu3", "int8", "int8")
    with pytest.raises(DtypeError, match="int8 -> float32"):
        Space("npu1", "int8", "float32")
    for name in ("b_layout", "bf16", "accumulate", "designs"):
        with pytest.raises(ArgumentError, match=f"{name} is 'other'"):
            Space("npu2", "int8", "int8", **{name: "other"})
    with pytest.raises(ArgumentError, match="nothing for int16"):
        Space("npu1", "int16", "int32", designs="pipelined")
