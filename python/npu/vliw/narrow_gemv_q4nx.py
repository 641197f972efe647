"""Products of Q4NX blocks with a vector (gemv_q4nx.py) on XDNA1, in two loops with a turn per
group: s = -128 X + sum (128 + code) x of 32 rows goes to where -128 X was, then y += d s + m X.

Codes of two columns x 16 rows become bf16 in one shuffle, a column in either half of a vector. An
operation on lanes adds the products of both halves; what x of even columns has beside it are zeros
in the upper half, of odd ones in the lower half, so that each column meets a sum of its own.
"""

from __future__ import annotations

from npu.vliw import gemv_rows, narrow_gemv_sums
from npu.vliw.block_values import Numbers
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.narrow_chains import LOW
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

_PLANE, _HALF_ROWS = 512, 32  # bytes of all d or m; of 16 rows of a group's
_PAIRS, _NEAR = 16, 8  # of columns in a group; of those that a load brings
_MAGIC_BYTE, _ONE = 0x43, 0x3F80  # high byte of bf16 128; bf16 1
_MAGIC, _ZEROS = "x0", "x1"
_ONES = "x0"  # in the second loop
_CODES = ("T8_2x64_lo", "T8_2x64_hi")
_SIDES = ("T16_32x2_lo", "T16_32x2_hi")

_NUMBERS = Numbers(
    LANES, *range(_NEAR), _MAGIC_BYTE, *(SHUFFLES[name] for name in (*_CODES, *_SIDES))
)
_LAST = Numbers(LANES, 0, _ONE)
_LOW = ("x1", "x2", "x3", "x4", "x5")
_POOLS = {LOW: _LOW, "X": tuple(f"x{n}" for n in range(6, 12))}


def loops(machine: Machine, streams: dict[str, Stream]) -> list[Region]:
    """Both. ``streams``: planes, upper, lower, x, sums, minus (gemv_q4nx.py)."""
    return [_codes(machine, streams), _scales(machine, streams)]


def _codes(machine: Machine, streams: dict[str, Stream]) -> Region:
    flow = Dataflow(machine, "codes")
    even = [_loaded(flow, "minus", 0) for _ in range(2)]
    odd = ["", ""]
    codes: list[list[str]] = []
    for pair in range(_PAIRS):
        if pair % 2 == 0:
            codes = [_widened(flow, half, 16 * pair) for half in ("upper", "lower")]
        if pair % _NEAR == 0:
            near = flow.value("X", partial=True)
            flow.load_part("x", 4 * pair, "x", near, 0)
        x = flow.op("vextbcst.32", "X", near, _NUMBERS[pair % _NEAR])
        left = flow.op("vshuffle", "X", x, _ZEROS, _NUMBERS.mode(_SIDES[0]))
        right = flow.op("vshuffle", "X", _ZEROS, x, _NUMBERS.mode(_SIDES[1]))
        for half in range(2):
            columns, place = codes[half][pair % 2], 4 * pair + half
            even[half] = _added(flow, even[half], columns, left, place)
            odd[half] = _added(flow, odd[half], columns, right, place + 2)
    for half in range(2):
        total = flow.op("vadd.f", "BM", even[half], odd[half], _NUMBERS[LANES])
        for part in range(2):
            place = narrow_gemv_sums.S_AT + 64 * half + 32 * part
            flow.store(("vst.am",), f"{total}:{part}", Access("s", place), "y")
    of = {name: streams[name] for name in ("upper", "lower", "x", "minus")}
    s = Stream("s", "p2", streams["sums"].bases)
    constants = _NUMBERS.constants | {"crunpacksign": 0, "crunpacksize": 0}
    steps = (("vbcst.8", (_MAGIC, _NUMBERS[_MAGIC_BYTE])), ("vbcst.8", (_ZEROS, _NUMBERS[0])))
    return flow.region(
        "codes", (*of.values(), s), constants, preamble=steps,
        reserved=frozenset({_MAGIC, _ZEROS}), tail=20,
    )  # fmt: skip


def _widened(flow: Dataflow, half: str, offset: int) -> list[str]:
    """Four columns of 16 rows, two in a vector, as 128 + code."""
    raw = flow.value("X", partial=True)
    flow.load_part(half, offset, "in", raw, 0)
    bytes_ = flow.op("vunpack", "X", f"{raw}:0")
    return [flow.op("vshuffle", "X", bytes_, _MAGIC, _NUMBERS.mode(name)) for name in _CODES]


def _added(flow: Dataflow, total: str, a: str, b: str, at: int) -> str:
    if total:
        return flow.op("vmac.f", "BM", total, a, b, _NUMBERS[LANES], at=at)
    return flow.op("vmul.f", "BM", a, b, _NUMBERS[LANES], at=at)


def _loaded(flow: Dataflow, stream: str, offset: int) -> str:
    """16 lanes of fp32."""
    found = flow.value("BM")
    for part in range(2):
        flow.load_am(stream, offset + 32 * part, "y", found, part)
    return found


def _scales(machine: Machine, streams: dict[str, Stream]) -> Region:
    flow = Dataflow(machine, "scales")
    total = _parts(flow, _loaded(flow, "sums", 0))
    for half, rows in enumerate(gemv_rows.pinned(flow)):
        place = narrow_gemv_sums.S_AT + 64 * half
        s = _parts(flow, _loaded(flow, "sums", place))
        for plane, (first, others) in enumerate((s, total)):
            factor = flow.value("X")
            for part in range(2):
                flow.load_part("planes", _PLANE * plane + _HALF_ROWS * half, "in", factor, part)
            below = flow.op("vmul.f", "BM", factor, others, _LAST[LANES])
            flow.into("vaddmac.f", rows, rows, below, factor, first, _LAST[LANES])
    steps = (
        ("vbcst.16", (_ONES, _LAST[_ONE])),
        *(("vbcst.16", (register, _LAST[0])) for register in _LOW),
    )
    return flow.region(
        "scales", (streams["planes"], streams["sums"]), _LAST.constants, preamble=steps,
        reserved=frozenset({_ONES}), pools=_POOLS,
    )  # fmt: skip


def _parts(flow: Dataflow, value: str) -> tuple[str, str]:
    """The first part of fp32 lanes, beside zeros, and the two others."""
    others, left = flow.value("X"), value
    for part in range(2):
        left = flow.op("vmsc.f", "BM", left, _rounded(flow, left), _ONES, _LAST[LANES])
        flow.into("vconv.bf16.fp32", f"{others}:{part}", left)
    return _rounded(flow, value), others


def _rounded(flow: Dataflow, lanes: str) -> str:
    found = flow.value(LOW, partial=True)
    flow.into("vconv.bf16.fp32", f"{found}:0", lanes)
    return found
