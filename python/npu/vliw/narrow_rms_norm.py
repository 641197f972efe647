"""RMSNorm of a row on XDNA1 (rms_norm.py): 16 lanes of fp32 at a time. Between the loops the mean
is made, a root in scalar registers (software_root.py), which takes longest, and its parts.
"""

from __future__ import annotations

import numpy as np

from npu.vliw import software_root
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import bits
from npu.vliw.machine import Machine
from npu.vliw.narrow_float_products import NarrowFloats
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import SHUFFLES

_SUMS = ("bml8", "bmh8")  # of the squares of 32 elements
_FACTORS = ("x2", "x3")  # the first part of the root, the two others
_MEAN, _ROOT = "r8", "r24"
_UPPER, _FIRST = "r2", "r7"  # a mode of shuffles, lane 0
_SHIFTS = {"r2": 32, "r3": 16, "r4": 8, "r5": 4}  # bytes, by which halves meet
_SIGN, _WIDTH, _LEAST, _ALL, _EPSILON = "r6", "r9", "r10", "r11", "r12"
_RESERVED = NarrowFloats.RESERVED
_ALONE = 160  # cycles of code without a loop, longer than any of its values lives

# The shortest interval with registers for all values that a longer search found, and its order.
_SCALE = (21, 0)


def regions(machine: Machine, elements: int, epsilon: np.float32) -> list[Region]:
    """A row of this many elements, a power of two."""
    return [
        _squares(machine, elements), _mean(machine, elements, epsilon), _inverse_root(machine),
        _parts(machine), _scaling(machine, elements),
    ]  # fmt: skip


def _stream(array: str, step: int, turns: int) -> Stream:
    return Stream(array, array, [step * turn for turn in range(turns)])


def _squares(machine: Machine, elements: int) -> Region:
    """32 elements per turn. A vector has them all, an operation takes those of one half."""
    flow = Dataflow(machine, "squares")
    x = flow.load("p0", 0, "x")
    for register, mode in zip(_SUMS, ("r1", _UPPER), strict=True):
        sums, half = flow.value("BM", register), flow.op("vshuffle", "X", x, "x0", mode)
        flow.into("vmac.f", sums, sums, half, half, "r0")
    constants = NarrowFloats.CONSTANTS | {_UPPER: SHUFFLES["T256_2x2_hi"]}
    clear = tuple(("vconv.fp32.bf16", (register, "wl0")) for register in _SUMS)
    return Region(
        "squares", tuple(flow.nodes), flow.values, {"p0": _stream("p0", 64, elements // 32)},
        constants, preamble=(*NarrowFloats.PREAMBLE, *clear), pinned=flow.pinned, lanes=True,
        reserved=_RESERVED,
    )  # fmt: skip


def _mean(machine: Machine, elements: int, epsilon: np.float32) -> Region:
    """Once: all sums in one lane, divided by a power of two, plus epsilon. A sum so small that the
    quotient is not normal counts as 0."""
    flow = Dataflow(machine, "mean")
    floats = NarrowFloats(flow)
    total = floats.add(*(flow.value("BM", register) for register in _SUMS))
    for shift in _SHIFTS:
        lanes = flow.op("vmov.x", "X", total)
        other = flow.op("vmov", "BM", flow.op("vshift", "X", lanes, lanes, shift))
        total = floats.add(total, other)
    whole = flow.op("vextract.32", "R", flow.op("vmov.x", "X", total), _FIRST)
    divided = flow.op("sub", "R", whole, _WIDTH)
    tiny = flow.op("ashl", "R", flow.op("sub", "R", divided, _LEAST), _SIGN)
    mean = flow.op("and", "R", divided, flow.op("sub", "R", _ALL, tiny))
    sides = [flow.op("vmov", "BM", flow.op("vbcst.32", "X", number)) for number in (mean, _EPSILON)]
    lanes = flow.op("vmov.x", "X", floats.add(*sides))
    flow.into("vextract.32", flow.value("R", _MEAN), lanes, _FIRST)
    numbers = {
        _SIGN: -31, _WIDTH: elements.bit_length() - 1 << 23, _LEAST: 1 << 23, _ALL: -1,
        _EPSILON: bits(epsilon),
    }  # fmt: skip
    return _alone(flow, _SHIFTS | numbers)


def _inverse_root(machine: Machine) -> Region:
    flow = Dataflow(machine, "root")
    root = software_root.inverse_root(flow, flow.value("R", _MEAN))
    flow.into("mov.R.R", flow.value("R", _ROOT), root)
    return _alone(flow, software_root.CONSTANTS, software_root.CYCLES)


def _parts(machine: Machine) -> Region:
    flow = Dataflow(machine, "parts")
    root = flow.op("vmov", "BM", flow.op("vbcst.32", "X", flow.value("R", _ROOT)))
    NarrowFloats(flow).parts(root, [flow.value("X", register) for register in _FACTORS])
    return _alone(flow, {})


def _alone(flow: Dataflow, constants: dict[str, int], interval: int = _ALONE) -> Region:
    return Region(
        flow.nodes[0].name.split()[0], tuple(flow.nodes), flow.values, {}, constants,
        pinned=flow.pinned, partial=frozenset(flow.partial), lanes=True, interval=interval,
        reserved=_RESERVED, pools={"R": software_root.POOL}, patience=1,
    )  # fmt: skip


def _scaling(machine: Machine, elements: int) -> Region:
    """16 elements per turn."""
    flow = Dataflow(machine, "scaling")
    floats = NarrowFloats(flow)
    factors = [flow.value("X", register) for register in _FACTORS]
    scaled = floats.scaled(floats.narrow("p0", 0, "x"), factors)
    weight = floats.loaded("p1", 0, "weight")
    result = floats.multiplied(floats.three(scaled), floats.three(weight))
    floats.stored(result, Access("p2", 0), "y")
    interval, start = _SCALE
    steps = {"p0": 32, "p1": 64, "p2": 32}
    return Region(
        "scaling", tuple(flow.nodes), flow.values,
        {array: _stream(array, step, elements // 16) for array, step in steps.items()}, {},
        pinned=flow.pinned, partial=frozenset(flow.partial), lanes=True, reserved=_RESERVED,
        interval=interval, start=start,
    )  # fmt: skip
