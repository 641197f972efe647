"""npu.gemv, gemv_top and dequantize on blocks of the formats beside Q4NX, large and small, against
float64 products of the matrices that they were made of by the published layout (weight_blocks.py).

Whole x and dyadic weights: equality in every device and arithmetic; random values within the bound
derived in compare.py. Also: one configuration for all formats of a size, ragged sizes, reading in
place, configurations with other numbers of cores, prompts through the GEMM, and every typed error.
"""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_block_gemv_close, assert_gemv_close
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from q4nx_blocks import random_integers, random_weights
from weight_blocks import BF16, BYTES, COLUMNS, q4_0_scales, random_matrix

import npu
from npu import _npu
from npu._npu import facts
from npu.designs import gemv as design
from npu.errors import ArgumentError, DesignError, DtypeError, ShapeError
from npu.formats.blocks import BlockTensor
from npu.ops.linear import DECODE_ROWS, Weight
from npu.ops.registry import operation

FORMATS = list(COLUMNS)
SMALL = [format for format in FORMATS if BYTES[format] == 4608]
SIZES = {"large": ["q4nx", *(f for f in FORMATS if f not in SMALL)], "small": SMALL}


@given(
    format=st.sampled_from(FORMATS), n=st.integers(1, 200), k=st.integers(1, 400),
    batch=st.integers(1, 11), seed=st.integers(0, 2**32 - 1), device=st.sampled_from(DEVICES),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_size_and_batch_is_exact_on_dyadic_values(format, n, k, batch, seed, device):
    rng = np.random.default_rng(seed)
    blocks, w = random_matrix(format, n, k, rng, exact=True)
    x = random_integers(batch, k, rng)
    expected = x.astype(np.float64) @ w.T
    bound = npu.bind((blocks, (n, k), format), device=device)
    assert bound.format == format
    assert np.array_equal(npu.gemv(bound, x, out_dtype=np.float32), expected)
    assert np.array_equal(npu.gemv(bound, x), expected.astype(np.float32).astype(BF16))
    top = min(7, n)
    values, rows = npu.gemv_top(bound, x, top)
    order = np.argsort(-expected, axis=1, kind="stable")[:, :top]
    assert np.array_equal(rows, order)
    assert np.array_equal(values, np.take_along_axis(expected, order, 1))
    with np.errstate(over="ignore"):
        wanted = w.astype(np.float32).astype(BF16)
    assert np.array_equal(npu.dequantize(bound), wanted)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_silicon_arithmetic_is_exact_on_dyadic_values(format, device, batch):
    rng = np.random.default_rng(batch)
    blocks, w = random_matrix(format, 70, 300, rng, exact=True)
    x = random_integers(batch, 300, rng)
    with npu.device(device, arithmetic="silicon"):
        y = npu.gemv((blocks, (70, 300), format), x, out_dtype=np.float32)
        assert np.array_equal(npu.dequantize((blocks, (70, 300), format)), w.astype(BF16))
    assert np.array_equal(y, x.astype(np.float64) @ w.T)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("arithmetic", "n", "k"), [("fast", 320, 1152), ("silicon", 64, 500)])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_random_values_within_the_derived_bound(format, device, arithmetic, n, k, dtype):
    rng = np.random.default_rng(1)
    blocks, w = random_matrix(format, n, k, rng)
    x = rng.standard_normal((3, k)).astype(BF16)
    with npu.device(device, arithmetic=arithmetic):
        y = npu.gemv((blocks, (n, k), format), x, out_dtype=dtype)
    silicon = arithmetic == "silicon"
    if format == "q4_0":
        assert_gemv_close(y, w, q4_0_scales(blocks, n, k), None, x, silicon=silicon)
    else:
        assert_block_gemv_close(y, w, x, format, silicon=silicon)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_vector_that_is_not_finite_is_so_alone(format, device):
    rng = np.random.default_rng(4)
    blocks, w = random_matrix(format, 64, 512, rng, exact=True)
    x = random_integers(3, 512, rng)
    clean = x.astype(np.float64) @ w.T
    x[0, 300], x[2, 5] = np.nan, np.inf
    y = npu.gemv((blocks, (64, 512), format), x, out_dtype=np.float32, device=device)
    assert np.isnan(y[0]).all() and not np.isfinite(y[2]).any()
    assert np.array_equal(y[1], clean[1])


def check_product(format: str, rng: np.random.Generator, **options: str) -> None:
    x = random_integers(1, 300, rng)
    if format == "q4nx":
        blocks, w, _, _ = random_weights(64, 300, rng, exact=True)
    else:
        blocks, w = random_matrix(format, 64, 300, rng, exact=True)
    y = npu.gemv((blocks, (64, 300), format), x, out_dtype=np.float32, **options)
    assert np.array_equal(y, x.astype(np.float64) @ w.T)


