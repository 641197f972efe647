"""The inner loop of products of Q4NX blocks with a vector (multiply_codes of
aie_kernels/gemv_q4nx.h, XDNA2): for each group of 32 columns s = -128 X + sum (128 + code) x, for
32 rows. What makes X, the sum of the group's x, and what adds d s + m X are not part of it.

A turn of the loop is a group. Lanes are rows: codes of the upper and the lower 16 rows meet while
they are packed. As in the C++ kernel, even columns are added to the sum that memory has, odd ones
to zero, and both at the end.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

BLOCK, X, WORK = 5120, 256 * 2, 8 * 64 * 4  # bytes; of the last, 32 s and 32 X per group, in fp32
_GROUPS, _COLUMNS, _STEP = 8, 32, 8  # of a block; of a group; columns of a load
_CODES_AT, _HALF, _GROUP = 1024, 2048, 256  # bytes before codes, of 16 rows, of their group
_MAGIC = 0x43  # high byte of bf16 128
_X_MAGIC = "x0"
_SHUFFLES = {
    "r24": "T64_2x8_lo", "r25": "T64_2x8_hi", "r26": "T8_2x64_lo", "r27": "T8_2x64_hi",
}  # fmt: skip
_CONFIGURATION, _NUMBER = "r28", "r29"
_NEAR = 16  # r0 .. r15 are lanes of x; the upper ones come from a vector whose halves are exchanged


def regions(machine: Machine, blocks: int) -> list[Region]:
    """The loop over all groups of ``blocks`` blocks, each with an x and sums of its own."""
    if not isinstance(blocks, int) or isinstance(blocks, bool) or blocks < 1:
        raise ShapeError(f"[gemv_q4nx] blocks is {blocks!r}: give 1 or more")
    turns = [(b, g) for b in range(blocks) for g in range(_GROUPS)]
    codes = [BLOCK * b + _CODES_AT + _GROUP * g for b, g in turns]
    sums = [WORK * b + WORK // _GROUPS * g for b, g in turns]
    streams = {
        "upper": Stream("upper", "p0", codes),
        "lower": Stream("lower", "p0", [place + _HALF for place in codes]),
        "x": Stream("x", "p1", [X * b + X // _GROUPS * g for b, g in turns]),
        "before": Stream("before", "p2", sums),
        "after": Stream("after", "p2", sums),
    }
    flow = Dataflow(machine)
    _turn(flow)
    constants = {f"r{lane}": lane for lane in range(_NEAR)} | {_CONFIGURATION: LANES}
    constants |= {register: SHUFFLES[name] for register, name in _SHUFFLES.items()}
    constants |= {_NUMBER: _MAGIC, "crunpacksize": 0}
    preamble = (("vbcst.8", (_X_MAGIC, _NUMBER)),)
    return [
        Region(
            "group", tuple(flow.nodes), flow.values, streams, constants, preamble=preamble,
            reserved=frozenset({_X_MAGIC}), lanes=True,
        )
    ]  # fmt: skip


def _turn(flow: Dataflow) -> None:
    near = [_part(flow, upper) for upper in (0, 1)]
    even, odd = flow.value("DM"), ""
    for part in range(4):
        flow.load_bm("before", 64 * part, "work", even, part)
    for column, weights in enumerate(_columns(flow)):
        lane = f"r{column % _NEAR}"
        x = flow.op("vextbcst.16", "X", near[column // _NEAR], lane)
        if column % 2 == 0:
            even = flow.op("vmac.f.x", "DM", even, weights, x, _CONFIGURATION, at=column)
        elif odd:
            odd = flow.op("vmac.f.x", "DM", odd, weights, x, _CONFIGURATION, at=column)
        else:
            odd = flow.op("vmul.f.x", "DM", weights, x, _CONFIGURATION, at=column)
    total = flow.op("vadd.f", "DM", even, odd, _CONFIGURATION)
    for part in range(2):
        access = Access("after", 64 * part)
        flow.store(("vst.bm",), f"{total}:{part}", access, "work")


def _part(flow: Dataflow, upper: int) -> str:
    """The group's x, its lower or upper half first."""
    found = flow.value("X")
    for part in range(2):
        flow.load_part("x", 32 * (part ^ upper), "x", found, part)
    return found


def _columns(flow: Dataflow) -> list[str]:
    """Vectors of 32 rows as 128 + code, in the order of columns."""
    found = []
    for step in range(_COLUMNS // _STEP):
        rows = [flow.load(stream, 64 * step, "in") for stream in ("upper", "lower")]
        for mode in ("r24", "r25"):
            four = flow.op("vshuffle", "X", *rows, mode)
            for part in range(2):
                two = flow.op("vunpack", "X", f"{four}:{part}", "unpacksign0")
                found += [flow.op("vshuffle", "X", two, _X_MAGIC, m) for m in ("r26", "r27")]
    return found
