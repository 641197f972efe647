"""Generated BFP16 products for npu2: bit for bit the C++ kernel's results for any numbers of tiles,
the published size in no more bundles than the published kernel, C loaded and stored once.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu.errors import DesignError, ShapeError
from npu.vliw import generate, kernels, matmul_bfp16, reference
from npu.vliw.kernels import Schedule

# scalable-analyses/xdna, xdna2_kernel.rst: 65 + 14 * 48 + 63 bundles.
PAPER, PAPER_BUNDLES = (8, 12, 8), 800


def schedule(m1: int, k1: int, n1: int, attempts: int = generate.ATTEMPTS) -> Schedule:
    return kernels.schedule("npu2", "matmul_bfp16", m1, k1, n1, attempts)


def check(found: Schedule, seed: int = 0) -> None:
    given = reference.matmul_bfp16(*found.shape, seed)
    result, run = found.run(given.a, given.b, given.c)
    np.testing.assert_array_equal(result.view(np.uint32), given.after.view(np.uint32))
    m1, k1, n1 = found.shape
    assert run.stalls == 0
    assert run.issued["vmac.f"] == m1 * k1 * n1
    # A tile of C is four accesses each way; half of them come through unit B and a move.
    assert run.issued["vst.bm"] == 4 * m1 * n1
    assert run.issued["vlda.bm"] == run.issued["vldb.x"] == run.issued["vmov"] == 2 * m1 * n1
    # Eight tiles per fill, and every block reads its part of A and of B once.
    pops = m1 * n1 * k1 // 2
    assert run.issued["vlda.pop"] == run.issued["vldb.pop"] == pops
    assert run.issued["vlda.fill"] == run.issued["vldb.fill"] == pops // 8


def test_the_published_size() -> None:
    found = schedule(*PAPER)
    check(found)
    figures = found.document()
    assert figures["multiplication_bundles"] == 768
    assert figures["cycles"] == figures["bundles"] <= PAPER_BUNDLES
    (loop,) = figures["loops"]
    assert loop["bundles"] == 96  # two blocks, a multiplication in every bundle
    body = figures["slots"][loop["first"] : loop["last"] + 1]
    assert all(slots["vec"].startswith("vmac.f") for slots in body)


def test_long_k_is_above_96_percent() -> None:
    found = schedule(8, 16, 8)
    assert found.multiplications / found.simulated().cycles > 0.96


@pytest.mark.parametrize("shape", [(2, 4, 2), (2, 12, 4), (6, 8, 4), (4, 12, 10)])
def test_edges(shape: tuple[int, int, int]) -> None:
    """One block, no loop, loads that bind, more columns than rows."""
    check(schedule(*shape, 4), 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(m2=st.integers(1, 4), k=st.integers(1, 4), n2=st.integers(1, 5), seed=st.integers(0, 99))
def test_any_size(m2: int, k: int, n2: int, seed: int) -> None:
    check(schedule(2 * m2, 4 * k, 2 * n2, 4), seed)


def test_chains_share_accumulators() -> None:
    """Four sums are added to and their successors loaded with five accumulators."""
    found = schedule(*PAPER)
    (loop,) = found.program.loops
    bundles = found.program.bundles[loop[0] : loop[1] + 1]
    products = [op for b in bundles for op in b.ops if op.operation.key == "vmac.f"]
    assert {str(op.operands[0]) for op in products} <= {f"dm{i}" for i in range(5)}
    assert any(op.operands[0] != op.operands[1] for op in products)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0, 4, 2), "m1 is 0: give a number of tiles, a multiple of 2"),
        ((3, 4, 2), "m1 is 3"),
        ((2, 6, 2), "k1 is 6: give a number of tiles, a multiple of 4"),
        ((2, 4, True), "n1 is True"),
    ],
)
def test_wrong_sizes(values: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        matmul_bfp16.regions(*values)


def test_limits_of_the_core() -> None:
    with pytest.raises(DesignError, match="the core's memory has 65536: give fewer tiles"):
        schedule(16, 12, 16, 1).places()
