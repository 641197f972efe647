"""RMSNorm of a row on XDNA2, y = x / sqrt(mean(x^2) + epsilon) * weight (aie_kernels/norm.h): two
loops, with a reduction and a root between them.

The first loop adds the squares of 32 elements per turn to as many sums, which stay in one register:
a turn waits for the one before. The sums are added by halves, the mean is the sum times a power of
two, and the inverse root of mean + epsilon stays in registers as three parts of bf16. In the second
loop x times the root is rounded to fp32 and multiplied by the weight, also fp32, in six products of
bf16 parts (float_products.py).
"""

from __future__ import annotations

import numpy as np

from npu.errors import ShapeError
from npu.vliw import narrow_rms_norm
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import CONSTANTS, Floats, bits, cleared
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow

EPSILON = 1e-6
CHUNK = 128  # elements, as the chunks of aie_kernels/rms_norm.cc
X, WEIGHT = 2 * CHUNK, 4 * CHUNK  # bytes
_STEP = 32  # elements of a turn
_SUMS = "dm4"  # of squares
_FACTORS = ("x1", "x2", "x3")  # the parts of the root
_SHARE, _EPSILON = "x4", "x5"  # 1 / width in bf16, epsilon in fp32
_FIRST, _MEAN, _ROOT = "r1", "r2", "r10"  # lane 0; of the row
_SHIFTS = {"r3": 32, "r4": 16, "r5": 8, "r6": 4}  # bytes, by which halves meet; 32 lanes are apart
_NUMBERS = ("r8", "r9")
_RESERVED = Floats.RESERVED | {_SHARE, _EPSILON}

# The shortest interval with registers for all values that a longer search found, and its order.
_SCALE = (15, 14)
_ROOT_INTERVAL = 128  # longer than any of its values lives


def regions(machine: Machine, chunks: int) -> list[Region]:
    """A row of ``chunks`` chunks, a power of two: the mean is then a product without rounding."""
    if type(chunks) is not int or chunks < 1 or chunks & (chunks - 1):
        raise ShapeError(
            f"[rms_norm] the row has {chunks!r} blocks of {CHUNK} elements: give a power of two"
        )
    if machine.generation == "npu1":
        return narrow_rms_norm.regions(machine, chunks * CHUNK, np.float32(EPSILON))
    return [_squares(machine, chunks), _root(machine), _scaling(machine, chunks)]


def _turns(array: str, step: int, chunks: int) -> Stream:
    return Stream(array, array, [step * turn for turn in range(chunks * CHUNK // _STEP)])


def _squares(machine: Machine, chunks: int) -> Region:
    flow = Dataflow(machine, "squares")
    x, sums = flow.load("p0", 0, "x"), flow.value("DM", _SUMS)
    Floats(flow).add_square(sums, x)
    width = chunks * CHUNK
    numbers = (0x3F80 - (width.bit_length() - 1 << 7), bits(np.float32(EPSILON)))
    constants = CONSTANTS | {_FIRST: 0} | _SHIFTS | dict(zip(_NUMBERS, numbers, strict=True))
    shared = (("vbcst.16", (_SHARE, _NUMBERS[0])), ("vbcst.32", (_EPSILON, _NUMBERS[1])))
    return Region(
        "squares", tuple(flow.nodes), flow.values, {"p0": _turns("p0", 2 * _STEP, chunks)},
        constants, preamble=(*shared, *cleared()), pinned=flow.pinned, lanes=True,
        reserved=_RESERVED,
    )  # fmt: skip


def _root(machine: Machine) -> Region:
    """Once: the sum, the mean, the inverse root, its parts."""
    flow = Dataflow(machine, "root")
    floats = Floats(flow)
    total = _added_up(flow, floats, flow.value("DM", _SUMS))
    mean = floats.scaled(_SHARE, floats.parts(total))
    epsilon = flow.value("DM", partial=True)
    flow.into("vmov", f"{epsilon}:0", _EPSILON)
    mean = floats.add(mean, epsilon)
    first, root = flow.value("R", _MEAN), flow.value("R", _ROOT)
    flow.into("vextract.32", first, flow.op("vmov.x", "X", f"{mean}:0"), _FIRST, "vaddsign1")
    flow.into("invsqrt", root, first)
    everywhere = flow.op("vbcst.32", "X", root)
    factor = flow.value("DM", partial=True)
    for part in range(2):
        flow.into("vmov", f"{factor}:{part}", everywhere)
    floats.parts(factor, names=[flow.value("X", register) for register in _FACTORS])
    return Region(
        "root", tuple(flow.nodes), flow.values, {}, {}, pinned=flow.pinned, lanes=True,
        partial=frozenset(flow.partial), interval=_ROOT_INTERVAL,
        reserved=_RESERVED,
    )  # fmt: skip


def _added_up(flow: Dataflow, floats: Floats, sums: str) -> str:
    """All 32 lanes in the first: halves added to each other, as aie::reduce_add does."""
    upper = flow.op("vmov.x", "X", f"{sums}:1")
    for shift in (None, *_SHIFTS):
        if shift:
            lanes = flow.op("vmov.x", "X", f"{sums}:0")
            upper = flow.op("vshift", "X", lanes, lanes, shift)
        other = flow.value("DM", partial=True)
        flow.into("vmov", f"{other}:0", upper)
        sums = floats.add(sums, other)
    return sums


def _scaling(machine: Machine, chunks: int) -> Region:
    flow = Dataflow(machine, "scaling")
    floats = Floats(flow)
    factors = [flow.value("X", register) for register in _FACTORS]
    weight = floats.loaded("p1", 0, "weight")
    scaled = floats.scaled(flow.load("p0", 0, "x"), factors)
    first, second = (floats.copied(floats.parts(value)) for value in (scaled, weight))
    result = floats.multiplied(first, second)
    floats.stored(result, Access("p2", 0), "y")
    interval, start = _SCALE
    steps = {"p0": 2 * _STEP, "p1": 4 * _STEP, "p2": 2 * _STEP}
    return Region(
        "scaling", tuple(flow.nodes), flow.values,
        {array: _turns(array, step, chunks) for array, step in steps.items()}, {},
        pinned=flow.pinned, partial=frozenset(flow.partial), lanes=True,
        reserved=Floats.RESERVED, interval=interval, start=start,
    )  # fmt: skip
