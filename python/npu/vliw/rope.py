"""Rotary embedding of vectors of 256 elements, or fewer (aie_kernels/rope.h): elements i and
i + 128 are rotated by the angle whose cosine and sine a table has in fp32, as objects of
aie_kernels/rope.cc are laid out.

A turn is 32 pairs, 16 on XDNA1. Elements are bf16, so that a product is that of three parts of a
cosine or sine (float_products.py, narrow_float_products.py); the second one is added to the first.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import Floats
from npu.vliw.machine import Machine
from npu.vliw.narrow_float_products import NarrowFloats
from npu.vliw.vector_dataflow import Dataflow

WIDTH = 256
X, TABLE = 2 * WIDTH, 4 * WIDTH  # bytes

# The shortest interval with registers for all values that a longer search found, and its order.
_FOUND = {"npu1": (15, 10), "npu2": (16, 20)}


def regions(machine: Machine, vectors: int, width: int = WIDTH) -> list[Region]:
    """The loop over ``vectors`` vectors, each with a table of its own; width: 64, 128 or 256."""
    if type(vectors) is not int or vectors < 1:
        raise ShapeError(
            f"[rope] blocks is {vectors!r}: give 1 or more vectors of {width} elements"
        )
    flow = Dataflow(machine)
    floats = NarrowFloats(flow) if flow.npu1 else Floats(flow)
    _turn(flow, floats, width)
    pairs = floats.COUNT
    turns = [(v, s) for v in range(vectors) for s in range(width // 2 // pairs)]
    streams = {
        array: Stream(array, array, [size * v + step * pairs * s for v, s in turns])
        for array, size, step in (("p0", 2 * width, 2), ("p1", 4 * width, 4), ("p2", 2 * width, 2))
    }
    interval, start = _FOUND[machine.generation]
    return [
        Region(
            "pairs", tuple(flow.nodes), flow.values, streams, floats.CONSTANTS,
            preamble=floats.PREAMBLE, partial=frozenset(flow.partial), reserved=floats.RESERVED,
            lanes=True, interval=interval, start=start,
        )
    ]  # fmt: skip


def _turn(flow: Dataflow, floats: Floats | NarrowFloats, width: int) -> None:
    low, high = (floats.narrow("p0", offset, "x") for offset in (0, width))
    cosine, sine = (floats.parts(floats.loaded("p1", offset, "table")) for offset in (0, 2 * width))
    for one, other, minus, offset in ((low, high, True, 0), (high, low, False, width)):
        turned = floats.scaled(one, cosine)
        turned = floats.add_scaled(turned, other, sine, minus=minus)
        floats.stored(turned, Access("p2", offset), "y")
