"""npu.matmul against float64 NumPy: sizes, dtypes, layouts, batches, errors, and what the counters
promise (a new size loads no configuration).

Tolerances come from tests/python/compare.py. To add a case, extend SIZES.
"""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
from compare import assert_matmul_close, round_bf16
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import HANG

import npu
from npu.devices import Device
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)
# Below, at and above the tile and native sizes, and ragged in every dimension.
SIZES = [(1, 1, 1), (5, 7, 3), (64, 64, 64), (256, 64, 512), (257, 65, 513), (100, 300, 700),
         (1, 1152, 300), (300, 1, 1)]  # fmt: skip


WAYS = [(name, None) for name in DEVICES] + [("emu:npu2", "native")]  # device, bf16


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(filter(None, way)))
def device(request):
    name, bf16 = request.param
    with npu.device(name, bf16=bf16) as opened:
        yield opened


def random(rng, shape, dtype):
    if np.dtype(dtype) == np.int8:
        return rng.integers(-128, 128, shape, dtype=np.int8)
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16], ids=str)
def test_float_matches_float64(device, size, dtype):
    m, k, n = size
    rng = np.random.default_rng(m * 7919 + k * 31 + n)
    a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
    c = npu.matmul(a, b)
    assert c.dtype == np.dtype(dtype) and c.shape == (m, n)
    assert_matmul_close(c, a, b, bf16=device.bf16)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_int8_is_exact(device, size):
    m, k, n = size
    rng = np.random.default_rng(m + k + n)
    a, b = random(rng, (m, k), np.int8), random(rng, (k, n), np.int8)
    c = npu.matmul(a, b)
    assert c.dtype == np.int32
    np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float))


def test_int8_extremes_are_exact(device):
    a = np.full((3, 4096), -128, np.int8)
    b = np.full((4096, 2), -128, np.int8)
    np.testing.assert_array_equal(npu.matmul(a, b), np.full((3, 2), 4096 * 128 * 128))


@pytest.mark.parametrize("out_dtype", [np.float32, BF16, np.float16], ids=str)
def test_out_dtype(device, out_dtype):
    rng = np.random.default_rng(1)
    a, b = random(rng, (70, 90), np.float32), random(rng, (90, 40), np.float32)
    c = npu.matmul(a, b, out_dtype=out_dtype)
    assert c.dtype == np.dtype(out_dtype)
    assert_matmul_close(c, a, b, bf16=device.bf16)


def test_mixed_float_dtypes_give_float32(device):
    a, b = np.ones((2, 3), BF16), np.ones((3, 2), np.float16)
    c = npu.matmul(a, b)
    assert c.dtype == np.float32
    np.testing.assert_array_equal(c, np.full((2, 2), 3.0))


