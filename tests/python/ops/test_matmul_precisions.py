"""npu.matmul beyond float32 and int8 -> int32: every element pair with real kernels, requantisation
(ties, saturation), column-major B without copies, out=, alpha and bias, and one configuration per
precision and layout. Integers are compared exactly with Python or int64 arithmetic.
"""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from compare import assert_matmul_close
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike

import npu
from npu.designs import gemm
from npu.devices import Device
from npu.errors import ArgumentError, DtypeError, ShapeError
from npu.ops.epilogue import shift_right

BF16 = np.dtype(ml_dtypes.bfloat16)
NATIVE = {"npu1": (256, 256), "npu2": (256, 512)}  # M and N


WAYS = [(name, None) for name in DEVICES] + [("emu:npu2", "native")]  # device, bf16


@pytest.fixture(params=WAYS, ids=lambda way: "-".join(filter(None, way)))
def device(request):
    name, bf16 = request.param
    with npu.device(name, bf16=bf16) as opened:
        yield opened


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype) -> np.ndarray:
    dtype = np.dtype(dtype)
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def requantised(sums: np.ndarray, shift: int, dtype) -> np.ndarray:
    """Python integers: nearest with ties to even, saturated."""
    info = np.iinfo(dtype)
    values = [min(max(round(Fraction(int(v), 1 << shift)), info.min), info.max) for v in sums.flat]
    return np.array(values, dtype).reshape(sums.shape)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("out_dtype", [np.int8, np.int16])
@pytest.mark.parametrize("size", [(5, 7, 3), (100, 300, 70)], ids=str)
def test_int8_requantised(device, size, out_dtype, layout):
    m, k, n = size
    rng = np.random.default_rng(k)
    a = random(rng, (m, k), np.int8)
    b = random(rng, (k, n), np.int8) if layout == "row" else random(rng, (n, k), np.int8).T
    sums = a.astype(np.int64) @ b.astype(np.int64)
    for shift in (0, 1, 6, 11, 31):
        c = npu.matmul(a, b, out_dtype=out_dtype, shift=shift)
        assert c.dtype == out_dtype
        np.testing.assert_array_equal(c, requantised(sums, shift, out_dtype))


@pytest.mark.parametrize("out_dtype", [np.int8, np.int16])
def test_ties_go_to_even_and_both_ends_saturate(device, out_dtype):
    """One product per sum, so that sums are exactly the ties and the limits."""
    info = np.iinfo(out_dtype)
    shift = 3
    halves = np.arange(-12, 13, dtype=np.int8)[:, None] * np.int8(4)  # odd multiples are ties
    c = npu.matmul(halves, np.ones((1, 1), np.int8), out_dtype=out_dtype, shift=shift)
    np.testing.assert_array_equal(c, requantised(halves.astype(np.int64), shift, out_dtype))
    assert c[:, 0].tolist()[::2] == [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6]
    big = np.full((1, 300), -128, np.int8)
    assert npu.matmul(big, big.T, out_dtype=out_dtype)[0, 0] == info.max
    assert npu.matmul(big, np.full((300, 1), 127, np.int8), out_dtype=out_dtype)[0, 0] == info.min


@pytest.mark.parametrize("size", [(1, 1, 1), (70, 90, 33), (257, 65, 40)], ids=str)
def test_int16(device, size):
    m, k, n = size
    rng = np.random.default_rng(m)
    a, b = random(rng, (m, k), np.int16), random(rng, (k, n), np.int16)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(npu.matmul(a, b), exact.astype(np.int32))  # wraps around
    np.testing.assert_array_equal(npu.matmul(a, npu.pack(b)), exact.astype(np.int32))
    right = np.ascontiguousarray(b.T).T
    np.testing.assert_array_equal(npu.matmul(a, right), exact.astype(np.int32))


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float32), np.dtype(np.float16)], ids=str)
def test_column_major_floats(device, dtype):
    rng = np.random.default_rng(3)
    a, b = random(rng, (130, 200), dtype), random(rng, (90, 200), dtype)
    for out_dtype in (np.float32, BF16):
        assert_matmul_close(npu.matmul(a, b.T, out_dtype=out_dtype), a, b.T, bf16=device.bf16)


