"""Generated bf16 products of npu1 whose operands are stored by rows or by columns: bit for bit the
C++ kernel's results; shuffles as many as orientations need; a multiplication in every cycle of the
loop, whatever is turned.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu.errors import ShapeError
from npu.vliw import kernels, matmul_bf16_square, reference
from npu.vliw.kernels import Schedule

# Kernel, layout of B, shuffles per block of 2 x 4 tiles of C and step of k
KINDS = [
    ("matmul_bf16_square", "col", 4),
    ("matmul_bf16_square", "row", 4),
    ("matmul_bf16_square_turned", "row", 6),
]
each_kind = pytest.mark.parametrize(("kernel", "layout", "turns"), KINDS)


def schedule(kernel: str, layout: str, m1: int, k1: int, n1: int) -> Schedule:
    return kernels.schedule("npu1", kernel, m1, k1, n1, 2, None, layout)


@each_kind
@pytest.mark.parametrize("shape", [(2, 1, 4), (4, 3, 8)])
def test_the_results_of_the_cpp_kernel(
    shape: tuple[int, int, int], kernel: str, layout: str, turns: int
) -> None:
    found = schedule(kernel, layout, *shape)
    given = reference.operands(found, 1)
    result, run = found.run(given.a, given.b, given.c)
    np.testing.assert_array_equal(result.view(np.uint32), given.after.view(np.uint32))
    m1, k1, n1 = shape
    assert run.issued["vmac.f"] == m1 * k1 * n1
    assert run.issued["vshuffle"] == turns * k1 * m1 * n1 // 8


@each_kind
def test_every_cycle_of_the_loop_multiplies(kernel: str, layout: str, turns: int) -> None:
    """Loops have two blocks of eight products per step of k."""
    found = schedule(kernel, layout, 4, 4, 8)
    (loop,) = found.document()["loops"]
    assert loop["bundles"] == 2 * 8 * 4
    assert found.simulated().stalls == 0


def test_orientations_are_other_products() -> None:
    """A kernel with the operands of another orientation gives other results."""
    found = schedule("matmul_bf16_square", "col", 4, 3, 8)
    other = schedule("matmul_bf16_square", "row", 4, 3, 8)
    given = reference.operands(found, 1)
    assert not np.array_equal(other.run(given.a, given.b, given.c)[0], given.after)


def test_wrong_sizes() -> None:
    with pytest.raises(ShapeError, match=r"\[matmul_bf16_square\] n1 is 6: give a number of tiles"):
        matmul_bf16_square.regions(2, 4, 6, "row", False)
