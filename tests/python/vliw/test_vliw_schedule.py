"""Generated matmul kernels: bit for bit the C++ kernel's results in silicon arithmetic for any
numbers of tiles; the paper's size in fewer bundles than the paper's kernel; long k above 95 %.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npu.errors import DesignError, ShapeError
from npu.vliw import compaction, generate, kernels, matmul_bf16, reference
from npu.vliw.aie2 import AIE2
from npu.vliw.kernels import Schedule
from npu.vliw.machine import Machine

# scalable-analyses/xdna, xdna1_kernel.rst: 49 + 3 * 64 + 47 bundles.
PAPER = (8, 4, 8)
PAPER_BUNDLES, PAPER_CODE = 288, 160


def schedule(m1: int, k1: int, n1: int) -> Schedule:
    return kernels.schedule("npu1", "matmul_bf16", m1, k1, n1)


def check(found: Schedule, seed: int = 0) -> None:
    given = reference.matmul_bf16(*found.shape, seed)
    result, run = found.run(given.a, given.b, given.c)
    np.testing.assert_array_equal(result.view(np.uint32), given.after.view(np.uint32))
    m1, k1, n1 = found.shape
    assert run.stalls == 0
    assert run.issued["vmac.f"] == m1 * k1 * n1
    # Every value of C is loaded and stored once: two halves of each tile.
    assert run.issued["vlda.am"] == run.issued["vst.am"] == 2 * m1 * n1


def test_the_papers_size() -> None:
    found = schedule(*PAPER)
    check(found)
    figures = found.document()
    assert figures["multiplication_bundles"] == 256
    assert figures["cycles"] == figures["bundles"] <= 278 < PAPER_BUNDLES
    assert figures["code_bundles"] <= PAPER_CODE
    (loop,) = figures["loops"]
    assert loop["bundles"] == 64  # two blocks, a multiplication in every bundle
    body = figures["slots"][loop["first"] : loop["last"] + 1]
    assert all(slots["vec"].startswith("vmac.f") for slots in body)


@pytest.mark.parametrize("shape", [(8, 8, 8), (16, 8, 16), (6, 9, 12)])
def test_long_k_is_above_95_percent(shape: tuple[int, int, int]) -> None:
    found = schedule(*shape)
    run = found.simulated()
    assert found.multiplications / run.cycles > 0.95
    assert run.stalls == 0


@settings(deadline=None, max_examples=12)
@given(m1=st.integers(1, 9), k1=st.integers(1, 5), n1=st.integers(1, 11), seed=st.integers(0, 99))
def test_any_size(m1: int, k1: int, n1: int, seed: int) -> None:
    check(schedule(m1, k1, n1), seed)


@pytest.mark.slow
@example(10, 4, 3)  # of which 3 attempts find nothing
@settings(deadline=None, max_examples=8)
@given(m1=st.integers(1, 16), k1=st.integers(1, 10), n1=st.integers(1, 16))
def test_any_larger_size(m1: int, k1: int, n1: int) -> None:
    check(schedule(m1, k1, n1))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 4), (20, 2, 20), (2, 24, 4), (3, 8, 26)])
def test_edges(shape: tuple[int, int, int]) -> None:
    """One tile, one block, many blocks, long code, a narrow last region."""
    check(schedule(*shape))


def test_long_k_takes_narrow_blocks() -> None:
    """Code of 2 x 4 blocks for k1 = 60 would not fit, that of 2 x 2 does; results are the same."""
    assert [r.name for r in matmul_bf16.regions(4, 48, 8)] == ["2x4"]
    assert [r.name for r in matmul_bf16.regions(4, 60, 8)] == ["2x2"]
    found = kernels.schedule("npu1", "matmul_bf16", 5, 3, 7, 2)
    narrow = generate.generate("k", matmul_bf16._split(5, 3, 7, matmul_bf16.NARROW), AIE2, 2)
    assert narrow != found.program
    check(dataclasses.replace(found, program=narrow))


def test_intervals_that_are_tried() -> None:
    """All of them, but for a block alone, which needs none in particular."""
    assert list(generate._intervals(10, 2)) == list(range(10, 104))
    assert list(generate._intervals(80, 1))[14:20] == [94, 95, 96, 108, 121, 136]
    check(kernels.schedule("npu1", "matmul_bf16", 1, 10, 1, 2))


@pytest.mark.usefixtures("no_known_states")
def test_same_code_every_time() -> None:
    """Whether the steady state is searched again or known."""
    regions = matmul_bf16.regions(4, 3, 8)
    one = generate.generate("k", regions, AIE2, 8)
    assert generate.generate("k", regions, AIE2, 8) == one
    generate._steady.cache_clear()
    assert generate.generate("k", regions, AIE2, 8) == one


@pytest.mark.parametrize(
    ("device", "kernel", "size", "kind"),
    [
        ("npu1", "matmul_bf16", (4, 3, 8), ()),
        ("npu1", "matmul_i8", (4, 2, 4), ("int32", "row")),
        ("npu2", "matmul_i8", (4, 4, 8), ("int8", "col")),
        ("npu2", "matmul_i16", (2, 5, 2), (None, "col")),
    ],
)
def test_what_has_no_room_works_in_no_order(
    device: str, kernel: str, size: tuple[int, int, int], kind: tuple[str | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nothing shorter is found where orders are tried although they cannot work."""
    found, refused = kernels.schedule.__wrapped__(device, kernel, *size, 8, *kind), []

    def every(*arguments: object) -> bool:
        refused.append(not compaction.has_room(*arguments))
        return True

    monkeypatch.setattr(generate, "has_room", every)
    assert kernels.schedule.__wrapped__(device, kernel, *size, 8, *kind) == found
    assert any(refused)


