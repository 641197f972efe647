"""Products that ``npu.matmul`` has checked, and how they are submitted: one after the other, or two
of them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from npu.devices import Device
from npu.ops.arrays import bytes_of, typed_view

if TYPE_CHECKING:
    from npu.ops.gemm_product import Product


@dataclasses.dataclass(frozen=True)
class Piece:
    """Two non-empty matrices of checked dtypes. b: an array, or the handle of a packed one; out:
    C-contiguous, of a dtype the array writes."""

    product: Product
    a: np.ndarray
    b: Any
    out: np.ndarray
    shift: int

    def run(self, gemm: Any) -> None:
        target = bytes_of(self.out)
        if isinstance(self.b, np.ndarray):
            gemm.run(*typed_view(self.a), *typed_view(self.b), target, self.shift)
        else:
            gemm.run_packed(*typed_view(self.a), self.b, target, self.shift)

    def words(self) -> tuple[Any, ...]:
        """As run_both of the runtime takes it."""
        b = typed_view(self.b) if isinstance(self.b, np.ndarray) else (self.b, "")
        return (*typed_view(self.a), *b, bytes_of(self.out), self.shift)


@dataclasses.dataclass(frozen=True)
class Call:
    """A product of arrays: products of matrices, and what makes ``returned`` of them."""

    device: Device
    pieces: list[Piece]
    returned: np.ndarray
    finish: Callable[[], None] | None = None

    def run(self) -> np.ndarray:
        for piece in self.pieces:
            piece.run(self.device.choose_gemm(piece.product))
        if self.finish is not None:
            self.finish()
        return self.returned


def run_both(first: Call, second: Call) -> None:
    """Two products of one device, neither of which reads what the other writes: in one submission
    if each is one product of matrices and one configuration computes both."""
    if len(first.pieces) != 1 or len(second.pieces) != 1:
        first.run()
        second.run()
        return
    (one,), (other,) = first.pieces, second.pieces
    gemm, then = first.device.choose_gemms(one.product, other.product)
    if gemm is then:
        gemm.run_both(one.words(), other.words())
    else:
        one.run(gemm)
        other.run(then)
    for call in (first, second):
        if call.finish is not None:
            call.finish()
