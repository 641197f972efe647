"""Rotary embedding of vectors of 256 elements on XDNA2 (aie_kernels/rope.h): elements i and
i + 128 are rotated by the angle whose cosine and sine a table has in fp32, as objects of
aie_kernels/rope.cc are laid out.

A turn is 32 pairs. Elements are bf16, so that products are three operations (float_products.py);
the second product goes into the accumulator of the first, its largest part first: where the two
cancel, that difference is exact.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.float_products import CONSTANTS, Floats, cleared
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow

WIDTH = 256
X, TABLE = 2 * WIDTH, 4 * WIDTH  # bytes
_STEP = 32  # pairs of a turn

# The shortest interval with registers for all values that a longer search found, and its order.
_FOUND = (16, 13)


def regions(machine: Machine, vectors: int) -> list[Region]:
    """The loop over ``vectors`` vectors, each with a table of its own."""
    if type(vectors) is not int or vectors < 1:
        raise ShapeError(
            f"[rope] blocks is {vectors!r}: give 1 or more vectors of {WIDTH} elements"
        )
    turns = [(v, s) for v in range(vectors) for s in range(WIDTH // 2 // _STEP)]
    streams = {
        array: Stream(array, array, [size * v + step * s for v, s in turns])
        for array, size, step in (("p0", X, 64), ("p1", TABLE, 128), ("p2", X, 64))
    }
    flow = Dataflow(machine)
    _turn(flow)
    interval, start = _FOUND
    return [
        Region(
            "pairs", tuple(flow.nodes), flow.values, streams, CONSTANTS, preamble=cleared(),
            partial=frozenset(flow.partial), reserved=Floats.RESERVED, lanes=True,
            interval=interval, start=start,
        )
    ]  # fmt: skip


def _turn(flow: Dataflow) -> None:
    floats = Floats(flow)
    low, high = (flow.load("p0", offset, "x") for offset in (0, X // 2))
    cosine, sine = (
        floats.parts(floats.loaded("p1", offset, "table")) for offset in (0, TABLE // 2)
    )
    for one, other, minus, offset in ((low, high, True, 0), (high, low, False, X // 2)):
        turned = floats.scaled(one, cosine)
        turned = floats.add_scaled(turned, other, sine, minus=minus)
        flow.store(("vst.conv.bf16.fp32",), f"{turned}:0-1", Access("p2", offset), "y")
