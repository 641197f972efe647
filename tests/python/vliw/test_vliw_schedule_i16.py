"""Generated int16 products of both generations: bit for bit the C++ kernel's results, which wrap at
32 bits, for both layouts of B and odd and even numbers of steps; a multiplication in every cycle of
the loop where C's accesses allow it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from npu.errors import ShapeError
from npu.vliw import assembly, kernels, matmul_i16, reference
from npu.vliw.kernels import Schedule
from npu.vliw.machines import MACHINES

DEVICES, LAYOUTS = ("npu1", "npu2"), ("row", "col")
each_kind = pytest.mark.parametrize(
    ("device", "layout"), [(device, layout) for device in DEVICES for layout in LAYOUTS]
)
# Shuffles per tile of B by columns: one; on npu1, two for each of three per pair.
TURNS = {"npu1": lambda k1: k1 + -(-k1 // 2), "npu2": lambda k1: k1}


def schedule(device: str, m1: int, k1: int, n1: int, layout: str, attempts: int = 4) -> Schedule:
    return kernels.schedule(device, "matmul_i16", m1, k1, n1, attempts, None, layout)


def check(found: Schedule, seed: int) -> None:
    given = reference.operands(found, seed)
    result, run = found.run(given.a, given.b, given.c)
    np.testing.assert_array_equal(result, given.after)
    m1, k1, n1 = found.shape
    assert run.stalls == 0
    assert run.issued["vmac.16"] == m1 * k1 * n1
    turned = m1 // 2 * n1 * TURNS[found.device](k1) if found.b_layout == "col" else 0
    assert run.issued["vshuffle"] == turned
    kinds = ("vlda.ups.s64.s32", "vst.srs.s32.s64", "vlda.ups.2x", "vst.srs.2x")
    assert sorted(run.issued[kind] for kind in kinds) == [0, 0, 2 * m1 * n1, 2 * m1 * n1]


@each_kind
@pytest.mark.parametrize("shape", [(2, 1, 2), (4, 5, 6), (2, 8, 4)])
def test_the_results_of_the_cpp_kernel(
    shape: tuple[int, int, int], device: str, layout: str
) -> None:
    check(schedule(device, *shape, layout), 1)


def test_the_operands_wrap() -> None:
    """Products by Python's integers: some leave 32 bits, and the reference keeps the lower ones."""
    given = reference.matmul_i16(2, 3, 2, 0, "row", "npu2")
    a = given.a.astype(object).transpose(0, 2, 1, 3).reshape(8, 12)
    b = given.b.astype(object).transpose(0, 2, 1, 3).reshape(12, 16)
    c = given.c.astype(object).transpose(0, 2, 1, 3).reshape(8, 16)
    wide = c + a @ b
    assert any(abs(x) >= 1 << 31 for x in wide.ravel())
    after = given.after.transpose(0, 2, 1, 3).reshape(8, 16)
    pairs = zip(wide.ravel(), after.ravel(), strict=True)
    assert all((x - int(y)) % (1 << 32) == 0 for x, y in pairs)


@settings(deadline=None, max_examples=6)
@over(
    m2=st.integers(1, 4), k1=st.integers(1, 9), n2=st.integers(1, 4),
    device=st.sampled_from(DEVICES), layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_size(m2: int, k1: int, n2: int, device: str, layout: str, seed: int) -> None:
    check(schedule(device, 2 * m2, k1, 2 * n2, layout, 2), seed)


@each_kind
@pytest.mark.parametrize("k1", [3, 4, 7])
def test_the_loop_is_full_or_the_bank_of_c_is(k1: int, device: str, layout: str) -> None:
    """Two accesses to a tile of C each way."""
    (loop,) = schedule(device, 4, k1, 8, layout, 1).document()["loops"]
    assert loop["bundles"] == 2 * max(4 * k1, 16)


@pytest.mark.parametrize("device", DEVICES)
def test_its_text_is_a_program_for_int16(device: str) -> None:
    """As the configuration word says; the text is that of int8."""
    found = schedule(device, 2, 4, 4, "row", 1)
    text = assembly.write(found.program, found.prototype)
    check(dataclasses.replace(found, program=assembly.read(text, MACHINES[device])), 3)


def test_wrong_sizes() -> None:
    with pytest.raises(ShapeError, match=r"\[matmul_i16\] n1 is 3: give a number of tiles"):
        matmul_i16.regions(2, 4, 3, "row", "npu1")
