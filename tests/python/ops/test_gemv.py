"""npu.gemv and npu.gemv_top against float64 products of weights read by the published formula.

With small whole x and dyadic d and m no float32 sum rounds, so results are compared for equality in
every device and arithmetic; random values within the bound derived in compare.py. Also: what is
read in place, ragged sizes, batches beyond a pass, ties and NaNs of top-k, every typed error.
"""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_gemv_close
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from q4nx_blocks import BF16, padded, random_integers, random_weights

import npu
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError


def _exact(n: int, k: int, batch: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    blocks, w, _, _ = random_weights(n, k, rng, exact=True)
    x = random_integers(batch, k, rng)
    return blocks, x, x.astype(np.float64) @ w.T


@given(
    n=st.integers(1, 700), k=st.integers(1, 900), batch=st.integers(1, 19),
    seed=st.integers(0, 2**32 - 1), device=st.sampled_from(DEVICES),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_size_and_batch_is_exact_on_dyadic_values(n, k, batch, seed, device):
    blocks, x, expected = _exact(n, k, batch, seed)
    assert np.array_equal(
        npu.gemv((blocks, (n, k)), x, out_dtype=np.float32, device=device), expected
    )
    rounded = npu.gemv((blocks, (n, k)), x, device=device)
    assert rounded.dtype == BF16
    assert np.array_equal(rounded, expected.astype(np.float32).astype(BF16))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_silicon_arithmetic_is_exact_on_dyadic_values(device, batch):
    blocks, x, expected = _exact(96, 512, batch)
    with npu.device(device, arithmetic="silicon"):
        assert np.array_equal(npu.gemv((blocks, (96, 512)), x, out_dtype=np.float32), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("arithmetic", "n"), [("fast", 1152), ("silicon", 64)])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_random_values_within_the_derived_bound(device, arithmetic, n, dtype):
    rng = np.random.default_rng(1)
    blocks, w, d, m = random_weights(n, 1024, rng)
    x = rng.standard_normal((3, 1024)).astype(BF16)
    with npu.device(device, arithmetic=arithmetic):
        y = npu.gemv((blocks, (n, 1024)), x, out_dtype=dtype)
    assert_gemv_close(y, w, d, m, x, silicon=arithmetic == "silicon")


@pytest.mark.parametrize(
    ("n", "k"), [(13824, 1152), (1152, 6912), pytest.param(4096, 16640, marks=pytest.mark.slow)]
)
def test_many_row_blocks_and_column_blocks(n, k):
    blocks, x, expected = _exact(n, k, 1)
    assert np.array_equal(npu.gemv((blocks, (n, k)), x[0], out_dtype=np.float32), expected[0])


def test_one_vector_has_one_dimension_and_float_inputs_are_rounded_to_bfloat16():
    rng = np.random.default_rng(2)
    blocks, _, _, _ = random_weights(64, 256, rng)
    x = rng.standard_normal(256).astype(np.float32)
    y = npu.gemv((blocks, (64, 256)), x)
    assert y.shape == (64,)
    assert np.array_equal(y, npu.gemv((blocks, (64, 256)), x.astype(BF16)[None])[0])
    half = x.astype(np.float16)
    assert np.array_equal(
        npu.gemv((blocks, (64, 256)), half), npu.gemv((blocks, (64, 256)), half.astype(np.float32))
    )


def test_strided_vectors_and_out():
    blocks, x, expected = _exact(64, 300, 6)
    out = np.empty((3, 64), np.float32)
    assert npu.gemv((blocks, (64, 300)), x[::2], out=out) is out
    assert np.array_equal(out, expected[::2])
    fortran = np.asfortranarray(x)
    assert np.array_equal(npu.gemv((blocks, (64, 300)), fortran, out_dtype="float32"), expected)


def test_quantised_tensors_slices_and_the_other_dialect():
    from npu import q4nx

    rng = np.random.default_rng(8)
    tensor = q4nx.quantize(rng.standard_normal((160, 300)).astype(np.float32))
    x = random_integers(2, 300, rng)
    w = tensor.to_numpy(np.float32).astype(np.float64)
    expected = x.astype(np.float64) @ w.T
    y = npu.gemv(tensor, x, out_dtype=np.float32)
    # float32 rounding of w, and the kernel's bound with d |x| <= 4 * 300 * 6 / 15, generously.
    np.testing.assert_allclose(y, expected, atol=1e-2)
    assert np.array_equal(npu.gemv(tensor[64:128], x), y[:, 64:128].astype(BF16))
    old = q4nx.Tensor.from_blocks(tensor.blocks, (160, 300), dialect="zero_point")
    with pytest.raises(ArgumentError, match="to_additive"):
        npu.gemv(old, x)
    assert npu.gemv(old.to_additive(), x).shape == (2, 160)


def test_bound_weights_are_read_in_place_and_new_sizes_load_nothing(tmp_path):
    blocks, x, expected = _exact(96, 256, 1)
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\0" * 64 + blocks.tobytes())
    mapped = np.memmap(path, np.uint8, "r", 64)
    device = npu.current_device("emu:npu2")
    bound = npu.bind(npu.q4nx.Tensor.from_blocks(mapped, (96, 256)), device=device)
    assert bound.in_place and bound.nbytes == 3 * 5120 and bound.shape == (96, 256)
    del mapped
    assert np.array_equal(npu.gemv(bound, x, out_dtype=np.float32), expected)
    before = device.counters()
    other, y, wanted = _exact(320, 1280, 1)
    assert np.array_equal(npu.gemv((other, (320, 1280)), y, out_dtype=np.float32), wanted)
    after = device.counters()
    assert after["configuration_loads"] == before["configuration_loads"]
    assert after["submissions"] == before["submissions"] + 1
    copied = after["host_copy_bytes"] - before["host_copy_bytes"]
    assert copied < other.size / 2  # x, its setup and y only


def test_device_memory_holds_the_weights_after_a_run_and_the_caller_may_free_them():
    """Cores read weights in the caller's array; once the run is over nothing refers to it."""
    blocks, x, expected = _exact(4096, 512, 1)
    device = npu.current_device("emu:npu2")
    bound = npu.bind((blocks.copy(), (4096, 512)), device=device)
    assert np.array_equal(npu.gemv(bound, x, out_dtype=np.float32), expected)
    del bound  # and with it the copy, which the next run must not touch
    other, y, wanted = _exact(64, 256, 1)
    assert np.array_equal(npu.gemv((other, (64, 256)), y, out_dtype=np.float32), wanted)


def test_unaligned_and_few_row_blocks_are_copied():
    blocks, x, expected = _exact(32, 256, 1)
    raw = np.empty(blocks.size + 1, np.uint8)
    raw[1:] = blocks.ravel()
    for device in DEVICES:  # npu1 reads two row-blocks side by side, and there is one
        bound = npu.bind((raw[1:], (32, 256)), device=device)
        assert not bound.in_place
        assert np.array_equal(npu.gemv(bound, x, out_dtype=np.float32), expected)


@given(
    n=st.integers(1, 3000), batch=st.integers(1, 9), k=st.integers(1, 64),
    seed=st.integers(0, 2**32 - 1), device=st.sampled_from(DEVICES),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_top_is_the_head_of_a_stable_sort(n, batch, k, seed, device):
    k = min(k, n)
    blocks, x, expected = _exact(n, 40, batch, seed)  # few distinct values: many ties
    values, indices = npu.gemv_top((blocks, (n, 40)), x, k, device=device)
    order = np.argsort(-expected, axis=1, kind="stable")[:, :k]
    assert values.dtype == np.float32 and indices.dtype == np.int64
    assert np.array_equal(indices, order)
    assert np.array_equal(values, np.take_along_axis(expected, order, 1))


def test_top_of_negative_rows_never_picks_padding():
    n = 33
    rng = np.random.default_rng(3)
    blocks, w, _, _ = random_weights(n, 256, rng, exact=True)
    x = -np.sign(w.sum(axis=0)).astype(BF16)  # padding rows would give 0
    expected = x.astype(np.float64) @ w.T
    values, indices = npu.gemv_top((blocks, (n, 256)), x, n)
    assert np.array_equal(indices, np.argsort(-expected, kind="stable"))
    assert values.shape == (n,)


def test_not_a_number_and_infinity_make_their_vector_not_finite_and_no_other():
    rng = np.random.default_rng(4)
    blocks, w, _, _ = random_weights(64, 512, rng, exact=True)
    x = random_integers(3, 512, rng)
    clean = x.astype(np.float64) @ w.T
    x[0, 300], x[2, 5] = np.nan, np.inf
    for device in DEVICES:
        y = npu.gemv((blocks, (64, 512)), x, out_dtype=np.float32, device=device)
        assert np.isnan(y[0]).all() and not np.isfinite(y[2]).any()
        assert np.array_equal(y[1], clean[1])
    assert np.isfinite(npu.gemv((blocks, (64, 512)), x[1])).all()  # nothing stays behind


def test_top_puts_not_a_number_last():
    rng = np.random.default_rng(5)
    blocks, w, _, _ = random_weights(96, 256, rng, exact=True)
    blocks = blocks.copy()
    # A NaN minimum of row 40 (row-block 1, row 8, group 0) and of row 90.
    for block, row in ((1, 8), (2, 26)):
        blocks[block, 512 + 2 * row : 514 + 2 * row] = np.array([0x7FC0], "<u2").view(np.uint8)
    x = random_integers(1, 256, rng)[0]
    expected = x.astype(np.float64) @ w.T
    expected[[40, 90]] = -np.inf
    values, indices = npu.gemv_top((blocks, (96, 256)), x, 64)
    assert np.array_equal(indices, np.argsort(-expected, kind="stable")[:64])
    small = (blocks[1:2], (9, 256))
    values, indices = npu.gemv_top(small, x, 9)
    assert indices[-1] == 8 and np.isnan(values[-1]) and np.isfinite(values[:-1]).all()


GOOD = np.zeros((2, 5120), np.uint8)


@pytest.mark.parametrize(
    ("w", "x", "options", "error", "message"),
    [
        (7, np.zeros(256, BF16), {}, ArgumentError, "w is int"),
        ((GOOD, (64, 256)), np.zeros(255, BF16), {}, ShapeError, r"x has shape \(255,\)"),
        ((GOOD, (64, 256)), np.zeros((0, 256), BF16), {}, ShapeError, "batch >= 1"),
        ((GOOD, (64, 256)), np.zeros((1, 1, 256), BF16), {}, ShapeError, "x has shape"),
        ((GOOD, (64, 256)), np.float32(1), {}, ShapeError, "x has shape"),
        ((GOOD, (64, 256)), np.zeros(256, np.int8), {}, DtypeError, "x has dtype int8"),
        ((GOOD, (64, 256)), np.ma.zeros(256), {}, ArgumentError, "masked"),
        ((GOOD, (65, 256)), np.zeros(256, BF16), {}, ShapeError, "has 3 q4nx blocks"),
        ((GOOD, (64, 257)), np.zeros(257, BF16), {}, ShapeError, "has 4 q4nx blocks"),
        ((GOOD, (0, 256)), np.zeros(256, BF16), {}, ShapeError, "the shape of w"),
        ((GOOD, (64.0, 256)), np.zeros(256, BF16), {}, ShapeError, "the shape of w"),
        ((GOOD, 64), np.zeros(256, BF16), {}, ShapeError, "the shape of w"),
        ((GOOD.view(np.int8), (64, 256)), np.zeros(256, BF16), {}, DtypeError, "int8"),
        (([1, 2], (64, 256)), np.zeros(256, BF16), {}, DtypeError, "list"),
        ((GOOD[:, ::-1], (64, 256)), np.zeros(256, BF16), {}, ArgumentError, "C-contiguous"),
        ((GOOD, (64, 256)), np.zeros(256, BF16), {"out_dtype": "int8"}, DtypeError, "int8"),
        ((GOOD, (64, 256)), np.zeros(256, BF16), {"out_dtype": "word"}, DtypeError, "not a valid"),
        ((GOOD, (64, 256)), np.zeros(256, BF16), {"out": [1]}, ArgumentError, "out is list"),
        ((GOOD, (64, 256)), np.zeros(256, BF16), {"out": np.zeros(63, BF16)}, ShapeError, "63"),
        (
            (GOOD, (64, 256)), np.zeros(256, BF16),
            {"out": np.zeros(64, BF16), "out_dtype": "float32"}, DtypeError, "leave one",
        ),
        (
            (GOOD, (64, 256)), np.zeros(256, BF16),
            {"out": np.zeros(128, BF16)[::2]}, ArgumentError, "C-contiguous",
        ),
        ((GOOD, (64, 256)), np.zeros(256, BF16), {"device": "emu:npu9"}, DeviceError, "npu9"),
    ],
)  # fmt: skip
def test_bad_arguments_are_typed_errors(w, x, options, error, message):
    with pytest.raises(error, match=message):
        npu.gemv(w, x, **options)


def test_masked_blocks_are_refused():
    blocks = np.ma.masked_array(np.zeros(5120, np.uint8), True)
    with pytest.raises(ArgumentError, match=r"\[bind\] the blocks of w are a masked array"):
        npu.bind((blocks, (32, 256)))


def test_more_typed_errors():
    x = np.zeros(64, BF16)
    with pytest.raises(ArgumentError, match="out overlaps"):
        npu.gemv((GOOD, (64, 64)), x, out=x)
    bound = npu.bind((GOOD, (64, 256)), device="emu:npu1")
    with pytest.raises(ArgumentError, match="bound to"):
        npu.gemv(bound, np.zeros(256, BF16), device="emu:npu2")
    for k in (0, 65, 1.5, True, None):
        with pytest.raises(ArgumentError, match=r"\[gemv_top\] k is"):
            npu.gemv_top((GOOD, (64, 256)), np.zeros(256, BF16), k)
    with pytest.raises(ArgumentError, match="use 1 to 33"):
        npu.gemv_top((GOOD, (33, 256)), np.zeros(256, BF16), 34)


def test_helper_of_this_file_reads_what_it_writes():
    """The formula, cell by cell, on one block."""
    rng = np.random.default_rng(6)
    blocks, w, _, _ = random_weights(32, 256, rng)
    block = blocks[0]
    d, m = block[:512].view(BF16), block[512:1024].view(BF16)
    for row, column in rng.integers(0, [32, 256], (100, 2)):
        byte = block[1024 + row // 16 * 2048 + column * 8 + row % 16 // 2]
        code = byte >> 4 if row % 2 else byte & 15
        at = column // 32 * 32 + row
        assert w[row, column] == float(d[at]) * int(code) + float(m[at])
    assert padded(33, 32) == 64
