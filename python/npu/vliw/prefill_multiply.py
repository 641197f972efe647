"""The products of prompts for XDNA2, as aie_kernels/prefill_product_multiply.h: sums += A W in
BFP16, slice by slice of 32 columns. A [slices][m1][4] and pairs of W [slices][n1 / 2][4][2] are
tiles of 8 blocks of 9 bytes, sums fp32 in two halves, each [m1 / 2][n1][8][8]: rows of tiles in
turn.

The halves lie in different banks (designs/prefill.py), so that a block of 2 x 2 tiles, 16 loads and
16 stores of sums, is not held up by one bank. Both rows of A's tiles go through one load file, as
in matmul_bfp16_tiles.py; a pair of columns of W is eight tiles in memory order, one fill. Slices
follow each other as loops of their own.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw import blocks
from npu.vliw.aie2p import BFP16_8X8X8
from npu.vliw.blocks import ELEMENTS, LINE, SIDE
from npu.vliw.dataflow import Access, Node, Region, Stream

TILE = 72  # bytes of 8 blocks
STEPS = 4  # tiles of a slice along k
_ELEMENT = ELEMENTS["float32"]
# Cycles between the first products of the two rows of a block, and of its two columns. With these
# the search finds the interval that the load units bound.
_ROWS_APART, _COLUMNS_APART = 6, 2
# Where designs/prefill.py has them: A's second buffer, the first slice of W, the halves of sums.
ADDRESSES = (60672, 34048, 1280, 17664)


def regions(m1: int, k1: int, n1: int) -> list[Region]:
    """A region per slice, for numbers of tiles."""
    blocks.check_size("prefill_multiply", m1, k1, n1)
    if k1 % STEPS:
        raise ShapeError(
            f"[prefill_multiply] k1 is {k1}: give a multiple of {STEPS}, the tiles of a slice"
        )
    return [_slice(number, m1, n1) for number in range(k1 // STEPS)]


def _slice(number: int, m1: int, n1: int) -> Region:
    """All sums, plus a slice's products."""
    starts = blocks.places(m1, n1)
    a, w = (number * STEPS * tiles * TILE for tiles in (m1, n1))
    streams = {
        "a": Stream("a", "p0", [a + TILE * STEPS * row for row, _ in starts]),
        "b": Stream("b", "p1", [w + TILE * STEPS * column for _, column in starts]),
    }
    places = [SIDE * _ELEMENT.tile * block for block in range(len(starts))]
    for name in ("in", "out"):
        for i in range(SIDE):
            streams[f"c{i}.{name}"] = Stream(f"c{i}.{name}", f"p{2 + i}", places)
    values = blocks.values(STEPS)
    values |= {f"{x}{i}.{k}": "EX" for x in "ab" for i in range(SIDE) for k in range(STEPS)}
    nodes = (*_moves("load"), *_factors(), *_products(), *_moves("store"))
    constants = {"r1": BFP16_8X8X8, "r24": 0, "r25": 0}  # load files are empty
    return Region("2x2", nodes, values, streams, constants)


def _factors() -> list[Node]:
    """The tiles of A row by row, those of W step by step."""
    found = []
    for i in range(SIDE):
        found.append(_fill("a", i * STEPS))
        found += [_pop("a", f"a{i}.{k}", i * STEPS + k, k == STEPS - 1) for k in range(STEPS)]
    found.append(_fill("b", 0))
    for tile in range(SIDE * STEPS):
        k, j = divmod(tile, SIDE)
        found.append(_pop("b", f"b{j}.{k}", tile, tile == SIDE * STEPS - 1))
    return found


def _fill(x: str, tile: int) -> Node:
    return Node(f"fill {x}.{tile}", _forms("fill", x), (Access(x, TILE * tile),), "load", x)


def _pop(x: str, value: str, tile: int, last: bool) -> Node:
    """``last``: moves on and leaves the file empty."""
    forms = _forms("leave" if last else "pop", x)
    return Node(value, forms, (value, Access(x, TILE * tile)), "load", x)


def _forms(key: str, x: str) -> tuple[str, ...]:
    units = ("vlda", "vldb") if x == "a" else ("vldb", "vlda")
    return tuple(f"{unit}.{key}" for unit in units)


def _products() -> list[Node]:
    def first(i: int, j: int) -> int:
        return _ROWS_APART * i + _COLUMNS_APART * j

    order = sorted(
        (4 * k + first(i, j), i, j, k) for i in range(SIDE) for j in range(SIDE)
        for k in range(STEPS)
    )  # fmt: skip
    return [
        Node(
            f"c{i}{j}.{k}", ("vmac.f",),
            (f"c{i}{j}.{k}", f"c{i}{j}.{k - 1}", f"a{i}.{k}", f"b{j}.{k}", "r1"), "multiply", at=at,
        )
        for at, i, j, k in order
    ]  # fmt: skip


def _moves(role: str) -> list[Node]:
    """Sums into accumulators or out of them."""
    (form,), step = (_ELEMENT.load, -1) if role == "load" else (_ELEMENT.store, STEPS - 1)
    found = []
    for i in range(SIDE):
        for j in range(SIDE):
            for line, part in enumerate(_ELEMENT.parts(f"c{i}{j}.{step}")):
                stream = f"c{i}.{'in' if role == 'load' else 'out'}"
                access = Access(stream, _ELEMENT.tile * j + LINE * line)
                found.append(Node(f"{role} {part}", (form,), (part, access), role, f"c{i}"))
    return found
