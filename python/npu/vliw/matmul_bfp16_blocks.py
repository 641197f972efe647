"""C += A @ B for XDNA2 with all three in BFP16, as aie_kernels/matmul_pipelined.cc: A [m1,k1,8,8]
and B [n1,k1,8,8] in blocks of 9 bytes per 8 values along k, C [m1,n1,8,8] in blocks along n.

A tile of C enters its accumulator by a product with the identity, which is exact, and leaves it
through the store file. The load file of A brings C's tiles as well: its pointer stands for either
in turn, and registers of their own keep the places of both.
"""

from __future__ import annotations

from npu.vliw import blocks
from npu.vliw.aie2p import BFP16_8X8X8, TO_EVEN
from npu.vliw.block_values import IDENTITY, NUMBERS, RESERVED, Numbers, identity
from npu.vliw.blocks import SIDE
from npu.vliw.dataflow import Access, Node, Region, Stream
from npu.vliw.matmul_bfp16_tiles import TILE, run, runs

_A_PLACE, _C_PLACE = "p4", "p3"
_FILES = {"r24": 0, "r25": 0, "r26": 0}  # empty
_ANY_UNIT = ("padda", "paddb", "padds")
_APART = 4  # cycles between the first products of the two rows of a block


def regions(m1: int, k1: int, n1: int) -> list[Region]:
    """All of C, for numbers of tiles."""
    blocks.check_size("matmul_bfp16_tiles", m1, k1, n1)
    starts = blocks.places(m1, n1)
    c_places = [TILE * (row * n1 + column) for row, column in starts]
    streams = {
        "a": Stream("a", "p0", [0] * len(starts), "p0"),
        "b": Stream("b", "p1", [TILE * k1 * column for _, column in starts]),
        "a.at": Stream("a.at", "p0", [TILE * k1 * row for row, _ in starts], _A_PLACE),
        "c.at": Stream("c.at", "p2", c_places, _C_PLACE),
        "c.out": Stream("c.out", "p2", c_places, "p2"),
    }
    values = blocks.values(k1)
    values |= {f"{x}{i}.{k}": "EX" for x in "ab" for i in range(SIDE) for k in range(k1)}
    values |= {f"t{i}{j}": "EX" for i in range(SIDE) for j in range(SIDE)}
    numbers = Numbers(*NUMBERS)
    nodes = (*_tiles_of_c(k1, n1), *_factors(k1), *_products(k1, numbers), *_stores(k1, n1))
    constants = {**numbers.constants, **_FILES, "crrnd": TO_EVEN}
    return [
        Region("2x2", nodes, values, streams, constants, preamble=identity(numbers),
            reserved=RESERVED)
    ]  # fmt: skip


def _rows(k1: int) -> tuple[int, ...]:
    """In which order a block's come: for odd k1 the second first, so that the steps of a file from
    run to run are two numbers, for two modifiers."""
    return (1, 0) if k1 % 2 else (0, 1)


def _place(stream: str, offset: int) -> list[Node]:
    """The file's pointer to a place, which moves on to the next block's."""
    at = Access(stream, offset)
    return [
        Node(f"to {stream}", ("mov.P.P",), (Access("a", 0), at), "load"),
        Node(f"next {stream}", _ANY_UNIT, (at,), "advance"),
    ]


def _tiles_of_c(k1: int, n1: int) -> list[Node]:
    """The two rows of a block, one after the other through the file."""
    rows = _rows(k1)
    found = _place("c.at", TILE * rows[0] * n1)
    for i in rows:
        fill = Access("a", TILE * i * n1)
        found.append(Node(f"fill c{i}", ("vlda.fill", "vldb.fill"), (fill,), "load", "c"))
        for j in range(SIDE):
            key = "leave" if j == SIDE - 1 else "pop"
            access = Access("a", TILE * (i * n1 + j))
            forms = (f"vlda.{key}", f"vldb.{key}")
            found.append(Node(f"t{i}{j}", forms, (f"t{i}{j}", access), "load", "c"))
    return found


def _factors(k1: int) -> list[Node]:
    order = runs(k1)
    if _rows(k1) == (1, 0):
        order = [one for turn in zip(order[1::2], order[::2], strict=True) for one in turn]
    i, steps = order[0]
    found = _place("a.at", TILE * (i * k1 + steps[0]))
    for x in "ab":
        for i, steps in order:
            found += run(x, i, steps, k1)
    return found


def _products(k1: int, numbers: Numbers) -> list[Node]:
    """C times the identity, then the products of every step."""
    first = {(i, j): _APART * turn + j for turn, i in enumerate(_rows(k1)) for j in range(SIDE)}
    order = sorted((4 * (k + 1) + first[i, j], i, j, k) for i, j in first for k in range(-1, k1))
    found = []
    for at, i, j, k in order:
        new, form = f"c{i}{j}.{k}", "vmul.f" if k < 0 else "vmac.f"
        factors = (
            (f"t{i}{j}", IDENTITY) if k < 0 else (f"c{i}{j}.{k - 1}", f"a{i}.{k}", f"b{j}.{k}")
        )
        operands = (new, *factors, numbers[BFP16_8X8X8])
        found.append(Node(new, (form,), operands, "multiply", at=at))
    return found


def _stores(k1: int, n1: int) -> list[Node]:
    found = []
    for i in _rows(k1):
        for j in range(SIDE):
            operands = (f"c{i}{j}.{k1 - 1}", Access("c.out", TILE * (i * n1 + j)))
            found.append(Node(f"push c{i}{j}", ("vst.push",), operands, "store", "c"))
        end = (Access("c.out", TILE * (i * n1 + SIDE)),)
        found.append(Node(f"flush c{i}", ("vst.leave",), end, "store", "c"))
    return found
