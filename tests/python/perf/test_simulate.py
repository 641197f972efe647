"""npu.simulate_gemm: arguments and errors, determinism, results unchanged by timing, and how many
events a run takes."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu
from npu import _npu
from npu.designs import gemm
from npu.errors import ArgumentError, DesignError, DeviceError, DtypeError, ShapeError
from npu.perf.execution import execute
from npu.perf.operation_simulation import simulate_operation

DESIGNS = [
    ("npu1", "int8", "int16", (32, 32, 32), 64, "col", 1),
    ("npu2", "int8", "int32", (32, 32, 32), 32, "row", 2),
    ("npu2", "bfloat16", "bfloat16", (32, 32, 32), 64, "col", 1),
]


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: "-".join(map(str, d[:3])))
def test_timing_changes_no_result(design: tuple[Any, ...]) -> None:
    """The same stream on real data, untimed, timed, and timed without data."""
    device, a_type, c_type, tile, k_mt, b_layout, c_buffers = design
    config = gemm.configuration(
        device, a_type, c_type, tile=tile, k_mt=k_mt, b_layout=b_layout, c_buffers=c_buffers,
        accumulate="narrow",
    )  # fmt: skip
    size = m, k, n = 256, 128, 512
    request = dict(zip("mkn", size, strict=True))
    (submission,) = _npu.operations.submissions("gemm", config, request)
    stream = submission["stream"]
    rng = np.random.default_rng(5)
    dtype = np.dtype(ml_dtypes.bfloat16 if a_type == "bfloat16" else a_type)
    a = rng.integers(-4, 5, (m, k)).astype(dtype)
    b = rng.integers(-4, 5, (k, n)).astype(dtype)
    stored = a, (np.ascontiguousarray(b.T) if b_layout == "col" else b)
    c_bytes = m * n * np.dtype(ml_dtypes.bfloat16 if c_type == "bfloat16" else c_type).itemsize
    sizes = [stored[0].nbytes, stored[1].nbytes, c_bytes]
    results, reports = [], []
    for timed in (False, True):
        out = np.zeros(c_bytes, np.uint8)
        buffers = [x.reshape(-1).view(np.uint8).copy() for x in stored]
        reports.append(execute(config, stream, data=[*buffers, out], timed=timed))
        results.append(out.view(ml_dtypes.bfloat16 if c_type == "bfloat16" else c_type))
    exact = a.astype(np.float64) @ b.astype(np.float64)  # |sum| <= 16 K = 2048: exact in int16
    if c_type != "bfloat16":
        assert np.array_equal(results[0].reshape(m, n), exact)
    assert np.array_equal(results[0].view(np.uint8), results[1].view(np.uint8))
    assert reports[0]["bytes_moved"] == reports[1]["bytes_moved"]
    without = execute(config, stream, sizes=sizes)
    assert without == reports[1]


def test_deterministic() -> None:
    runs = [npu.simulate_gemm("npu2", 1000, 900, 800, tile=(64, 64, 64)) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("method", ["emulator", "closed-form"])
def test_padding_and_monotonicity(method: str) -> None:
    """Sizes are padded to the native size; the operations counted are the unpadded ones."""

    def run(*size: int, **options: Any) -> Any:
        options = {"tile": (64, 64, 64), "k_mt": 64, "model": method} | options
        return npu.simulate_gemm("npu1", *size, **options)

    full, ragged = run(1024, 1024, 1024), run(1000, 1000, 1000)
    assert ragged.padded == full.padded == (1024, 1024, 1024)
    assert ragged.seconds == full.seconds
    assert ragged.tops == pytest.approx(full.tops * 1000**3 / 1024**3)
    assert full.tops == pytest.approx(2 * 1024**3 / full.seconds / 1e12)
    seconds = [run(size, size, size).seconds for size in (256, 512, 1024, 2048)]
    assert seconds == sorted(seconds)
    deep, shallow = run(1024, 1024, 1024, k_mt=256), run(1024, 1024, 1024, k_mt=64)
    assert deep.seconds < shallow.seconds
    assert run(1024, 1024, 1024, overlap_bds=False).seconds > full.seconds
    slow = run(1024, 1024, 1024, constants={"dram_read_npu1": 1.0})
    assert slow.bound == "DRAM"
    assert slow.seconds > 2 * full.seconds


@pytest.mark.parametrize("method", ["emulator", "closed-form"])
def test_every_bound_is_found(method: str) -> None:
    def bound(**constants: float) -> str:
        return npu.simulate_gemm(
            "npu2", 1024, 2048, 1024, dtype_out="int8", tile=(64, 64, 64), k_mt=512, model=method,
            constants=constants,
        ).bound  # fmt: skip

    assert bound(mac_int8_npu2=8.0) == "compute"
    assert bound(dram_read_npu2=2.0) == "DRAM"
    assert bound(cp_block=50.0) == "command"
    assert bound(stream_npu2=0.5) == "stream"


def test_streams_twice_as_wide() -> None:
    narrow, wide = (
        npu.simulate_gemm(
            "npu2", 2048, 576, 2304, dtype_out="int8", tile=(144, 72, 144), k_mt=144,
            stream_bytes=width,
        )
        for width in (4, 8)
    )  # fmt: skip
    assert wide.seconds < narrow.seconds


def test_a_design_point_says_what_choices_say() -> None:
    """Both models give the same figures for a design point and for the choices it was made of; a
    design is never combined with choices."""
    choices = {"tile": (64, 32, 64), "k_mt": 64, "kernel": "pipelined", "b_layout": "row"}
    point = gemm.design_point(
        "npu2",
        "int8",
        "int16",
        accumulate="narrow",
        **choices,  # type: ignore[arg-type]
    )
    for method in ("emulator", "closed-form"):
        one = npu.simulate_gemm("npu2", 600, 500, 700, design=point, model=method)
        two = npu.simulate_gemm("npu2", 600, 500, 700, dtype_out="int16", model=method, **choices)  # type: ignore[arg-type]
        assert one == two
    for device, more in (("npu1", {}), ("npu2", {"b_layout": "col"})):
        with pytest.raises(ArgumentError, match=r"design|b_layout"):
            npu.simulate_gemm(device, 64, 64, 64, design=point, **more)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="DesignPoint"):
        npu.simulate_gemm("npu2", 64, 64, 64, design="published")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "error", "telling"),
    [
        ({"tile": (144, 144, 144)}, DesignError, "L1"),
        ({"tile": (64, 64, 64), "k_mt": 96}, DesignError, "k_mt"),
        ({"tile": (65, 64, 64)}, DesignError, "multiple of"),
        ({"tile": (64, 64)}, ArgumentError, r"\(m, k, n\)"),
        ({"tile": (64, 0, 64)}, ShapeError, "tile k"),
        ({"tile": (128, 64, 64), "k_mt": 64 * 32}, DesignError, "L2|words"),
        ({"b_layout": "diagonal"}, DesignError, "b_layout"),
        ({"c_buffers": 3}, DesignError, "c_buffers"),
        ({"dtype_in": "float64"}, DtypeError, "float64"),
        ({"dtype_in": "int8", "dtype_out": "bfloat16"}, DtypeError, "not supported"),
        ({"model": "guess"}, ArgumentError, "closed-form.*atb"),
        ({"stream_bytes": 5}, ArgumentError, "stream_bytes"),
        ({"constants": {"no_such": 1.0}}, ArgumentError, "no_such"),
        ({"constants": {"row_visit": -1.0}}, ArgumentError, "positive"),
    ],
)
@pytest.mark.parametrize("method", ["emulator", "closed-form"])
def test_errors(change: dict[str, Any], error: type, telling: str, method: str) -> None:
    options: dict[str, Any] = {"tile": (64, 64, 64), "dtype_out": "int8", "model": method}
    with pytest.raises(error, match=telling):
        npu.simulate_gemm("npu1", 512, 512, 512, **(options | change))


@pytest.mark.parametrize("size", [(0, 8, 8), (8, -1, 8), (8, 8, 1 << 40), (8.0, 8, 8), (8, "8", 8)])
def test_bad_sizes(size: tuple[Any, ...]) -> None:
    with pytest.raises((ShapeError, ArgumentError), match="simulate_gemm"):
        npu.simulate_gemm("npu2", *size)
    with pytest.raises(DeviceError, match="npu3"):
        npu.simulate_gemm("npu3", 8, 8, 8)


def test_default_k_mt() -> None:
    """Up to 448 elements, those that pad K little: no padding for sizes that the paper chose, one
    tile for a K that fits in it, and the result of that k_mt."""
    for tile, dtype, depth in (((112, 112, 112), "int8", 448), ((112, 104, 128), "int8", 416),
                               ((96, 56, 96), "bfloat16", 448)):  # fmt: skip
        options = {"dtype_in": dtype, "dtype_out": dtype, "tile": tile}
        k = 10 * depth
        default = npu.simulate_gemm("npu1", 512, k, 512, **options)
        assert default.padded[1] == k
        assert default == npu.simulate_gemm("npu1", 512, k, 512, k_mt=depth, **options)
        assert npu.simulate_gemm("npu1", 8, 8, 8, **options).padded[1] == tile[1]
        assert npu.simulate_gemm("npu1", 8, 3 * tile[1], 8, **options).padded[1] == 3 * tile[1]


def test_bf16_contracts() -> None:
    """npu2 multiplies bfloat16 through BFP16, or natively at 32 MACs a cycle."""
    kinds = {
        kind: npu.simulate_gemm(
            "npu2", 512, 512, 512, dtype_in="bfloat16", dtype_out="bfloat16", tile=(64, 64, 64),
            bf16=kind,
        ).macs_per_cycle
        for kind in ("bfp16", "native")
    }  # fmt: skip
    assert kinds["native"] < 32 < 100 < kinds["bfp16"]
    with pytest.raises(ArgumentError, match="bf16"):
        npu.simulate_gemm("npu2", 8, 8, 8, bf16="fp8")


def test_dtypes_as_numpy_spells_them() -> None:
    by_name = npu.simulate_gemm("npu2", 512, 512, 512, dtype_in="bfloat16", dtype_out="float32")
    by_type = npu.simulate_gemm(
        "npu2", 512, 512, 512, dtype_in=ml_dtypes.bfloat16, dtype_out=np.float32
    )
    assert by_name == by_type


@pytest.mark.parametrize(
    ("size", "tile", "k_mt"),
    [(4096, (144, 72, 144), 432), pytest.param(8192, (64, 64, 64), None, marks=pytest.mark.slow)],
)
def test_a_run_takes_few_events(size: int, tile: tuple[int, int, int], k_mt: int | None) -> None:
    """What makes simulating fast: at most two events per kernel call, whatever moves for it."""
    found = npu.simulate_gemm("npu2", size, size, size, dtype_out="int8", tile=tile, k_mt=k_mt)
    m, k, n = (padded // unit for padded, unit in zip(found.padded, tile, strict=True))
    assert found.details["matmul_calls"] == m * k * n
    assert 0 < found.details["events"] <= 2 * found.details["matmul_calls"]


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        (5, "constants is 5"),
        ([("token", 1.0)], "constants is"),
        ({"token": "much"}, "constant 'token' = 'much'"),
        ({"token": None}, "constant 'token' = None"),
        ({"token": True}, "constant 'token' = True"),
        ({"token": 10**400}, "constant 'token' is too large"),
        ({7: 1.0}, "constant 7 = 1.0"),
        ({"no_such": 1.0}, "no_such"),
        ({"token": -1}, "positive"),
        ({"token": float("nan")}, "positive"),
    ],
)
def test_every_simulation_checks_its_constants(constants: Any, message: str) -> None:
    calls = {
        "simulate_gemm": lambda: npu.simulate_gemm("npu1", 64, 64, 64, constants=constants),
        "simulate_gemv": lambda: npu.simulate_gemv("npu2", 64, 256, constants=constants),
        "simulate_dequantize": lambda: npu.simulate_dequantize("npu2", 64, 64, constants=constants),
        "simulate_operation": lambda: simulate_operation(
            "rms_norm", "npu2", {"rows": 4, "width": 128}, constants=constants
        ),
    }
    for name, call in calls.items():
        with pytest.raises(ArgumentError, match=re.escape(message)) as found:
            call()
        assert name in str(found.value) or "[timing]" in str(found.value)
    good = {"token": np.float32(24), "dispatch": np.int64(7)}
    assert npu.simulate_gemv("npu2", 64, 256, constants=good).token_seconds == pytest.approx(24e-6)