def test_a_known_steady_state_is_of_its_own_kind_of_block() -> None:
    """What it depends on tells regions apart: k, the machine, whether a block is alone."""

    def state(m1: int, k1: int, machine: Machine = AIE2) -> object:
        (region,) = matmul_bf16.regions(m1, k1, 4)
        return generate._steady(generate._Repeated(region, machine))

    assert state(4, 3) is state(8, 3)
    other = dataclasses.replace(AIE2, name="other")
    for found in (state(2, 3), state(4, 4), state(4, 3, other)):
        assert found is not state(4, 3)


@pytest.mark.parametrize("values", [(0, 1, 1), (1, -1, 1), (1, 1, True), (1.0, 1, 1)])
def test_wrong_sizes(values: tuple[int, int, int]) -> None:
    with pytest.raises(ShapeError, match="give a number of tiles"):
        matmul_bf16.regions(*values)


@pytest.mark.parametrize(
    ("room", "words"),
    [(1000, "has at least 1024"), (1500, "filled and drained"), (2600, "k has 2")],
)
def test_program_memory(room: int, words: str) -> None:
    """By all operations, by the loop, by the code."""
    machine = dataclasses.replace(AIE2, program_bytes=room)
    with pytest.raises(DesignError, match=rf"{words}.*memory has {room}: give a smaller k1"):
        generate.generate("k", matmul_bf16.regions(8, 8, 8), machine, 1)


def test_limits_of_the_core() -> None:
    with pytest.raises(DesignError, match="the core's memory has 65536: give fewer tiles"):
        schedule(32, 2, 32 + 4).places()


def test_buffers_in_one_bank_stall_and_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    found = schedule(*PAPER)
    monkeypatch.setattr(Schedule, "places", lambda _: (0, 2048, 4096))
    given = reference.matmul_bf16(*PAPER, 0)
    result, run = found.run(given.a, given.b, given.c)
    np.testing.assert_array_equal(result.view(np.uint32), given.after.view(np.uint32))
    assert run.stalls > 250 and run.cycles == run.bundles + run.stalls
