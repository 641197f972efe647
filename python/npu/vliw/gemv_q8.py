"""Products of 8-bit blocks (q8_blocks.py) with a vector, y += W x (aie_kernels/gemv_q8.h). For each
group s = sum code x, then y += d s as products of fp32 are made (float_products.py,
narrow_block_values.py).

A turn of the loop is a group. Codes become bf16 as in block_values.py, on XDNA1 as in
narrow_block_values.py, columns of 32 rows. As in the C++ kernel, even columns and odd ones have a
sum each, and both are added at the end.
"""

from __future__ import annotations

from npu.vliw import block_values, gemv_rows, narrow_block_values, q8_blocks
from npu.vliw.aie2p import BFP16_8X8X8
from npu.vliw.block_values import Blocks, Numbers
from npu.vliw.dataflow import Region, Stream
from npu.vliw.float_products import MINUS_ONE, ORDER, Floats
from npu.vliw.machine import Machine
from npu.vliw.narrow_block_values import NarrowBlocks
from npu.vliw.vector_operations import LANES

_X = q8_blocks.COLUMNS * 2  # bytes of a group
X = q8_blocks.GROUPS * _X
_MINUS_ONE = 0xBF80  # in bf16

# What registers hold in the preamble, then in the loop; there is no room for both.
_FIRST = Numbers(LANES, BFP16_8X8X8, _MINUS_ONE, *block_values.NUMBERS)
_NUMBERS = Numbers(LANES, BFP16_8X8X8, *range(q8_blocks.COLUMNS))
_NARROW_FIRST = Numbers(*narrow_block_values.FIRST)
_NARROW = Numbers(*narrow_block_values.NUMBERS, *range(q8_blocks.COLUMNS))
_PREAMBLE = (*block_values.preamble(_FIRST), ("vbcst.16", (MINUS_ONE, _FIRST[_MINUS_ONE])))

# (part of d, part of s) of products in the order of their sum; the last one meets y.
_ORDER = ORDER[:-1]
# The shortest interval that a longer search found, where that succeeds, and after what patience.
_FOUND = {"interval": 35, "start": 18}
_NARROW_FOUND = {"interval": 87, "start": 201, "patience": 24, "tail": 45}


def regions(machine: Machine, blocks: int) -> list[Region]:
    """y, the loop over all groups of ``blocks`` blocks of a row, y again."""
    turns = q8_blocks.turns("gemv_q8", blocks)
    x = Stream("x", "p1", [X * block + _X * group for block, group in turns])
    streams = (*q8_blocks.streams(turns), x)
    make = _narrow if machine.generation == "npu1" else _wide
    return make(machine, streams)


def _wide(machine: Machine, streams: tuple[Stream, ...]) -> list[Region]:
    start, flow = (Blocks(machine, _NUMBERS, name) for name in ("start", "group"))
    gemv_rows.loaded(start)
    _turn(flow)
    reserved = block_values.RESERVED | Floats.RESERVED
    return [
        start.region(
            "start", [Stream("y", "p2", [0])], _FIRST.constants | {"crrnd": 12},
            preamble=_PREAMBLE, reserved=reserved, interval=gemv_rows.ALONE,
        ),
        flow.region("group", streams, _NUMBERS.constants, reserved=reserved, **_FOUND),
        gemv_rows.stored(machine, "p2", reserved),
    ]  # fmt: skip


def _narrow(machine: Machine, streams: tuple[Stream, ...]) -> list[Region]:
    start, flow = (NarrowBlocks(machine, _NARROW, name) for name in ("start", "group"))
    gemv_rows.loaded(start)
    _narrow_turn(flow)
    reserved = narrow_block_values.RESERVED
    return [
        start.region(
            "start", [Stream("y", "p2", [0])],
            _NARROW_FIRST.constants | narrow_block_values.MODES,
            preamble=narrow_block_values.preamble(_NARROW_FIRST), reserved=reserved,
            interval=gemv_rows.ALONE,
        ),
        flow.region(
            "group", streams, _NARROW.constants, reserved=reserved,
            pools=narrow_block_values.POOLS, **_NARROW_FOUND,
        ),
        gemv_rows.stored(machine, "p2", reserved),
    ]  # fmt: skip


def _turn(flow: Blocks) -> None:
    floats = Floats(flow)
    near = flow.value("X")
    flow.load_part("x", 0, "x", near, 0)
    sums = ["", ""]
    for pair in range(q8_blocks.COLUMNS // 2):
        for side, column in enumerate(flow.widened(flow.codes("codes", 64 * pair, "in"))):
            x = flow.op("vextbcst.16", "X", near, _NUMBERS[2 * pair + side])
            sums[side] = _added(floats, sums[side], column, x)
    total = floats.add(*sums)
    d, s = floats.parts(floats.loaded("scales", 0, "in")), floats.parts(total)
    below = ""
    for i, j in _ORDER:
        below = _added(floats, below, d[i], s[j])
    (rows,) = gemv_rows.pinned(flow)
    flow.into("vaddmac.f.x", rows, rows, below, d[0], s[0], _NUMBERS[LANES])


def _added(floats: Floats, total: str, a: str, b: str) -> str:
    return floats.add_product(total, a, b) if total else floats.product(a, b)


def _narrow_turn(flow: NarrowBlocks) -> None:
    sums = [["", ""], ["", ""]]  # of even and odd columns; of the first and the other 16 rows
    for pair in range(q8_blocks.COLUMNS // 2):
        if pair % 2 == 0:  # again, as registers are few
            near = flow.value("X", partial=True)
            flow.load_part("x", 0, "x", near, 0)
        values = flow.widened(flow.raised(flow.load("codes", 64 * pair, "in")))
        for side in range(2):
            x = flow.op("vextbcst.16", "X", near, _NARROW[2 * pair + side])
            for half, value in enumerate(values[2 * side : 2 * side + 2]):
                place = 4 * pair + 2 * side + half
                sums[side][half] = flow.added(sums[side][half], flow.low(value), x, at=place)
    for half, rows in enumerate(gemv_rows.pinned(flow)):
        total = flow.op("vadd.f", "BM", sums[0][half], sums[1][half], _NARROW[LANES])
        scales = flow.value("BM")
        for part in range(2):
            flow.load_am("scales", 64 * half + 32 * part, "in", scales, part)
        d, s = flow.left(scales), flow.left(total)
        below = ""
        for a, b in [(flow.low(d[i]), flow.low(s[j])) for i, j in _ORDER]:
            below = flow.added(below, a, b)
        last = (flow.low(d[0]), flow.low(s[0]))
        flow.into("vaddmac.f", rows, rows, below, *last, _NARROW[LANES])
