"""8-bit blocks of weights (weight_block.h): 32 rows x 128 columns, an fp32 scale d per row and
group of 16 columns, then int8 codes by column; what loops with a turn per group read of them."""

from __future__ import annotations

from npu.vliw import vector_dataflow
from npu.vliw.dataflow import Stream

GROUPS, COLUMNS, ROWS = 8, 16, 32  # of a block, of a group
SCALES, CODES = 4 * ROWS, COLUMNS * ROWS  # bytes of a group
CODES_AT = GROUPS * SCALES  # in a block
BLOCK = CODES_AT + GROUPS * CODES


def turns(kernel: str, blocks: int) -> list[tuple[int, ...]]:
    """The block and the group of every turn."""
    return vector_dataflow.turns(kernel, blocks, GROUPS)


def streams(turns: list[tuple[int, ...]]) -> tuple[Stream, Stream]:
    """Scales and codes of every turn, of the argument p0."""
    scales = [BLOCK * block + SCALES * group for block, group in turns]
    codes = [BLOCK * block + CODES_AT + CODES * group for block, group in turns]
    return Stream("scales", "p0", scales), Stream("codes", "p0", codes)
