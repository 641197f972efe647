"""C += A @ B in int8 for XDNA2, as aie_kernels/matmul_pipelined.cc: A [m1,k1,8,8], B [k1,n1,8,8] by
rows or [n1,k1,8,8] by columns (tiles as B's transpose), C [m1,n1,8,8] in int8, int16 or int32.

A narrow C is shifted left by the caller's shift on its way into 32-bit sums and right, rounded to
even and saturated, on its way out.
"""

from __future__ import annotations

from npu.vliw import blocks
from npu.vliw.aie2p import INT8_8X8X8, SATURATE, SUMS_OF_32_BITS, TO_EVEN, TRANSPOSED_8X8
from npu.vliw.blocks import ELEMENTS, SIDE
from npu.vliw.dataflow import Access, Node, Region, Stream

TILE = 64  # bytes of 8 x 8 int8
OUTS = ("int8", "int16", "int32")
_ANY_UNIT = ("vldb.x", "vlda.x")
_BANK = "ab"  # the one that A and B may share; C has its own


def regions(m1: int, k1: int, n1: int, out: str, b_layout: str) -> list[Region]:
    """All of C, for numbers of tiles; ``b_layout``: "row" or "col"."""
    blocks.check_size("matmul_i8", m1, k1, n1)
    element, by_columns = ELEMENTS[out], b_layout == "col"
    starts = blocks.places(m1, n1)
    streams = {"a": Stream("a", "p0", [TILE * k1 * row for row, _ in starts])}
    for name in ("b",) if by_columns else ("b0", "b1"):
        step = TILE * k1 if by_columns else TILE
        streams[name] = Stream(name, "p1", [step * column for _, column in starts])
    streams |= blocks.streams(element, m1, n1)
    values = blocks.values(k1)
    values |= {f"{x}{i}.{k}": "X" for x in "ab" for i in range(SIDE) for k in range(k1)}
    if by_columns:
        values |= {f"t{j}.{k}": "X" for j in range(SIDE) for k in range(k1)}

    brought = set()

    def factor(x: str, i: int, k: int) -> list[Node]:
        name = f"{x}{i}.{k}"
        if name in brought:
            return []
        brought.add(name)
        if x == "b" and by_columns:
            return _transposed(name, f"t{i}.{k}", Access("b", TILE * (i * k1 + k)))
        access = Access("a", TILE * (i * k1 + k))
        if x == "b":
            access = Access(f"b{i}", TILE * (k * n1 + i))
        return [Node(name, _ANY_UNIT, (name, access), "load", _BANK)]

    narrow = element.bytes < 4
    constants = {"r1": INT8_8X8X8}
    if by_columns:
        constants["r2"] = TRANSPOSED_8X8
    if narrow:
        constants |= {"crsat": SATURATE, "crrnd": TO_EVEN}
        constants |= {"crupsmode": SUMS_OF_32_BITS, "crsrsmode": SUMS_OF_32_BITS}
    arguments = {"s0": "r0"} if narrow else {}
    nodes = blocks.nodes(k1, n1, element, "vmac", factor)
    return [Region("2x2", nodes, values, streams, constants, arguments)]


def _transposed(name: str, loaded: str, access: Access) -> list[Node]:
    load = Node(f"load {name}", _ANY_UNIT, (loaded, access), "load", _BANK)
    return [load, Node(name, ("vshuffle",), (name, loaded, loaded, "r2"), "move")]
