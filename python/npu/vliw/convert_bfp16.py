"""Tiles of 8 x 8 into BFP16 blocks for XDNA2, as aie_kernels/convert_bfp16.cc without transposing:
bf16 operands and sums in bf16 or fp32, in the order of their addresses. Results may overwrite what
they are made of, as of every tile more bytes have been loaded than are stored: in place loads and
stores share a bank.

Eight tiles are nine lines of results, which the store file gives after eight pushes and a flush.
Tiles widen to fp32 on their way into accumulators, through load unit A, which alone writes these:
two accesses per tile of bf16, four of fp32.
"""

from __future__ import annotations

from npu.errors import ShapeError
from npu.vliw.aie2p import TO_EVEN
from npu.vliw.blocks import ELEMENTS, LINE
from npu.vliw.dataflow import Access, Node, Region, Stream
from npu.vliw.machine import Machine

TILE, PER_FLUSH = 72, 8  # bytes of a tile in blocks, tiles that fill whole lines
SOURCES = ("bfloat16", "float32")


def source_bytes(source: str) -> int:
    """Of a tile before."""
    return ELEMENTS[source].tile


def loop(machine: Machine, tiles: int, source: str, in_place: bool) -> list[Region]:
    """As `vector_kernels` has it."""
    return regions(tiles, source, in_place)


def regions(tiles: int, source: str, in_place: bool) -> list[Region]:
    """Groups of eight tiles, then what is left over."""
    if not isinstance(tiles, int) or isinstance(tiles, bool) or tiles < 1:
        raise ShapeError(f"[convert_bfp16] tiles is {tiles!r}: give a number of tiles, 1 or more")
    groups, left = divmod(tiles, PER_FLUSH)
    banks = ("in", "in" if in_place else "out")
    found = [_region(0, groups, PER_FLUSH, source, banks)] if groups else []
    return found + ([_region(groups * PER_FLUSH, 1, left, source, banks)] if left else [])


def _region(first: int, blocks: int, tiles: int, source: str, banks: tuple[str, str]) -> Region:
    element = ELEMENTS[source]
    starts = range(first, first + blocks * tiles, tiles)
    streams = {
        "in": Stream("in", "p0", [element.tile * tile for tile in starts]),
        "out": Stream("out", "p1", [TILE * tile for tile in starts], "p2"),
    }
    nodes: list[Node] = []
    form, *beside = element.load
    for tile in range(tiles):
        for line, part in enumerate(element.parts(f"t{tile}")):
            access = Access("in", element.tile * tile + LINE * line)
            nodes.append(Node(f"load {part}", (form,), (part, *beside, access), "load", banks[0]))
        access = Access("out", TILE * tile)
        # As tiles arrive: more than five do not fit the accumulators.
        at = (len(element.parts("")) + (banks[0] == banks[1])) * tile
        push = Node(f"push {tile}", ("vst.push",), (f"t{tile}", access), "store", banks[1], at=at)
        nodes.append(push)
    flush = Access("out", TILE * tiles)
    nodes.append(Node("flush", ("vst.flush",), (flush,), "store", banks[1]))
    values = {f"t{tile}": "DM" for tile in range(tiles)}
    return Region(f"{tiles} tiles", tuple(nodes), values, streams, {"r26": 0, "crrnd": TO_EVEN})
