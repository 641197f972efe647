"""Chains of products of fp32 lanes on XDNA1, polynomials above all: 16 lanes at a time, in the
order of float_products.ORDER.

Parts of numbers lie beside zeros, as an operation adds two products to a lane: registers of a pool
get results in their lower halves only. Numbers wait as what their parts leave of them, in
accumulators, of which there are more than vectors: parts are rounded anew when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npu.vliw.float_products import ORDER, bits, constant_parts
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES

LOW = "X@low"  # values beside zeros
ONES = "x0"  # in bf16
CONFIGURATION, ZERO, ONE = "r0", "r1", "r2"  # the lower halves of the last two are 0 and 1 in bf16
MASKS = ("r30", "r31")
_LOW = tuple(f"x{number}" for number in range(1, 8))
POOLS = {LOW: _LOW, "X": ("x8", "x9", "x10", "x11"), "R": MASKS}
CONSTANTS = {CONFIGURATION: LANES, "crrnd": 12}
PREAMBLE = (
    *(("vbcst.16", (f"x{number}", ZERO)) for number in range(1, 12)),
    ("vbcst.16", (ONES, ONE)),
)
RESERVED = frozenset({ONES})
_LATE = ORDER.index((0, 1))  # from this product on, parts are rounded anew


def coefficients(
    parts: Sequence[str], others: Sequence[str], of: Sequence[np.float32]
) -> dict[str, int]:
    """The numbers of the registers of a polynomial with these coefficients, of 1, x, x^2 ..."""
    found = dict(zip(parts, constant_parts(of[-1]), strict=True))
    return found | dict(zip(others, map(bits, reversed(of[:-1])), strict=True))


class Number:
    """A factor by its parts. ``make``: what puts a part into a vector; a result serves all products
    until it is forgotten."""

    def __init__(self, make: Callable[[int], str], count: int) -> None:
        self.count, self._make = count, make
        self._made: dict[int, str] = {}

    def part(self, number: int) -> str:
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def forget(self) -> None:
        self._made.clear()


class Chains:
    """Builds products in a dataflow."""

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow

    def narrow(self, stream: str, bank: str) -> str:
        """16 lanes of bf16 from memory."""
        value = self.flow.value(LOW, partial=True)
        self.flow.load_part(stream, 0, bank, value, 0)
        return value

    def lanes(self, value: str) -> Number:
        """A number of bf16 lanes."""
        return Number(lambda part: value, 1)

    def number(self, value: str, count: int = 3) -> Number:
        """Of fp32 lanes; ``count``: as many parts as it has."""
        left = [value]
        found = Number(lambda part: self.rounded(left[part]), count)
        for part in range(count - 1):
            operands = (left[part], found.part(part), ONES, CONFIGURATION)
            left.append(self.flow.op("vmsc.f", "BM", *operands))
        return found

    def everywhere(self, registers: Sequence[str]) -> Number:
        """A constant whose parts are in scalar registers."""
        return Number(lambda part: self.broadcast(registers[part]), len(registers))

    def broadcast(self, register: str) -> str:
        """A bf16 constant in all lanes."""
        return self.flow.op("vbcst.16", "X", register)

    def constant(self, register: str) -> str:
        """An fp32 constant in 16 lanes of an accumulator."""
        return self.flow.op("vmov", "BM", self.flow.op("vbcst.32", "X", register))

    def rounded(self, value: str) -> str:
        """To bf16."""
        found = self.flow.value(LOW, partial=True)
        self.flow.into("vconv.bf16.fp32", f"{found}:0", value)
        return found

    def product(self, a: Number, b: Number, total: str = "") -> str:
        """a b; with ``total``: added to it, in the last operation."""
        below = ""
        for number, (i, j) in enumerate(ORDER):
            if number == _LATE:
                a.forget()
                b.forget()
            if i >= a.count or j >= b.count:
                continue
            factors = (a.part(i), b.part(j), CONFIGURATION)
            if total and (i, j) == ORDER[-1]:
                self.flow.into("vaddmac.f", below, below, total, *factors)
            elif below:
                below = self.flow.op("vmac.f", "BM", below, *factors)
            else:
                below = self.flow.op("vmul.f", "BM", *factors)
        return below

    def polynomial(self, x: Number, value: Number, others: Sequence[str]) -> str:
        """Of x: the highest coefficient, or the value of the highest terms, and the others in
        scalar registers, falling."""
        total = ""
        for register in others:
            x.forget()
            total = self.product(value, x, self.constant(register))
            if register != others[-1]:
                value = self.number(total)
        return total
