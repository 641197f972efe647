"""npu.tune.Space: what it calls legal is what can be lowered, and it misses nothing.

The references are the lowering itself, and equation 5 of arXiv 2512.13282 in nested loops.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu.designs import gemm
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError
from npu.perf.tune import FAMILIES, Space

POINTS = 60


def _lowers(space: Space, family: str, tile: tuple[int, int, int], k_mt: int, buffers: int) -> bool:
    try:
        gemm.configuration(
            space.generation, space.dtype_in, space.dtype_out, tile=tile, k_mt=k_mt,
            c_buffers=buffers, b_layout=space.b_layout, accumulate=space.accumulate,
            bf16=space.bf16, **FAMILIES[family].keywords,
        )  # fmt: skip
    except DesignError:
        return False
    return True


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
        family = space.families[rng.integers(len(space.families))]
        tiles = space.tiles(family)
        chosen = tiles[rng.integers(len(tiles))]
        tile = [int(chosen.m), int(chosen.k), int(chosen.n)]
        if rng.random() < 0.5:  # one step up: often beyond L1
            axis = rng.integers(3)
            tile[axis] += space.steps(family)[axis]
        m, k, n = tile
        depths = np.arange(1, 4092 // k + 1) * k
        deepest = depths[space.fits_l2(family, m, k, n, depths) & space.fits_shim(n, depths)]
        k_mt = int(deepest.max(initial=k)) + (k if rng.random() < 0.4 else 0)  # beyond L2, shim
        buffers = int(chosen.c_buffers)
        legal = bool(space.fits(family, m, k, n, k_mt, buffers))
        found = _lowers(space, family.name, (m, k, n), k_mt, buffers)
        assert legal == found, (space, family.name, (m, k, n), k_mt, buffers)
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
                # Even memtiles have two A, two B, C; the odd ones beside them lend their room.
                if 2 * (m * k + 2 * n * k) + 8 * m * n <= 2 * 512 * 1024:
                    expected.add((m, k, n))
    tiles = Space("npu2", "int8", "int8").tiles(FAMILIES["published"], (1,))
    found = set(zip(tiles.m.tolist(), tiles.k.tolist(), tiles.n.tolist(), strict=True))
    assert found == expected
    assert len(found) == len(tiles) > 1000


def test_every_depth() -> None:
    """k_mt: all multiples of k up to the shim's 1023 words or the memtiles' room, in one order."""
    space = Space("npu1", "bfloat16", "bfloat16")
    family = FAMILIES["published"]
    tiles = space.tiles(family, (1,))
    tiles = tiles[np.arange(0, len(tiles), 997)]
    found: dict[int, list[int]] = {}
    for depths in space.depths(family, tiles):
        for tile, k_mt in zip(depths.tile, depths.k_mt, strict=True):
            found.setdefault(int(tile), []).append(int(k_mt))
    for i in range(len(tiles)):
        m, k, n = int(tiles.m[i]), int(tiles.k[i]), int(tiles.n[i])
        room = 512 * 1024 - 8 * m * n
        assert found[i] == [d for d in range(k, 2 * 1023 + 1, k) if 4 * d * (m + n) <= room]


def test_limits_name_what_stops() -> None:
    space = Space("npu2", "int8", "int8")
    published = FAMILIES["published"]
    assert space.limits(published, (144, 72, 144), 432, 1)[0] == "L1"
    assert space.limits(published, (16, 64, 16), 4032, 1) == ("-", "shim")
    assert space.limits(published, (192, 72, 96), 1152, 1)[1] == "L2"
    pipelined = FAMILIES["pipelined"]
    assert space.limits(pipelined, (64, 64, 64), 64, 1)[0] == "-/kernel/-"


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
