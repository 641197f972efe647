"""npu.matmul with designs="array" and with accumulate="narrow": that every product of the catalogue
is right on ragged sizes, from arrays of both layouts and packed copies; that narrow sums are those
of the published arithmetic, step by step (integers against an exact model, bfloat16 within a bound
that is derived); that a packed copy serves every type of result; what is loaded and reported.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compare import assert_matmul_close, assert_narrow_sums_close
from devices_under_test import DEVICES

import npu
from npu import _npu
from npu.designs import gemm
from npu.devices import open_device
from npu.errors import ArgumentError, DeviceError
from npu.ops import gemm_estimate
from npu.ops.epilogue import shift_right

BF16 = np.dtype(ml_dtypes.bfloat16)
SIZE = (75, 530, 210)


@pytest.fixture(params=itertools.product(DEVICES, ("host", "array")), ids="-".join)
def device(request):
    name, designs = request.param
    with npu.device(name, designs=designs) as opened:
        yield opened


def integers(seed: int, dtype: str = "int8", size: tuple[int, int, int] = SIZE):
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    m, k, n = size
    return (rng.integers(info.min, info.max + 1, s).astype(dtype) for s in ((m, k), (k, n)))


def operands_b(b: np.ndarray):
    return {"row": b, "col": np.asfortranarray(b), "packed": npu.pack(b)}


def narrow_reference(
    a: np.ndarray, b: np.ndarray, dtype: np.dtype, shift: int, o: gemm.DesignPoint
) -> np.ndarray:
    """Sums in C's type: every k steps the sum, times 2**shift in 32 bits that saturate, and the
    products are rounded to nearest (ties to even) by 2**shift and saturated."""
    a, b = a.astype(np.int64), b.astype(np.int64)
    depth = -(-a.shape[1] // o.k_mt) * o.k_mt  # steps of padding change a sum that saturates
    wide = np.iinfo(np.int32)
    c = np.zeros((a.shape[0], b.shape[1]), dtype)
    for first in range(0, depth, o.tile[1]):
        entered = np.clip(c.astype(np.int64) << shift, wide.min, wide.max)
        part = a[:, first : first + o.tile[1]] @ b[first : first + o.tile[1]]
        c = shift_right((entered + part).astype(np.int32).astype(np.int64), shift, dtype)
    return c


def test_integer_products(device) -> None:
    a, b = integers(1)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    for layout, right in operands_b(b).items():
        for out, shift in (("int32", 0), ("int16", 5), ("int8", 12), ("int8", 31)):
            expected = shift_right(exact, shift, np.dtype(out)) if shift else exact
            c = npu.matmul(a, right, out_dtype=out, shift=shift)
            np.testing.assert_array_equal(c, expected, err_msg=f"{layout} {npu.last_gemm()}")
            c = npu.matmul(a, right, out_dtype=out, shift=shift, accumulate="narrow")
            ran = npu.last_gemm()
            if out != "int32":
                expected = narrow_reference(a, b, np.dtype(out), shift, ran.options)
                assert ran.options.sum_dtype == out
            np.testing.assert_array_equal(c, expected, err_msg=f"{layout} {ran}")
    a, b = integers(2, "int16")
    wrapped = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    for right in operands_b(b).values():
        np.testing.assert_array_equal(npu.matmul(a, right), wrapped)


def test_float_products(device) -> None:
    rng = np.random.default_rng(3)
    m, k, n = SIZE
    a, b = rng.standard_normal((m, k)).astype(BF16), rng.standard_normal((k, n)).astype(BF16)
    ways = ("native", "bfp16") if device.generation == "npu2" else ("native",)
    for way in ways:
        for right in (b, np.asfortranarray(b), npu.pack(b, bf16=way)):
            for out in ("float32", "bfloat16", "float16"):
                c = npu.matmul(a, right, out_dtype=out, bf16=way)
                assert npu.last_gemm().options.bf16 == way
                assert_matmul_close(c, a, b, bf16=way)
            c = npu.matmul(a, right, out_dtype="bfloat16", bf16=way, accumulate="narrow")
            ran = npu.last_gemm().options
            assert ran.sum_dtype == "bfloat16"
            assert_narrow_sums_close(c, a, b, ran.tile[1], bf16=way)


def test_narrow_sums_lose_what_wide_sums_keep(device) -> None:
    """512 and then one 1 per step of k: bfloat16 has no 513, int8 no 128."""
    k = 600
    a = np.zeros((4, k), BF16)
    b = np.ones((k, 40), BF16)
    c = npu.matmul(a, b, accumulate="narrow")
    step = npu.last_gemm().options.tile[1]
    a[:, 0] = 512
    a[:, step::step] = 1
    ones = len(range(step, k, step))
    assert (npu.matmul(a, b, accumulate="narrow") == 512).all()
    assert npu.last_gemm().options.tile[1] == step
    wide = np.array(512.0 + ones).astype(BF16)
    assert wide > 512 and (npu.matmul(a, b) == wide).all()
    # 127 in the first step, 1 in the second, -100 in the third.
    x, y = np.zeros((4, k), np.int8), np.ones((k, 40), np.int8)
    npu.matmul(x, y, out_dtype="int8", accumulate="narrow")
    step = npu.last_gemm().options.tile[1]
    x[:, 0], x[:, step], x[:, 2 * step] = 127, 1, -100
    c = npu.matmul(x, y, out_dtype="int8", accumulate="narrow")
    assert npu.last_gemm().options.tile[1] == step and (c == 27).all()
    assert (npu.matmul(x, y, out_dtype="int8") == 28).all()


def test_narrow_means_nothing_for_32_bit_products() -> None:
    """Results the array writes in 32 bits, with or without an epilogue on the host."""
    a, b = integers(4)
    for keywords in ({}, {"alpha": 3, "out_dtype": "int8", "shift": 12}):
        wide = npu.matmul(a, b, **keywords)
        np.testing.assert_array_equal(npu.matmul(a, b, accumulate="narrow", **keywords), wide)
    for wrong in ("Narrow", None, 1):
        with pytest.raises(ArgumentError, match="accumulate"):
            npu.matmul(a, b, accumulate=wrong)


def test_one_packed_copy_serves_every_result() -> None:
    """No copy is made again: the candidates are those that share its layout."""
    a, b = integers(5, size=(600, 700, 1100))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    with npu.device("emu:npu2", designs="array"):
        packed = npu.pack(b)
        for out, accumulate in itertools.product(("int32", "int16", "int8"), ("wide", "narrow")):
            for rows in (600, 3):
                c = npu.matmul(a[:rows], packed, out_dtype=out, shift=8 * (out != "int32"),
                               accumulate=accumulate)  # fmt: skip
                o = npu.last_gemm().options
                assert (o.tile[2], o.k_mt) == (packed.options.tile[2], packed.options.k_mt)
                if accumulate == "wide" or out == "int32":
                    want = shift_right(exact[:rows], 8, np.dtype(out)) if out != "int32" else exact
                else:
                    want = narrow_reference(a[:rows], b, np.dtype(out), 8, o)
                np.testing.assert_array_equal(c, want[:rows])


def test_loads_and_reports() -> None:
    """A size that is seen again loads nothing; another product's configuration is noticed."""
    device = open_device("emu:npu2", designs="array")
    assert device.prefers == "array" and open_device("emu:npu2").prefers == "host"
    assert open_device("emu:npu2", designs="host") is not open_device("emu:npu2", designs="array")
    a, b = integers(6)
    with npu.device("emu:npu2", designs="array"):
        npu.matmul(a, b)
        first = npu.last_gemm()
        assert first.prefers == "array" and first.product.size == SIZE
        assert first.load_seconds > 0 and first.predicted_seconds > first.load_seconds
        before = npu.stats()
        npu.matmul(a, b)
        assert (npu.stats() - before).configuration_loads == 0
        assert npu.last_gemm().load_seconds == 0
        assert npu.last_gemm().options == first.options
        npu.matmul(a.astype(np.int16), b.astype(np.int16))
        npu.matmul(a, b)
        assert npu.last_gemm().load_seconds > 0
    with pytest.raises(DeviceError, match="designs"):
        open_device("emu:npu2", designs="best")


