"""C += A @ B in int16 with C in int32, as aie_kernels/matmul.cc: A [m1,k1,4,4], B in tiles of 4 x 8
on XDNA2 and 4 x 4 on XDNA1, [k1,n1,..] by rows or [n1,k1,..] by columns (tiles as B's transpose), C
[m1,n1,4,8] or [m1,n1,4,4].

Sums have 64 bits, of which C keeps the lower half: C widens on its way into accumulators and is cut
on its way out. A tile of A, and on XDNA1 of B, is half a register, the lower one.
"""

from __future__ import annotations

from npu.vliw import blocks
from npu.vliw.aie2 import INT16_4X4X8
from npu.vliw.aie2p import SUMS_OF_64_BITS, TO_EVEN, TRANSPOSED_8X4
from npu.vliw.blocks import LINE, XDNA1_LINE, Element
from npu.vliw.dataflow import Access, Node, Region, Stream
from npu.vliw.vector_operations import SHUFFLES

TILE_A = 32  # bytes of 4 x 4 int16
OUTS = ("int32",)
# Two accesses to a tile of C.
_ELEMENTS = {
    "npu1": Element(2, ("vlda.ups.s64.s32", "s0"), ("vst.srs.s32.s64", "s0"), XDNA1_LINE),
    "npu2": Element(2, ("vlda.ups.2x", "s0", "upssign1"), ("vst.srs.2x", "s0", "srssign1"), LINE),
}
_HALF = ("vldb.w", "vlda.w")


def tile_b(generation: str) -> int:
    """Bytes of a tile of B."""
    return 32 if generation == "npu1" else 64


def regions(m1: int, k1: int, n1: int, b_layout: str, generation: str) -> list[Region]:
    """All of C, for numbers of tiles; ``b_layout``: "row" or "col"."""
    blocks.check_size("matmul_i16", m1, k1, n1)
    element, size = _ELEMENTS[generation], tile_b(generation)
    starts = blocks.places(m1, n1)
    streams = {"a": Stream("a", "p0", [TILE_A * k1 * row for row, _ in starts])}
    for name in ("b",) if b_layout == "col" else ("b0", "b1"):
        step = size * k1 if b_layout == "col" else size
        streams[name] = Stream(name, "p1", [step * column for _, column in starts])
    streams |= blocks.streams(element, m1, n1)
    values = blocks.values(k1, "CM" if generation == "npu1" else "DM")
    tiles = _Tiles(k1, n1, b_layout, generation)
    nodes = blocks.nodes(k1, n1, element, "vmac.16", tiles.factor)
    constants = {"r1": INT16_4X4X8, "r3": 0, "crsat": 0, "crrnd": TO_EVEN}
    if generation == "npu2":
        constants |= {"crupsmode": SUMS_OF_64_BITS, "crsrsmode": SUMS_OF_64_BITS}
    if b_layout == "col":
        constants["r2"] = TRANSPOSED_8X4
    if b_layout == "col" and generation == "npu1":
        constants |= {"r4": SHUFFLES["T64_8x2_lo"], "r5": SHUFFLES["T64_8x2_hi"]}
    return [
        Region("2x2", nodes, values | tiles.values, streams, constants,
            preamble=(("mov.S.R", ("s0", "r3")),))
    ]  # fmt: skip


class _Tiles:
    """What brings the factors of a block, in the order of their use."""

    def __init__(self, k1: int, n1: int, b_layout: str, generation: str) -> None:
        self._k1, self._n1 = k1, n1
        self._columns, self._half = b_layout == "col", generation == "npu1"
        self._size = tile_b(generation)
        self.values: dict[str, str] = {}

    def factor(self, x: str, i: int, k: int) -> list[Node]:
        name = f"{x}{i}.{k}"
        if name in self.values:
            return []
        if x == "a":
            return [self._load(name, 0, Access("a", TILE_A * (i * self._k1 + k)))]
        if not self._columns:
            access = Access(f"b{i}", self._size * (k * self._n1 + i))
            return [self._load(name, 0 if self._half else None, access)]
        return self._pair(i, k) if self._half else self._turned(name, i, k)

    def _load(self, value: str, part: int | None, access: Access) -> Node:
        """A tile into a register, or into half of one."""
        self.values[value] = "X"
        operand = value if part is None else f"{value}:{part}"
        forms = ("vldb.x", "vlda.x") if part is None else _HALF
        bank = access.stream[0]
        return Node(f"load {operand}", forms, (operand, access), "load", bank)

    def _turned(self, name: str, j: int, k: int) -> list[Node]:
        loaded = self._load(f"t{j}.{k}", None, Access("b", self._size * (j * self._k1 + k)))
        return [loaded, self._shuffle(name, f"t{j}.{k}", "r2")]

    def _shuffle(self, name: str, source: str, mode: str) -> Node:
        self.values[name] = "X"
        return Node(f"turn {name}", ("vshuffle",), (name, source, source, mode), "move")

    def _pair(self, j: int, k: int) -> list[Node]:
        """Two tiles of a column, one below the other, turned together: their rows alternate then.
        What the last of an odd number has beside it does not matter."""
        found, loaded, turned = [], f"t{j}.{k}", f"u{j}.{k}"
        for part in range(2):
            step = min(k + part, self._k1 - 1)
            access = Access("b", self._size * (j * self._k1 + step))
            found.append(self._load(loaded, part, access))
        found.append(self._shuffle(turned, loaded, "r2"))
        for part, mode in enumerate(("r4", "r5")):
            if k + part < self._k1:
                found.append(self._shuffle(f"b{j}.{k + part}", turned, mode))
        return found