def test_inputs_are_rounded_to_nearest_even():
    # 1 + 2^-8 is halfway between two bfloat16 values and goes to the even one, 1.
    a = np.array([[1 + 2**-8, 1 + 3 * 2**-8]], np.float32)
    c = npu.matmul(a, np.eye(2, dtype=np.float32))
    np.testing.assert_array_equal(c, [[1.0, 1 + 4 * 2**-8]])
    np.testing.assert_array_equal(c, round_bf16(a))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_strides(data):
    """Views with any strides (transposed, reversed, stepped, broadcast) equal their copies."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    dtype = data.draw(st.sampled_from([np.dtype(np.float32), BF16, np.dtype(np.int8)]))
    m, k, n = (data.draw(st.integers(1, 90)) for _ in range(3))

    def view(rows, cols):
        kinds = ["plain", "transposed", "reversed", "stepped", "repeated"]
        kind = data.draw(st.sampled_from(kinds))
        if kind == "transposed":
            return random(rng, (cols, rows), dtype).T
        if kind == "reversed":
            return random(rng, (rows, cols), dtype)[::-1, ::-1]
        if kind == "stepped":
            return random(rng, (2 * rows, 3 * cols), dtype)[::2, 1::3]
        if kind == "repeated":
            return np.broadcast_to(random(rng, (1, cols), dtype), (rows, cols))
        return random(rng, (rows, cols), dtype)

    a, b = view(m, k), view(k, n)
    c = npu.matmul(a, b)
    np.testing.assert_array_equal(c, npu.matmul(a.copy(), b.copy()))
    if dtype == np.int8:
        np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float))
    else:
        assert_matmul_close(c, a, b, bf16="bfp16")


def test_batches_broadcast_like_numpy():
    rng = np.random.default_rng(2)
    a, b = random(rng, (4, 1, 5, 6), np.int8), random(rng, (3, 6, 7), np.int8)
    c = npu.matmul(a, b)
    assert c.shape == (4, 3, 5, 7)
    np.testing.assert_array_equal(c, np.matmul(a.astype(np.int32), b.astype(np.int32)))
    c = npu.matmul(a, b[0])
    np.testing.assert_array_equal(c, np.matmul(a.astype(np.int32), b[0].astype(np.int32)))


@pytest.mark.parametrize(
    "a_shape, b_shape", [((0, 4), (4, 3)), ((2, 0), (0, 3)), ((2, 4), (4, 0)), ((0, 2, 4), (4, 3))]
)
def test_zero_sized_like_numpy(a_shape, b_shape):
    a, b = np.ones(a_shape, np.float32), np.ones(b_shape, np.float32)
    c = npu.matmul(a, b)
    expected = a @ b
    assert c.shape == expected.shape and c.dtype == expected.dtype
    np.testing.assert_array_equal(c, expected)


def test_nan_and_inf_propagate_and_stay_in_their_rows(device):
    a = np.ones((3, 5), np.float32)
    a[0, 1], a[1, 2] = np.nan, np.inf
    c = npu.matmul(a, np.ones((5, 4), np.float32))
    assert np.isnan(c[0]).all()
    if device.bf16 == "bfp16":
        assert np.isnan(c[1]).all()
    else:
        assert np.isposinf(c[1]).all()
    np.testing.assert_array_equal(c[2], np.full(4, 5.0))
    b = np.ones((5, 4), np.float32)
    b[2, 3] = 0.0
    assert np.isnan(npu.matmul(a, b)[1, 3])  # inf * 0


def test_overflow_to_bfloat16_is_infinite():
    big = np.array([[3.4e38]], np.float32)  # beyond bfloat16's largest finite value
    one = np.ones((1, 1), np.float32)
    assert np.isposinf(npu.matmul(big, one, bf16="native"))[0, 0]
    assert np.isnan(npu.matmul(big, one, bf16="bfp16"))[0, 0]


def test_big_endian_and_non_native_input():
    a = np.arange(6, dtype=">f4").reshape(2, 3)
    np.testing.assert_array_equal(npu.matmul(a, np.eye(3, dtype=np.float32)), a.astype(np.float32))


def test_inputs_are_not_modified_and_may_be_read_only():
    a = np.ones((256, 64), BF16)
    b = np.ones((64, 512), BF16)
    a.flags.writeable = b.flags.writeable = False
    c = npu.matmul(a, b, out_dtype=np.float32)
    assert (c == 64).all() and c.flags.writeable


def test_packed_matrix_serves_many_products(device):
    rng = np.random.default_rng(3)
    weight = random(rng, (130, 200), np.float32)  # (N, K), used transposed
    packed = npu.pack(weight.T)
    assert packed.shape == (200, 130) and packed.nbytes >= 2 * 200 * 130
    for m in (1, 7, 300):
        a = random(rng, (m, 200), np.float32)
        np.testing.assert_array_equal(npu.matmul(a, packed), npu.matmul(a, weight.T))
    a = random(rng, (2, 3, 200), np.float32)
    assert npu.matmul(a, packed).shape == (2, 3, 130)


@pytest.mark.slow
def test_wide_result_is_computed_in_chunks():
    """C rows longer than a shim BD's 2^20-word step (N > 2^20 for float32)."""
    n = (1 << 20) + 300
    rng = np.random.default_rng(4)
    b = random(rng, (2, n), np.float32)
    c = npu.matmul(np.ones((1, 2), np.float32), b, bf16="native")
    np.testing.assert_allclose(c[0], round_bf16(b).sum(0), rtol=0, atol=2**-22 * 16)


def test_twenty_growing_sizes_load_few_configurations():
    fresh = Device("emu:npu2", "fast")
    rng = np.random.default_rng(5)
    for i in range(20):
        m, k, n = 1 + 97 * i, 1 + 61 * i, 1 + 113 * i
        a, b = random(rng, (m, k), np.int8), random(rng, (k, n), np.int8)
        np.testing.assert_array_equal(
            npu.matmul(a, b, device=fresh), a.astype(float) @ b.astype(float)
        )
    counters = fresh.counters()
    # One core's, a row's, the default one; which pays for which size depends on the threads.
    assert 2 <= counters["configuration_loads"] <= 8
    assert counters["submissions"] == 20
    assert counters["streams_built"] + counters["stream_hits"] == 20
    assert counters["streams_built"] > 10


def test_stats_total_the_devices():
    a = np.ones((3, 3), np.float32)
    npu.matmul(a, a, device="emu:npu1")
    before = npu.stats()
    npu.matmul(a, a, device="emu:npu1")  # same configuration, same size
    npu.matmul(a.astype(np.int8), a.astype(np.int8), device="emu:npu1")  # another configuration
    used = npu.stats() - before
    assert (used.configuration_loads, used.submissions) == (1, 2)


def test_a_repeated_size_hits_the_stream_cache():
    a = np.ones((300, 70), np.float32)
    npu.matmul(a, a.T)
    before = npu.stats()
    npu.matmul(a, a.T)
    used = npu.stats() - before
    assert (used.streams_built, used.stream_hits, used.submissions) == (0, 1, 1)


def test_results_do_not_depend_on_the_device_choice_mechanism(monkeypatch):
    a = np.ones((4, 4), np.float32)
    monkeypatch.setenv("NPU_DEVICE", "emu:npu1")
    assert npu.current_device().name == "emu:npu1"
    with npu.device("emu:npu2") as inner:
        assert npu.current_device() is inner
        assert npu.current_device("emu:npu1").name == "emu:npu1"
    monkeypatch.delenv("NPU_DEVICE")
    assert npu.current_device().name == "emu:npu2"
    np.testing.assert_array_equal(npu.matmul(a, a, device="emu:npu1"), a @ a)


