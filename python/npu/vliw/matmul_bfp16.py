"""C += A @ B in BFP16 for XDNA2: [m2,k1,m1,m0,k0],[n2,k1,n1,n0,k0]->[m1,m2,n2,n1,m0,n0] with tiles
8 x 8 x 8, m1 = n1 = 2, C in fp32. Eight values along k share an exponent; B is transposed.

A block is 2 x 2 tiles of C. A and B come through the load files in memory order, eight tiles per
fill. C's two rows of tiles per block are arrays of their own, so that they can have banks of their
own; the first comes through load unit A into accumulators, the second through unit B, which cannot
write these, and a move.

A sum is in an accumulator only between the multiplication that gives it and the one that reads it.
So each of them is a value of its own, and chains can share accumulators. Two of the four chains are
ahead of the others: two tiles of C at a time leave their accumulators to the next block.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw.aie2p import BFP16_8X8X8
from npu.vliw.dataflow import Access, Node, Region, Stream

TILE, TILE_C, LINE = 72, 256, 64  # bytes of 8 blocks, of 8 x 8 fp32, of an access
SIDE = 2  # tiles of a block, each way
PER_FILL = 8
CONSTANTS = {"r0": BFP16_8X8X8, "r24": 0, "r25": 0}  # configuration; the load files are empty


def regions(m1: int, k1: int, n1: int) -> list[Region]:
    """All of C, for numbers of tiles."""
    for name, value, step in (("m1", m1, SIDE), ("k1", k1, PER_FILL // SIDE), ("n1", n1, SIDE)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value % step:
            raise ShapeError(
                f"[matmul_bfp16] {name} is {value!r}: give a number of tiles, a multiple of {step}"
            )
    blocks = [(row, column) for row in range(m1 // SIDE) for column in range(n1 // SIDE)]
    part = SIDE * k1 * TILE
    streams = {
        "a": Stream("a", "p0", [part * row for row, _ in blocks]),
        "b": Stream("b", "p1", [part * column for _, column in blocks]),
    }
    for name in ("in", "out"):
        for i in range(SIDE):
            places = [SIDE * TILE_C * number for number in range(len(blocks))]
            streams[f"c{i}.{name}"] = Stream(f"c{i}.{name}", f"p{2 + i}", places)
    tiles = [(i, j) for i in range(SIDE) for j in range(SIDE)]
    values = {f"c{i}{j}.{k}": "DM" for i, j in tiles for k in range(-1, k1)}
    values |= {f"{x}{i}.{k}": "EX" for x in "ab" for i in range(SIDE) for k in range(k1)}
    values |= {f"t{j}.{q}": "EX" for j in range(SIDE) for q in range(TILE_C // LINE)}
    return [Region("2x2", (*_factors(k1), *_sums(k1)), values, streams, CONSTANTS)]


def _factors(k1: int) -> list[Node]:
    """Tiles of A through unit A and of B through unit B."""
    nodes = []
    for x, unit in (("a", "lda"), ("b", "ldb")):
        for number in range(SIDE * k1):
            access = Access(x, TILE * number)
            if number % PER_FILL == 0:
                name = f"fill {x}.{number // PER_FILL}"
                nodes.append(Node(name, (f"v{unit}.fill",), (access,), "load", x))
            value = f"{x}{number % SIDE}.{number // SIDE}"
            nodes.append(Node(value, (f"v{unit}.pop",), (value, access), "load", x))
        access = Access(x, TILE * SIDE * k1)
        nodes.append(Node(f"next {x}", (f"padd{unit[-1]}",), (access,), "advance"))
    return nodes


def _sums(k1: int) -> list[Node]:
    """Tiles of C from memory, their multiplications, and back."""
    nodes = [node for j in range(SIDE) for i in range(SIDE) for node in _start(i, j)]
    products = sorted(
        (_place(j, k) + i, i, j, k) for i in range(SIDE) for j in range(SIDE) for k in range(k1)
    )
    for at, i, j, k in products:
        new, old = f"c{i}{j}.{k}", f"c{i}{j}.{k - 1}"
        operands = (new, old, f"a{i}.{k}", f"b{j}.{k}", "r0")
        nodes.append(Node(new, ("vmac.f",), operands, "multiply", at=at))
    for j in range(SIDE):
        for i in range(SIDE):
            for q in range(TILE_C // LINE):
                access = Access(f"c{i}.out", TILE_C * j + LINE * q)
                part, name = f"c{i}{j}.{k1 - 1}:{q}", f"store c{i}{j}:{q}"
                nodes.append(Node(name, ("vst.bm",), (part, access), "store", f"c{i}"))
    return nodes


def _start(i: int, j: int) -> list[Node]:
    """A tile of C into an accumulator."""
    nodes, group = [], f"c{i}{j}"
    for q in range(TILE_C // LINE):
        access, value = Access(f"c{i}.in", TILE_C * j + LINE * q), f"c{i}{j}.-1:{q}"
        if i == 0:
            nodes.append(Node(value, ("vlda.bm",), (value, access), "load", f"c{i}", group=group))
            continue
        through = f"t{j}.{q}:0-1"
        load = f"load {value}"
        nodes.append(Node(load, ("vldb.x",), (through, access), "load", f"c{i}", group=group))
        nodes.append(Node(value, ("vmov",), (value, through), "move", group=group))
    return nodes


def _place(j: int, k: int) -> int:
    """Where in the interval the products of column j and step k are: two together every four
    cycles, the second column's a step and a half after the first's."""
    return 2 * SIDE * k + 3 * SIDE * j
