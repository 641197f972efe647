"""Softmax of a block of eight rows on XDNA1 (softmax.py), whose powers are polynomials
(aie_kernels/exp.h): 16 scores at a time, two positions, which take turns in two maxima and two
sums per row.

2^x is a cubic of the fraction f times 2^n. n enters the exponent after the rounding to bf16, which
it does not change: added to 1.5 * 2^16, n is in bits 7 and higher. Below -126 the power is 0: x
becomes -127 there, whose cubic rounds to 1. The tiles are transposed in a loop of their own.
"""

from __future__ import annotations

import numpy as np

from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import bits, constant_parts
from npu.vliw.machine import Machine
from npu.vliw.narrow_chains import (
    CONFIGURATION,
    CONSTANTS,
    LOW,
    MASKS,
    ONE,
    PREAMBLE,
    RESERVED,
    ZERO,
    Chains,
    coefficients,
)
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import SHUFFLES

_LANES = 16
_SCORES, _WEIGHTS = 4 * _LANES, 2 * _LANES  # bytes of a vector
_ROWS = 32  # bytes of eight fp32 numbers

# As in exp.h, coefficients of 1, x, x^2, x^3.
_EXP2 = tuple(
    np.float32(float.fromhex(c))
    for c in ("0x1.fff692p-1", "0x1.62f31ap-1", "0x1.f0de1ap-3", "0x1.c3f76p-5")
)

_LARGEST, _LARGEST_SUMS = ("x9", "x10"), ("bml8", "bmh8")  # in both files
_TOP, _TOTALS = "bml7", ("bml8", "bmh8")
_NONE = "x11"  # zeros
_RESERVED = RESERVED | {_NONE}
_SCALING_POOLS = {LOW: tuple(f"x{n}" for n in range(1, 6)), "X": ("x6", "x7", "x8")}
_POOLS = {
    LOW: tuple(f"x{n}" for n in range(1, 6)),
    "X": tuple(f"x{n}" for n in range(6, 11)),
    "R": MASKS,
}

_SCALE, _NOTHING = ("r3", "r4", "r5"), "r6"
_HALF = ("r7", 32)  # bytes of half a vector
_MAGIC = {"r8": bits(np.float32(2**23)), "r9": bits(np.float32(-(2**23))), "r10": 0x3F800000}
_CUBE, _REST = ("r3", "r4", "r5"), ("r6", "r8", "r9")  # in the second loop; the others falling
_WHOLE, _EXPONENT, _SIGN, _LEAST, _BELOW, _LOWER = "r10", "r11", "r12", "r13", "r14", "r15"
_SECOND = {
    _WHOLE: bits(np.float32(1.5 * 2**23)), _EXPONENT: bits(np.float32(1.5 * 2**16)),
    _SIGN: -(2**31), _LEAST: bits(np.float32(-126)), _BELOW: bits(np.float32(-127)),
    _LOWER: SHUFFLES["T16_32x2_lo"],
}  # fmt: skip
_TURNED = {"r24": "T16_16x4_lo", "r25": "T16_16x4_hi", "r26": "T16_32x2_lo", "r27": "T16_32x2_hi"}
_ALONE = 160  # cycles of code without a loop, longer than any of its values lives

# The shortest intervals with registers for all values that longer searches found, and their orders.
_SCALING, _WEIGHING, _TURNING = (20, 0), (91, 0), (8, 0)


def regions(
    machine: Machine, positions: int, scale: np.float32, nothing: np.float32
) -> list[Region]:
    """A chunk of ``positions``; ``nothing``: the maximum of no scores."""
    return [
        _scaling(machine, positions, scale, nothing), _maxima(machine, positions),
        _weighing(machine, positions), _turning(machine, positions), _sums(machine, positions),
    ]  # fmt: skip


def _streams(step: int, turns: int, *names: str, array: str) -> list[Stream]:
    bases = [step * turn for turn in range(turns)]
    return [Stream(name, array, bases) for name in names]


def _loaded(flow: Dataflow, stream: str, offset: int) -> str:
    """16 scores."""
    value = flow.value("BM")
    for part in range(2):
        flow.load_am(stream, offset + 32 * part, "scores", value, part)
    return value


