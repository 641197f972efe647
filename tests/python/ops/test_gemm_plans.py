"""Calls of npu.matmul that ask for what an earlier one did skip its checks. Asserts that they are
found again only where types, sizes, strides, options and the device are the same, that results are
those of NumPy whatever was called between, and that what is refused stays so.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import npu
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)
matmul_module = sys.modules["npu.ops.matmul"]


@pytest.fixture(autouse=True)
def devices_without_plans(fresh_devices: Callable[[], None]) -> None: ...


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for every call that was checked."""
    calls: list[int] = []
    call_of = matmul_module.call_of

    def counted(*arguments, **options):
        calls.append(len(calls))
        return call_of(*arguments, **options)

    monkeypatch.setattr(matmul_module, "call_of", counted)
    return calls


class Subclass(np.ndarray):
    """May have operations of its own."""


def integers(shape: tuple[int, int], dtype: str = "int8") -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-9, 10, shape).astype(dtype)


def test_calls_in_any_order(checked: list[int]) -> None:
    """Types, layouts and options in turn; every combination is checked once."""
    a, b = integers((30, 50)) // 5, integers((50, 20)) // 5  # sums are bfloat16
    lefts = (a, np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2], a[::-1, ::-1][::-1, ::-1][:29])
    rights = (b, np.asfortranarray(b), np.repeat(b, 3, 0)[::3])
    dtypes = ("int8", "int16", "float32", BF16)
    cases = list(itertools.product(lefts, rights, dtypes))
    for _ in range(3):
        for x, y, dtype in cases:
            c = npu.matmul(x.astype(dtype, copy=False), y.astype(dtype, copy=False))
            np.testing.assert_array_equal(c.astype(int), x.astype(int) @ y.astype(int))
    keys = {(x.astype(d, copy=False).strides, y.astype(d, copy=False).strides, x.shape, str(d))
            for x, y, d in cases}  # fmt: skip
    assert len(checked) == len(keys)


def test_options_are_part_of_it(checked: list[int]) -> None:
    a, b = integers((40, 90)), integers((90, 70))
    exact = a.astype(int) @ b.astype(int)
    for _ in range(3):
        np.testing.assert_array_equal(npu.matmul(a, b), exact)
        np.testing.assert_array_equal(npu.matmul(a, b, out_dtype="int16"), exact)
        np.testing.assert_array_equal(
            npu.matmul(a, b, out_dtype=np.int16, shift=1), np.rint(exact / 2)
        )
        np.testing.assert_array_equal(npu.matmul(a, b, device="emu:npu1"), exact)
        assert npu.matmul(a, b, out_dtype=np.dtype("int8"), shift=9).dtype == np.int8
        x, y = a.astype(BF16), b.astype(BF16)
        assert npu.matmul(x, y).dtype == BF16
        np.testing.assert_array_equal(npu.matmul(x, y, bf16="native", out_dtype="float32"), exact)
        npu.matmul(x, y, accumulate="narrow")
        assert npu.last_gemm().options.accumulate == "narrow"
    assert len(checked) == 8


def test_packed_copies(checked: list[int]) -> None:
    """Other copies of the same kind go the same way, those of another device do not."""
    a, copies = integers((40, 90), "float32"), {}
    exact = {seed: a @ integers((90, 70)).astype("f4") * seed for seed in (1, 2)}
    for name, seed, bf16 in itertools.product(("emu:npu1", "emu:npu2"), (1, 2), ("native", None)):
        b = integers((90, 70)).astype("float32") * seed
        copies[name, seed, bf16] = npu.pack(b, device=name, bf16=bf16)
    for _ in range(3):
        for (name, seed, bf16), copy in copies.items():
            np.testing.assert_array_equal(npu.matmul(a, copy), exact[seed])
            device = importlib.import_module("npu.devices").open_device(name)
            assert device.last_gemm.options.bf16 == (bf16 or device.bf16)
            other = "emu:npu1" if name == "emu:npu2" else "emu:npu2"
            with pytest.raises(ArgumentError, match="was packed for"):
                npu.matmul(a, copy, device=other)
    refused = 3 * len(copies)
    assert len(checked) - refused == 3  # on npu1 both are native
    with pytest.raises(ShapeError):
        npu.matmul(a[:, :80], copy)
    with npu.device("emu:npu2", arithmetic="silicon") as device:
        other = npu.pack(integers((90, 70)).astype("float32"))
        with pytest.raises(ArgumentError, match="was packed for"):
            npu.matmul(a, copies["emu:npu2", 1, None], device=device)
        with pytest.raises(ArgumentError, match="was packed for"):
            npu.matmul(a, other, device="emu:npu2")  # which has multiplied by such copies


def test_others_are_checked_every_time(checked: list[int]) -> None:
    a, b = integers((40, 90)), integers((90, 70))
    half, out = a.astype(np.float16), np.empty((40, 70), np.int32)
    calls = [
        lambda: npu.matmul(a, b, out=out), lambda: npu.matmul(a, b, alpha=2),
        lambda: npu.matmul(a, b, bias=np.int32(3)), lambda: npu.matmul(a.tolist(), b.astype("f4")),
        lambda: npu.matmul(half, half.T), lambda: npu.matmul(np.stack([a, a]), b),
        lambda: npu.matmul(a.astype(">i2"), b.astype(">i2")),
        lambda: npu.matmul(a.view(Subclass), b),
    ]  # fmt: skip
    for call in calls[:3] + calls[4:]:
        call()
        call()
    assert len(checked) == 2 * (len(calls) - 1)


def test_what_is_refused_stays_so() -> None:
    a, b = integers((40, 90)), integers((90, 70))
    for _ in range(2):
        npu.matmul(a, b)
        with pytest.raises(ArgumentError, match="masked"):
            npu.matmul(np.ma.masked_array(a), b)
        for wrong, options in (
            (ArgumentError, {"accumulate": "Wide"}), (ArgumentError, {"shift": 32}),
            (DtypeError, {"shift": 0.0}), (DtypeError, {"out_dtype": "float32"}),
            (ArgumentError, {"bf16": "native"}), (ArgumentError, {"out": a}),
            (DeviceError, {"device": "emu:npu3"}), (ArgumentError, {"accumulate": ["wide"]}),
        ):  # fmt: skip
            with pytest.raises((wrong, ShapeError)):
                npu.matmul(a, b, **options)
        with pytest.raises(ShapeError):
            npu.matmul(a, b.T)


def test_the_default_device_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers((8, 8), "float32"), integers((8, 8), "float32")
    for name in ("emu:npu1", "emu:npu2", "emu:npu1"):
        monkeypatch.setenv("NPU_DEVICE", name)
        for bf16 in ("native",) if name == "emu:npu1" else ("native", "bfp16"):
            monkeypatch.setenv("NPU_BF16", bf16)
            npu.matmul(a, b)
            device = npu.current_device()
            assert (device.name, device.bf16) == (name, bf16)
            assert device.last_gemm.options.generation == name[4:]
            assert device.last_gemm.options.bf16 == bf16
    monkeypatch.setenv("NPU_DEVICE", "emu:npu3")
    with pytest.raises(DeviceError):
        npu.matmul(a, b)
    monkeypatch.delenv("NPU_DEVICE")
    with npu.device("emu:npu1"):
        assert npu.current_device().name == "emu:npu1"
    assert npu.current_device().name == npu.devices()[1].name