@pytest.mark.parametrize("device", ["emu:npu1", "emu:npu2"])
def test_one_configuration_runs_all_formats_of_a_size(device):
    """Those of the other size need another one, back and forth."""
    rng = np.random.default_rng(2)
    counted = npu.current_device(device)
    check_product("q4nx", rng, device=device)
    for size in ("small", "large", "small"):
        before = counted.counters()["configuration_loads"]
        for format in SIZES[size] * 2:
            check_product(format, rng, device=device)
            assert counted.counters()["configuration_loads"] == before + 1


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("generation", "cores", "channels"),
    [("npu1", 16, 2), ("npu1", 4, 1), ("npu2", 16, 2), ("npu2", 32, 2), ("npu2", 32, 1)],
)
def test_every_number_of_cores_and_long_rows(format, generation, cores, channels):
    config = design.configuration(generation, cores, channels, format in SMALL)
    op = _npu.ops.Gemv(npu.current_device(f"emu:{generation}").handle, config)
    rng = np.random.default_rng(cores)
    # More column blocks than repeats of a task, and a last object of x with fewer blocks.
    for n, k, batch in ((130, COLUMNS[format] * 65 + 3, 1), (600, 700, 8)):
        blocks, w = random_matrix(format, n, k, rng, exact=True)
        x = random_integers(batch, k, rng)
        y = np.empty((batch, n), np.float32)
        bound = op.bind(blocks.reshape(-1), n, k, format)
        op.run(bound, x.view(np.uint16), "bfloat16", y.reshape(-1).view(np.uint8), "float32")
        assert np.array_equal(y, x.astype(np.float64) @ w.T), (n, k)


