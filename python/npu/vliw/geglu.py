"""gelu(gate) * up on XDNA2 (aie_kernels/gelu.h), the tanh form of GELU:

    u = c gate (1 + 0.044715 gate^2),  h = p + p tanh |u|,  p = min(2^(-1 + 2 log2(e) u), 1 / 2)

A turn is 32 elements. The C++ kernel limits u before the power instead of the power, which gives
the same, and takes tanh |u|, here |tanh u|: both spare moves between accumulators and vectors.
Constants are broadcast anew in every turn, which the move slot has room for and registers have not.
"""

from __future__ import annotations

import numpy as np

from npu.errors import ShapeError
from npu.vliw import narrow_geglu
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import CONSTANTS, Floats, bits, cleared, constant_parts
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow

CHUNK = 256  # elements of a block
BLOCK = 2 * CHUNK  # bytes
_STEP = 64  # bytes of a turn

ROOT, CUBE, TWO_LOG2E = (np.float32(v) for v in (0.797884561, 0.044715, 2.88539008))
_SLOPE, _EXPONENT = ("r1", "r2", "r3"), ("r4", "r5", "r6")  # parts of ROOT CUBE and TWO_LOG2E
_ROOT, _MINUS_ONE, _HALF, _SIZE = "r8", "r9", "r10", "r11"
_MASK = "r24"

# The shortest interval with registers for all values that a longer search found, its order and how
# many changes it takes.
_FOUND, _PATIENCE = (33, 8), 40


def regions(machine: Machine, chunks: int) -> list[Region]:
    """The loop over ``chunks`` blocks of elements."""
    if type(chunks) is not int or chunks < 1:
        raise ShapeError(f"[geglu] blocks is {chunks!r}: give 1 or more of {CHUNK} elements")
    if machine.generation == "npu1":
        return narrow_geglu.regions(machine, chunks * CHUNK)
    bases = [_STEP * turn for turn in range(chunks * BLOCK // _STEP)]
    # Uses of the gate are too far apart for a register: it is loaded for each.
    arrays = {"square": "p0", "cube": "p0", "gate": "p0", "up": "p1", "y": "p2"}
    streams = {name: Stream(name, array, bases) for name, array in arrays.items()}
    flow = Dataflow(machine)
    _turn(flow)
    interval, start = _FOUND
    return [
        Region(
            "elements", tuple(flow.nodes), flow.values, streams, CONSTANTS | _numbers(),
            preamble=cleared(), pinned=flow.pinned, partial=frozenset(flow.partial),
            reserved=Floats.RESERVED, lanes=True, interval=interval, start=start,
            patience=_PATIENCE,
        )
    ]  # fmt: skip


def _numbers() -> dict[str, int]:
    found = dict(zip(_SLOPE, constant_parts(ROOT * CUBE), strict=True))
    found |= dict(zip(_EXPONENT, constant_parts(TWO_LOG2E), strict=True))
    return found | {_ROOT: bits(ROOT), _MINUS_ONE: bits(np.float32(-1)), _HALF: 0x3F00,
                    _SIZE: 0x7FFF7FFF}  # fmt: skip


def _turn(flow: Dataflow) -> None:
    floats = Floats(flow)
    u = _cubic(flow, floats)
    tangent = _of_halves(flow, "vtanh", u)
    exponent = floats.multiplied(
        floats.parts(u), [flow.op("vbcst.16", "X", part) for part in _EXPONENT],
        floats.constant(_MINUS_ONE),
    )  # fmt: skip
    power = _of_halves(flow, "vexp2", exponent)
    half, mask = flow.op("vbcst.16", "X", _HALF), flow.value("R", _MASK)
    flow.into("vge.bf16", mask, power, half)
    power = flow.op("vsel.16", "X", power, half, mask)
    size = flow.op("vband", "X", tangent, flow.op("vbcst.32", "X", _SIZE))
    wide = flow.value("DM", partial=True)
    flow.into("vconv.fp32.bf16", f"{wide}:0-1", power)
    h = floats.add_product(wide, power, size)
    gelu = floats.scaled(flow.load("gate", 0, "gate"), floats.parts(h))
    result = floats.scaled(flow.load("up", 0, "up"), floats.parts(gelu))
    floats.stored(result, Access("y", 0), "y")


def _cubic(flow: Dataflow, floats: Floats) -> str:
    """ROOT gate (1 + CUBE gate^2); the square has 16 bits."""
    gate = flow.load("square", 0, "gate")
    square = floats.parts(floats.product(gate, gate), count=2)
    slope = [flow.op("vbcst.16", "X", part) for part in _SLOPE]
    slope = floats.parts(floats.multiplied(square, slope, floats.constant(_ROOT)))
    return floats.scaled(flow.load("cube", 0, "gate"), slope)


def _of_halves(flow: Dataflow, unit: str, value: str) -> str:
    """A function of 32 lanes of fp32 as bf16, 16 at a time."""
    found = flow.value("X")
    for part in range(2):
        flow.into(unit, f"{found}:{part}", f"{value}:{part}")
    return found
