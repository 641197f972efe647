"""The GEMM configurations that npu.matmul chooses among: few for each kind of product.

Changing the array's configuration costs milliseconds, so one that serves many sizes is worth more
than the best one of every size. Per generation, input, type of the sums and layout of B there are

- "large": within 1.5 % of the most TOPS at 4096 cubed of all tiles, parts of A and k_mt up to 1100,
- "mixed": those (up to two) that beside it give the best geometric mean over the sizes of
  `npu tune gemm --sizes mixed` when each size has the best of all of them,
- "small": the best mean over 16, 64 and 128 rows of the layers of Gemma 3 1B and 4B, m up to 32,

by the closed form (docs/timing.md), of tiles that leave a compiled program its stack and data
section (gemm_limits.leaves_room); docs/tuning.md has what they reach in the emulator. The closed
form does not see what memtiles read ahead: on npu2 every entry has a third buffer of A and B and
longer objects of B where they fit (`_read_ahead`), with which the emulator prefers shorter k_mt.
Nor does it see the tail of K: for int8 with 32-bit sums it prefers k_mt that do not divide 4096,
and the streams of npu.matmul those that are here.
backend/ops/gemm/gemm_choice.h has the policy that chooses among them.

Packed copies of B have a layout, the tile's n and k_mt, that every configuration which reads them
shares: entries under "packed" come in groups of one layout.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

from npu.errors import DesignError

from . import gemm, gemm_limits


class Entry(NamedTuple):
    """A configuration; what it does not say is as `npu.designs.gemm.Choices` has it."""

    role: str
    tile: gemm.Tile3
    k_mt: int
    kernel: str = "published"
    c_buffers: int = 1  # 2: hides the transfer of C out of the core; see also `in_place`
    in_place: bool = False  # a C narrower than its wide sums has no tile of its own
    pairs: bool = False  # two core columns' B is read together
    l2_buffers: int = 2  # these two on npu1 alone; see `_read_ahead`
    b_l2_tiles: int = 1
    a_parts: int = 1


def _pipelined(
    role: str,
    tile: gemm.Tile3,
    k_mt: int,
    in_place: bool = False,
    pairs: bool = False,
    a_parts: int = 1,
) -> Entry:
    return Entry(
        role, tile, k_mt, "pipelined", in_place=in_place, pairs=pairs, a_parts=a_parts
    )  # fmt: skip


def _paired(
    role: str, tile: gemm.Tile3, k_mt: int, in_place: bool = False, a_parts: int = 1
) -> Entry:
    return _pipelined(role, tile, k_mt, in_place, pairs=True, a_parts=a_parts)


# (generation, input, sums, layout of B); input: the element type, or "bfp16" for bfloat16 that
# npu2 multiplies through block floating point; sums: "wide" (float32, int32), or C's type.
ENTRIES: dict[tuple[str, str, str, str], tuple[Entry, ...]] = {
    ("npu2", "int8", "wide", "row"): (
        _paired("large", (176, 32, 64), 512, in_place=True),
        _paired("mixed", (128, 64, 80), 512, in_place=True, a_parts=2),
        _paired("mixed", (128, 32, 64), 384, in_place=True),
        _paired("small", (32, 16, 160), 256),
    ),
    ("npu2", "int8", "wide", "col"): (
        _pipelined("large", (176, 32, 64), 512, in_place=True),
        _pipelined("mixed", (128, 64, 80), 512, in_place=True, a_parts=2),
        _pipelined("mixed", (128, 32, 64), 384, in_place=True),
        _pipelined("small", (32, 16, 80), 640),
    ),
    ("npu2", "int8", "int16", "row"): (
        _paired("large", (192, 32, 128), 512, a_parts=3),
        _paired("mixed", (128, 32, 160), 384),
        _paired("mixed", (128, 32, 128), 288),
        Entry("small", (32, 16, 160), 256, pairs=True),
    ),
    ("npu2", "int8", "int16", "col"): (
        _pipelined("large", (176, 24, 128), 456),
        _pipelined("mixed", (128, 32, 160), 512),
        _pipelined("mixed", (128, 24, 128), 384),
        Entry("small", (32, 16, 160), 576),
    ),
    ("npu2", "int8", "int8", "row"): (
        _paired("large", (256, 32, 128), 512),
        _paired("mixed", (128, 16, 160), 384),
        _paired("mixed", (256, 32, 144), 384),
        Entry("small", (32, 16, 160), 256, pairs=True),
    ),
    ("npu2", "int8", "int8", "col"): (
        _pipelined("large", (256, 32, 128), 512),
        _pipelined("mixed", (128, 16, 160), 512),
        _pipelined("mixed", (256, 32, 144), 384),
        Entry("small", (32, 16, 160), 576),
    ),
    ("npu2", "bfp16", "wide", "row"): (
        _paired("large", (128, 32, 96), 512, in_place=True, a_parts=4),
        _paired("mixed", (128, 32, 80), 256, in_place=True),
        _paired("mixed", (128, 32, 64), 128, in_place=True),
        Entry("small", (32, 16, 160), 128, pairs=True),
    ),
    ("npu2", "bfp16", "wide", "col"): (
        _pipelined("large", (128, 32, 96), 512, in_place=True, a_parts=4),
        _pipelined("mixed", (128, 32, 80), 256, in_place=True),
        _pipelined("mixed", (128, 24, 64), 192, in_place=True),
        Entry("small", (32, 16, 160), 288),
    ),
    ("npu2", "bfp16", "bfloat16", "row"): (
        _paired("large", (176, 16, 128), 256),
        _paired("mixed", (128, 16, 160), 256),
        _paired("mixed", (128, 16, 144), 192),
        Entry("small", (32, 16, 160), 128, pairs=True),
    ),
    ("npu2", "bfp16", "bfloat16", "col"): (
        _pipelined("large", (176, 16, 128), 256),
        _pipelined("mixed", (128, 16, 160), 256),
        _pipelined("mixed", (128, 16, 144), 288),
        Entry("small", (32, 16, 160), 288),
    ),
    ("npu2", "bfloat16", "wide", "row"): (
        Entry("large", (64, 128, 32), 128),
        Entry("mixed", (32, 128, 48), 128, c_buffers=2),
        Entry("small", (16, 32, 160), 128),
    ),
    ("npu2", "bfloat16", "wide", "col"): (
        Entry("large", (64, 128, 32), 128),
        Entry("mixed", (32, 128, 48), 128, c_buffers=2),
        Entry("small", (16, 24, 80), 288),
    ),
    ("npu2", "bfloat16", "bfloat16", "row"): (
        Entry("large", (32, 128, 64), 128),
        Entry("mixed", (128, 64, 48), 64),
        Entry("small", (16, 16, 160), 128),
    ),
    ("npu2", "bfloat16", "bfloat16", "col"): (
        Entry("large", (64, 128, 32), 128),
        Entry("mixed", (32, 128, 48), 128),
        Entry("small", (16, 16, 160), 288),
    ),
    ("npu2", "int16", "wide", "row"): (
        Entry("large", (88, 64, 64), 256, pairs=True),
        Entry("mixed", (128, 48, 48), 192, pairs=True),
        Entry("mixed", (64, 48, 64), 288, pairs=True),
        Entry("small", (32, 16, 160), 128, pairs=True),
    ),
    ("npu2", "int16", "wide", "col"): (
        Entry("large", (88, 64, 64), 512),
        Entry("mixed", (128, 52, 48), 208),
        Entry("small", (32, 16, 160), 288),
    ),
    ("npu1", "int8", "wide", "row"): (
        Entry("large", (48, 104, 128), 832, in_place=True, l2_buffers=3, b_l2_tiles=2),
        Entry("mixed", (64, 96, 96), 384, in_place=True),
        Entry("mixed", (48, 96, 128), 288, in_place=True),
        Entry("small", (32, 64, 128), 384),
    ),
    ("npu1", "int8", "wide", "col"): (
        Entry("large", (88, 128, 64), 512, in_place=True),
        Entry("mixed", (64, 120, 96), 600, in_place=True),
        Entry("mixed", (64, 128, 80), 512, in_place=True),
        Entry("small", (32, 72, 144), 432, in_place=True),
    ),
    ("npu1", "int8", "int16", "row"): (
        Entry("large", (64, 104, 128), 520),
        Entry("mixed", (128, 72, 96), 216),
        Entry("mixed", (64, 96, 128), 288),
        Entry("small", (32, 48, 320), 288),
    ),
    ("npu1", "int8", "int16", "col"): (
        Entry("large", (80, 128, 96), 1024),
        Entry("mixed", (128, 96, 64), 384),
        Entry("mixed", (128, 104, 64), 520),
        Entry("small", (32, 32, 144), 576),
    ),
    ("npu1", "int8", "int8", "row"): (
        Entry("large", (104, 104, 128), 520, l2_buffers=3),
        Entry("mixed", (128, 96, 96), 384),
        Entry("mixed", (128, 88, 128), 176),
        Entry("small", (32, 32, 320), 256),
    ),
    ("npu1", "int8", "int8", "col"): (
        Entry("large", (104, 128, 96), 1024),
        Entry("mixed", (128, 96, 96), 288),
        Entry("mixed", (128, 88, 128), 264),
        Entry("small", (32, 24, 320), 384),
    ),
    ("npu1", "bfloat16", "wide", "row"): (
        Entry("large", (64, 56, 96), 224, in_place=True, l2_buffers=3, b_l2_tiles=2),
        Entry("mixed", (64, 56, 96), 168, in_place=True),
        Entry("mixed", (88, 64, 64), 256, in_place=True),
        Entry("small", (32, 32, 160), 128),
    ),
    ("npu1", "bfloat16", "wide", "col"): (
        Entry("large", (64, 64, 88), 512, in_place=True),
        Entry("mixed", (64, 56, 96), 392, in_place=True),
        Entry("mixed", (64, 64, 88), 384, in_place=True),
        Entry("small", (32, 32, 144), 256),
    ),
    ("npu1", "bfloat16", "bfloat16", "row"): (
        Entry("large", (128, 48, 80), 528),
        Entry("mixed", (64, 48, 128), 288),
        Entry("mixed", (128, 40, 96), 120),
        Entry("small", (32, 16, 320), 128),
    ),
    ("npu1", "bfloat16", "bfloat16", "col"): (
        Entry("large", (128, 48, 80), 528),
        Entry("mixed", (128, 48, 72), 288),
        Entry("mixed", (64, 48, 128), 288),
        Entry("small", (32, 16, 320), 256),
    ),
    ("npu1", "int16", "wide", "row"): (
        Entry("large", (48, 108, 64), 216, l2_buffers=3, b_l2_tiles=2),
        Entry("mixed", (64, 88, 64), 176),
        Entry("small", (32, 72, 96), 288),
    ),
    ("npu1", "int16", "wide", "col"): (
        Entry("large", (64, 108, 48), 216),
        Entry("mixed", (64, 88, 64), 264),
        Entry("small", (32, 72, 96), 288),
    ),
    # B in blocks of BFP16, A bfloat16 or in blocks; by the type of the sums.
    ("npu2", "bfloat16", "wide", "blocks"): (
        _pipelined("large", (96, 32, 112), 352, in_place=True),
        _pipelined("mixed", (64, 32, 160), 256, in_place=True),
        _pipelined("small", (32, 16, 160), 128, in_place=True),
    ),
    ("npu2", "bfloat16", "bfloat16", "blocks"): (
        _pipelined("large", (128, 24, 160), 432, in_place=True),
        _pipelined("mixed", (128, 24, 160), 288, in_place=True),
        _pipelined("small", (32, 16, 160), 256, in_place=True),
    ),
    ("npu2", "bfloat16", "bfp16", "blocks"): (
        _pipelined("large", (144, 32, 208), 352),
        _pipelined("mixed", (128, 32, 160), 256),
        _pipelined("small", (32, 16, 160), 256),
    ),
    ("npu2", "bfp16", "wide", "blocks"): (
        _pipelined("large", (144, 56, 80), 392, in_place=True, a_parts=3),
        _pipelined("mixed", (128, 32, 80), 128, in_place=True),
        _pipelined("small", (32, 16, 160), 128, in_place=True),
    ),
    ("npu2", "bfp16", "bfloat16", "blocks"): (
        _pipelined("large", (208, 32, 96), 352, in_place=True),
        _pipelined("mixed", (128, 32, 160), 128, in_place=True),
        _pipelined("small", (32, 16, 160), 128, in_place=True),
    ),
    ("npu2", "bfp16", "bfp16", "blocks"): (
        _pipelined("large", (192, 48, 128), 432),
        _pipelined("mixed", (128, 32, 160), 128),
        _pipelined("small", (32, 16, 160), 128),
    ),
    # Packed copies: two layouts (n, k_mt) per input, that of the first entry of every kind of sums
    # and another, chosen for the best mean of all kinds over the mixed sizes.
    ("npu2", "int8", "wide", "packed"): (
        _pipelined("large", (80, 32, 128), 512, in_place=True),
        _pipelined("small", (32, 16, 128), 512),
        _pipelined("mixed", (128, 32, 80), 576, in_place=True),
        _pipelined("small", (32, 16, 80), 576),
    ),
    ("npu2", "int8", "int16", "packed"): (
        _pipelined("large", (160, 32, 128), 512),
        _pipelined("small", (32, 16, 128), 512),
        _pipelined("mixed", (128, 24, 80), 576),
        _pipelined("small", (32, 16, 80), 576),
    ),
    ("npu2", "int8", "int8", "packed"): (
        _pipelined("large", (256, 32, 128), 512),
        _pipelined("small", (32, 16, 128), 512),
        _pipelined("mixed", (128, 16, 80), 576),
        _pipelined("small", (32, 16, 80), 576),
    ),
    ("npu2", "bfp16", "wide", "packed"): (
        _pipelined("large", (80, 32, 128), 256, in_place=True),
        _pipelined("small", (32, 32, 128), 256),
        _pipelined("mixed", (128, 32, 80), 256, in_place=True),
        _pipelined("small", (32, 32, 80), 256),
    ),
    ("npu2", "bfp16", "bfloat16", "packed"): (
        _pipelined("large", (176, 16, 128), 256),
        _pipelined("small", (32, 32, 128), 256),
        _pipelined("mixed", (128, 64, 80), 256),
        _pipelined("small", (32, 32, 80), 256),
    ),
    ("npu2", "bfloat16", "wide", "packed"): (
        Entry("large", (64, 128, 32), 128, in_place=True),
        Entry("mixed", (32, 128, 48), 128, in_place=True),
        Entry("small", (16, 128, 48), 128),
    ),
    ("npu2", "bfloat16", "bfloat16", "packed"): (
        Entry("large", (64, 128, 32), 128),
        Entry("mixed", (128, 64, 48), 128),
        Entry("small", (16, 128, 48), 128),
    ),
    ("npu2", "int16", "wide", "packed"): (
        Entry("large", (88, 64, 64), 256),
        Entry("small", (32, 16, 64), 256),
        Entry("mixed", (128, 52, 48), 208),
    ),
    ("npu1", "int8", "wide", "packed"): (
        Entry("large", (64, 128, 80), 512, in_place=True),
        Entry("small", (32, 64, 80), 512),
        Entry("mixed", (64, 96, 64), 576, in_place=True),
    ),
    ("npu1", "int8", "int16", "packed"): (
        Entry("large", (128, 64, 80), 512),
        Entry("small", (32, 32, 80), 512),
        Entry("mixed", (128, 96, 64), 576),
    ),
    ("npu1", "int8", "int8", "packed"): (
        Entry("large", (128, 64, 80), 512),
        Entry("small", (32, 16, 80), 512),
        Entry("mixed", (128, 72, 64), 576),
    ),
    ("npu1", "bfloat16", "wide", "packed"): (
        Entry("large", (64, 56, 96), 280, in_place=True),
        Entry("small", (32, 40, 96), 280),
        Entry("mixed", (64, 48, 64), 288, in_place=True),
    ),
    ("npu1", "bfloat16", "bfloat16", "packed"): (
        Entry("large", (128, 40, 96), 280),
        Entry("small", (32, 40, 96), 280),
        Entry("mixed", (128, 48, 64), 288),
    ),
    ("npu1", "int16", "wide", "packed"): (
        Entry("large", (64, 108, 48), 216),
        Entry("small", (32, 108, 48), 216),
        Entry("mixed", (64, 88, 64), 176),
    ),
}
VALUE_LAYOUTS = ("row", "col", "packed")
LAYOUTS = (*VALUE_LAYOUTS, "blocks")


def candidates(
    generation: str, a_dtype: str, c_dtype: str, layout: str, *,
    accumulate: str = "wide", bf16: str = "native",
) -> tuple[gemm.DesignPoint, ...]:  # fmt: skip
    """The configurations for a product, "large" first. `layout`: of B, see LAYOUTS.

    Raises DesignError for what no design computes.
    """
    if layout == "blocks":
        like = gemm.design_point(
            generation, a_dtype, c_dtype, b_dtype=gemm.BFP16, accumulate=accumulate
        )
        sums = "wide" if like.sum_dtype == "float32" else like.sum_dtype
        return tuple(_point(entry, like) for entry in ENTRIES[generation, a_dtype, sums, layout])
    checked = gemm.design_point(
        generation, a_dtype, c_dtype, b_layout=_stored(layout), accumulate=accumulate, bf16=bf16
    )
    sums = c_dtype if checked.narrows and accumulate == "narrow" else "wide"
    name = "bfp16" if bf16 == "bfp16" else a_dtype
    return tuple(_point(entry, checked) for entry in ENTRIES[generation, name, sums, layout])


def _stored(layout: str) -> str:
    """The layout that a configuration knows: packed copies are read by those of row-major B."""
    if layout not in LAYOUTS:
        raise DesignError(f"[gemm_catalogue] layout is {layout!r}; use one of {LAYOUTS}")
    return "row" if layout == "packed" else layout


def _point(entry: Entry, like: gemm.DesignPoint) -> gemm.DesignPoint:
    narrowed = like.sum_dtype != like.c_dtype
    point = gemm.design_point(
        like.generation, like.a_dtype, like.c_dtype, tile=entry.tile, k_mt=entry.k_mt,
        b_layout=like.b_layout, c_buffers=0 if entry.in_place and narrowed else entry.c_buffers,
        accumulate=like.accumulate, bf16=like.bf16, kernel=entry.kernel, b_pairs=entry.pairs,
        l2_buffers=entry.l2_buffers, b_l2_tiles=entry.b_l2_tiles, a_parts=entry.a_parts,
        b_dtype=like.b_dtype,
    )  # fmt: skip
    return _read_ahead(point)


def _read_ahead(point: gemm.DesignPoint) -> gemm.DesignPoint:
    """What memtiles read while cores wait for C to leave: three buffers where L2 holds them, and
    objects of B of several tiles. On npu1 that gains nothing but where an entry says so."""
    if point.generation == "npu1":
        return point
    tiles = (8, 4, 2, 1) if point.b_layout == "row" else (1,)
    for buffers, count in itertools.product((3, 2), tiles):
        longer = replace(point, l2_buffers=buffers, b_l2_tiles=count)
        if point.k_mt % longer.b_rows == 0 and gemm_limits.fits_memtiles(longer):
            return longer
    return point
