"""Products of lanes of fp32 on XDNA2, made of products of bf16: an fp32 number is the exact sum of
three bf16 ones, its parts, largest first.

A product with a bf16 number is three operations, smallest part first: the two lower ones together
have 24 bits, so that only the last operation rounds and the result is the nearest fp32. A product
of two fp32 numbers is six, in the order of AMD's headers (`ORDER`). What it is added to meets it
in the last operation, which takes two accumulators. C++ kernels in `silicon` compute the same
(backend/kernels/host/aie_api/float_product.hpp), but where parts vanish or overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from npu.vliw.dataflow import Access
from npu.vliw.vector_dataflow import Dataflow
from npu.vliw.vector_operations import LANES

_LANES, _NUMBER = "r0", "r7"
MINUS_ONE = "x0"  # in bf16
_ACCUMULATORS = 5
# (part of a, part of b) of the products, as they are added. [API] mac_elem_16_accuracy_fast
ORDER = ((0, 2), (1, 1), (2, 0), (1, 0), (0, 1), (0, 0))

# What a kernel sets first: the configuration, rounding to nearest even, -1 in bf16.
CONSTANTS = {_LANES: LANES, "crrnd": 12, _NUMBER: 0xBF80}


def cleared() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The preamble: -1 in all lanes, and something in every accumulator, as operations on 32 lanes
    read the rest as well."""
    clear = (("vclr", (f"dm{number}",)) for number in range(_ACCUMULATORS))
    return (("vbcst.16", (MINUS_ONE, _NUMBER)), *clear)


def bits(value: np.float32) -> int:
    """Of an fp32 number, as a signed integer."""
    return int(value.view(np.int32))


def constant_parts(value: np.float32) -> list[int]:
    """Bits of the parts of an fp32 number."""
    found = []
    for _ in range(3):
        part = value.astype(ml_dtypes.bfloat16)
        found.append(int(part.view(np.uint16)))
        value = value - part.astype(np.float32)
    return found


class Floats:
    """Builds products in a dataflow, in accumulators whose lower halves hold 32 lanes."""

    COUNT, CONSTANTS, PREAMBLE = 32, CONSTANTS, cleared()
    RESERVED = frozenset({MINUS_ONE})

    def __init__(self, flow: Dataflow) -> None:
        self.flow = flow

    def narrow(self, stream: str, offset: int, bank: str) -> str:
        """32 lanes of bf16, as factors of products."""
        return self.flow.load(stream, offset, bank)

    def stored(self, value: str, access: Access, bank: str) -> None:
        """Rounds lanes to bf16 on their way to memory."""
        self.flow.store(("vst.conv.bf16.fp32",), f"{value}:0-1", access, bank)

    def loaded(self, stream: str, offset: int, bank: str) -> str:
        """32 lanes of fp32."""
        value = self.flow.value("DM", partial=True)
        for part in range(2):
            self.flow.load_bm(stream, offset + 64 * part, bank, value, part)
        return value

    def parts(self, value: str, names: Sequence[str] | None = None, count: int = 3) -> list[str]:
        """The parts of fp32 lanes, as values with these names; ``count``: as many as it has."""
        names = names or [self.flow.value("X") for _ in range(count)]
        for name in names:
            self.flow.into("vconv.bf16.fp32", name, f"{value}:0-1")
            if name != names[-1]:
                value = self.add_product(value, name, MINUS_ONE)
        return list(names)

    def product(self, a: str, b: str) -> str:
        """Of bf16 lanes."""
        return self.flow.op("vmul.f.x", "DM", a, b, _LANES)

    def add_product(self, total: str, a: str, b: str) -> str:
        """total + a b of bf16 lanes."""
        return self.flow.op("vmac.f.x", "DM", total, a, b, _LANES)

    def subtract_product(self, total: str, a: str, b: str) -> str:
        """total - a b of bf16 lanes."""
        return self.flow.op("vmsc.f.x", "DM", total, a, b, _LANES)

    def add_square(self, sums: str, x: str) -> None:
        """sums += x^2, in place."""
        self.flow.into("vmac.f.x", sums, sums, x, x, _LANES)

    def add(self, a: str, b: str) -> str:
        return self.flow.op("vadd.f", "DM", a, b, _LANES)

    def scaled(self, narrow: str, parts: Sequence[str]) -> str:
        """bf16 times fp32."""
        total = self.product(narrow, parts[-1])
        for part in reversed(parts[:-1]):
            total = self.add_product(total, narrow, part)
        return total

    def add_scaled(
        self, total: str, narrow: str, parts: Sequence[str], *, minus: bool = False
    ) -> str:
        """total + bf16 times fp32, or total minus it."""
        first, *others = parts
        if minus:
            below = self.flow.op("vnegmul.f.x", "DM", narrow, others[-1], _LANES)
            for part in reversed(others[:-1]):
                below = self.subtract_product(below, narrow, part)
        else:
            below = self.scaled(narrow, others)
        return self._met(below, total, narrow, first, "vaddmsc.f.x" if minus else "vaddmac.f.x")

    def _met(self, below: str, total: str, a: str, b: str, form: str = "vaddmac.f.x") -> str:
        """below + total and a product, in the register of ``below``."""
        self.flow.into(form, below, below, total, a, b, _LANES)
        return below

    def constant(self, register: str) -> str:
        """The number of a scalar register in 32 lanes of fp32."""
        lanes, found = self.flow.op("vbcst.32", "X", register), self.flow.value("DM", partial=True)
        for part in range(2):
            self.flow.into("vmov", f"{found}:{part}", lanes)
        return found

    def copied(self, parts: Sequence[str]) -> list[str]:
        """With a copy of the first part for the products that come last: a register holds no value
        for longer than two turns."""
        return [*parts, self.flow.op("vmov.xx", "X", parts[0])]

    def multiplied(self, a: Sequence[str], b: Sequence[str], total: str = "") -> str:
        """fp32 times fp32; with ``total``: added to it."""
        below = ""
        for number, (i, j) in enumerate(ORDER):
            if i >= len(a) or j >= len(b):
                continue
            i, j = (
                3 if part == 0 and number > 2 and len(parts) > 3 else part
                for part, parts in ((i, a), (j, b))
            )
            if total and number == len(ORDER) - 1:
                below = self._met(below, total, a[i], b[j])
            else:
                below = self.add_product(below, a[i], b[j]) if below else self.product(a[i], b[j])
        return below
