"""Weights of Q4NX blocks as bfloat16, w = m + d code (aie_kernels/dequant_q4nx.cc): blocks of 32
rows x 256 columns, a bf16 scale d and minimum m per row and group of 32 columns (q4nx_block.h), to
row-major tiles.

A turn of the loop is a group's 16 rows x 32 columns. Codes are regrouped while they are packed: 16
columns of four rows are 32 bytes. Widened, they are two vectors of 8 columns x 4 rows, for which
the four scales repeat, and after the arithmetic one transposition makes rows of 16 columns of them,
32 bytes per store.

128 + code is a bf16 with the code as its low byte, and -128 d + (128 + code) d is d code exactly,
as the C++ kernel has it, for |d| < 2^120; then m is added in fp32 and the sum rounded to bf16, once
each, as there. On XDNA1 an operation on lanes of fp32 takes half a vector and sums two products:
the scales are in the half that counts, zeros in the other.
"""

from __future__ import annotations

from npu.vliw import vector_dataflow
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

BLOCK, TILE = 5120, 32 * 256 * 2  # bytes
_PLANES, _GROUP, _GROUPS = 512, 256, 8  # of d and of m; codes of half a group; groups
_ROW = 256 * 2  # of the tile
_CODES_AT, _HALF = 2 * _PLANES, _GROUPS * _GROUP  # codes of the upper 16 rows
_ROWS, _QUADS, _PAIRS = 16, 4, 2  # of a turn: rows, four at a time, 16 columns at a time

# The shortest interval with registers for all values among some 500 orders of each, and its order.
_FOUND = {"npu1": (76, 20), "npu2": (49, 9)}

_MAGIC, _MINUS_128, _ONE = 0x43, 0xC300, 0x3F80  # high byte of bf16 128; bf16
_CONSTANTS = {"r0": LANES, "crrnd": 12, "crunpacksign": 0, "crunpacksize": 0}
_SHUFFLES = {
    "r1": "T16_16x4_lo", "r2": "T16_16x4_hi", "r3": "T8_2x64_lo", "r4": "T8_2x64_hi",
    "r5": "T256_2x2_lo",
}  # fmt: skip
_INDEX = 6  # r6 .. r13: the four quads of d, then of m
_X_MAGIC, _X_MINUS, _X_OTHER = "x0", "x1", "x2"  # the last: zeros on XDNA1, ones on XDNA2


def regions(machine: Machine, blocks: int) -> list[Region]:
    """The loop over all groups and halves of ``blocks`` blocks."""
    turns = vector_dataflow.turns("dequant_q4nx", blocks, _GROUPS, 2)
    codes = [BLOCK * b + _CODES_AT + _HALF * h + _GROUP * g for b, g, h in turns]
    streams = (
        Stream("planes", "p0", [BLOCK * b + 64 * g + 32 * h for b, g, h in turns]),
        Stream("codes", "p0", codes),
        Stream("out", "p1", [TILE * b + _ROWS * _ROW * h + 64 * g for b, g, h in turns]),
    )
    flow = Dataflow(machine)
    _turn(flow)
    constants = {f"r{_INDEX + n}": n for n in range(2 * _QUADS)} | _CONSTANTS
    constants |= {register: SHUFFLES[name] for register, name in _SHUFFLES.items()}
    other = 0 if machine.generation == "npu1" else _ONE
    interval, start = _FOUND[machine.generation]
    numbers = {"r14": _MAGIC, "r15": _MINUS_128, "r24": other}
    preamble: list[tuple[str, tuple[str, ...]]] = [
        ("vbcst.8", (_X_MAGIC, "r14")),
        ("vbcst.16", (_X_MINUS, "r15")),
        ("vbcst.16", (_X_OTHER, "r24")),
    ]
    reserved = {_X_MAGIC, _X_MINUS, _X_OTHER}
    if flow.npu1:  # zeros in the lower half, -128 in the upper one
        preamble.append(("vshuffle", (_X_MINUS, _X_OTHER, _X_MINUS, "r5")))
        reserved.remove(_X_OTHER)
    return [
        flow.region(
            "16x32", streams, constants | numbers, preamble=tuple(preamble),
            reserved=frozenset(reserved), interval=interval, start=start,
        )
    ]  # fmt: skip


def _turn(flow: Dataflow) -> None:
    for quad in range(_QUADS):
        if quad % 2 == 0:
            packed = [_packed(flow, pair, quad // 2) for pair in range(_PAIRS)]
        scales, minus, minima = _factors(flow, quad)
        for pair in range(_PAIRS):
            sums = _sums(flow, f"{packed[pair]}:{quad % 2}", scales, minus, minima)
            for upper, mode in enumerate(("r1", "r2")):
                rows = flow.op("vshuffle", "X", *sums, mode)
                for part in range(2):
                    row = _QUADS * quad + 2 * upper + part
                    access = Access("out", _ROW * row + 32 * pair)
                    flow.store(("vst.w",), f"{rows}:{part}", access, "out")


def _packed(flow: Dataflow, pair: int, upper: int) -> str:
    """Codes of 16 columns: those of four rows, 32 bytes, then of the next four."""
    raw = [flow.load("codes", 128 * pair + 64 * number, "in") for number in range(2)]
    return flow.op("vshuffle", "X", *raw, "r2" if upper else "r1")


def _factors(flow: Dataflow, quad: int) -> tuple[list[str], str, str]:
    """d of four rows, for each half of a vector, and -128 d and m as fp32."""
    planes = flow.value("X")
    for part in range(2):
        flow.load_part("planes", _PLANES * part, "in", planes, part)
    d = flow.op("vextbcst.64", "X", planes, f"r{_INDEX + quad}")
    m = flow.op("vextbcst.64", "X", planes, f"r{_INDEX + _QUADS + quad}")
    if flow.npu1:
        low = flow.op("vshuffle", "X", d, _X_MINUS, "r5")
        high = flow.op("vshuffle", "X", _X_MINUS, d, "r5")
        minus = flow.op("vmul.f", "BM", high, _X_MINUS, "r0")
        return [low, high], minus, flow.op("vconv.fp32.bf16", "BM", f"{m}:0")
    minus = flow.op("vmul.f.x", "DM", d, _X_MINUS, "r0")
    return [d], minus, flow.op("vmul.f.x", "DM", m, _X_OTHER, "r0")


def _sums(flow: Dataflow, codes: str, scales: list[str], minus: str, minima: str) -> list[str]:
    """Two vectors of 8 columns x 4 rows."""
    sign = [] if flow.npu1 else ["unpacksign0"]
    wide = flow.op("vunpack", "X", codes, *sign)
    found = []
    for mode in ("r3", "r4"):
        columns = flow.op("vshuffle", "X", wide, _X_MAGIC, mode)
        result = flow.value("X")
        for half, scale in enumerate(scales):
            multiply, kind = ("vmac.f", "BM") if flow.npu1 else ("vmac.f.x", "DM")
            product = flow.op(multiply, kind, minus, columns, scale, "r0")
            total = flow.op("vadd.f", kind, product, minima, "r0")
            place, of = (f"{result}:{half}", total) if flow.npu1 else (result, f"{total}:0-1")
            flow.into("vconv.bf16.fp32", place, of)
        found.append(result)
    return found