def test_predictions_are_of_a_machine_and_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As npu.simulate_gemm predicts for the design that ran; the environment names them, too."""
    a, b = np.zeros((64, 4096), np.int8), np.zeros((4096, 1024), np.int8)
    square = np.zeros((512, 512), BF16)

    def predicted(a: Any, b: Any, **words: str) -> tuple[float, Any]:  # by a device of its own
        with npu.device("emu:npu2", designs="array", **words) as device:
            npu.matmul(a, b)
            assert (device.machine, device.kernels) == (words.get("machine"), words.get("kernels"))
            return npu.last_gemm().predicted_seconds, npu.last_gemm().options

    usual, _ = predicted(a, b, machine="krackan-gemm")
    fast, design = predicted(a, b, machine="strix-atb")
    slow, _ = predicted(a, b, machine="krackan-gemma")
    assert fast < usual < slow
    by_schedule, _ = predicted(square, square, machine="krackan-gemm", kernels="scheduled")
    by_constants, _ = predicted(square, square, machine="krackan-gemm", kernels="published")
    assert by_schedule < by_constants
    memory = {"dram_read_npu2": 65.0, "dram_total_npu2": 65.0}
    array = _npu.gemm_choice.seconds(design, (64, 4096, 1024), False, memory)
    assert fast == pytest.approx(array + gemm_estimate.load_seconds("npu2"))
    monkeypatch.setenv("NPU_MACHINE", "krackan-gemma")
    assert open_device("emu:npu2").machine == "krackan-gemma"
    with pytest.raises(ArgumentError, match=r"\[device\] machine .* npu1"):
        open_device("emu:npu1")
    monkeypatch.delenv("NPU_MACHINE")
    monkeypatch.setenv("NPU_KERNELS", "guessed")
    with pytest.raises(ArgumentError, match=r"\[device\] kernels is 'guessed'"):
        open_device("emu:npu2")


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_DESIGNS", "array")
    assert open_device("emu:npu1").prefers == "array"
    assert open_device("emu:npu1", designs="host").prefers == "host"
    monkeypatch.setenv("NPU_DESIGNS", "tpu")
    with pytest.raises(DeviceError, match='designs="tpu"'):
        open_device("emu:npu1")
