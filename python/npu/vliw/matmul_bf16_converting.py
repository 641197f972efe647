"""C += A @ B in bf16 through BFP16 for XDNA2, with the conversion inside, as `matmul_bf16bfp16_*`
of aie_kernels/matmul.cc: A [m1,k1,8,8], B [k1,n1,8,8] by rows or [n1,k1,8,8] by columns (tiles as
B's transpose), C [m1,n1,8,8] in bf16 or fp32.

Tiles widen to fp32 in accumulators and become blocks by a conversion in the store slot. Those of A
widen on their way from memory, those of B between registers, after two shuffles have turned them if
B is by rows. All that writes accumulators beside multiplications has one port: eight times per step
of k, four of whose cycles multiply. No more steps than two fit the accumulators at once, so that
more of them are passes over C, which keep fp32 as it is.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw import blocks
from npu.vliw.aie2p import BFP16_8X8X8, TO_EVEN
from npu.vliw.blocks import ELEMENTS, LINE
from npu.vliw.dataflow import Access, Node, Region, Stream
from npu.vliw.vector_operations import SHUFFLES

TILE = 128  # bytes of 8 x 8 bf16
OUTS = ("bfloat16", "float32")
AT_ONCE = 2  # steps of k
_ANY_UNIT = ("vldb.x", "vlda.x")
# Registers of lines of B, and of blocks.
_LINES = {"row": 5, "col": 4}


def regions(m1: int, k1: int, n1: int, out: str, b_layout: str) -> list[Region]:
    """A pass over C for every two steps, for numbers of tiles."""
    blocks.check_size("matmul_bf16_converting", m1, k1, n1)
    if out == "bfloat16" and k1 > AT_ONCE:
        raise ShapeError(
            f"[matmul_bf16_converting] k1 is {k1}: a C in bf16 is rounded after at most {AT_ONCE} "
            "steps; give fewer, or C in float32"
        )
    tiles = range(0, k1, AT_ONCE)
    return [_pass((m1, k1, n1), k, min(AT_ONCE, k1 - k), out, b_layout) for k in tiles]


def _pass(shape: tuple[int, int, int], first: int, steps: int, out: str, b_layout: str) -> Region:
    m1, k1, n1 = shape
    starts, by_rows = blocks.places(m1, n1), b_layout == "row"
    streams = {"a": Stream("a", "p0", [TILE * (k1 * row + first) for row, _ in starts])}
    for name in ("b0", "b1") if by_rows else ("b",):
        bases = [
            TILE * (column + first * n1 if by_rows else k1 * column + first) for _, column in starts
        ]
        streams[name] = Stream(name, "p1", bases)
    streams |= blocks.streams(ELEMENTS[out], m1, n1)
    tiles = _Tiles(k1, n1, by_rows)
    nodes = blocks.nodes(steps, n1, ELEMENTS[out], "vmac.f", tiles.factor)
    constants = {"r1": BFP16_8X8X8, "crrnd": TO_EVEN}
    if by_rows:
        constants |= {"r4": SHUFFLES["T16_8x8_lo"], "r5": SHUFFLES["T16_8x8_hi"]}
    lines = _LINES[b_layout]
    pools = {
        "X": tuple(f"x{number}" for number in range(lines)),
        "EX": tuple(f"ex{number}" for number in range(lines, 12)),
    }
    values = blocks.values(steps) | tiles.values
    return Region("2x2", nodes, values, streams, constants, pools=pools)


class _Tiles:
    """What brings the factors of a block, in the order of their use."""

    def __init__(self, k1: int, n1: int, by_rows: bool) -> None:
        self._k1, self._n1, self._by_rows = k1, n1, by_rows
        self.values: dict[str, str] = {}

    def factor(self, x: str, i: int, k: int) -> list[Node]:
        name = f"{x}{i}.{k}"
        if name in self.values:
            return []
        wide = f"w{name}"
        self.values |= {name: "EX", wide: "DM"}
        found = self._of_a(wide, i, k) if x == "a" else self._of_b(wide, i, k)
        return [*found, Node(f"convert {name}", ("vconv.bfp16.fp32",), (name, wide), "move")]

    def _of_a(self, wide: str, i: int, k: int) -> list[Node]:
        form, *beside = ELEMENTS["bfloat16"].load
        found = []
        for line, part in enumerate(ELEMENTS["bfloat16"].parts(wide)):
            access = Access("a", TILE * (i * self._k1 + k) + LINE * line)
            found.append(Node(f"load {part}", (form,), (part, *beside, access), "load", "a"))
        return found

    def _of_b(self, wide: str, j: int, k: int) -> list[Node]:
        """Both lines of a tile, turned if need be, into the halves of an accumulator."""
        found, lines = [], []
        for line in range(TILE // LINE):
            tile = k * self._n1 + j if self._by_rows else j * self._k1 + k
            access = Access(f"b{j}" if self._by_rows else "b", TILE * tile + LINE * line)
            lines.append(f"x{j}.{k}.{line}")
            found.append(Node(f"load {lines[-1]}", _ANY_UNIT, (lines[-1], access), "load", "b"))
        if self._by_rows:
            turned = [f"y{j}.{k}.{line}" for line in range(len(lines))]
            for mode, value in enumerate(turned, 4):
                operands = (value, *lines, f"r{mode}")
                found.append(Node(f"turn {value}", ("vshuffle",), operands, "move"))
            self.values |= dict.fromkeys(lines, "X")
            lines = turned
        self.values |= dict.fromkeys(lines, "X")
        for value, part in zip(lines, ELEMENTS["bfloat16"].parts(wide), strict=True):
            found.append(Node(f"widen {part}", ("vconv.fp32.bf16",), (part, value), "move"))
        return found
