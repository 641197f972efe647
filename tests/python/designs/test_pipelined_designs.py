"""The pipelined GEMM designs (kernel="pipelined", a_parts): products of small real sizes on the
emulator against NumPy, exact for integers and within the derived bound for bfloat16; the same bits
as the published kernels; limits and refusals; the MLIR; and what docs/gemm_designs.md claims: the
simulated speed of the three designs beyond the published ones.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest
from compare import assert_matmul_close
from designs_reference import read_configuration
from gemm_kernels import shift_round_saturate

import npu
from npu import _npu
from npu.designs import gemm
from npu.errors import ArgumentError, DesignError, DeviceError
from npu.perf.simulate import SimulatedGemm, simulate_gemm

BF16 = np.dtype(ml_dtypes.bfloat16)
SHIFTS = {"int8": 9, "int16": 2, "int32": 0}


@functools.cache
def handle(arithmetic: str) -> object:
    return _npu.device.open("emu:npu2", arithmetic)


def product(
    a: np.ndarray, b: np.ndarray, out: str, shift: int = 0, arithmetic: str = "fast", **choices
) -> np.ndarray:
    """a @ b by one configuration, submitted to the emulated device."""
    config = gemm.configuration("npu2", str(a.dtype), out, **choices)
    c = np.empty((a.shape[0], b.shape[1]), BF16 if out == "bfloat16" else out)
    operation = _npu.ops.Gemm(handle(arithmetic), config)
    views = [(x.view(f"u{x.itemsize}"), str(x.dtype)) for x in (a, b)]
    operation.run(*views[0], *views[1], c.reshape(-1).view(np.uint8), shift)
    return c


def operands(dtype: np.dtype, m: int, k: int, n: int, layout: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + k + n)
    if dtype == BF16:
        a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, k), (k, n)))
    else:
        a, b = (rng.integers(-128, 128, s, dtype=np.int8) for s in ((m, k), (k, n)))
    return a, np.ascontiguousarray(b.T).T if layout == "col" else b


def integer_product(
    a: np.ndarray, b: np.ndarray, out: str, shift: int, narrow_k: int
) -> np.ndarray:
    """Exact; with narrow_k rounded and saturated after every so many k."""
    a, b, dtype = a.astype(np.int64), b.astype(np.int64), np.dtype(out)
    if dtype.itemsize == 4:
        return (a @ b).astype(dtype)
    if not narrow_k:
        return shift_round_saturate(a @ b, shift, dtype)
    c = np.zeros((a.shape[0], b.shape[1]), dtype)
    for at in range(0, a.shape[1], narrow_k):
        part = a[:, at : at + narrow_k] @ b[at : at + narrow_k]
        c = shift_round_saturate((c.astype(np.int64) << shift) + part, shift, dtype)
    return c


@pytest.mark.parametrize("out", ["int8", "int16", "int32"])
@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize(("parts", "tiles", "k"), [(1, 1, 16), (2, 2, 24), (3, 1, 64)])
@pytest.mark.parametrize("accumulate", ["narrow", "wide"])
@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
def test_integers(
    out: str, layout: str, parts: int, tiles: int, k: int, accumulate: str, arithmetic: str
) -> None:
    """Ragged sizes of more than one round; `silicon` runs the kernel source itself."""
    m, n = 16 * parts, 32
    a, b = operands(np.dtype(np.int8), 4 * m + 5, 2 * tiles * k - 3, 2 * 8 * n - 9, layout)
    choices = {"tile": (m, k, n), "k_mt": tiles * k, "b_layout": layout, "accumulate": accumulate}
    c = product(a, b, out, SHIFTS[out], arithmetic, kernel="pipelined", a_parts=parts, **choices)
    narrow_k = k if accumulate == "narrow" else 0
    np.testing.assert_array_equal(c, integer_product(a, b, out, SHIFTS[out], narrow_k))


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize(("parts", "tiles", "k"), [(1, 1, 16), (2, 2, 24), (1, 1, 64)])
@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
def test_bfloat16(out: str, layout: str, parts: int, tiles: int, k: int, arithmetic: str) -> None:
    """Sums in float32: the bound of BFP16. Sums in bfloat16: the bits of the published kernel."""
    m, n = 32 * parts, 48
    a, b = operands(BF16, 4 * m - 5, 2 * tiles * k - 3, 8 * n + 9, layout)
    choices = {"tile": (m, k, n), "k_mt": tiles * k, "b_layout": layout, "bf16": "bfp16"}
    run = functools.partial(product, a, b, out, 0, arithmetic, **choices)
    c = run(kernel="pipelined", a_parts=parts)
    assert_matmul_close(c, a, b, bf16="bfp16")
    np.testing.assert_array_equal(c, run())
    if out == "bfloat16":
        narrow = run(kernel="pipelined", a_parts=parts, accumulate="narrow")
        np.testing.assert_array_equal(narrow, run(accumulate="narrow"))


@pytest.mark.parametrize("scale", [1e-37, 1e30, np.inf, np.nan])
def test_bfloat16_beyond_the_fast_range(scale: float) -> None:
    """Blocks that `fast` leaves to the kernel source: the published kernel's bits, NaN too."""
    a, b = operands(BF16, 128, 16, 256, "row")
    a[3, 5], a[:, 7] = scale, a[:, 7] * BF16.type(1e-30)
    choices = {"tile": (32, 16, 32), "bf16": "bfp16"}
    c = product(a, b, "float32", kernel="pipelined", **choices)
    np.testing.assert_array_equal(c, product(a, b, "float32", **choices))
    assert np.isnan(c).any() == (not np.isfinite(scale))


