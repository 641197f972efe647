"""The inner loop of products of 8-bit blocks with a vector (aie_kernels/gemv_q8.h, XDNA2): for each
group of 16 columns s = sum code x, for 32 rows. What adds d s, in fp32, is not part of it.

A turn of the loop is a group. Codes become bf16 as in block_values.py, columns of 32 rows. As in
the C++ kernel, even columns and odd ones have a sum each, and both are added at the end.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw import block_values
from npu.vliw.block_values import Blocks, Numbers
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.vector_operations import LANES

BLOCK, X, WORK = 5120, 128 * 2, 8 * 32 * 4  # bytes; the last: 32 s per group, in fp32
_GROUPS, _COLUMNS, _CODES_AT = 8, 16, 1024

_NUMBERS = Numbers(LANES, *range(_COLUMNS), *block_values.NUMBERS)


def regions(machine: Machine, blocks: int) -> list[Region]:
    """The loop over all groups of ``blocks`` blocks, each with an x and sums of its own."""
    if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1:
        raise ShapeError(f"[gemv_q8] blocks is {blocks!r}: give 1 or more")
    turns = [(b, g) for b in range(blocks) for g in range(_GROUPS)]
    streams = {
        "codes": Stream("codes", "p0", [BLOCK * b + _CODES_AT + 512 * g for b, g in turns]),
        "x": Stream("x", "p1", [X * b + 32 * g for b, g in turns]),
        "sums": Stream("sums", "p2", [WORK * b + 128 * g for b, g in turns]),
    }
    flow = Blocks(machine, _NUMBERS)
    _turn(flow)
    return [
        Region(
            "group", tuple(flow.nodes), flow.values, streams, _NUMBERS.constants | {"crrnd": 12},
            preamble=block_values.preamble(_NUMBERS), reserved=block_values.RESERVED,
            partial=frozenset(flow.partial), lanes=True,
        )
    ]  # fmt: skip


def _turn(flow: Blocks) -> None:
    near = flow.value("X")
    flow.load_part("x", 0, "x", near, 0)
    sums = ["", ""]
    for pair in range(_COLUMNS // 2):
        for side, column in enumerate(flow.widened(flow.codes("codes", 64 * pair, "in"))):
            x = flow.op("vextbcst.16", "X", near, _NUMBERS[2 * pair + side])
            if sums[side]:
                sums[side] = flow.op("vmac.f.x", "DM", sums[side], column, x, _NUMBERS[LANES])
            else:
                sums[side] = flow.op("vmul.f.x", "DM", column, x, _NUMBERS[LANES])
    total = flow.op("vadd.f", "DM", *sums, _NUMBERS[LANES])
    for part in range(2):
        flow.store(("vst.bm",), f"{total}:{part}", Access("sums", 64 * part), "work")
