"""Products of lanes of fp32 on XDNA2, made of products of bf16: an fp32 number is the exact sum of
three bf16 ones, its parts, largest first.

A product with a bf16 number is three operations, smallest part first: the two lower ones together
have 24 bits, so that only the last operation rounds and the result is the nearest fp32. A product
of two fp32 numbers is the six products of parts that reach its last bits (those of the parts i and
j with i + j <= 4), smallest first, as the cost of `aie_kernels/fp32.h` counts: it is the nearest
fp32 or, rarely, its neighbour.

This holds where parts are normal numbers: above 2^-110 and below the largest bf16.
"""

from __future__ import annotations

from collections.abc import Sequence

from npu.vliw.vector_dataflow import Dataflow

# (part of a, part of b), smallest products first.
_ORDER = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0))


class Floats:
    """Builds products in a dataflow. ``configuration``: the register with LANES; ``minus_one``: the
    vector of -1 in bf16."""

    def __init__(self, flow: Dataflow, configuration: str, minus_one: str) -> None:
        self.flow, self.configuration, self.minus_one = flow, configuration, minus_one

    def parts(self, value: str, names: Sequence[str] | None = None, count: int = 3) -> list[str]:
        """The parts of fp32 lanes, as values with these names; ``count``: as many as it has."""
        names = names or [self.flow.value("X") for _ in range(count)]
        for name in names:
            self.flow.into("vconv.bf16.fp32", name, f"{value}:0-1")
            if name != names[-1]:
                value = self.add_product(value, name, self.minus_one)
        return list(names)

    def product(self, a: str, b: str) -> str:
        """Of bf16 lanes."""
        return self.flow.op("vmul.f.x", "DM", a, b, self.configuration)

    def add_product(self, total: str, a: str, b: str, *, minus: bool = False) -> str:
        """total + a b, or total - a b, of bf16 lanes."""
        form = "vmsc.f.x" if minus else "vmac.f.x"
        return self.flow.op(form, "DM", total, a, b, self.configuration)

    def scaled(self, narrow: str, parts: list[str], total: str = "", *, minus: bool = False) -> str:
        """bf16 times fp32; with ``total`` added to it, or subtracted from it."""
        if not total:
            total, parts = self.product(narrow, parts[-1]), parts[:-1]
        for part in reversed(parts):
            total = self.add_product(total, narrow, part, minus=minus)
        return total

    def multiplied(self, a: list[str], b: list[str], total: str = "") -> str:
        """fp32 times fp32; with ``total``: added to it."""
        for i, j in _ORDER:
            if i < len(a) and j < len(b):
                total = self.add_product(total, a[i], b[j]) if total else self.product(a[i], b[j])
        return total
