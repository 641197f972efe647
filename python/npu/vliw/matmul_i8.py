"""C += A @ B in int8, for XDNA2 as aie_kernels/matmul_pipelined.cc: A [m1,k1,8,8], B [k1,n1,8,8] by
rows or [n1,k1,8,8] by columns (tiles as B's transpose), C [m1,n1,8,8] in int8, int16 or int32. For
XDNA1 as aie_kernels/matmul.cc: tiles of A and C have four rows, loads and stores 32 bytes.

A narrow C is shifted left by the caller's shift on its way into 32-bit sums and right, rounded to
even and saturated, on its way out.
"""

from __future__ import annotations

from npu.vliw import blocks
from npu.vliw.aie2 import INT8_8X8X8
from npu.vliw.aie2p import SATURATE, SUMS_OF_32_BITS, TO_EVEN, TRANSPOSED_8X8
from npu.vliw.blocks import ELEMENTS, SIDE, XDNA1_ELEMENTS, XDNA1_LINE
from npu.vliw.dataflow import Access, Node, Region, Stream

TILE, XDNA1_TILE = 64, 32  # bytes of 8 x 8 int8, of 4 x 8
OUTS = ("int8", "int16", "int32")
_ANY_UNIT, _HALF = ("vldb.x", "vlda.x"), ("vldb.w", "vlda.w")


def regions(
    m1: int, k1: int, n1: int, out: str, b_layout: str, generation: str = "npu2"
) -> list[Region]:
    """All of C, for numbers of tiles; ``b_layout``: "row" or "col"."""
    blocks.check_size("matmul_i8", m1, k1, n1)
    half = generation == "npu1"  # tiles and accesses
    element = (XDNA1_ELEMENTS if half else ELEMENTS)[out]
    by_columns, a_tile = b_layout == "col", XDNA1_TILE if half else TILE
    starts = blocks.places(m1, n1)
    streams = {"a": Stream("a", "p0", [a_tile * k1 * row for row, _ in starts])}
    for name in ("b",) if by_columns else ("b0", "b1"):
        step = TILE * k1 if by_columns else TILE
        streams[name] = Stream(name, "p1", [step * column for _, column in starts])
    streams |= blocks.streams(element, m1, n1)
    values = blocks.values(k1, "CM" if half else "DM")
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
            loaded = f"t{i}.{k}"
            turn = Node(f"turn {name}", ("vshuffle",), (name, loaded, loaded, "r2"), "move")
            return [*_loads(loaded, Access("b", TILE * (i * k1 + k)), half), turn]
        access = Access("a", a_tile * (i * k1 + k))
        if x == "b":
            access = Access(f"b{i}", TILE * (k * n1 + i))
        return _loads(name, access, half)

    narrow = element.bytes < 4
    constants = {"r1": INT8_8X8X8}
    if by_columns:
        constants["r2"] = TRANSPOSED_8X8
    if narrow:
        constants |= {"crsat": SATURATE, "crrnd": TO_EVEN}
    if narrow and not half:
        constants |= {"crupsmode": SUMS_OF_32_BITS, "crsrsmode": SUMS_OF_32_BITS}
    arguments = {"s0": "r0"} if narrow else {}
    nodes = blocks.nodes(k1, n1, element, "vmac", factor)
    return [Region("2x2", nodes, values, streams, constants, arguments)]


def _loads(value: str, access: Access, half: bool) -> list[Node]:
    """A tile. On XDNA2 A and B may share a bank; C has its own. On XDNA1 B's is full."""
    if not half:
        return [Node(f"load {value}", _ANY_UNIT, (value, access), "load", "ab")]
    bank = access.stream[0]
    found = []
    for part in range(1 if bank == "a" else 2):
        at = Access(access.stream, access.offset + XDNA1_LINE * part)
        operands = (f"{value}:{part}", at)
        found.append(Node(f"load {value}:{part}", _HALF, operands, "load", bank))
    return found
