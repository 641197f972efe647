"""Row-major B into BFP16 blocks for XDNA2, as convert_bf16_bfp16_b of aie_kernels/convert_bfp16.cc:
tiles [k1][n1] of 8 x 8 bf16 are transposed and written as [n1][k1].

A block is a column of tiles. Two shuffles transpose a tile and a multiplication with ones widens
it. Columns begin where a line has room for gcd(k1, 8) tiles at least, after which a flush follows.
Shuffles, pushes and flushes share the port through which they read scalar registers, which binds.
"""

from __future__ import annotations

import math

from npu.errors import ShapeError
from npu.vliw.aie2p import TO_EVEN
from npu.vliw.convert_bfp16 import PER_FLUSH, TILE
from npu.vliw.dataflow import Access, Node, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.vector_operations import LANES, SHUFFLES

SOURCE = 128  # bytes of a tile of bf16
_HALVES = ("lo", "hi")
_ONE = 0x3F80  # of bf16
_ONES = ("x10", "x11")  # y5
_POOLS = {"X": tuple(f"x{i}" for i in range(6)), "Y": ("y3", "y4")}


def loop(machine: Machine, n1: int, k1: int) -> list[Region]:
    """As `vector_kernels` has it."""
    return regions(k1, n1)


def regions(k1: int, n1: int) -> list[Region]:
    """All columns."""
    for name, value in (("k1", k1), ("n1", n1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ShapeError(
                f"[convert_bfp16_rows] {name} is {value!r}: give a number of tiles, 1 or more"
            )
    streams = {
        "in": Stream("in", "p0", [SOURCE * column for column in range(n1)]),
        "out": Stream("out", "p1", [TILE * k1 * column for column in range(n1)], "p2"),
    }
    nodes: list[Node] = []
    values: dict[str, str] = {}
    for k in range(k1):
        loaded = [f"{half}{k}" for half in _HALVES]
        values |= dict.fromkeys(loaded, "X") | {f"t{k}": "Y", f"s{k}": "DM"}
        for i, half in enumerate(loaded):
            access = Access("in", SOURCE * n1 * k + SOURCE // 2 * i)
            forms = ("vldb.x", "vlda.x")
            nodes.append(Node(f"load {half}", forms, (half, access), "load", "in"))
        for i, half in enumerate(_HALVES):
            part = f"t{k}:{2 * i}-{2 * i + 1}"
            operands = (part, *loaded, f"r{i}")
            nodes.append(Node(f"turn {half}{k}", ("vshuffle",), operands, "move"))
        nodes.append(Node(f"widen {k}", ("vmul.f.y",), (f"s{k}", f"t{k}", "y5", "r2"), "multiply"))
        push = (f"s{k}", Access("out", TILE * k))
        nodes.append(Node(f"push {k}", ("vst.push",), push, "store", "out"))
        if (k + 1) % math.gcd(k1, PER_FLUSH) == 0:
            flush = (Access("out", TILE * (k + 1)),)
            nodes.append(Node(f"flush {k}", ("vst.flush",), flush, "store", "out"))
    modes = {f"r{i}": SHUFFLES[f"T16_8x8_{half}"] for i, half in enumerate(_HALVES)}
    constants = {**modes, "r2": LANES, "r3": _ONE, "r26": 0, "crrnd": TO_EVEN}
    preamble = tuple(("vbcst.16", (register, "r3")) for register in _ONES)
    return [
        Region(f"{k1} tiles", tuple(nodes), values, streams, constants, preamble=preamble,
            reserved=frozenset(_ONES), pools=_POOLS)
    ]  # fmt: skip