def test_silicon_mode_differs_only_in_rounding():
    rng = np.random.default_rng(6)
    a, b = random(rng, (40, 200), np.float32), random(rng, (200, 30), np.float32)
    for name in DEVICES:
        with npu.device(name, arithmetic="silicon") as device:
            assert device.arithmetic == "silicon"
            exact = npu.matmul(a, b, bf16="native")
            blocks = npu.matmul(a, b)
        assert_matmul_close(exact, a, b, silicon=True)
        fast = npu.matmul(a, b, bf16="native", device=name)
        assert_matmul_close(fast, a, b)
        if "npu2" in name:  # bfp16 is the same in both modes, native on CPUs that multiply by FMAs
            np.testing.assert_array_equal(blocks, npu.matmul(a, b, device=name))
        else:
            assert not np.array_equal(exact, fast)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda a: npu.matmul(a, a), ShapeError, ["(4, 3)", "must equal"]),
        (lambda a: npu.matmul(a[0], a), ShapeError, ["two dimensions"]),
        (lambda a: npu.matmul(a.astype(np.float64), a.T), DtypeError, ["float64", "astype"]),
        (lambda a: npu.matmul(a.astype(np.int8), a.T), DtypeError, ["int8", "float32"]),
        (lambda a: npu.matmul(a.astype(complex), a.T), DtypeError, ["complex128"]),
        (lambda a: npu.matmul(a, a.T, out_dtype=np.int32), DtypeError, ["out_dtype int32"]),
        (
            lambda a: npu.matmul(np.ones((2, 4, 3), np.float32), np.ones((3, 3, 4), np.float32)),
            ShapeError,
            ["broadcast"],
        ),
        (lambda a: npu.matmul(a, a.T, device="gpu"), DeviceError, ["gpu", "emu:npu2"]),
        (lambda a: npu.matmul(a, a.T, device=3), DeviceError, ["int", "emu:npu2"]),
        (lambda a: npu.matmul(a, a.T, device="xrt"), DeviceError, ["xrt", "emu:npu2"]),
        (lambda a: npu.matmul(a, npu.pack(a)), ShapeError, ["packed (4, 3)"]),
        (lambda a: npu.matmul(a.astype(np.int8), npu.pack(a.T)), DtypeError, ["int8", "bfloat16"]),
        (lambda a: npu.pack(a[:0]), ShapeError, ["(0, 3)"]),
        (
            lambda a: npu.matmul(a, npu.pack(a.T, device="emu:npu1"), device="emu:npu2"),
            ArgumentError,
            ["emu:npu1", "emu:npu2", "pack it"],
        ),
    ],
)  # fmt: skip
def test_errors_say_what_was_asked_and_found(call, error, words):
    with pytest.raises(error) as caught:
        call(np.ones((4, 3), np.float32))
    message = str(caught.value)
    assert message.startswith("[")
    for word in words:
        assert word in message


def test_unknown_arithmetic_mode():
    with pytest.raises(DeviceError, match="silicon"), npu.device("emu:npu2", arithmetic="exact"):
        pass


def test_devices_lists_the_emulated_npus_and_says_why_hardware_is_missing():
    listed = {entry.name: entry for entry in npu.devices()}
    assert listed["emu:npu1"].available and listed["emu:npu2"].available
    assert listed["xrt"].available or "XRT" in listed["xrt"].reason


def test_threads_share_a_device():
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(7)
    pairs = [
        (random(rng, (50, 20 + i), np.int8), random(rng, (20 + i, 30), np.int8)) for i in range(16)
    ]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda ab: npu.matmul(*ab), pairs))
    for (a, b), c in zip(pairs, results, strict=True):
        np.testing.assert_array_equal(c, a.astype(float) @ b.astype(float))


def test_threads_multiply_while_others_read_the_counters():
    """Neither waits for the other: a lock held while waiting for the GIL would hang this."""
    a = np.arange(64 * 64, dtype=np.int8).reshape(64, 64)
    expected = a.astype(np.int32) @ a.astype(np.int32)
    wrong = []

    def work() -> None:
        for _ in range(40):
            if not np.array_equal(npu.matmul(a, a, device="emu:npu1"), expected):
                wrong.append(1)
            npu.stats()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=HANG)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int8])
def test_operands_at_odd_addresses(dtype):
    """NumPy arrays need not be aligned to their elements, nor bfloat16 ones to 4 bytes."""
    rng = np.random.default_rng(8)
    a, b = random(rng, (256, 128), dtype), random(rng, (128, 512), dtype)
    aligned = npu.matmul(a, b)
    for shift in (1, 2):
        moved = []
        for source in (a, b):
            raw = np.zeros(source.nbytes + 8, np.uint8)
            moved.append(np.ndarray(source.shape, source.dtype, buffer=raw, offset=shift))
            moved[-1][...] = source
        np.testing.assert_array_equal(npu.matmul(*moved), aligned)