def test_device_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """npu.device(kernel=) and NPU_KERNEL; types without a pipelined kernel are computed anyway."""
    a, b = operands(np.dtype(np.int8), 300, 200, 530, "row")
    with npu.device("emu:npu2", kernel="pipelined") as device:
        for out, shift in SHIFTS.items():
            c = npu.matmul(a, b, out_dtype=out, shift=shift)
            np.testing.assert_array_equal(c, integer_product(a, b, out, shift, 0))
        packed = npu.matmul(a, npu.pack(b), out_dtype="int8", shift=9)
        np.testing.assert_array_equal(packed, integer_product(a, b, "int8", 9, 0))
        x, y = operands(BF16, 100, 50, 70, "col")
        assert_matmul_close(npu.matmul(x, y, out_dtype="float32"), x, y, bf16="bfp16")
        wide = npu.matmul(a.astype(np.int16), b.astype(np.int16))
        np.testing.assert_array_equal(wide, integer_product(a, b, "int32", 0, 0))
        names = [point.kernel for name, point in device._operations if name == "gemm"]
        assert sorted(names) == ["pipelined"] * (len(names) - 1) + ["published"]
    monkeypatch.setenv("NPU_KERNEL", "pipelined")
    from npu.devices import open_device

    assert open_device("emu:npu2") is device
    for name, kernel in (("emu:npu1", "pipelined"), ("emu:npu2", "best")):
        with pytest.raises(DeviceError, match="kernel"):
            open_device(name, kernel=kernel)


@pytest.mark.parametrize(
    ("generation", "a", "c", "choices", "words"),
    [
        ("npu1", "int8", "int8", {"kernel": "pipelined"}, "exists on npu2"),
        ("npu2", "int16", "int32", {"kernel": "pipelined"}, "exists on npu2"),
        ("npu2", "bfloat16", "float32", {"kernel": "pipelined"}, 'bf16="bfp16"'),
        ("npu2", "int8", "int8", {"kernel": "fast"}, "kernel is 'fast'"),
        ("npu2", "int8", "int8", {"a_parts": 2}, "computes? whole tiles"),
        ("npu2", "int8", "int8", {"kernel": "pipelined", "a_parts": 0}, "a_parts is 0"),
        ("npu2", "int8", "int8", {"kernel": "pipelined", "a_parts": 9}, "a_parts is 9"),
        ("npu2", "int8", "int8", {"kernel": "pipelined", "a_parts": 3}, "multiple of 48"),
        ("npu2", "int8", "int8", {"kernel": "pipelined", "tile": (64, 8, 64)}, "16 to 64"),
        ("npu2", "int8", "int8", {"kernel": "pipelined", "tile": (64, 72, 64)}, "16 to 64"),
        (
            "npu2", "int8", "int8",
            {"kernel": "pipelined", "tile": (224, 32, 192), "accumulate": "narrow"},
            "bytes of L1",
        ),
        (
            "npu2", "int8", "int8",
            {"kernel": "pipelined", "tile": (176, 32, 176), "k_mt": 1024, "accumulate": "narrow",
             "b_layout": "col"},
            "memtile",
        ),
    ],
)  # fmt: skip
def test_refusals(generation: str, a: str, c: str, choices: dict, words: str) -> None:
    with pytest.raises(DesignError, match=words):
        gemm.configuration(generation, a, c, **choices)


def test_parts_let_a_larger_tile_in() -> None:
    """A in parts needs the memory of a part: 2 m k / parts + 2 k n + m n."""
    choices = {"tile": (192, 56, 176), "kernel": "pipelined", "accumulate": "narrow"}
    with pytest.raises(DesignError, match="bytes of L1"):
        gemm.configuration("npu2", "int8", "int8", **choices)
    config = gemm.configuration("npu2", "int8", "int8", a_parts=2, **choices)
    used, limit = read_configuration(config).resources[0, 2, "memory"]
    assert used == 192 * 56 + 2 * 56 * 176 + 192 * 176 + 1024 - 64 + 12
    assert used <= limit
    with pytest.raises(DesignError, match="bytes of L1"):
        simulate_gemm("npu2", 768, 448, 1408, dtype_out="int8", tile=(192, 56, 176), k_mt=448,
                      kernel="pipelined")  # fmt: skip


