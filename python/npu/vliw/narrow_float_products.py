"""Products of lanes of fp32 on XDNA1, as float_products.py makes them on XDNA2: 16 lanes at a time,
to each of which an operation adds two products of bf16.

A part of an fp32 number has zeros beside it, so that an operation adds one product. Only the
products of a bf16 number with the two lower parts come in one operation: together they have 24
bits, which loses nothing. Sums of products are rounded as those of the matrix product are, so that
what a number's first part leaves loses its last bit where that part is a power of two above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from npu.vliw.dataflow import Access
from npu.vliw.float_products import ORDER
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

_LANES, _JOIN, _ZERO, _ONE = "r0", "r1", "r7", "r8"
_ZEROS, _ONES = "x0", "x1"
_VECTORS = 12


class NarrowFloats:
    """Builds products in a dataflow."""

    COUNT = 16  # lanes
    CONSTANTS: ClassVar = {
        _LANES: LANES, "crrnd": 12, _JOIN: SHUFFLES["T256_2x2_lo"], _ZERO: 0, _ONE: 0x3F80,
    }  # fmt: skip
    # Something in every vector, as a shuffle reads all of a `partial` one.
    PREAMBLE = (
        *(("vbcst.16", (f"x{number}", _ZERO)) for number in range(_VECTORS) if number != 1),
        ("vbcst.16", (_ONES, _ONE)),
    )
    RESERVED = frozenset({_ZEROS, _ONES})

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow

    def narrow(self, stream: str, offset: int, bank: str) -> str:
        """16 lanes of bf16, twice in a vector."""
        value = self.flow.value("X")
        for part in range(2):
            self.flow.load_part(stream, offset, bank, value, part)
        return value

    def loaded(self, stream: str, offset: int, bank: str) -> str:
        """16 lanes of fp32."""
        value = self.flow.value("BM")
        for part in range(2):
            self.flow.load_am(stream, offset + 32 * part, bank, value, part)
        return value

    def stored(self, value: str, access: Access, bank: str) -> None:
        """Rounds lanes to bf16 on their way to memory."""
        self.flow.store(("vst.conv.bf16.fp32",), value, access, bank)

    def parts(self, value: str, names: Sequence[str] = ("", "")) -> list[str]:
        """The first part with zeros, and the two others; in values with these names."""
        _, first, rest = self._cut(value, names[0])
        second, _, rest = self._cut(rest)
        return [first, self._beside(second, self._narrowed(rest), names[1])]

    def add(self, a: str, b: str) -> str:
        return self.flow.op("vadd.f", "BM", a, b, _LANES)

    def three(self, value: str) -> list[str]:
        """Every part with zeros, for products of two fp32 numbers."""
        _, first, rest = self._cut(value)
        _, second, rest = self._cut(rest)
        return [first, second, self._beside(self._narrowed(rest))]

    def multiplied(self, a: Sequence[str], b: Sequence[str]) -> str:
        """fp32 times fp32. One of them has zeros beside its parts."""
        below = self.flow.op("vmul.f", "BM", a[0], b[2], _LANES)
        for i, j in ORDER[1:]:
            below = self.flow.op("vmac.f", "BM", below, a[i], b[j], _LANES)
        return below

    def _cut(self, value: str, name: str = "") -> tuple[str, str, str]:
        """The nearest bf16 numbers in half a vector, those with zeros, and what they leave."""
        half = self._narrowed(value)
        found = self._beside(half, _ZEROS, name)
        return half, found, self.flow.op("vmsc.f", "BM", value, found, _ONES, _LANES)

    def _narrowed(self, value: str) -> str:
        found = self.flow.value("X", partial=True)
        self.flow.into("vconv.bf16.fp32", f"{found}:0", value)
        return found

    def _beside(self, low: str, high: str = _ZEROS, name: str = "") -> str:
        """The lower halves of two vectors."""
        name = name or self.flow.value("X")
        self.flow.into("vshuffle", name, low, high, _JOIN)
        return name

    def scaled(self, narrow: str, parts: Sequence[str]) -> str:
        """bf16 times fp32."""
        first, others = parts
        below = self.flow.op("vmul.f", "BM", narrow, others, _LANES)
        return self.flow.op("vmac.f", "BM", below, narrow, first, _LANES)

    def add_scaled(
        self, total: str, narrow: str, parts: Sequence[str], *, minus: bool = False
    ) -> str:
        """total + bf16 times fp32, or total minus it."""
        first, others = parts
        form, last = ("vnegmul.f", "vaddmsc.f") if minus else ("vmul.f", "vaddmac.f")
        below = self.flow.op(form, "BM", narrow, others, _LANES)
        self.flow.into(last, below, below, total, narrow, first, _LANES)
        return below