def _larger(flow: Dataflow, sums: tuple[str, str], vectors: tuple[str, str]) -> str:
    """The larger lanes of two vectors, which are in accumulators as well: the second one's where
    their difference is negative."""
    mask = _less(flow, *sums)
    return flow.op("vsel.32", "X", *vectors, mask)


def _less(flow: Dataflow, a: str, b: str) -> str:
    sign = flow.op("vmov.x", "X", flow.op("vsub.f", "BM", a, b, CONFIGURATION))
    return flow.op("vlt.32", "R", sign, _NONE)


def _accumulated(flow: Dataflow, vector: str) -> str:
    return flow.op("vmov", "BM", vector)


def _scaling(machine: Machine, positions: int, scale: np.float32, nothing: np.float32) -> Region:
    """Four positions per turn."""
    flow = Dataflow(machine, "scaling")
    chains = Chains(flow)
    for half in range(2):
        largest = flow.value("X", _LARGEST[half])
        summed = flow.value("BM", _LARGEST_SUMS[half])
        score = chains.number(_loaded(flow, "scores", half * _SCORES))
        scaled = chains.product(score, chains.everywhere(_SCALE))
        for part in range(2):
            place = Access("scaled", half * _SCORES + 32 * part)
            flow.store(("vst.am",), f"{scaled}:{part}", place, "scores")
        lanes = flow.op("vmov.x", "X", scaled)
        flow.into("vsel.32", largest, largest, lanes, _less(flow, summed, scaled))
        flow.into("vmov", summed, largest)
    constants = CONSTANTS | {ZERO: 0, ONE: 0x3F80, _NOTHING: bits(nothing)}
    constants |= dict(zip(_SCALE, constant_parts(scale), strict=True))
    start: list[tuple[str, tuple[str, ...]]] = list(PREAMBLE)
    for vector, sums in zip(_LARGEST, _LARGEST_SUMS, strict=True):
        start += [("vbcst.32", (vector, _NOTHING)), ("vmov", (sums, vector))]
    interval, order = _SCALING
    return flow.region(
        "scaling", _streams(2 * _SCORES, positions // 4, "scores", "scaled", array="p0"), constants,
        preamble=tuple(start), reserved=_RESERVED, pools=_SCALING_POOLS | {"R": MASKS},
        interval=interval, start=order,
    )  # fmt: skip


def _alone(flow: Dataflow, name: str, place: int, constants: dict[str, int]) -> Region:
    """Code that runs once and stores eight numbers."""
    return flow.region(
        name,
        [Stream("p1", "p1", [place])],
        constants,
        reserved=_RESERVED,
        pools=_POOLS,
        interval=_ALONE,
        patience=1,
    )


def _maxima(machine: Machine, positions: int) -> Region:
    """Once: the largest of each row, rounded up, twice in an accumulator."""
    flow = Dataflow(machine, "maxima")
    x, y = (flow.value("X", register) for register in _LARGEST)
    a, b = (flow.value("BM", register) for register in _LARGEST_SUMS)
    half = _larger(flow, (a, b), (x, y))
    other = flow.op("vshift", "X", half, half, _HALF[0])
    best = _larger(flow, (_accumulated(flow, half), _accumulated(flow, other)), (half, other))

    above, below, one = (flow.op("vbcst.32", "X", register) for register in _MAGIC)
    magic = flow.op("vsel.32", "X", above, below, flow.op("vlt.32", "R", best, _NONE))
    row, magic_sum = _accumulated(flow, best), _accumulated(flow, magic)
    shifted = flow.op("vadd.f", "BM", row, magic_sum, CONFIGURATION)
    nearest = flow.op("vsub.f", "BM", shifted, magic_sum, CONFIGURATION)
    up = flow.op("vadd.f", "BM", nearest, _accumulated(flow, one), CONFIGURATION)
    near, over = (flow.op("vmov.x", "X", value) for value in (nearest, up))
    whole = flow.op("vsel.32", "X", near, over, _less(flow, nearest, row))
    flow.into("vmov", flow.value("BM", _TOP), whole)
    flow.store(("vst.w",), f"{whole}:0", Access("p1", 0), "out")
    return _alone(flow, "maxima", positions * 16, dict([_HALF]) | _MAGIC)


def _weighing(machine: Machine, positions: int) -> Region:
    """Four positions per turn; weights as the scores are."""
    flow = Dataflow(machine, "weighing")
    chains = Chains(flow)
    top = flow.value("BM", _TOP)
    for half in range(2):
        total = flow.value("BM", _TOTALS[half])
        score = _loaded(flow, "p0", half * _SCORES)
        weight = _power(flow, chains, flow.op("vsub.f", "BM", score, top, CONFIGURATION))
        flow.store(("vst.w",), f"{weight}:0", Access("p1", half * _WEIGHTS), "out")
        wide = flow.op("vconv.fp32.bf16", "BM", f"{weight}:0")
        flow.into("vadd.f", total, total, wide, CONFIGURATION)
    interval, order = _WEIGHING
    turns = positions // 4
    return flow.region(
        "weighing",
        [
            *_streams(2 * _SCORES, turns, "p0", array="p0"),
            *_streams(2 * _WEIGHTS, turns, "p1", array="p1"),
        ],
        coefficients(_CUBE, _REST, _EXP2) | _SECOND,
        preamble=tuple(("vconv.fp32.bf16", (total, f"wl{_NONE[1:]}")) for total in _TOTALS),
        reserved=_RESERVED, pools=_POOLS, interval=interval, start=order,
    )  # fmt: skip


def _power(flow: Dataflow, chains: Chains, x: str) -> str:
    """2^x of 16 lanes as bf16, in the lower half."""
    lanes = flow.op("vmov.x", "X", x)
    negative = flow.op("vbor", "X", lanes, flow.op("vbcst.32", "X", _SIGN))
    least, below = (flow.op("vbcst.32", "X", register) for register in (_LEAST, _BELOW))
    mask = flow.op("vlt.32", "R", least, negative)  # of negative numbers the larger is less
    limited = _accumulated(flow, flow.op("vsel.32", "X", lanes, below, mask))
    shifted = flow.op("vadd.f", "BM", limited, chains.constant(_WHOLE), CONFIGURATION)
    whole = flow.op("vsub.f", "BM", shifted, chains.constant(_WHOLE), CONFIGURATION)
    fraction = chains.number(flow.op("vsub.f", "BM", limited, whole, CONFIGURATION))
    exponent = flow.op("vadd.f", "BM", whole, chains.constant(_EXPONENT), CONFIGURATION)
    moved = flow.op("vmov.x", "X", exponent)
    square, *others = _REST
    first = chains.product(fraction, chains.everywhere(_CUBE), chains.constant(square))
    power = chains.rounded(chains.polynomial(fraction, chains.number(first), others))
    return flow.op("vadd.16", "X", power, flow.op("vshuffle", "X", moved, moved, _LOWER))


def _turning(machine: Machine, positions: int) -> Region:
    """A tile per turn, in place."""
    flow = Dataflow(machine, "turning")
    halves = [flow.load("given", 64 * half, "out") for half in range(2)]
    modes = list(_TURNED)
    pairs = [flow.op("vshuffle", "X", *halves, mode) for mode in modes[:2]]
    for half, mode in enumerate(modes[2:]):
        rows = flow.op("vshuffle", "X", *pairs, mode)
        for part in range(2):
            place = Access("turned", 64 * half + 32 * part)
            flow.store(("vst.w",), f"{rows}:{part}", place, "out")
    interval, order = _TURNING
    return flow.region(
        "turning",
        _streams(128, positions // 8, "given", "turned", array="p1"),
        {register: SHUFFLES[name] for register, name in _TURNED.items()},
        reserved=_RESERVED,
        interval=interval,
        start=order,
    )


def _sums(machine: Machine, positions: int) -> Region:
    """Once: four sums of each row."""
    flow = Dataflow(machine, "sums")
    totals = (flow.value("BM", register) for register in _TOTALS)
    total = flow.op("vadd.f", "BM", *totals, CONFIGURATION)
    lanes = flow.op("vmov.x", "X", total)
    other = _accumulated(flow, flow.op("vshift", "X", lanes, lanes, _HALF[0]))
    result = flow.op("vmov.x", "X", flow.op("vadd.f", "BM", total, other, CONFIGURATION))
    flow.store(("vst.w",), f"{result}:0", Access("p1", 0), "out")
    return _alone(flow, "sums", positions * 16 + _ROWS, dict([_HALF]))