def test_bfp16_copies_replace_second_buffers() -> None:
    """One buffer each of A and B, BFP16 copies of 9/8 bytes per element, and C."""
    m, k, n = 176, 16, 128
    config = read_configuration(
        gemm.configuration("npu2", "bfloat16", "bfloat16", tile=(m, k, n), kernel="pipelined",
                           bf16="bfp16", accumulate="narrow", b_layout="col")
    )  # fmt: skip
    inputs = (m + n) * k
    used, _ = config.resources[0, 2, "memory"]
    assert used == 2 * inputs + inputs * 9 // 8 + 2 * m * n + 2048 + 8
    calls = [line.split() for line in config.cores[0, 2] if "call" in line]
    assert [words[1] for words in calls] == [
        "zero_bf16", "convert_bf16_bfp16_a", "convert_bf16_bfp16_b_bcol",
        "matmul_bfp16_bf16_pipelined",
    ]  # fmt: skip


def test_mlir() -> None:
    text = gemm.mlir("npu2", "int8", "int16", tile=(64, 32, 64), kernel="pipelined", a_parts=2,
                     accumulate="narrow", b_layout="col")  # fmt: skip
    declared = (
        "func.func private @matmul_i8_i16_pipelined_bcol(memref<32x32xi8>, memref<64x32xi8>, "
        "memref<64x64xi16>, i32, i32, i32, i32, i32)"
    )
    assert declared in text
    # Two calls per k step and core, on the C rows from 0 and from 32 on.
    calls = [line for line in text.splitlines() if "func.call @matmul_i8_i16_pipelined" in line]
    assert len(calls) == 2 * 32
    rows = [line.split(")")[0].split(", ")[-1] for line in calls]
    assert rows[:2] == ["%c0_i32", "%c32_i32"]


def beyond(
    a: str, c: str, size: tuple[int, int, int], tile: tuple[int, int, int], k_mt: int, **kw
) -> SimulatedGemm:
    assert all(abs(s - 4096) <= 410 for s in size)
    r = simulate_gemm("npu2", *size, dtype_in=a, dtype_out=c, tile=tile, k_mt=k_mt, **kw)
    assert r.padded == size
    return r


@pytest.mark.parametrize("stream_bytes", [4, 8])
@pytest.mark.parametrize(
    ("a", "c", "size", "tile", "k_mt", "target"),
    [
        ("int8", "int8", (4160, 4096, 4224), (208, 32, 176), 512, 44.0),
        ("int8", "int16", (4224, 3840, 4096), (176, 32, 128), 640, 36.0),
        ("bfloat16", "bfloat16", (4224, 4160, 4096), (176, 16, 128), 320, 16.0),
    ],
)
def test_beyond_the_published_designs(
    a: str, c: str, size: tuple[int, int, int], tile: tuple[int, int, int], k_mt: int,
    target: float, stream_bytes: int,
) -> None:  # fmt: skip
    """Real streams, timed without data: within the peak, the DRAM ceiling, the stream port."""
    r = beyond(a, c, size, tile, k_mt, kernel="pipelined", stream_bytes=stream_bytes)
    assert r.tops >= target
    values = {constant["name"]: constant["value"] for constant in _npu.perf.constants()}
    array = r.seconds - r.dispatch_seconds
    assert r.macs_per_cycle < 512
    assert array > r.bytes["L3_read"] / (values["dram_read_npu2"] * 1e9)
    m, _, n = tile
    rounds = size[0] // (4 * m) * size[2] // (8 * n)
    per_round = size[1] * m * (1 if a == "int8" else 2)
    assert array > rounds * per_round / (stream_bytes * 1.8e9)
    closed = beyond(
        a, c, size, tile, k_mt, kernel="pipelined", stream_bytes=stream_bytes, model="closed-form"
    )
    assert closed.tops == pytest.approx(r.tops, rel=0.05)
    assert beyond(a, c, size, tile, k_mt, kernel="pipelined", kernels="published",
                  constants={"kernel_call": 1000.0}).tops < r.tops  # fmt: skip


def test_parts_cost_calls() -> None:
    whole, parts = (
        simulate_gemm("npu2", 1024, 512, 1024, dtype_out="int8", tile=(128, 32, 128), k_mt=256,
                      kernel="pipelined", a_parts=p, kernels="published")
        for p in (1, 4)
    )  # fmt: skip
    # 128 x 32 x 128: 1024 cycles of multiplications, and a call of 218 per part.
    assert whole.macs_per_cycle == pytest.approx(128 * 32 * 128 / (1024 + 218))
    assert parts.macs_per_cycle == pytest.approx(128 * 32 * 128 / (1024 + 4 * 218))


def test_simulate_refuses_unknown_kernels() -> None:
    with pytest.raises((DesignError, ArgumentError), match="kernel"):
        simulate_gemm("npu2", 64, 64, 64, kernel="quick")
