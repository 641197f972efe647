"""C += A @ B in BFP16 for XDNA2, as aie_kernels/matmul_pipelined.cc: A [m1,k1,8,8], B [n1,k1,8,8]
in blocks of 9 bytes per 8 values along k, C [m1,n1,8,8] in bf16 or fp32 (in blocks, too:
matmul_bfp16_blocks.py).

The two rows of A's tiles in a block are apart in memory, as are the two columns of B's, but there
are only two load files: one for A, which its rows use in turn, and one for B. A fill takes the rest
of a line, 8 bytes for each tile up to the next multiple of eight, which as many pops need beside
what they fetch. So a run of two tiles from an even one on takes one fill, of four from a multiple
of four if k1 is one.
"""

from __future__ import annotations

from dataclasses import replace

from npu.vliw import blocks
from npu.vliw.aie2p import BFP16_8X8X8, TO_EVEN
from npu.vliw.blocks import ELEMENTS, SIDE
from npu.vliw.dataflow import Access, Node, Region, Stream

TILE = 72  # bytes of 8 blocks
OUTS = ("bfloat16", "float32")
_FILES = {"r24": 0, "r25": 0}  # empty


def regions(m1: int, k1: int, n1: int, out: str, b_layout: str) -> list[Region]:
    """All of C, for numbers of tiles."""
    blocks.check_size("matmul_bfp16_tiles", m1, k1, n1)
    element, starts = ELEMENTS[out], blocks.places(m1, n1)
    streams = {
        "a": Stream("a", "p0", [TILE * k1 * row for row, _ in starts]),
        "b": Stream("b", "p1", [TILE * k1 * column for _, column in starts]),
    }
    streams |= blocks.streams(element, m1, n1)
    values = blocks.values(k1)
    values |= {f"{x}{i}.{k}": "EX" for x in "ab" for i in range(SIDE) for k in range(k1)}
    waiting = {x: runs(k1) for x in "ab"}

    def factor(x: str, i: int, k: int) -> list[Node]:
        """The runs up to the one that has this tile."""
        found: list[Node] = []
        while any(row == i and k in steps for row, steps in waiting[x]):
            found += run(x, *waiting[x].pop(0), k1)
        return found

    constants = {"r1": BFP16_8X8X8, **_FILES}
    if out == "bfloat16":
        constants["crrnd"] = TO_EVEN
    nodes = blocks.nodes(k1, n1, element, "vmac.f", factor, by_rows=True)
    # A and B may share a bank where it keeps up.
    if sum(n.bank in ("a", "b") for n in nodes) <= max(4 * k1, blocks.C_BANK * element.bytes):
        nodes = tuple(replace(n, bank="ab") if n.bank in ("a", "b") else n for n in nodes)
    return [Region("2x2", nodes, values, streams, constants)]


def runs(k1: int) -> list[tuple[int, range]]:
    """Row and steps of A's tiles that follow each other, both rows in turn; the same for B."""
    longest = 4 if k1 % 4 == 0 else 2
    rows: list[list[range]] = [[] for _ in range(SIDE)]
    for i, runs in enumerate(rows):
        start = 0
        while start < k1:
            end = min(k1, start + longest - (i * k1 + start) % longest)
            runs.append(range(start, end))
            start = end
    return [(i, runs[turn]) for turn in range(len(rows[0])) for i, runs in enumerate(rows)]


def run(x: str, i: int, steps: range, k1: int) -> list[Node]:
    """Tiles that follow each other, through a load file that is empty before and after."""
    access = Access(x, TILE * (i * k1 + steps[0]))
    found = [Node(f"fill {x}{i}.{steps[0]}", _forms("fill", x), (access,), "load", x)]
    for k in steps:
        access, value = Access(x, TILE * (i * k1 + k)), f"{x}{i}.{k}"
        forms = _forms("leave" if k == steps[-1] else "pop", x)
        found.append(Node(value, forms, (value, access), "load", x))
    return found


def _forms(key: str, x: str) -> tuple[str, ...]:
    units = ("vlda", "vldb") if x == "a" else ("vldb", "vlda")
    return tuple(f"{unit}.{key}" for unit in units)
