"""C += A @ B in bf16 for XDNA1, as aie_kernels/matmul_square.cc: operands as they are stored, by
rows or by columns, in tiles of 4 x 8; C in tiles of 4 x 4, fp32.

The order of products is that of matmul_bf16. What runs across k is turned in registers, in the slot
of moves, which products leave free:

    A along k     a tile as it is                      across   8 x 8 transposed, in two halves
    B along k     4 x 8 transposed                     across   8 x 8 dealt out by fours of columns
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw.aie2 import BF16_4X8X4
from npu.vliw.aie2p import TRANSPOSED_4X8
from npu.vliw.dataflow import Access, Node, Region, Stream
from npu.vliw.matmul_bf16 import COLUMNS, CONFIGURATION, ROWS, TILE_A, TILE_C, order
from npu.vliw.vector_operations import SHUFFLES

TILE = TILE_A  # bytes of 4 x 8, of either operand
_TURN = "r1"  # modes of vshuffle
_LOW, _HIGH = "r2", "r3"


def regions(m1: int, k1: int, n1: int, b_layout: str, a_across: bool) -> list[Region]:
    """All of C, for m1 and n1 tiles of four, k1 of eight; whole blocks."""
    for name, value, unit in (("m1", m1, ROWS), ("k1", k1, 1), ("n1", n1, COLUMNS)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value % unit:
            raise ShapeError(
                f"[matmul_bf16_square] {name} is {value!r}: give a number of tiles, "
                f"a multiple of {unit}"
            )
    return [_Block(m1, k1, n1, b_layout == "row", a_across).region()]


class _Block:
    """The dataflow of 2 x 4 tiles of C."""

    def __init__(self, m1: int, k1: int, n1: int, b_across: bool, a_across: bool) -> None:
        self.m1, self.k1, self.n1 = m1, k1, n1
        self.a_across, self.b_across = a_across, b_across
        self.values = {f"c{i}{j}": "BM" for i in range(ROWS) for j in range(COLUMNS)}

    def region(self) -> Region:
        starts = [(r, c) for r in range(0, self.m1, ROWS) for c in range(0, self.n1, COLUMNS)]
        rows = [TILE * (r // 2 if self.a_across else self.k1 * r) for r, _ in starts]
        columns = [TILE * (c // 2 if self.b_across else self.k1 * c) for _, c in starts]
        streams = {"a": Stream("a", "p0", rows), "b": Stream("b", "p1", columns)}
        for name in ("c_in", "c_out"):
            streams[name] = Stream(name, "p2", [TILE_C * (r * self.n1 + c) for r, c in starts])
        constants = {CONFIGURATION: BF16_4X8X4}
        if not self.b_across:
            constants[_TURN] = TRANSPOSED_4X8
        if self.b_across:
            constants |= {_LOW: SHUFFLES["T64_8x2_lo"], _HIGH: SHUFFLES["T64_8x2_hi"]}
        if self.a_across:
            constants |= {"r4": SHUFFLES["T16_8x8_lo"], "r5": SHUFFLES["T16_8x8_hi"]}
        return Region("2x4", self._nodes(), self.values, streams, constants)

    def _nodes(self) -> tuple[Node, ...]:
        nodes: list[Node] = []
        loaded = set()
        for i, j, k in order(ROWS, COLUMNS, self.k1):
            c = f"c{i}{j}"
            if c not in loaded:
                loaded.add(c)
                nodes += self._parts(c, ("vlda.am",), "c_in", TILE_C * (i * self.n1 + j), "c")
            nodes += [*self._a(i, k), *self._b(j, k)]
            operands = (c, c, f"a{i}.{k}", f"b{j}.{k}", CONFIGURATION)
            nodes.append(Node(f"{c}.{k}", ("vmac.f",), operands, "multiply"))
        for i, j, k in order(ROWS, COLUMNS, self.k1):
            if k == self.k1 - 1:
                for part in (0, 1):
                    access = Access("c_out", TILE_C * (i * self.n1 + j) + 32 * part)
                    name, value = f"store c{i}{j}:{part}", f"c{i}{j}:{part}"
                    nodes.append(Node(name, ("vst.am",), (value, access), "store", "c"))
        return tuple(nodes)

    def _parts(
        self, value: str, forms: tuple[str, ...], stream: str, offset: int, bank: str
    ) -> list[Node]:
        """A tile, in two loads."""
        self.values.setdefault(value, "X")
        found = []
        for part in (0, 1):
            operands = (f"{value}:{part}", Access(stream, offset + 32 * part))
            found.append(Node(f"load {value}:{part}", forms, operands, "load", bank))
        return found

    def _a(self, i: int, k: int) -> list[Node]:
        if f"a{i}.{k}" in self.values:
            return []
        forms = ("vlda.w", "vldb.w")
        if not self.a_across:
            return self._parts(f"a{i}.{k}", forms, "a", TILE * (i * self.k1 + k), "a")
        return self._pair("a", 0, k, forms, self.m1 // 2, ("r4", "r5"))

    def _b(self, j: int, k: int) -> list[Node]:
        if f"b{j}.{k}" in self.values:
            return []
        forms = ("vldb.w", "vlda.w")
        if self.b_across:
            return self._pair("b", j - j % 2, k, forms, self.n1 // 2, (_LOW, _HIGH))
        loaded = self._parts(f"t{j}.{k}", forms, "b", TILE * (j * self.k1 + k), "b")
        return [*loaded, self._turned(f"b{j}.{k}", f"t{j}.{k}", f"t{j}.{k}", _TURN)]

    def _pair(
        self, x: str, i: int, k: int, forms: tuple[str, ...], width: int, modes: tuple[str, str]
    ) -> list[Node]:
        """Two neighbouring factors out of 8 x 8 stored elements, `width` tiles in a row of them."""
        found = []
        low, high = f"u{x}{i}.{k}", f"v{x}{i}.{k}"
        for half, value in enumerate((low, high)):
            at = TILE * ((2 * k + half) * width + i // 2)
            found += self._parts(value, forms, x, at, x)
        for part, mode in enumerate(modes):
            found.append(self._turned(f"{x}{i + part}.{k}", low, high, mode))
        return found

    def _turned(self, value: str, low: str, high: str, mode: str) -> Node:
        self.values[value] = "X"
        return Node(f"turn {value}", ("vshuffle",), (value, low, high, mode), "move")
