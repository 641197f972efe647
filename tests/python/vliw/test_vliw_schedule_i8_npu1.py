"""Generated int8 products for npu1: bit for bit the C++ kernel's results for any numbers of tiles,
every type of C and layout of B; a multiplication in every cycle of the loop unless C's bank binds.
Broken schedules do not pass.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from vliw_programs import believing, changed, into, on, writers

from npu.errors import ScheduleError
from npu.vliw import assembly, generate, kernels, matmul_i8, reference
from npu.vliw.aie2 import AIE2
from npu.vliw.kernels import Schedule

OUTS = matmul_i8.OUTS
LAYOUTS = ("row", "col")
LOADS = {"int8": "vlda.ups.s32.s8", "int16": "vlda.ups.s32.s16", "int32": "vlda.am"}
STORES = {"int8": "vst.srs.s8.s32", "int16": "vst.srs.s16.s32", "int32": "vst.am"}

each_kind = pytest.mark.parametrize(
    ("out", "layout"), [(out, layout) for out in OUTS for layout in LAYOUTS]
)


def schedule(m1: int, k1: int, n1: int, out: str, layout: str, attempts: int = 2) -> Schedule:
    return kernels.schedule("npu1", "matmul_i8", m1, k1, n1, attempts, out, layout)


def check(found: Schedule, seed: int = 0) -> None:
    given = reference.operands(found, seed)
    result, run = found.run(given.a, given.b, given.c, given.shift)
    np.testing.assert_array_equal(result, given.after)
    m1, k1, n1 = found.shape
    assert run.stalls == 0
    assert run.issued["vmac"] == m1 * k1 * n1
    accesses = np.dtype(found.out).itemsize * m1 * n1
    assert run.issued[LOADS[found.out]] == run.issued[STORES[found.out]] == accesses
    # A tile of A is an access, one of B two; each feeds two multiplications.
    assert run.issued["vlda.w"] + run.issued["vldb.w"] == 3 * m1 * k1 * n1 // 2
    assert run.issued["vshuffle"] == (m1 * k1 * n1 // 2 if found.b_layout == "col" else 0)


@each_kind
@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 6, 6), (6, 5, 2), (2, 3, 10)])
def test_the_results_of_the_cpp_kernel(shape: tuple[int, int, int], out: str, layout: str) -> None:
    """One block, several, a column of blocks, a row of them."""
    check(schedule(*shape, out, layout), 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@over(
    m2=st.integers(1, 4), k1=st.integers(1, 16), n2=st.integers(1, 4), out=st.sampled_from(OUTS),
    layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_size(m2: int, k1: int, n2: int, out: str, layout: str, seed: int) -> None:
    check(schedule(2 * m2, k1, 2 * n2, out, layout), seed)


@pytest.mark.parametrize("out", ["int8", "int16"])
def test_the_operands_saturate_and_round(out: str) -> None:
    given = reference.matmul_i8(4, 4, 4, 0, out, "row", "npu1")
    assert {np.iinfo(out).max, np.iinfo(out).min} <= set(given.after.ravel().tolist())
    assert given.shift > 0


@each_kind
@pytest.mark.parametrize("k1", [2, 4, 7])
def test_the_loop_is_full_or_the_bank_of_c_is(k1: int, out: str, layout: str) -> None:
    """Four tiles' accesses each way, one per cycle; where both are as many, a cycle may be lost."""
    found = schedule(4, k1, 8, out, layout)
    (loop,) = found.document()["loops"]
    least = max(4 * k1, 8 * np.dtype(out).itemsize)
    assert least <= loop["bundles"] // 2 <= least + (k1 == 7 and out == "int32")


def test_the_text_names_whole_registers_for_tiles_of_a() -> None:
    found = schedule(4, 2, 4, "int8", "col")
    text = assembly.write(found.program, found.prototype)
    assert "vmac cm" in text and "vlda.ups.s32.s8 cm" in text and "vst.srs.s8.s32 cm" in text


# Broken schedules.


@pytest.mark.parametrize(
    ("key", "stage", "latency", "out"),
    [
        ("vlda.ups.s32.s8", 0, -1, "int8"),
        ("vlda.ups.s32.s16", 0, -1, "int16"),
        ("vlda.am", 0, -1, "int32"),
        ("vldb.w vlda.w", 0, -1, "int8"),
        ("vshuffle", 0, -1, "int8"),
        ("vmac", 0, -1, "int16"),
        ("vmac", 4, 0, "int8"),
    ],
)
def test_a_latency_that_is_one_cycle_too_short(
    key: str, stage: int, latency: int, out: str
) -> None:
    regions = matmul_i8.regions(4, 4, 8, out, "col", "npu1")
    machine = changed(AIE2, believing(key, latency, stage))
    program = on(AIE2, generate.generate("broken", regions, machine, 4))
    found = dataclasses.replace(schedule(4, 4, 8, out, "col"), program=program)
    with pytest.raises(ScheduleError, match=r"the schedule meant|was never written|is used twice"):
        found.simulated()


@pytest.mark.parametrize("out", OUTS)
def test_a_register_that_is_replaced(out: str) -> None:
    found = schedule(4, 4, 8, out, "col")
    for victim in random.Random(2).sample(writers(found.program, AIE2, "CM BM AM X W"), 6):
        register = str(victim.operands[0])
        file = str(AIE2.file_of(register))
        names = {str(op.operands[0]) for op in writers(found.program, AIE2, file)}
        other = next(n for n in sorted(names) if n != register)
        broken = dataclasses.replace(found, program=into(found.program, victim, other))
        with pytest.raises(ScheduleError, match=r"meant|never written|two results"):
            broken.simulated()
