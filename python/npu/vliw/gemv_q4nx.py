"""Products of Q4NX blocks with a vector, y += W x (aie_kernels/gemv_q4nx.h): 32 rows, blocks of
256 columns with a bf16 scale d and minimum m per row and group of 32 columns. For each group,
with X the sum of its x (gemv_sums.py), s = -128 X + sum (128 + code) x, then y += d s + m X as
products of fp32 are made (float_products.py).

A turn of the loop is a group. Lanes are rows: codes of the upper and the lower 16 rows meet while
they are packed. As in the C++ kernel, even columns are added to -128 X, odd ones to zero, and both
at the end.
"""

from __future__ import annotations

from npu.vliw import (
    gemv_rows,
    gemv_sums,
    narrow_gemv_q4nx,
    narrow_gemv_sums,
    vector_dataflow,
)
from npu.vliw.block_values import Numbers
from npu.vliw.dataflow import Region, Stream
from npu.vliw.float_products import MINUS_ONE, Floats
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

BLOCK, X = 5120, 256 * 2  # bytes
Y = gemv_rows.Y + max(gemv_sums.BLOCK, narrow_gemv_sums.BLOCK)  # with room for sums of x
_GROUPS, _COLUMNS, _STEP = 8, 32, 8  # of a block; of a group; columns of a load
_PLANE, _SCALES = 512, 64  # bytes of all d or m, of a group's
_CODES_AT, _HALF, _GROUP = 1024, 2048, 256  # bytes before codes, of 16 rows, of their group
_MAGIC, _X_MAGIC = 0x43, "x1"  # high byte of bf16 128
_NEAR = 16  # lanes of x with a register; others come from a vector whose halves are exchanged
_MODES = ("T64_2x8_lo", "T64_2x8_hi", "T8_2x64_lo", "T8_2x64_hi")

# What registers hold in the preamble, then in the loop; there is no room for both.
_FIRST = Numbers(*gemv_sums.NUMBERS, _MAGIC)
_NUMBERS = Numbers(LANES, *range(_NEAR), *(SHUFFLES[name] for name in _MODES))
_RESERVED = frozenset({_X_MAGIC, MINUS_ONE})
# The shortest interval that a longer search found, where that succeeds, and after what patience.
_FOUND = {"interval": 73, "start": 31, "patience": 62, "tail": 45}


def regions(machine: Machine, blocks: int) -> list[Region]:
    """y and the sums of x, the loops over all groups of ``blocks`` blocks of a row, y again."""
    turns = vector_dataflow.turns("gemv_q4nx", blocks, _GROUPS)
    make = _narrow if machine.generation == "npu1" else _wide
    return make(machine, blocks, turns)


