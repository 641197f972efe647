"""Products of lanes of fp32 on XDNA1, as float_products.py makes them on XDNA2: 16 lanes at a time,
to each of which an operation adds two products of bf16.

Those two are aligned to the larger one before they are added. So only what loses nothing there is
done in one operation: a product alone, and the products of a bf16 number with the two lower parts
of an fp32 one, which together have 24 bits. Everything else is a sum of accumulators. A vector of
parts has the first one with zeros beside it, or the two others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from npu.vliw.dataflow import Access
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES, SHUFFLES

_LANES, _JOIN, _ZERO, _ZEROS = "r0", "r1", "r7", "x0"
_VECTORS = 12


class NarrowFloats:
    """Builds products in a dataflow."""

    COUNT = 16  # lanes
    CONSTANTS: ClassVar = {_LANES: LANES, "crrnd": 12, _JOIN: SHUFFLES["T256_2x2_lo"], _ZERO: 0}
    # Something in every vector, as a shuffle reads all of a `partial` one.
    PREAMBLE = tuple(("vbcst.16", (f"x{number}", _ZERO)) for number in range(_VECTORS))
    RESERVED = frozenset({_ZEROS})

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

    def parts(self, value: str) -> list[str]:
        """The first part with zeros, and the two others."""
        flow = self.flow
        first, others = flow.value("X", partial=True), flow.value("X")
        places = (f"{first}:0", f"{others}:0", f"{others}:1")
        for place in places:
            flow.into("vconv.bf16.fp32", place, value)
            if place != places[-1]:
                value = self.add(value, flow.op("vconv.fp32.bf16", "BM", place), minus=True)
        return [flow.op("vshuffle", "X", first, _ZEROS, _JOIN), others]

    def add(self, a: str, b: str, *, minus: bool = False) -> str:
        return self.flow.op("vsub.f" if minus else "vadd.f", "BM", a, b, _LANES)

    def scaled(self, narrow: str, parts: Sequence[str]) -> str:
        """bf16 times fp32."""
        return self.add(*(self._products(narrow, part) for part in parts))

    def add_scaled(
        self, total: str, narrow: str, parts: Sequence[str], *, minus: bool = False
    ) -> str:
        """total + bf16 times fp32, rounded twice; the first part first."""
        for part in parts:
            total = self.add(total, self._products(narrow, part), minus=minus)
        return total

    def _products(self, a: str, b: str) -> str:
        return self.flow.op("vmul.f", "BM", a, b, _LANES)
