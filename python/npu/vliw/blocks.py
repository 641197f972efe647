"""Blocks of 2 x 2 tiles of C in accumulators: C from memory, four chains of multiplications over k,
and back. Tiles are 8 x 8, of int8 on XDNA1 4 x 8; C is [m1,n1,8,8] as in
aie_kernels/matmul_pipelined.cc, [m1,n1,4,8] on XDNA1.

A sum is in an accumulator only between the multiplication that gives it and the one that reads it.
So each of them is a value of its own, and chains can share accumulators. Two of the four chains are
ahead of the others: two tiles of C at a time leave their accumulators to the next block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from npu.errors import ShapeError
from npu.vliw.dataflow import Access, Node, Stream

SIDE, LINE = 2, 64  # tiles of a block, each way; bytes of an access
C_BANK = 8  # accesses to a block of C, both ways, per byte of an element
PARTS = 4  # of an accumulator


@dataclass(frozen=True)
class Element:
    """A type of C: ``load`` and ``store`` with what they take beside the accumulator; ``line``:
    bytes of an access, as many as a tile has values."""

    bytes: int
    load: tuple[str, ...]
    store: tuple[str, ...]
    line: int = LINE

    @property
    def tile(self) -> int:
        return self.line * self.bytes

    def parts(self, tile: str) -> list[str]:
        """The accumulator's part of each access to a tile."""
        each = PARTS // self.bytes
        if each == PARTS:
            return [tile]
        return [f"{tile}:{p}-{p + each - 1}" for p in range(0, PARTS, each)]


_PLAIN = (("vlda.bm",), ("vst.bm",))
ELEMENTS = {
    "int8": Element(1, ("vlda.ups.4x", "s0", "upssign1"), ("vst.srs.4x", "s0", "srssign1")),
    "int16": Element(2, ("vlda.ups.2x", "s0", "upssign1"), ("vst.srs.2x", "s0", "srssign1")),
    "int32": Element(4, *_PLAIN),
    "bfloat16": Element(2, ("vlda.conv.fp32.bf16",), ("vst.conv.bf16.fp32",)),
    "float32": Element(4, *_PLAIN),
}
XDNA1_LINE = 32  # of its tiles of 4 x 8
XDNA1_ELEMENTS = {
    "int8": Element(1, ("vlda.ups.s32.s8", "s0"), ("vst.srs.s8.s32", "s0"), XDNA1_LINE),
    "int16": Element(2, ("vlda.ups.s32.s16", "s0"), ("vst.srs.s16.s32", "s0"), XDNA1_LINE),
    "int32": Element(4, ("vlda.am",), ("vst.am",), XDNA1_LINE),
}
_ORDER = [(i, j) for j in range(SIDE) for i in range(SIDE)]  # in which tiles come and go


def check_size(kernel: str, m1: int, k1: int, n1: int) -> None:
    """Numbers of tiles that whole blocks have."""
    for name, value, step in (("m1", m1, SIDE), ("k1", k1, 1), ("n1", n1, SIDE)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value % step:
            raise ShapeError(
                f"[{kernel}] {name} is {value!r}: give a number of tiles, a multiple of {step}"
            )


def places(m1: int, n1: int) -> list[tuple[int, int]]:
    """Row and column of each block's first tile."""
    return [(row, column) for row in range(0, m1, SIDE) for column in range(0, n1, SIDE)]


def streams(element: Element, m1: int, n1: int) -> dict[str, Stream]:
    """C's, both of the argument p2."""
    bases = [element.tile * (row * n1 + column) for row, column in places(m1, n1)]
    return {name: Stream(name, "p2", bases) for name in ("c.in", "c.out")}


def values(k1: int, accumulator: str = "DM") -> dict[str, str]:
    """The sums after each step; step -1 is C as it was."""
    return {f"c{i}{j}.{k}": accumulator for i, j in _ORDER for k in range(-1, k1)}


def nodes(
    k1: int,
    n1: int,
    element: Element,
    multiply: str,
    factor: Callable[[str, int, int], list[Node]],
    by_rows: bool = False,
) -> tuple[Node, ...]:
    """The products of a column of tiles are together every four cycles, the second column's later;
    or those of rows. ``factor(x, i, k)``: what brings tile i of step k of A or B, the value
    ``{x}{i}.{k}``, unless it has been brought."""
    order = [(j, i) if by_rows else (i, j) for i, j in _ORDER]
    found = [node for i, j in order for node in _moves("load", i, j, n1, element, -1)]
    # Where C's bank is taken longer than the multiplications last, sums take turns further apart.
    binds = element.bytes == 4 and k1 < C_BANK
    apart = 6 if not binds else 10 if by_rows else 14
    first = dict(zip(order, (0, 1, apart, apart + 1), strict=True))
    products = sorted((4 * k + first[i, j], i, j, k) for i, j in order for k in range(k1))
    for at, i, j, k in products:
        found += factor("a", i, k) + factor("b", j, k)
        new = f"c{i}{j}.{k}"
        operands = (new, f"c{i}{j}.{k - 1}", f"a{i}.{k}", f"b{j}.{k}", "r1")
        found.append(Node(new, (multiply,), operands, "multiply", at=at))
    found += [node for i, j in order for node in _moves("store", i, j, n1, element, k1 - 1)]
    return tuple(found)


def _moves(role: str, i: int, j: int, n1: int, element: Element, step: int) -> list[Node]:
    """A tile of C into an accumulator or out of it."""
    form, *beside = element.load if role == "load" else element.store
    stream = "c.in" if role == "load" else "c.out"
    found = []
    for line, part in enumerate(element.parts(f"c{i}{j}.{step}")):
        access = Access(stream, element.tile * (i * n1 + j) + element.line * line)
        found.append(Node(f"{role} {part}", (form,), (part, *beside, access), role, "c"))
    return found
