"""C += A @ B in bf16 for XDNA1: [m1,k1,m0,k0],[k1,n1,k0,n0]->[m1,n1,m0,n0] with tiles 4 x 8 x 4.

Blocks of 2 x 4 tiles of C stay in accumulators from their load to their store. Whatever m1 and n1
leave over makes regions with smaller blocks. Within a block, two columns of tiles take two steps of
k before the other two do: four chains of multiply-accumulates, the fewest that hide its latency of
4, and the first four sums are complete while the others are still being added to.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw.aie2 import AIE2, BF16_4X8X4
from npu.vliw.dataflow import Access, Node, Region, Stream

TILE_A = TILE_B = TILE_C = 64  # bytes of 4 x 8 and 8 x 4 bf16, 4 x 4 fp32
ROWS, COLUMNS = 2, 4  # tiles of C per block
NARROW = 2  # columns, where the steps of wider blocks have no room in program memory
_NODE_BYTES, _COPIES = 3.65, 4  # code per node and block; blocks in a loop and beside it, at most
PAIR, STEPS = 2, 2  # columns and steps of k that follow each other
CONFIGURATION = "r0"


def regions(m1: int, k1: int, n1: int) -> list[Region]:
    """The parts of C, the one with full blocks first."""
    for name, value in (("m1", m1), ("k1", k1), ("n1", n1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ShapeError(
                f"[matmul_bf16] {name} is {value!r}: give a number of tiles, 1 or more"
            )
    wide = _split(m1, k1, n1, COLUMNS)
    code = sum(len(r.nodes) * min(r.blocks, _COPIES) * _NODE_BYTES for r in wide)
    return wide if code <= AIE2.program_bytes else _split(m1, k1, n1, NARROW)


def _split(m1: int, k1: int, n1: int, width: int) -> list[Region]:
    """The regions of blocks of at most so many columns."""
    rows = [(r, count) for r, count in ((0, m1 - m1 % ROWS), (m1 - m1 % ROWS, m1 % ROWS)) if count]
    left = n1 % width
    columns = [(c, count) for c, count in ((0, n1 - left), (n1 - left, left)) if count]
    return [
        _region((row, height), (column, count), (m1, k1, n1), width)
        for row, height in rows
        for column, count in columns
    ]


def _region(
    rows: tuple[int, int], columns: tuple[int, int], shape: tuple[int, int, int], most: int
) -> Region:
    """Tiles rows[0] .. + rows[1] by columns[0] .. + columns[1] of C; ``most``:
    columns of a block."""
    _, k1, n1 = shape
    height, width = min(ROWS, rows[1]), min(most, columns[1])
    starts = [
        (r, c)
        for r in range(rows[0], sum(rows), height)
        for c in range(columns[0], sum(columns), width)
    ]
    streams = {
        f"a{i}": Stream(f"a{i}", "p0", [TILE_A * k1 * (r + i) for r, _ in starts])
        for i in range(height)
    }
    streams["b"] = Stream("b", "p1", [TILE_B * c for _, c in starts])
    for name in ("c_in", "c_out"):
        streams[name] = Stream(name, "p2", [TILE_C * (r * n1 + c) for r, c in starts])
    values = {f"c{i}{j}": "BM" for i in range(height) for j in range(width)}
    values |= {f"a{i}.{k}": "X" for i in range(height) for k in range(k1)}
    values |= {f"b{j}.{k}": "X" for j in range(width) for k in range(k1)}
    constants = {CONFIGURATION: BF16_4X8X4}
    return Region(f"{height}x{width}", _nodes(height, width, k1, n1), values, streams, constants)


def _nodes(height: int, width: int, k1: int, n1: int) -> tuple[Node, ...]:
    """Loads where they are first needed, then the product; stores at the end."""
    nodes: list[Node] = []
    loaded: set[str] = set()

    def load(value: str, forms: tuple[str, ...], stream: str, offset: int) -> None:
        if value not in loaded:
            loaded.add(value)
            for part in (0, 1):
                name, access = f"{value}:{part}", Access(stream, offset + 32 * part)
                nodes.append(Node(name, forms, (name, access), "load", stream[0]))

    for i, j, k in order(height, width, k1):
        load(f"c{i}{j}", ("vlda.am",), "c_in", TILE_C * (i * n1 + j))
        load(f"a{i}.{k}", ("vlda.w", "vldb.w"), f"a{i}", TILE_A * k)
        load(f"b{j}.{k}", ("vldb.w", "vlda.w"), "b", TILE_B * (k * n1 + j))
        operands = (f"c{i}{j}", f"c{i}{j}", f"a{i}.{k}", f"b{j}.{k}", CONFIGURATION)
        nodes.append(Node(f"c{i}{j}.{k}", ("vmac.f",), operands, "multiply"))
    for i, j, k in order(height, width, k1):
        if k == k1 - 1:
            for part in (0, 1):
                access = Access("c_out", TILE_C * (i * n1 + j) + 32 * part)
                name, value = f"store c{i}{j}:{part}", f"c{i}{j}:{part}"
                nodes.append(Node(name, ("vst.am",), (value, access), "store", "c"))
    return tuple(nodes)


def order(height: int, width: int, k1: int) -> list[tuple[int, int, int]]:
    """Row, column and step of the products of a block."""
    return [
        (i, j, k)
        for first in range(0, k1, STEPS)
        for pair in range(0, width, PAIR)
        for k in range(first, min(k1, first + STEPS))
        for i in range(height)
        for j in range(pair, min(width, pair + PAIR))
    ]
