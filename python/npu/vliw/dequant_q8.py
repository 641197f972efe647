"""Weights of 8-bit blocks (q8_blocks.py) as bfloat16, w = d code (aie_kernels/dequant_q8.cc), to
row-major tiles. For XDNA1: narrow_dequant_q8.py.

A turn of the loop is a group, 32 rows x 16 columns. Codes are regrouped as bytes: 16 columns of
four rows are 64. As mantissas of BFP16 they become fp32 (block_values.py), then bf16, two vectors
of 8 columns x 4 rows, for which the four scales repeat; after the arithmetic one transposition
makes rows of 16 columns of them, 32 bytes per store.

d is d1 + d2 + d3 of bf16, each the nearest to what is left. With sums in fp32, d3 code and d2 code
are exact together and d1 code rounds once, as the product of fp32 in the C++ kernel does: for d
whose parts are bf16, which all are from 2^-110 up to the largest bf16, and 0.
"""

from __future__ import annotations

from npu.vliw import block_values, narrow_dequant_q8, q8_blocks
from npu.vliw.block_values import Blocks, Numbers
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.vector_operations import LANES, SHUFFLES

TILE = 32 * 128 * 2  # bytes
_ROW, _STORED = 128 * 2, 32  # bytes of the tile: of a row, of a group of one
_OCTETS = 4  # of rows

# The shortest interval for which a longer search found registers, and where that one succeeds.
_INTERVAL, _START, _PATIENCE = 106, 4, 60

_MODES = (
    "T128_4x2_lo", "T128_4x2_hi", "T64_8x2_lo", "T64_8x2_hi", "T32_16x2_lo", "T32_16x2_hi",
    "T16_16x4_lo", "T16_16x4_hi",
)  # fmt: skip
_NUMBERS = Numbers(LANES, *range(8), *(SHUFFLES[name] for name in _MODES), *block_values.NUMBERS)


def regions(machine: Machine, blocks: int) -> list[Region]:
    """The loop over all groups of ``blocks`` blocks, on XDNA1 two."""
    if machine.generation == "npu1":
        return narrow_dequant_q8.regions(machine, blocks)
    turns = q8_blocks.turns("dequant_q8", blocks)
    out = Stream("out", "p1", [TILE * block + _STORED * group for block, group in turns])
    streams = (*q8_blocks.streams(turns), out)
    flow = Blocks(machine, _NUMBERS)
    _turn(flow)
    return [
        flow.region(
            "group", streams, _NUMBERS.constants | {"crrnd": 12}, interval=_INTERVAL, start=_START,
            patience=_PATIENCE, preamble=block_values.preamble(_NUMBERS),
            reserved=block_values.RESERVED,
        )
    ]  # fmt: skip


def _turn(flow: Blocks) -> None:
    for octet in range(_OCTETS):
        if octet % 2 == 0:
            larger, least = _parts(flow, octet // 2)
        eights = [_eight(flow, side, octet) for side in range(2)]
        for half, mode in enumerate(("T32_16x2_lo", "T32_16x2_hi")):
            quad = 2 * octet + half
            codes = flow.op("vshuffle", "X", *eights, _NUMBERS.mode(mode))
            factors = [
                flow.op("vextbcst.64", "X", parts, _NUMBERS[quad % 4 + upper])
                for parts, upper in ((least, 0), (larger, 4), (larger, 0))
            ]
            products = [_product(flow, narrow, factors) for narrow in flow.widened(codes)]
            for pair, name in enumerate(("T16_16x4_lo", "T16_16x4_hi")):
                rows = flow.op("vshuffle", "X", *products, _NUMBERS.mode(name))
                for part in range(2):
                    access = Access("out", _ROW * (4 * quad + 2 * pair + part))
                    flow.store(("vst.w",), f"{rows.partition(':')[0]}:{part}", access, "out")


def _parts(flow: Blocks, half: int) -> tuple[str, str]:
    """d1 and d2 of 16 rows in the halves of a vector, d3 in one half of another. What is left waits
    in accumulators, of which there are enough, and is rounded again when it is needed."""
    left = [flow.value("DM", partial=True)]
    flow.load_bm("scales", 64 * half, "in", left[0], 0)
    for _ in range(2):
        part = flow.value("X").partition(":")[0]
        flow.into("vconv.bf16.fp32.w", f"{part}:0", f"{left[-1]}:0")
        wide = flow.value("DM", partial=True)
        flow.into("vconv.fp32.bf16.w", f"{wide}:0", f"{part}:0")
        left.append(flow.op("vsub.f", "DM", left[-1], wide, _NUMBERS[LANES]))
    both, least = (flow.value("X").partition(":")[0] for _ in range(2))
    for place, rest in zip((f"{both}:0", f"{both}:1", f"{least}:0"), left, strict=True):
        flow.into("vconv.bf16.fp32.w", place, f"{rest}:0")
    return f"{both}:0-1", f"{least}:0-1"


def _eight(flow: Blocks, side: int, octet: int) -> str:
    """Codes of eight columns of an octet of rows."""
    outer, inner = ("lo", "hi")[octet // 2], ("lo", "hi")[octet % 2]
    fours = []
    for four in range(2):
        raw = [flow.codes("codes", 256 * side + 128 * four + 64 * n, "in") for n in range(2)]
        fours.append(flow.op("vshuffle", "X", *raw, _NUMBERS.mode(f"T128_4x2_{outer}")))
    return flow.op("vshuffle", "X", *fours, _NUMBERS.mode(f"T64_8x2_{inner}"))


def _product(flow: Blocks, narrow: str, factors: list[str]) -> str:
    """Eight columns of four rows, times their scales."""
    total = flow.op("vmul.f.x", "DM", narrow, factors[0], _NUMBERS[LANES])
    for factor in factors[1:]:
        total = flow.op("vmac.f.x", "DM", total, narrow, factor, _NUMBERS[LANES])
    return flow.op("vconv.bf16.fp32", "X", f"{total}:0-1")