def _streams(
    turns: list[tuple[int, ...]], block: int, group: int, minus_at: int
) -> dict[str, Stream]:
    """``block``, ``group``: bytes that these have of sums of x; ``minus_at``: before -128 X."""
    work = [gemv_rows.Y + block * b + group * g for b, g in turns]
    codes = [BLOCK * b + _CODES_AT + _GROUP * g for b, g in turns]
    streams = (
        Stream("planes", "p0", [BLOCK * b + _SCALES * g for b, g in turns]),
        Stream("upper", "p0", codes),
        Stream("lower", "p0", [place + _HALF for place in codes]),
        Stream("x", "p1", [X * b + X // _GROUPS * g for b, g in turns]),
        Stream("sums", "p2", work),
        Stream("minus", "p2", [place + minus_at for place in work]),
    )
    return {stream.name: stream for stream in streams}


def _wide(machine: Machine, blocks: int, turns: list[tuple[int, ...]]) -> list[Region]:
    streams = _streams(turns, gemv_sums.BLOCK, gemv_sums.GROUP, gemv_sums.MINUS_AT)
    flow = Dataflow(machine, "group")
    _turn(flow)
    return [
        gemv_sums.region(
            machine, blocks, _FIRST, {"crrnd": 12, "crunpacksize": 0},
            (("vbcst.8", (_X_MAGIC, _FIRST[_MAGIC])),), _RESERVED,
        ),
        flow.region(
            "group", streams.values(), _NUMBERS.constants, reserved=_RESERVED, **_FOUND
        ),
        gemv_rows.stored(machine, "p2", _RESERVED),
    ]  # fmt: skip


def _narrow(machine: Machine, blocks: int, turns: list[tuple[int, ...]]) -> list[Region]:
    own = narrow_gemv_sums
    streams = _streams(turns, own.BLOCK, own.GROUP, own.S_AT)
    return [
        own.region(machine, blocks),
        *narrow_gemv_q4nx.loops(machine, streams),
        gemv_rows.stored(machine, "p2", frozenset()),
    ]


def _turn(flow: Dataflow) -> None:
    floats = Floats(flow)
    (rows,) = gemv_rows.pinned(flow)
    near = [_part(flow, upper) for upper in (0, 1)]
    d, m = (flow.load("planes", _PLANE * plane, "in") for plane in range(2))
    # X twice: an accumulator does not wait for its last use.
    even, total, again = (_lanes(flow, stream) for stream in ("minus", "sums", "sums"))
    odd = ""
    for column, weights in enumerate(_columns(flow)):
        x = flow.op("vextbcst.16", "X", near[column // _NEAR], _NUMBERS[column % _NEAR])
        if column % 2 == 0:
            even = flow.op("vmac.f.x", "DM", even, weights, x, _NUMBERS[LANES], at=column)
        elif odd:
            odd = flow.op("vmac.f.x", "DM", odd, weights, x, _NUMBERS[LANES], at=column)
        else:
            odd = flow.op("vmul.f.x", "DM", weights, x, _NUMBERS[LANES], at=column)
    s = floats.add(even, odd)
    for factor, value, last in ((d, s, s), (m, total, again)):
        parts = _parts(flow, value, last)
        below = floats.add_product(floats.product(factor, parts[2]), factor, parts[1])
        flow.into("vaddmac.f.x", rows, rows, below, factor, parts[0], _NUMBERS[LANES])


def _parts(flow: Dataflow, value: str, last: str) -> list[str]:
    """Parts of fp32 lanes. What is left waits in accumulators, of which there are more than
    vectors, and is rounded again when it is needed; ``last``: the value when its first part is."""
    left = [value]
    for _ in range(2):
        part = flow.op("vconv.bf16.fp32", "X", f"{left[-1]}:0-1")
        left.append(Floats(flow).add_product(left[-1], part, MINUS_ONE))
    found = [flow.op("vconv.bf16.fp32", "X", f"{v}:0-1") for v in (left[2], left[1], last)]
    return found[::-1]


def _lanes(flow: Dataflow, stream: str) -> str:
    """A number that memory has in 16 lanes, in 32."""
    value = flow.value("DM", partial=True)
    for part in range(2):
        flow.load_bm(stream, 0, "y", value, part)
    return value


def _part(flow: Dataflow, upper: int) -> str:
    """The group's x, its lower or upper half first."""
    found = flow.value("X")
    for part in range(2):
        flow.load_part("x", 32 * (part ^ upper), "x", found, part)
    return found


def _columns(flow: Dataflow) -> list[str]:
    """Vectors of 32 rows as 128 + code, in the order of columns. Codes are loaded for each four of
    them, which takes no vector for longer."""
    found = []
    lower, upper, *interleaves = map(_NUMBERS.mode, _MODES)
    for step in range(_COLUMNS // _STEP):
        for mode in (lower, upper):
            rows = [flow.load(stream, 64 * step, "in") for stream in ("upper", "lower")]
            four = flow.op("vshuffle", "X", *rows, mode)
            for part in range(2):
                two = flow.op("vunpack", "X", f"{four}:{part}", "unpacksign0")
                found += [flow.op("vshuffle", "X", two, _X_MAGIC, m) for m in interleaves]
    return found
