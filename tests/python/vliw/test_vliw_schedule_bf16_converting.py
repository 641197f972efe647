"""Generated bf16 products for npu2 that convert to BFP16 inside: bit for bit the C++ kernel's
results for both types of C and layouts of B, in several passes over a C in fp32; what bounds the
loop.
"""

from __future__ import annotations

import numpy as np
import pytest

from npu.errors import ShapeError
from npu.vliw import kernels, matmul_bf16_converting, reference
from npu.vliw.kernels import Schedule

each_layout = pytest.mark.parametrize("layout", ["row", "col"])


def schedule(m1: int, k1: int, n1: int, out: str, layout: str) -> Schedule:
    return kernels.schedule("npu2", "matmul_bf16_converting", m1, k1, n1, 4, out, layout)


@each_layout
@pytest.mark.parametrize(
    ("shape", "out"),
    [((4, 2, 6), "bfloat16"), ((2, 1, 2), "bfloat16"), ((2, 2, 6), "float32"),
     ((4, 5, 4), "float32")],
)  # fmt: skip
def test_the_results_of_the_cpp_kernel(shape: tuple[int, int, int], out: str, layout: str) -> None:
    found = schedule(*shape, out, layout)
    given = reference.operands(found, 1)
    result, run = found.run(given.a, given.b, given.c)
    bits = f"uint{8 * result.itemsize}"
    np.testing.assert_array_equal(result.view(bits), given.after.view(bits))
    assert (result != given.c).any()
    m1, k1, n1 = shape
    assert run.stalls == 0
    assert run.issued["vmac.f"] == m1 * k1 * n1
    assert run.issued["vconv.bfp16.fp32"] == m1 * k1 * n1  # two tiles each of A and B per step


@each_layout
def test_the_accumulators_port_binds(layout: str) -> None:
    """Eight lines of bf16 per step and eight of C enter accumulators through it."""
    (loop,) = schedule(4, 2, 8, "bfloat16", layout).document()["loops"]
    assert loop["bundles"] == 2 * (8 * 2 + 8)


def test_steps_that_a_c_in_bf16_does_not_have() -> None:
    with pytest.raises(ShapeError, match=r"k1 is 3: a C in bf16 is rounded after at most 2 steps"):
        matmul_bf16_converting.regions(2, 3, 2, "bfloat16", "row")
