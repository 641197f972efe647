"""Weights of 8-bit blocks as bfloat16 on XDNA1 (dequant_q8.py), in two loops.

The first one makes bf16 of codes (narrow_block_values.py), 16 at a time: eight rows of two columns.
They leave to the tile, to the places that their weights will have. The second one takes them back
with each twice in a vector, as an operation on lanes adds two products: d3 code and d2 code come in
one, exact together, and d1 code in another, which rounds.

A turn of the first loop is 32 rows x 8 columns, of the second one 16 rows x 16 columns. Which
columns lie beside each other is such that two shuffles per vector of results make rows of them.
"""

from __future__ import annotations

from npu.vliw import narrow_block_values, vector_dataflow
from npu.vliw.block_values import Numbers
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.narrow_block_values import NarrowBlocks
from npu.vliw.q8_blocks import BLOCK, CODES_AT, COLUMNS, GROUPS, ROWS, SCALES
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

_TILE, _ROW, _STORED = 32 * 128 * 2, 128 * 2, 32  # bytes; of a row of the tile, of a vector
_ZEROS, _ONES = "x0", "x1"  # the latter in the lower half
_ONE = 0x3F80  # in bf16
# The shortest interval of the second loop that a longer search found, where that succeeds, after
# what patience.
_FOUND = {"interval": 51, "start": 9, "patience": 67, "tail": 10}

_WIDENING = Numbers(
    *narrow_block_values.NUMBERS, *narrow_block_values.FIRST, SHUFFLES["T64_2x8_lo"],
    SHUFFLES["T64_2x8_hi"],
)  # fmt: skip
_MODES = (
    "T128_4x2_lo", "T128_4x2_hi", "T16_8x8_lo", "T16_8x8_hi", "T16_2x32_lo", "T16_2x32_hi",
    "T256_2x2_lo", "T256_2x2_hi",
)  # fmt: skip
_SCALING = Numbers(LANES, _ONE, 0, *(SHUFFLES[name] for name in _MODES))


def regions(machine: Machine, blocks: int) -> list[Region]:
    """Both loops over all groups of ``blocks`` blocks."""
    turns = vector_dataflow.turns("dequant_q8", blocks, GROUPS, 2)
    return [_widening(machine, turns), _scaling(machine, turns)]


def _widening(machine: Machine, turns: list[tuple[int, ...]]) -> Region:
    """Four columns give two pairs of those that are two apart."""
    flow = NarrowBlocks(machine, _WIDENING, "codes")
    for four in range(2):
        raw = [flow.load("codes", 128 * four + 64 * two, "in") for two in range(2)]
        for pair, mode in enumerate(("T64_2x8_lo", "T64_2x8_hi")):
            codes = flow.raised(flow.op("vshuffle", "X", *raw, _WIDENING.mode(mode)))
            for octet, wide in enumerate(flow.widened(codes)):
                access = Access("out", _ROW * (8 * octet + 2 * four + pair))
                flow.store(("vst.conv.bf16.fp32",), wide, access, "out")
    codes_at = [BLOCK * b + CODES_AT + ROWS * (COLUMNS * g + 8 * h) for b, g, h in turns]
    streams = (
        Stream("codes", "p0", codes_at),
        Stream("out", "p1", [_TILE * b + _STORED * g + 4 * _ROW * h for b, g, h in turns]),
    )
    return flow.region(
        "codes", streams, _WIDENING.constants | narrow_block_values.MODES,
        preamble=narrow_block_values.preamble(_WIDENING), reserved=narrow_block_values.RESERVED,
    )  # fmt: skip


def _scaling(machine: Machine, turns: list[tuple[int, ...]]) -> Region:
    flow = Dataflow(machine, "scales")
    left = _left(flow)
    for octet, side in enumerate(("lo", "hi")):
        factors = _factors(flow, left, _SCALING.mode(f"T128_4x2_{side}"))
        products = [
            [_products(flow, octet, right, odd, factors) for right in range(2)] for odd in range(2)
        ]
        for upper, name in enumerate(("lo", "hi")):
            mode = _SCALING.mode(f"T16_8x8_{name}")
            columns = [flow.op("vshuffle", "X", *pair, mode) for pair in products]
            for middle, last in enumerate(("lo", "hi")):
                rows = flow.op("vshuffle", "X", *columns, _SCALING.mode(f"T16_2x32_{last}"))
                for part in range(2):
                    access = Access("out", _ROW * (8 * octet + 4 * upper + 2 * middle + part))
                    flow.store(("vst.w",), f"{rows}:{part}", access, "out")
    tile = [_TILE * b + _STORED * g + ROWS // 2 * _ROW * h for b, g, h in turns]
    streams = (
        Stream("scales", "p0", [BLOCK * b + SCALES * g + SCALES // 2 * h for b, g, h in turns]),
        Stream("codes", "p1", tile),
        Stream("out", "p1", tile),
    )
    steps = (
        ("vbcst.16", (_ZEROS, _SCALING[0])),
        ("vbcst.16", (_ONES, _SCALING[_ONE])),
        ("vshuffle", (_ONES, _ONES, _ZEROS, _SCALING.mode("T256_2x2_lo"))),
    )
    return flow.region(
        "scales", streams, _SCALING.constants, preamble=steps, reserved=frozenset({_ZEROS, _ONES}),
        **_FOUND,
    )  # fmt: skip


def _left(flow: Dataflow) -> list[str]:
    """d of 16 rows and what its first and its first two parts of bf16 leave of it. Parts are
    rounded again when they are needed, as there are more accumulators than vectors."""
    left = [flow.value("BM")]
    for part in range(2):
        flow.load_am("scales", 32 * part, "in", left[0], part)
    for _ in range(2):
        first = _twice(flow, left[-1])
        left.append(flow.op("vmsc.f", "BM", left[-1], first, _ONES, _SCALING[LANES]))
    return left


def _twice(flow: Dataflow, lanes: str) -> str:
    """16 lanes of fp32 as bf16, in both halves of a vector."""
    found = flow.value("X")
    for half in range(2):
        flow.into("vconv.bf16.fp32", f"{found}:{half}", lanes)
    return found


def _factors(flow: Dataflow, left: list[str], mode: str) -> list[str]:
    """d2 and d3 of an octet of rows, then d1 and nothing."""
    least = [_twice(flow, left[part]) for part in (1, 2)]
    first = flow.op("vshuffle", "X", *least, mode)
    return [first, flow.op("vshuffle", "X", _twice(flow, left[0]), _ZEROS, mode)]


def _products(flow: Dataflow, octet: int, right: int, odd: int, factors: list[str]) -> str:
    """Four columns of eight rows, whose codes lie in this row of the tile and in the next but
    one."""
    row, place = 8 * octet + 4 * right + odd, 8 * octet + 4 * odd + 2 * right
    codes, result = flow.value("X"), flow.value("X")
    for half in range(2):
        flow.load_part("codes", _ROW * (row + 2 * half), "out", codes, half)
    for half, side in enumerate(("lo", "hi")):
        twice = flow.op("vshuffle", "X", codes, codes, _SCALING.mode(f"T256_2x2_{side}"))
        below = flow.op("vmul.f", "BM", twice, factors[0], _SCALING[LANES], at=place + half)
        total = flow.op("vmac.f", "BM", below, twice, factors[1], _SCALING[LANES])
        flow.into("vconv.bf16.fp32", f"{result}:{half}", total)
    return result
