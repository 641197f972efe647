"""Sizes up to 65536 in every dimension and beyond: npu.matmul on each generation, type and layout
against exact integers or float64, simulated times of huge problems, and sizes
that cannot be: refused with what to do before anything runs or is allocated.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from devices_under_test import DEVICES

import npu
from npu import _npu
from npu.cli import main
from npu.designs import gemm
from npu.errors import ArgumentError, DesignError, NpuError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)
LARGE = 1 << 16
TILE = (144, 72, 144)  # int8 -> int8 on npu2


def small_integers(rng: np.random.Generator, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """For bfloat16 small enough that products, BFP16 blocks and float32 sums are exact."""
    return rng.integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("dtype", [np.dtype(np.int8), np.dtype(np.int16), BF16], ids=str)
@pytest.mark.parametrize("large", ["M", "K", "N"])
@pytest.mark.parametrize("device", DEVICES)
def test_each_dimension_of_65536(device: str, large: str, dtype: np.dtype, layout: str) -> None:
    """Whole native blocks with row-major B, ragged in all dimensions with column-major."""
    size = {"M": 64, "K": 64, "N": 64, large: LARGE}
    m, k, n = (value + (layout == "col") * (3 + 2 * i) for i, value in enumerate(size.values()))
    rng = np.random.default_rng(m + k + n)
    a = small_integers(rng, (m, k), dtype)
    b = small_integers(rng, (k, n), dtype)
    right = np.asfortranarray(b) if layout == "col" else b
    out_dtype = np.float32 if dtype == BF16 else np.int32
    c = npu.matmul(a, right, out_dtype=out_dtype, device=device)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_a_long_sum_of_extremes_wraps_like_int32() -> None:
    a = np.full((2, LARGE * 3), -128, np.int8)
    c = npu.matmul(a, a.T)
    assert (c == np.array(LARGE * 3 * 128 * 128).astype(np.int32)).all()
    assert (npu.matmul(a, a.T, out_dtype=np.int8, shift=30) == -1).all()


def test_simulated_blocks_are_those_of_one_submission_or_several() -> None:
    """Times add up over submissions; agents and bytes too; shares stay shares."""
    options: dict[str, Any] = {"dtype_out": "int8", "tile": TILE}
    whole = npu.simulate_gemm("npu2", LARGE, 72, LARGE, **options)
    rows, columns = 4 * 144, 8 * 144
    height = 2048 // (-(-LARGE // columns)) * rows  # most rows of one submission
    first = npu.simulate_gemm("npu2", height, 72, LARGE, **options)
    rest = npu.simulate_gemm("npu2", LARGE % height, 72, LARGE, **options)
    count = LARGE // height
    assert count >= 2
    for name in ("seconds", "cycles", "dispatch_seconds"):
        total = count * getattr(first, name) + getattr(rest, name)
        assert getattr(whole, name) == pytest.approx(total)
    agents = {name: count * value + rest.agents[name] for name, value in first.agents.items()}
    assert whole.agents == pytest.approx(agents)
    assert whole.bytes["L3_write"] == -(-LARGE // rows) * rows * -(-LARGE // columns) * columns
    assert all(0 < share <= 1 for share in whole.shares.values())
    closed = npu.simulate_gemm("npu2", LARGE, 72, LARGE, model="closed-form", **options)
    assert whole.seconds == pytest.approx(closed.seconds, rel=0.05)


@pytest.mark.parametrize("size", [(1 << 24, 64, 64), (64, 1 << 24, 64), (64, 64, 1 << 24)], ids=str)
@pytest.mark.slow
def test_simulated_sizes_up_to_the_limit(size: tuple[int, int, int]) -> None:
    found = [
        npu.simulate_gemm("npu2", *size, dtype_out="int8", tile=TILE, model=method).seconds
        for method in ("emulator", "closed-form")
    ]
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_a_product_too_large_for_one_stream_is_split() -> None:
    config = gemm.configuration("npu2", "int8", "int32")
    found = _npu.operations.submissions("gemm", config, {"m": LARGE, "k": LARGE, "n": LARGE})
    assert sum(one["count"] for one in found) == 16  # of 2048 output rounds each
    assert all(len(one["stream"]) < 16 << 20 for one in found)
    with pytest.raises(ShapeError, match="split the problem"):
        _npu.operations.submissions("gemm", config, {"m": 1 << 31, "k": 256, "n": 1 << 31})
    for shift in (-1, 32):
        with pytest.raises(ArgumentError, match="shift"):
            request = {"m": 256, "k": 256, "n": 512, "shift": shift}
            _npu.operations.submissions("gemm", config, request)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["inspect", "--gemm", str(1 << 31)], "more than can be addressed; split"),
        (["inspect", "--gemm", str(1 << 63)], "2147483648"),
        (["inspect", "--gemm", "0"], "not a positive whole number"),
        (["inspect", "--gemm", "64x-1x64"], "not a positive whole number"),
        (["inspect", "--gemm", "64.5"], "not a positive whole number"),
        (
            ["compile", "gemm", "--tile", f"{1 << 31}x64x64"],
            "bytes of L1; a core has 64512: use m <= 80",
        ),
        (["compile", "gemm", "--tile", f"64x{1 << 31}x64"], "a core has 64512: use k <= 88"),
        (["compile", "gemm", "--tile", f"{1 << 64}x64x64"], "2147483648"),
        (["compile", "gemm", "--k-mt", str(1 << 64)], "at most"),
    ],
)
def test_commands_refuse_sizes(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: Any = main(arguments)
    except SystemExit as stop:
        status = stop.code
    assert status not in (0, None)
    printed = capsys.readouterr().err
    assert words in printed and "Traceback" not in printed


WRONG = [True, 0, -1, 1.0, 10**400, 1 << 31, 1 << 63, 1 << 64, 1.5, 64.0, np.float32(64), "64",
         b"6", None, [64], float("nan"), float("inf"), np.array([64]), object()]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: repr(value)[:20])
def test_wrong_sizes_and_tiles(wrong: Any) -> None:
    """None stands for a default where there is one; everything else ends in a typed error."""

    def simulate(*size: Any, **options: Any) -> None:
        npu.simulate_gemm("npu2", *size, **({"tile": (64, 64, 64)} | options))

    calls = [lambda: simulate(wrong, 64, 64), lambda: simulate(64, wrong, 64),
             lambda: simulate(64, 64, wrong), lambda: simulate(64, 64, 64, tile=(64, wrong, 64)),
             lambda: simulate(64, 64, 64, constants={"round": wrong}),
             lambda: simulate(64, 64, 64, c_buffers=wrong),
             lambda: simulate(64, 64, 64, kernel="pipelined", tile=(64, 32, 64), a_parts=wrong),
             lambda: gemm.configuration("npu2", "int8", "int8", c_l2_buffers=wrong),
             lambda: simulate(64, 64, 64, constants={wrong: 1} if repr(wrong)[0] != "[" and
                              not isinstance(wrong, np.ndarray) else wrong),
             lambda: gemm.configuration("npu2", "int8", "int8", tile=(wrong, 64, 64)),
             lambda: gemm.configuration("npu2", wrong, "int8"),
             lambda: gemm.configuration(wrong, "int8", "int8")]  # fmt: skip
    if wrong is not None:
        calls += [lambda: simulate(64, 64, 64, tile=wrong),
                  lambda: simulate(64, 64, 64, k_mt=wrong),
                  lambda: gemm.configuration("npu2", "int8", "int8", tile=wrong),
                  lambda: gemm.configuration("npu2", "int8", "int8", k_mt=wrong)]  # fmt: skip
    positive = isinstance(wrong, (int, float, np.float32)) and 0 < wrong < 1 << 100
    for i, call in enumerate(calls):
        if i == 4 and positive:  # a constant may be any positive number
            continue
        with pytest.raises(NpuError) as caught:
            call()
        assert str(caught.value).startswith("["), caught.value


def test_numpy_integers_are_sizes() -> None:
    """As Python's, without their wrap-around."""
    for kind in (np.uint8, np.int16, np.int64):
        tile = tuple(kind(x) for x in (48, 96, 64))
        config = gemm.configuration("npu2", "int8", "int8", tile=tile, k_mt=kind(96))  # type: ignore[arg-type]
        assert config == gemm.configuration("npu2", "int8", "int8", tile=(48, 96, 64), k_mt=96)
        size = [kind(100)] * 3
        one = npu.simulate_gemm("npu2", *size, tile=tile, model="closed-form")  # type: ignore[arg-type]
        assert one == npu.simulate_gemm(
            "npu2", 100, 100, 100, tile=(48, 96, 64), model="closed-form"
        )
    with pytest.raises(DesignError, match="bytes of L1; a core has 64512: use m <= 112"):
        gemm.configuration("npu2", "int8", "int8", tile=(1 << 31, 64, 64))
