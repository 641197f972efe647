"""npu.matmul of operands in BFP16 blocks (npu.pack(format="bfp16")): the three configurations of
the ATB paper and what lies between them, over random sizes, against float64 within the bounds of
compare.assert_blocks_close; the same bits in both arithmetic modes and with any design; results
that are operands; what is read in place; what is refused.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compare import assert_blocks_close, round_bf16
from hypothesis import given, settings
from hypothesis import strategies as st

import npu
from npu.errors import ArgumentError, DeviceError, DtypeError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)
# (A in blocks, result, accumulate): the paper's configurations are 1: bfloat16 narrow, 2: bfp16
# narrow of blocks, 3: bfp16 with sums in bfloat16 of blocks.
WAYS = [
    (a, out, sums)
    for a in (False, True)
    for out in ("float32", "bfloat16", "bfp16")
    for sums in ("wide", "narrow", "bfloat16")
    if sums == "wide" or (out == "bfloat16" and sums == "narrow") or out == "bfp16"
]
SUMS = {"wide": "float32", "bfloat16": "bfloat16"}


def values_of(result: np.ndarray | npu.Bfp16Matrix) -> np.ndarray:
    return result.to_numpy() if isinstance(result, npu.Bfp16Matrix) else result


def check(
    a: np.ndarray, b: np.ndarray, in_blocks: bool, out: str, accumulate: str, **device: str
) -> np.ndarray | npu.Bfp16Matrix:
    """a, b: float arrays; npu.matmul on the chosen device within its bound."""
    with npu.device("emu:npu2", **device):
        left = npu.pack(a, format="bfp16", side="a") if in_blocks else a
        right = npu.pack(b, format="bfp16")
        c = npu.matmul(left, right, out_dtype=out, accumulate=accumulate)
        options = npu.last_gemm().options
    sums = SUMS.get(accumulate, out)
    k, depth = options.tile[1], -(-a.shape[1] // options.k_mt) * options.k_mt
    assert_blocks_close(values_of(c), round_bf16(a), round_bf16(b), sums, k, depth, out)
    return c


@pytest.mark.parametrize("way", WAYS, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_products_are_those_of_the_blocks(way: tuple[bool, str, str], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    m, k, n = (data.draw(st.integers(1, 150)) for _ in range(3))
    width = data.draw(st.integers(0, 20))

    def operand(rows: int, columns: int) -> np.ndarray:
        exponents = rng.integers(-width, width + 1, (rows, columns))
        x = np.ldexp(rng.standard_normal((rows, columns)), exponents).astype(np.float32)
        x = x.astype(BF16) if data.draw(st.booleans()) else x
        return np.asfortranarray(x) if data.draw(st.booleans()) else x

    designs = data.draw(st.sampled_from(["host", "array"]))
    c = check(operand(m, k), operand(k, n), *way, designs=designs)
    assert c.shape == (m, n)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_both_arithmetic_modes_have_the_same_bits(way: tuple[bool, str, str]) -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((70, 90)).astype(np.float32)
    b = rng.standard_normal((90, 100)).astype(np.float32)
    fast, silicon = (check(a, b, *way, arithmetic=mode) for mode in ("fast", "silicon"))
    np.testing.assert_array_equal(values_of(fast), values_of(silicon))


def test_wide_sums_are_those_of_plain_products() -> None:
    """The array rounds operands as npu.pack does, and float32 sums in the same order."""
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((300, 520), (520, 600)))
    packed = npu.pack(b, format="bfp16")
    for dtype in (np.float32, BF16, np.float16):
        np.testing.assert_array_equal(
            npu.matmul(a, packed, out_dtype=dtype), npu.matmul(a, b, out_dtype=dtype)
        )
    left = npu.pack(a, format="bfp16", side="a")
    np.testing.assert_array_equal(npu.matmul(left, packed, out_dtype="float32"), npu.matmul(a, b))
    blocks = npu.matmul(left, packed, accumulate="wide")
    np.testing.assert_array_equal(
        blocks.to_numpy(),
        _in_blocks_of_float32(npu.matmul(a, b)),
    )


def _in_blocks_of_float32(x: np.ndarray) -> np.ndarray:
    """float32 values to nearest even along rows, 127 steps at most."""
    blocks = x.astype(np.float64).reshape(len(x), -1, 8)
    exponent = np.frexp(np.abs(blocks).max(-1, keepdims=True))[1] - 1
    unit = np.ldexp(1.0, exponent - 6)
    return (np.minimum(np.rint(blocks / unit), 127) * unit).reshape(x.shape)


def test_defaults() -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((33, 48)).astype(np.float32)
    b = npu.pack(rng.standard_normal((48, 40)).astype(np.float32), format="bfp16")
    assert npu.matmul(a, b).dtype == np.float32
    assert npu.matmul(a.astype(BF16), b).dtype == BF16
    c = npu.matmul(npu.pack(a, format="bfp16", side="a"), b)
    assert isinstance(c, npu.Bfp16Matrix) and (c.shape, c.side) == ((33, 40), "a")


def test_a_result_is_the_next_operand() -> None:
    rng = np.random.default_rng(6)
    a, b, d = (rng.standard_normal((100, 100)).astype(np.float32) for _ in range(3))
    left = npu.pack(a, format="bfp16", side="a")
    middle = npu.matmul(left, npu.pack(b, format="bfp16"), accumulate="bfloat16")
    last = npu.pack(d, format="bfp16")
    c = npu.matmul(middle, last, out_dtype="float32")
    assert_blocks_close(
        c, middle.to_numpy(), round_bf16(d), "float32", 64, 256, "float32", a_in_blocks=True
    )


def test_batches_epilogue_and_out() -> None:
    rng = np.random.default_rng(7)
    a = rng.standard_normal((2, 3, 21, 40)).astype(np.float32)
    b, bias = rng.standard_normal((40, 19)).astype(np.float32), rng.standard_normal(19)
    bias = bias.astype(np.float32)
    packed = npu.pack(b, format="bfp16")
    plain = npu.matmul(a, packed)
    assert plain.shape == (2, 3, 21, 19)
    np.testing.assert_array_equal(plain, npu.matmul(a, b))
    scaled = npu.matmul(a, packed, alpha=2, bias=bias)
    np.testing.assert_array_equal(scaled, npu.matmul(a, b, alpha=2, bias=bias))
    out = np.full(plain.shape, np.nan, np.float32)
    assert npu.matmul(a, packed, out=out) is out
    np.testing.assert_array_equal(out, plain)
    np.testing.assert_array_equal(npu.matmul(a[..., ::-1, :], packed), plain[..., ::-1, :])
    assert npu.matmul(a[:, :, :0], packed).shape == (2, 3, 0, 19)


def test_whole_rounds_of_blocks_are_read_and_written_in_place() -> None:
    """Nothing is copied where sizes are whole output rounds, and no size loads a configuration."""
    rng = np.random.default_rng(8)
    with npu.device("emu:npu2") as device:

        def pair(m: int, k: int, n: int) -> tuple[npu.Bfp16Matrix, npu.Bfp16Matrix]:
            a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
            return npu.pack(a, format="bfp16", side="a"), npu.pack(b, format="bfp16")

        first = pair(256, 512, 512)
        npu.matmul(*first)
        before = device.counters()
        npu.matmul(*first)
        npu.matmul(*pair(512, 256, 1024))
        after = device.counters()
        assert after["host_copy_bytes"] == before["host_copy_bytes"]
        assert after["configuration_loads"] == before["configuration_loads"]
        npu.matmul(*pair(40, 300, 72))
        assert device.counters()["host_copy_bytes"] > after["host_copy_bytes"]


def test_a_block_with_infinity_or_nan_makes_nan_where_it_is_used() -> None:
    a = np.ones((3, 20), np.float32)
    a[0, 1], a[1, 19] = np.inf, np.nan
    b = npu.pack(np.ones((20, 16), np.float32), format="bfp16")
    for left in (a, npu.pack(a, format="bfp16", side="a")):
        c = npu.matmul(left, b, out_dtype="float32")
        assert np.isnan(c[:2]).all() and (c[2] == 20).all()
        blocks = npu.matmul(left, b, out_dtype="bfp16").to_numpy()
        assert np.isnan(blocks[:2]).all() and (blocks[2] == 20).all()


ONES = np.ones((8, 8), np.float32)
A, B = npu.pack(ONES, format="bfp16", side="a"), npu.pack(ONES, format="bfp16")


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: npu.matmul(A, ONES), DtypeError, ["[matmul]", "npu.pack"]),
        (lambda: npu.matmul(ONES, ONES, out_dtype="bfp16"), DtypeError, ["npu.pack"]),
        (lambda: npu.matmul(A, npu.pack(ONES)), DtypeError, ["PackedMatrix"]),
        (lambda: npu.matmul(B, B), ArgumentError, ['side="b"', 'side="a"']),
        (lambda: npu.matmul(ONES, A), ArgumentError, ['side="a"']),
        (lambda: npu.matmul(ONES[:, :7], B), ShapeError, ["(8, 7)", "(8, 8)"]),
        (lambda: npu.matmul(ONES[0], B), ShapeError, ["(8,)"]),
        (lambda: npu.matmul(ONES.astype(np.int8), B), DtypeError, ["int8"]),
        (lambda: npu.matmul(ONES, B, out_dtype=np.int32), DtypeError, ["int32", "bfp16"]),
        (lambda: npu.matmul(A, B, device="emu:npu1"), DeviceError, ["npu1"]),
        (lambda: npu.matmul(A, B, bf16="native"), ArgumentError, ["native"]),
        (lambda: npu.matmul(A, B, bf16="fp8"), DeviceError, ["fp8"]),
        (lambda: npu.matmul(A, B, accumulate="int8"), ArgumentError, ["'int8'"]),
        (lambda: npu.matmul(ONES, B, accumulate="bfloat16"), ArgumentError, ["'bfloat16'"]),
        (lambda: npu.matmul(A, B, alpha=2), ArgumentError, ["alpha", "BFP16"]),
        (lambda: npu.matmul(A, B, bias=ONES[0], out_dtype="bfp16"), ArgumentError, ["bias"]),
        (lambda: npu.matmul(A, B, shift=1), ArgumentError, ["shift"]),
        (lambda: npu.matmul(A, B, out=ONES.copy(), out_dtype="bfp16"), ArgumentError, ["out"]),
        (lambda: npu.matmul(ONES[None], B, out_dtype="bfp16"), ShapeError, ["(1, 8, 8)"]),
        (lambda: npu.matmul(ONES[:0], B, out_dtype="bfp16"), ShapeError, ["(0, 8)"]),
    ],
)  # fmt: skip
def test_what_is_refused(call, error, words) -> None:
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