@pytest.mark.parametrize(("small", "format", "size"), [
    *((True, format, 5120) for format in SIZES["large"]),
    *((False, format, 4608) for format in SIZES["small"]),
])  # fmt: skip
def test_a_configuration_refuses_blocks_of_the_other_size(small, format, size):
    message = f"blocks of {format} have {size} bytes, those of this configuration {9728 - size}"
    config = design.configuration("npu2", small=small)
    op = _npu.ops.Gemv(npu.current_device("emu:npu2").handle, config)
    with pytest.raises(ArgumentError, match=rf"\[gemv\] {message}"):
        op.bind(np.zeros(4 * size, np.uint8), 64, 2 * (256 if format[1] == "4" else 64), format)
    request = {"n": 64, "k": 256, "format": list(facts.BLOCK_COLUMNS).index(format)}
    with pytest.raises(ArgumentError, match=message):
        _npu.operations.submissions("gemv", config, request)
    other = operation("gemv")
    (one,) = other.submissions(other.configuration("npu2", **other.choices_for(request)), request)
    blocks = 2 * -(-256 // facts.BLOCK_COLUMNS[format])
    assert one.arguments[0]["bytes"] == blocks * size


@pytest.mark.parametrize("format", FORMATS)
def test_linear_weights_of_any_number_of_rows(format, tmp_path):
    """Decode and prompt, in place from a mapped file, and the largest elements."""
    rng = np.random.default_rng(3)
    n, k = 96, 400
    blocks, w = random_matrix(format, n, k, rng, exact=True)
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\0" * 64 + blocks.tobytes())
    mapped = np.memmap(path, np.uint8, "r", 64).reshape(n // 32, -1, BYTES[format])
    weight = Weight(BlockTensor(mapped, (n, k), format), bf16="native")
    assert weight.nbytes == 0
    for rows in (1, DECODE_ROWS, DECODE_ROWS + 1, 70):
        x = random_integers(rows, k, rng).astype(np.float32)
        expected = x.astype(np.float64) @ w.T
        if rows > DECODE_ROWS:  # weights rounded to bfloat16 once
            expected = x.astype(np.float64) @ w.astype(BF16).astype(np.float64).T
        np.testing.assert_allclose(weight.multiply(x), expected, rtol=1e-6, atol=0)
    found = weight.top(x[0], 5, 40)  # among the first 40 rows
    assert found is not None
    assert found[1].tolist() == np.argsort(-(x[0] @ w[:40].T), kind="stable")[:5].tolist()


# Where the numbers end that bound the weights of a block.
BOUNDING = {"q8": 1024, "bf16": 5120, "q4_0": 512, "q8_0": 512}


@pytest.mark.parametrize("format", FORMATS)
def test_top_is_left_alone_where_an_element_may_be_infinite(format):
    unsafe = [0x80, 0x7F] if format == "bf16" else [0, 0x7F]
    blocks = np.zeros((3, 4, BYTES[format]), np.uint8)
    tensor = BlockTensor(blocks, (96, 4 * COLUMNS[format]), format)
    x = np.ones(tensor.shape[1], np.float32)
    assert Weight(tensor).top(x, 3, 96) is not None
    assert Weight(tensor).top(x * np.float32(1e36), 3, 96) is None
    blocks[2, 1, 2:4] = unsafe  # of the first scale (float32), or the second weight: large
    assert Weight(BlockTensor(blocks, tensor.shape, format)).top(x, 3, 96) is None
    for at in (4, BOUNDING[format]):
        blocks[2, 1] = 0
        blocks[2, 1, at - 2 : at] = [0x80, 0x7F]  # infinity
        assert Weight(BlockTensor(blocks, tensor.shape, format)).top(x / 1e9, 3, 96) is None
    blocks[2, 1] = 0
    if format in ("q8", "q8_0"):
        blocks[2, 1, :4] = [0x81, 0x7F, 0x80, 0x3F]  # 1.0039; halves are no numbers
    blocks[2, 1, BOUNDING[format] :] = 0x7F  # codes bound nothing
    assert Weight(BlockTensor(blocks, tensor.shape, format)).top(x, 3, 96) is not None


@pytest.mark.parametrize(("format", "code"), [("q4_0", 0), ("q4_0", 0xFF), ("q8_0", 0x80)])
@pytest.mark.parametrize("device", DEVICES)
def test_what_top_does_not_leave_alone_is_finite(format, code, device):
    """Extreme codes with the largest scale that is accepted, whatever the signs of x are."""
    blocks = np.zeros((3, BYTES[format]), np.uint8)
    blocks[:, 512:] = code
    d = np.full((3, 512 // (2 if format == "q4_0" else 4)), 2.0**100)
    kind = BF16 if format == "q4_0" else np.dtype(np.float32)
    blocks[:, :512] = d.astype(kind).view(np.uint8)
    k = COLUMNS[format]
    weight = Weight(BlockTensor(blocks[:, None], (96, k), format), device=device)
    edge = 2.0**127 / ((512 if format == "q4_0" else 256) * 2.0**100) / k
    assert weight.top(np.full(k, edge, np.float32), 1, 96) is None
    signs = np.where(np.arange(k) % 2, 1, -1)
    for sign in (np.ones(k), -np.ones(k), signs):
        x = (sign * edge * 0.98).astype(np.float32)
        assert weight.top(x, 1, 96) is not None
        assert np.isfinite(weight.multiply(x[None])).all()


GOOD = np.zeros((2, 5120), np.uint8)
SMALL_GOOD = np.zeros((2, 4608), np.uint8)


@pytest.mark.parametrize(
    ("w", "error", "message"),
    [
        ((GOOD, (64, 128), "q6"), ArgumentError, "the format of w is 'q6'; use 'q4nx', 'q8'"),
        ((GOOD, (64, 128), 1), ArgumentError, "the format of w is 1"),
        ((GOOD, (64, 128), None), ArgumentError, "the format of w is None"),
        ((GOOD, (64, 256), "q8"), ShapeError, "has 4 q8 blocks of 5120 bytes"),
        ((GOOD, (64, 81), "bf16"), ShapeError, "has 4 bf16 blocks of 5120 bytes"),
        ((GOOD, (64, 256), "q4_0"), ShapeError, "has 2 q4_0 blocks of 4608 bytes, 9216 bytes; the"),
        ((SMALL_GOOD, (64, 129), "q8_0"), ShapeError, "has 4 q8_0 blocks of 4608 bytes, 18432 b"),
        ((SMALL_GOOD, (64, 256), "q4nx"), ShapeError, "has 2 q4nx blocks of 5120 bytes, 10240 byt"),
        ((SMALL_GOOD, (64, 256)), ShapeError, "has 2 q4nx blocks of 5120 .*; the array has 9216"),
        ((GOOD, (64, 256), "Q4_0"), ArgumentError, "the format of w is 'Q4_0'; use .*, 'q8_0'"),
        ((GOOD, (64, 128), "q8", 1), ArgumentError, "w is tuple"),
    ],
)
def test_bad_formats_are_typed_errors(w, error, message):
    with pytest.raises(error, match=message):
        npu.gemv(w, np.zeros(w[1][1], BF16))
    with pytest.raises(error, match=message):
        npu.bind(w)


def test_bound_weights_are_not_bound_again():
    bound = npu.bind((GOOD, (64, 128), "q8"))
    with pytest.raises(ArgumentError, match=r"w is BoundWeights; pass a tensor in blocks, or \("):
        npu.bind(bound)


def test_simulations_know_the_formats():
    with pytest.raises(ArgumentError, match=r"\[simulate_gemv\] format is 'q5'"):
        npu.simulate_gemv("npu2", 64, 64, format="q5")
    with pytest.raises(DesignError, match=r"\[dequant\] format is 'q5'"):
        npu.simulate_dequantize("npu2", 64, 64, format="q5")


def test_bad_block_tensors_are_typed_errors():
    with pytest.raises(ShapeError, match=r"q8 blocks of \(64, 128\) have shape \(2, 1, 5120\)"):
        BlockTensor(GOOD, (64, 128), "q8")
    with pytest.raises(DtypeError, match="int8"):
        BlockTensor(GOOD.view(np.int8)[:, None], (64, 128), "q8")
    with pytest.raises(ArgumentError, match="the format is 'q9'"):
        BlockTensor(GOOD[:, None], (64, 128), "q9")
