"""Cycles of the designs' kernels: what they are made of, that they hold for other sizes than those
they were taken from, errors."""

from __future__ import annotations

import dataclasses

import pytest

from npu import _npu
from npu.errors import ArgumentError
from npu.vliw import cycles, generate, kernels

INT8 = "matmul_i8_i8_pipelined_bcol"
# Cycles by which the ends may be shorter than the ones that are charged.
SPREAD = 6


def test_every_variant_is_a_kernel_of_the_designs() -> None:
    for (device, name), variant in cycles.VARIANTS.items():
        operands = {o["name"]: o for o in _npu.kernels.describe(name, device)["operands"]}
        out = "bfp16" if operands["c"]["block_float"] else operands["c"]["dtype"]
        assert out == variant.out
        (m, k, n), (rows, columns) = variant.tile, variant.block
        assert (operands["m"]["step"], operands["n"]["step"]) == (rows * m, columns * n)
        if "pipelined" in name:
            assert operands["k"]["min"] == k * variant.steps.start
            assert operands["k"]["max"] == k * (variant.steps.stop - 1)


def test_what_the_int8_kernel_costs() -> None:
    found = cycles.of("npu2", INT8, 4)
    assert found.interval == 16  # 4 tiles of C by 4 steps: one multiplication per cycle
    assert 15 < found.outside < 25
    assert found.total(208, 176) == 16 * 13 * 11 + found.outside
    assert found.utilisation(208, 176) == pytest.approx(16 * 143 / found.total(208, 176))
    assert 0 < found.code_bytes < 2048


@pytest.mark.parametrize("name", [INT8, "matmul_i8_i16_pipelined", "matmul_i8_i32_pipelined_bcol"])
@pytest.mark.parametrize("size", [(2, 2), (2, 10), (10, 4), (6, 14), (8, 8)])
def test_the_formula_holds_for_other_sizes(name: str, size: tuple[int, int]) -> None:
    found, variant = cycles.of("npu2", name, 4), cycles.VARIANTS["npu2", name]
    m1, n1 = size
    run = kernels.schedule(
        "npu2", variant.kernel, m1, 4, n1, out=variant.out, b_layout=variant.b_layout
    ).simulated()
    total = found.total(8 * m1, 8 * n1)
    assert run.stalls == 0 and total - SPREAD <= run.cycles <= total


@pytest.mark.usefixtures("no_known_states")
def test_the_same_every_time() -> None:
    one = cycles.of("npu2", INT8, 2)
    kernels.schedule.cache_clear()
    generate._steady.cache_clear()
    cycles.of.cache_clear()
    assert dataclasses.asdict(cycles.of("npu2", INT8, 2)) == dataclasses.asdict(one)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"matmul_f64 on npu2 is not generated; .*_i8_i8"):
        cycles.of("npu2", "matmul_f64", 4)
    with pytest.raises(ArgumentError, match="takes 2 to 8 steps of 8 along k, not 9"):
        cycles.of("npu2", INT8, 9)
    with pytest.raises(ArgumentError, match=r"m = 8 and n = 16 of .* multiples of 16 and 16"):
        cycles.of("npu2", INT8, 2).total(8, 16)