def native_depth(dtype: DTypeLike, layout: str) -> int:
    """What K is read in multiples of."""
    return gemm.DEFAULT_TILE[np.dtype(dtype).name][1] * gemm.DEFAULT_DEPTH[layout]


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, BF16], ids=str)
def test_native_sizes_are_read_and_written_in_place(device, dtype, layout):
    m, n = NATIVE[device.generation]
    k = 2 * native_depth(dtype, layout)
    rng = np.random.default_rng(4)
    a = random(rng, (m, k), dtype)
    b = random(rng, (k, n), dtype) if layout == "row" else random(rng, (n, k), dtype).T
    out = np.empty((m, n), np.float32 if dtype == BF16 else np.int32)
    before = npu.stats()
    assert npu.matmul(a, b, out=out) is out
    assert (npu.stats() - before).host_copy_bytes == 0
    if dtype == BF16:
        assert_matmul_close(out, a, b, bf16=device.bf16)
    else:
        exact = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(out, exact.astype(np.int32))


def ran_with(default: np.ndarray) -> tuple[int, int, int]:
    """The native size of the design that ran last, the default one or that of few cores."""
    design = npu.last_gemm().options
    assert not design.whole or design.native == tuple(default)
    return design.native


RAGGED = [(1, 0, 0), (0, 12, 0), (0, 0, 20), (7, 0, 36), (3, 20, 0), (0, 4, 100), (200, 60, 152)]


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize("extra", RAGGED, ids=str)
def test_ragged_sizes_copy_edges_only(device, extra, layout):
    """Two native blocks per dimension of the default design and a part of a third: what is copied
    are the padded edges, tails and edges of C of the design that ran."""
    depth = native_depth(np.int8, layout)
    native = np.array([NATIVE[device.generation][0], depth, NATIVE[device.generation][1]])
    m, k, n = (int(x) for x in 2 * native + extra)
    rng = np.random.default_rng(9)
    a = random(rng, (m, k), np.int8)
    b = random(rng, (k, n), np.int8) if layout == "row" else random(rng, (n, k), np.int8).T
    exact = a.astype(np.int32) @ b.astype(np.int32)
    before = npu.stats()
    np.testing.assert_array_equal(npu.matmul(a, b), exact)
    copied = (npu.stats() - before).host_copy_bytes
    whole = [(x // unit * unit, unit) for x, unit in zip((m, k, n), ran_with(native), strict=True)]
    full_m, full_k, full_n = (full for full, _ in whole)
    edge_m, edge_k, edge_n = (
        unit if full < x else 0 for (full, unit), x in zip(whole, (m, k, n), strict=True)
    )
    bound = edge_m * (full_k + edge_k) + full_m * edge_k  # A: rows below, tail
    bound += edge_n * (full_k + edge_k) + full_n * edge_k
    bound += 4 * ((m - full_m) * n + full_m * (n - full_n))
    assert copied == bound


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_views_with_gaps_between_rows(data):
    """Parts of larger matrices, any size: read in place where rows start on whole words."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    dtype = data.draw(st.sampled_from([np.dtype(np.int8), np.dtype(np.int16), BF16]))
    m, k, n = (data.draw(st.integers(1, high)) for high in (600, 300, 600))
    big_a, big_b = random(rng, (m + 2, k + 9), dtype), random(rng, (k + 3, n + 6), dtype)
    skip = data.draw(st.integers(0, 4))
    a, b = big_a[1 : m + 1, skip : skip + k], big_b[2 : k + 2, skip : skip + n]
    if data.draw(st.booleans()):
        big_t = random(rng, (n + 2, k + 5), dtype)
        b = big_t[1 : n + 1, skip : skip + k].T
    device = npu.current_device(data.draw(st.sampled_from(DEVICES)))
    c = npu.matmul(a, b, device=device)
    if dtype == BF16:
        assert_matmul_close(c, a, b, bf16=device.bf16)
    else:
        exact = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(c, exact.astype(np.int32))


def test_one_configuration_per_precision_and_layout():
    """Sizes change streams only: one load per (pair, layout), whatever is multiplied in between."""
    fresh = Device("emu:npu2", "fast")
    rng = np.random.default_rng(5)
    pairs = [(np.int8, np.int8), (np.int8, np.int16), (np.int8, np.int32), (np.int16, np.int32),
             (BF16, BF16), (np.float32, np.float32)]  # fmt: skip
    loads = 0
    for dtype, out_dtype in pairs:
        for by_columns in (False, True):
            for i in range(5):
                m, k, n = 1 + 61 * i, 2 + 53 * i, 2 + 47 * i
                a, b = random(rng, (m, k), dtype), random(rng, (k, n), dtype)
                right = np.asfortranarray(b) if by_columns else b
                npu.matmul(a, right, out_dtype=out_dtype, device=fresh)
            loads += 1
            assert fresh.counters()["configuration_loads"] == loads
    assert fresh.counters()["submissions"] == 5 * loads


@pytest.mark.parametrize("out_dtype", [np.float32, BF16, np.float16], ids=str)
def test_alpha_and_bias_of_floats(device, out_dtype):
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((2, 9, 40), (40, 30)))
    bias = rng.integers(-9, 9, 30).astype(np.float32)
    exact = -0.5 * (a @ b) + bias  # small multiples of 1/2: exact in float32
    c = npu.matmul(a, b, alpha=-0.5, bias=bias, out_dtype=out_dtype)
    np.testing.assert_array_equal(c, exact.astype(out_dtype))
    column = bias[:9, None].astype(BF16)
    c = npu.matmul(a, b, bias=column, out_dtype=out_dtype)
    np.testing.assert_array_equal(c, (a @ b + bias[:9, None]).astype(out_dtype))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_alpha_bias_and_shift_of_integers_are_exact(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    m, k, n = (data.draw(st.integers(1, 40)) for _ in range(3))
    dtype = data.draw(st.sampled_from([np.int8, np.int16, np.int32]))
    alpha = data.draw(st.sampled_from([1, -3, 1000, -(2**31) + 1]))
    shift = 0 if dtype == np.int32 else data.draw(st.integers(0, 31))
    a, b = random(rng, (m, k), np.int8), random(rng, (k, n), np.int8)
    bias = random(rng, (n,), np.int32) if data.draw(st.booleans()) else None
    sums = (a.astype(object) @ b.astype(object)) * alpha + (
        0 if bias is None else bias.astype(object)
    )
    c = npu.matmul(a, b, alpha=alpha, bias=bias, shift=shift, out_dtype=dtype)
    if dtype == np.int32:
        expected = (sums.astype(np.int64)).astype(np.int32)
    else:
        expected = requantised(sums, shift, dtype)
    np.testing.assert_array_equal(c, expected)


@given(st.integers(-(2**62), 2**62), st.integers(0, 31))
def test_shift_right_is_exact(value, shift):
    got = shift_right(np.array([value]), shift, np.dtype(np.int32))
    np.testing.assert_array_equal(got, requantised(np.array([value], object), shift, np.int32))


def test_empty_sums_still_get_bias():
    c = npu.matmul(np.ones((2, 0), np.int8), np.ones((0, 3), np.int8),
                   bias=np.array([7, -9, 3], np.int32), shift=1, out_dtype=np.int8)  # fmt: skip
    assert c.tolist() == [[4, -4, 2], [4, -4, 2]]  # 3.5, -4.5 and 1.5: ties to even


@pytest.mark.parametrize("layout", ["row", "col"])
def test_out_of_any_size_and_batch(device, layout):
    rng = np.random.default_rng(7)
    a, b = random(rng, (3, 50, 60), np.int8), random(rng, (3, 60, 70), np.int8)
    right = b if layout == "row" else np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
    out = np.full((3, 50, 70), 77, np.int16)
    assert npu.matmul(a, right, out=out, shift=2) is out
    sums = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(out, requantised(sums, 2, np.int16))
    guarded = np.full(50 * 70 + 2, 7, np.int32)  # nothing beyond the result is written
    npu.matmul(a[0], right[0], out=guarded[1:-1].reshape(50, 70))
    np.testing.assert_array_equal(guarded[1:-1].reshape(50, 70), sums[0])
    assert guarded[0] == guarded[-1] == 7


A8, A16, AF = (np.ones((4, 3), t) for t in (np.int8, np.int16, np.float32))


def overlapping():
    whole = np.zeros(64, np.int32)
    a = whole[:4].view(np.int8).reshape(4, 4)
    npu.matmul(a, np.ones((4, 4), np.int8), out=whole[2:18].reshape(4, 4))


def read_only():
    out = np.zeros((4, 4), np.int32)
    out.flags.writeable = False
    npu.matmul(A8, A8.T, out=out)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: npu.matmul(A8, A16.T), DtypeError, ["int8", "int16"]),
        (lambda: npu.matmul(A16, A16.T, out_dtype=np.int16), DtypeError, ["int16", "use int32"]),
        (lambda: npu.matmul(A8, A8.T, out_dtype=np.uint8), DtypeError, ["uint8", "int16"]),
        (lambda: npu.matmul(A8, A8.T, out_dtype=np.int8, shift=32), ArgumentError, ["0 to 31"]),
        (lambda: npu.matmul(A8, A8.T, out_dtype=np.int8, shift=-1), ArgumentError, ["-1"]),
        (lambda: npu.matmul(A8, A8.T, out_dtype=np.int8, shift=1.5), DtypeError, ["1.5"]),
        (lambda: npu.matmul(A8, A8.T, shift=1), ArgumentError, ["int32", "out_dtype"]),
        (lambda: npu.matmul(AF, AF.T, shift=1), ArgumentError, ["float32"]),
        (lambda: npu.matmul(A8, A8.T, alpha=0.5), DtypeError, ["alpha", "integer"]),
        (lambda: npu.matmul(A8, A8.T, alpha=1 << 31), ArgumentError, ["int32"]),
        (lambda: npu.matmul(AF, AF.T, alpha="x"), DtypeError, ["alpha", "number"]),
        (lambda: npu.matmul(AF, AF.T, bias=np.ones(4)), DtypeError, ["float64", "astype"]),
        (lambda: npu.matmul(A8, A8.T, bias=np.ones(4, np.int64)), DtypeError, ["int64"]),
        (lambda: npu.matmul(AF, AF.T, bias=AF[0]), ShapeError, ["(3,)", "(4, 4)"]),
        (lambda: npu.matmul(AF, AF.T, bias=np.ones((2, 4, 4), np.float32)), ShapeError, ["bias"]),
        (lambda: npu.matmul(AF, AF.T, out=np.ones((4, 5), np.float32)), ShapeError, ["(4, 5)"]),
        (lambda: npu.matmul(AF, AF.T, out=np.ones((4, 4))), DtypeError, ["float64"]),
        (lambda: npu.matmul(AF, AF.T, out=[[0.0] * 4] * 4), ArgumentError, ["list"]),
        (lambda: npu.matmul(AF, AF.T, out=np.ones((4, 8), np.float32)[:, ::2]), ArgumentError,
         ["C-contiguous"]),
        (lambda: npu.matmul(AF, AF.T, out_dtype=BF16, out=np.ones((4, 4), np.float32)), DtypeError,
         ["bfloat16", "float32"]),
        (read_only, ArgumentError, ["read-only"]),
        (overlapping, ArgumentError, ["overlaps"]),
        (lambda: npu.matmul(np.broadcast_to(A8[:1], (1 << 61, 3)), A8.T), ShapeError,
         [str(1 << 61)]),
        (lambda: npu.matmul(np.broadcast_to(A8[:1], (1 << 32, 3)),
                            np.broadcast_to(A8.T[:, :1], (3, 1 << 32))), ShapeError, ["split"]),
    ],
)  # fmt: skip
def test_errors_come_before_anything_runs(call, error, words):
    before = npu.stats()
    with pytest.raises(error) as caught:
        call()
    assert (npu.stats() - before).submissions == 0
    message = str(caught.value)
    assert message.startswith("[matmul]")
    for word in words:
        assert word in message
