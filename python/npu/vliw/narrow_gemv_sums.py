"""What products of Q4NX blocks with a vector need before their loops on XDNA1 (gemv_sums.py): X,
the sum of the 32 elements of each group of x, and -128 X, in memory as 16 lanes of fp32 each,
behind y, which goes into its registers."""

from __future__ import annotations

from npu.vliw import gemv_rows, narrow_chains
from npu.vliw.block_values import Numbers
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.gemv_sums import STEPS
from npu.vliw.machine import Machine
from npu.vliw.narrow_chains import LOW, Chains
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

GROUP, S_AT = 192, 64  # bytes of a group; before -128 X, which 32 rows of s follow
_GROUPS, _X = 8, 64  # of a block; bytes of a group of x
BLOCK = _GROUPS * GROUP
_ONE, _MINUS_128 = 0x3F80, 0xC300  # bf16
_POOLS = {LOW: ("x1", "x2"), "X": tuple(f"x{number}" for number in range(3, 12))}
# The first three where narrow_chains.py has them.
_NUMBERS = Numbers(
    LANES, 0, _ONE, _MINUS_128, *range(1, _GROUPS),
    *(SHUFFLES[f"{name}_{side}"] for name in STEPS for side in ("lo", "hi")),
)  # fmt: skip


def region(machine: Machine, blocks: int) -> Region:
    flow = Dataflow(machine, "start")
    gemv_rows.loaded(flow)
    total = _sums(flow)
    chains = Chains(flow)
    minus = chains.product(chains.everywhere([_NUMBERS[_MINUS_128]]), chains.number(total))
    for place, value in ((0, total), (S_AT, minus)):
        vector = flow.op("vmov.x", "X", value)
        for group in range(_GROUPS):
            lanes = flow.op("vextbcst.32", "X", vector, _NUMBERS[group])
            for part in range(2):
                access = Access("sums", GROUP * group + place + 32 * part)
                flow.store(("vst.w",), f"{lanes}:{part}", access, "y")
    streams = (
        Stream("y", "p2", [0] * blocks),
        Stream("x", "p1", [_GROUPS * _X * b for b in range(blocks)]),
        Stream("sums", "p2", [gemv_rows.Y + BLOCK * b for b in range(blocks)]),
    )
    return flow.region(
        "start", streams, _NUMBERS.constants | narrow_chains.CONSTANTS,
        preamble=narrow_chains.PREAMBLE, reserved=narrow_chains.RESERVED, pools=_POOLS,
        interval=gemv_rows.ALONE,
    )  # fmt: skip


def _sums(flow: Dataflow) -> str:
    """Of all groups, a lane each: halves are added to each other, of which vectors join those of
    several groups."""
    totals = [_first(flow, group) for group in range(_GROUPS)]
    for name in STEPS:
        vectors, totals = [flow.op("vmov.x", "X", total) for total in totals], []
        for pair in zip(vectors[::2], vectors[1::2] or vectors, strict=True):
            halves = []
            for side in ("lo", "hi"):
                lanes = flow.op("vshuffle", "X", *pair, _NUMBERS.mode(f"{name}_{side}"))
                halves.append(flow.op("vmov", "BM", lanes))
            totals.append(flow.op("vadd.f", "BM", *halves, _NUMBERS[LANES]))
    return totals[0]


def _first(flow: Dataflow, group: int) -> str:
    """16 sums."""
    halves = []
    for part in range(2):
        x = flow.value("X", partial=True)
        flow.load_part("x", _X * group + 32 * part, "x", x, 0)
        halves.append(flow.op("vconv.fp32.bf16", "BM", f"{x}:0"))
    return flow.op("vadd.f", "BM", *halves, _NUMBERS[LANES])
