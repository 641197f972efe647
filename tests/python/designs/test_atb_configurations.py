"""The ATB paper's configurations on its machine, simulated: figures of docs/gemm_designs.md, the
goals, whether a core has room for the compiled program, and how much hangs on calls being cheap."""

from __future__ import annotations

from typing import Any

import pytest

import npu
from npu.designs import gemm, gemm_limits

BF16, BFP16 = "bfloat16", "bfp16"
ONE = {"dtype_in": BF16, "dtype_b": BFP16, "dtype_out": BF16, "accumulate": "narrow",
       "tile": (128, 24, 192), "k_mt": 360, "a_parts": 4}  # fmt: skip
THREE = {"dtype_in": BFP16, "dtype_out": BFP16, "accumulate": BF16, "c_buffers": 0,
         "tile": (192, 32, 128), "k_mt": 352, "a_parts": 6}  # fmt: skip
# Size, options, TOPS with generated schedules and with constants, the goal.
ROWS = [
    ((4096, 4320, 4608), ONE, 31.7, 18.8, 30),
    ((4608, 4224, 4096), THREE, 44.3, 26.0, 34),
]


@pytest.mark.parametrize(("size", "options", "scheduled", "published", "goal"), ROWS)
def test_published_figures(
    size: tuple[int, int, int], options: dict[str, Any], scheduled: float, published: float,
    goal: float,
) -> None:  # fmt: skip
    run = npu.simulate_gemm("npu2", *size, machine="strix-atb", **options)
    assert run.tops == pytest.approx(scheduled, abs=0.06) and run.tops > goal
    assert run.bound == "DRAM" and run.kernels == "scheduled (zero_bf16: counted)"
    constants = npu.simulate_gemm(
        "npu2", *size, machine="strix-atb", kernels="published", **options
    )
    assert constants.tops == pytest.approx(published, abs=0.06)


def point(options: dict[str, Any]) -> gemm.DesignPoint:
    names = {"dtype_b": "b_dtype"}
    given = {names.get(name, name): value for name, value in options.items()}
    a, c = given.pop("dtype_in"), given.pop("dtype_out")
    return gemm.design_point("npu2", a, c, **{"b_dtype": BFP16, **given})


@pytest.mark.parametrize("options", [ONE, THREE])
def test_a_compiled_program_has_room(options: dict[str, Any]) -> None:
    assert gemm_limits.leaves_room(point(options))


def test_with_less_memory_kept_for_a_program() -> None:
    """144 x 24 x 176: 1 KiB is left, no compiled program fits."""
    options = ONE | {"tile": (144, 24, 176), "a_parts": 3}
    assert not gemm_limits.leaves_room(point(options))
    run = npu.simulate_gemm("npu2", 4032, 4320, 4224, machine="strix-atb", **options)
    assert run.tops == pytest.approx(32.3, abs=0.06)
