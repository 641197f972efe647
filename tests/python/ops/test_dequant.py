"""npu.dequantize against the published formula: float64 values, rounded once to float32 and once to
bfloat16 by integer arithmetic written here; every bit equal, in every arithmetic and host build.

Also: ragged sizes, ties, extreme planes, NaN and infinity, what is written in place, reuse of one
configuration, and every typed error.
"""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from devices_under_test import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from q4nx_blocks import blocks_from, padded
from weight_blocks import BYTES, COLUMNS, q4_0_blocks, q8_blocks, random_matrix

import npu
from npu import q4nx
from npu.errors import ArgumentError, DtypeError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL = ("q4_0", "q8_0")


def rounded(values: np.ndarray) -> np.ndarray:
    """Bits of bfloat16 of float64 values whose float32 rounding is the only other one."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    half, odd = np.uint64(0x7FFF), (bits >> np.uint64(16)) & np.uint64(1)
    up = ((bits + half + odd) >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), up)


def blocks_of(codes: np.ndarray, d: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Blocks of codes (N, K) and planes (N, ceil(K / 32)) of any size, zero-padded."""
    n, k = (padded(size, unit) for size, unit in zip(codes.shape, (32, 256), strict=True))
    whole = [np.zeros((n, k), np.uint8), np.zeros((n, k // 32)), np.zeros((n, k // 32))]
    for target, part in zip(whole, (codes, d, m), strict=True):
        target[: part.shape[0], : part.shape[1]] = part
    return blocks_from(*whole)


def matrix(n: int, k: int, seed: int, spread: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of random codes and planes, and the bits expected: exponents within +-spread, so that
    every m + d * code is exact in float64."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 16, (n, k), dtype=np.uint8)
    groups = -(-k // 32)
    planes = [
        (random.standard_normal((n, groups)) * 2.0 ** random.integers(-spread, spread, (n, groups)))
        .astype(BF16)
        for _ in range(2)
    ]  # fmt: skip
    return blocks_of(codes, *planes), expected_bits(codes, *planes)


def expected_bits(codes: np.ndarray, d: np.ndarray, m: np.ndarray) -> np.ndarray:
    columns = np.arange(codes.shape[1]) // 32
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded(m.astype(np.float64)[:, columns] + d.astype(np.float64)[:, columns] * codes)


def small_matrix(
    format: str, n: int, k: int, seed: int, spread: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of random codes and scales of magnitudes within 2^+-spread, and the bits expected."""
    random, four = np.random.default_rng(seed), format == "q4_0"
    low, high = (0, 16) if four else (-128, 128)
    codes = random.integers(low, high, (n, k))
    groups = n, -(-k // 32)
    d = random.standard_normal(groups) * 2.0 ** random.integers(-spread, spread, groups)
    d = d.astype(BF16 if four else np.float32).astype(np.float64)
    blocks = q4_0_blocks(codes, d) if four else q8_blocks(codes, d, format)
    exact = np.repeat(d, 32, axis=1)[:, :k] * (codes - 8 if four else codes)
    return blocks, rounded(exact + 0.0)  # products are added to 0: -0 becomes 0


def bits(array: np.ndarray) -> np.ndarray:
    assert array.dtype == BF16
    return array.view(np.uint16)


@given(
    n=st.integers(1, 400), k=st.integers(1, 900), seed=st.integers(0, 2**32 - 1),
    device=st.sampled_from(DEVICES),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_size_is_the_formula(n, k, seed, device):
    blocks, want = matrix(n, k, seed)
    assert np.array_equal(bits(npu.dequantize((blocks, (n, k)), device=device)), want)


@given(
    format=st.sampled_from(SMALL), n=st.integers(1, 200), k=st.integers(1, 600),
    seed=st.integers(0, 2**32 - 1), device=st.sampled_from(DEVICES),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_size_of_small_blocks_is_the_formula(format, n, k, seed, device):
    blocks, want = small_matrix(format, n, k, seed)
    got = bits(npu.dequantize((blocks, (n, k), format), device=device))
    assert np.array_equal(got, want)


@pytest.mark.parametrize("format", SMALL)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "k"), [(64, 8300), (2300, 32), (200, 600)])
def test_large_sizes_of_small_blocks(format, device, n, k):
    """Tiles of a random row-block: more column blocks, and more pairs, than a task repeats."""
    one, want = small_matrix(format, 32, k, 3)
    rows = np.resize(np.arange(32), n)
    blocks = np.concatenate([one] * -(-n // 32))
    got = npu.dequantize((blocks, (n, k), format), device=device)
    assert np.array_equal(bits(got), want[rows])


# More column blocks, and more row-block pairs, than a task repeats; more tasks than BDs.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "k"), [(64, 16900), (160, 33000), (70000, 32), (9000, 600)])
def test_large_sizes(device, n, k):
    blocks, want = matrix(n, k, 3)
    assert np.array_equal(bits(npu.dequantize((blocks, (n, k)), device=device)), want)


@pytest.mark.parametrize("device", DEVICES)
def test_silicon_arithmetic_gives_the_same_bits(device):
    for seed, spread in ((0, 1), (1, 12), (2, 20)):
        blocks, want = matrix(96, 300, seed, spread)
        with npu.device(device, arithmetic="silicon"):
            assert np.array_equal(bits(npu.dequantize((blocks, (96, 300)))), want)


@pytest.mark.parametrize("format", SMALL)
@pytest.mark.parametrize("device", DEVICES)
def test_silicon_arithmetic_gives_the_same_bits_of_small_blocks(format, device):
    for seed, spread in ((0, 1), (1, 12), (2, 20)):
        blocks, want = small_matrix(format, 96, 300, seed, spread)
        with npu.device(device, arithmetic="silicon"):
            got = bits(npu.dequantize((blocks, (96, 300), format)))
        if (format, device) == ("q8_0", "emu:npu1"):
            # Whose products of fp32 lanes lose bits of 2^-24: near ties go either way.
            off = np.abs(got.astype(int) - want.astype(int))
            assert off.max() <= 1 and (off == 0).mean() > 0.999
        else:
            assert np.array_equal(got, want)


@pytest.mark.parametrize("format", SMALL)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
def test_ties_and_extremes_of_small_blocks(format, device, arithmetic):
    """Of the largest scales, products beyond float32 are infinite; what is not finite stays in its
    group, and is not finite of scales that are not."""
    four = format == "q4_0"
    edge = [0.0, 2.0**-100, 1.0, 1 + 2.0**-7, -1.9921875, 2.0**120, 3e38, -3e38, np.inf, np.nan]
    tiles = 8 if four else 4
    codes = np.tile(np.arange(16) if four else np.arange(-16, 16), (len(edge), 32 * tiles // 16))
    codes = codes[:, : 32 * tiles]
    d = np.zeros((len(edge), tiles))
    d[:, 1], d[:, tiles - 1] = edge, edge[::-1]
    d = d.astype(BF16 if four else np.float32).astype(np.float64)
    blocks = q4_0_blocks(codes, d) if four else q8_blocks(codes, d, format)
    with npu.device(device, arithmetic=arithmetic):
        got = npu.dequantize((blocks, codes.shape, format)).astype(float)
    wide = np.repeat(d, 32, axis=1)
    with np.errstate(invalid="ignore"):
        want = rounded(wide * (codes - 8 if four else codes)).view(BF16).astype(float)
    assert not np.isfinite(got[~np.isfinite(wide)]).any()
    # float32 lanes are multiplied as bfloat16 parts, of which one may overflow: inf - inf.
    parts = arithmetic == "silicon" and not four
    known = np.isfinite(want) if parts else np.isfinite(wide)
    assert not np.isfinite(got[~known]).any() and known.mean() > 0.8
    assert np.array_equal(got[known], want[known])


def halfway_planes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices full of ties of the rounding to bfloat16 (1 has neighbours 2^-7 above and 2^-8
    below), and, where a tiny m meets the tie of a product, of near ties that float32 tells from
    ties or just does not."""
    tops = (1.0, -1.0, 1 + 2.0**-7, 1.9921875, -1.9921875)
    cases = [(2.0**-8 * scale, top) for top in tops for scale in (1, -1, 0.5, 0.0625)]
    tiny = [sign * 2.0**-power for sign in (1, -1) for power in range(19, 28)]
    cases += [(d, m) for d in (1 + 2.0**-7, 1.9921875, -1.0078125) for m in tiny]
    codes = np.tile(np.arange(32, dtype=np.uint8) % 16, (len(cases), 1))
    d, m = (np.array(part)[:, None].astype(BF16) for part in zip(*cases, strict=True))
    return codes, d, m


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
def test_ties_go_to_even(device, arithmetic):
    codes, d, m = halfway_planes()
    want = expected_bits(codes, d, m)
    exact = m.astype(np.float64) + d.astype(np.float64) * codes
    ties = (exact.astype(np.float32).view(np.uint32) & 0xFFFF) == 0x8000
    assert ties.sum() > 100
    with npu.device(device, arithmetic=arithmetic):
        got = npu.dequantize((blocks_of(codes, d, m), codes.shape))
    assert np.array_equal(bits(got), want)


@pytest.mark.parametrize("device", DEVICES)
def test_extreme_planes(device):
    """Denormals, the largest numbers and zeros of both signs, m and d each."""
    edge = np.array(
        [0.0, -0.0, 2.0**-133, -(2.0**-130), 2.0**-126, 1.0, 3e38, -3e38, 2.0**120]
    ).astype(BF16)  # fmt: skip
    d, m = (part.reshape(-1, 1) for part in np.meshgrid(edge, edge))
    codes = np.tile(np.arange(32, dtype=np.uint8) % 16, (len(d), 1))
    got = npu.dequantize((blocks_of(codes, d, m), codes.shape), device=device)
    # d * code beyond float32 is infinite before m is added: float32 step by step.
    with np.errstate(over="ignore", invalid="ignore"):
        product = (d.astype(np.float64) * codes).astype(np.float32)
        total = product + m.astype(np.float32)
    assert np.array_equal(np.isnan(got.astype(np.float32)), np.isnan(total))
    finite = ~np.isnan(total)
    assert np.array_equal(bits(got)[finite], rounded(total.astype(np.float64))[finite])


def test_nan_and_infinity_stay_in_their_group():
    codes = np.random.default_rng(0).integers(1, 16, (64, 256), dtype=np.uint8)
    d, m = np.ones((64, 8), BF16), np.zeros((64, 8), BF16)
    d[3, 2], m[40, 7], d[10, 0] = np.nan, np.inf, -np.inf
    got = npu.dequantize((blocks_of(codes, d, m), (64, 256))).astype(np.float32)
    special = np.zeros((64, 256), bool)
    special[3, 64:96] = special[40, 224:] = special[10, :32] = True
    assert np.isnan(got[3, 64:96]).all()
    assert (got[40, 224:] == np.inf).all() and (got[10, :32] == -np.inf).all()
    assert np.array_equal(got[~special], codes.astype(np.float32)[~special])


@pytest.mark.parametrize("level", ["v2", "v3", "v4", "v4bf16"])
def test_every_instruction_set_gives_the_same_bits(level):
    """In another process: NPU_CPU is read once."""
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; import numpy as np, npu;"
        "from test_dequant import *;"
        "b, want = matrix(96, 700, 9); got = npu.dequantize((b, (96, 700)));"
        "p = halfway_planes(); tied = npu.dequantize((blocks_of(*p), p[0].shape));"
        "small = [(npu.dequantize((s[0], (96, 700), f)), s[1].view(BF16))"
        " for f in SMALL for s in [small_matrix(f, 96, 700, 9)]];"
        "sys.exit(not (np.array_equal(bits(got), want)"
        " and np.array_equal(bits(tied), expected_bits(*p))"
        " and all(np.array_equal(*(x.astype(float) for x in pair)) for pair in small)))"
    )
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", script, here, os.path.dirname(here)],
        env=os.environ | {"NPU_CPU": level}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "NPU_CPU" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr


def test_whole_blocks_are_written_in_place_and_others_copied_once():
    device = npu.current_device()
    for n, k, copied in ((96, 512, 0), (64, 256, 0), (96, 500, 96 * 500 * 2), (90, 512, 90 * 1024)):
        blocks, want = matrix(n, k, 1)
        bound = npu.bind((blocks, (n, k)))
        out = np.full((n, k), 7, BF16)
        before = device.counters()["host_copy_bytes"]
        assert npu.dequantize(bound, out=out) is out
        assert np.array_equal(bits(out), want)
        assert device.counters()["host_copy_bytes"] - before == copied


@pytest.mark.parametrize("format", COLUMNS)
def test_whole_blocks_of_each_format_are_written_in_place(format):
    """And each format's configuration is its own."""
    device, columns = npu.current_device(), COLUMNS[format]
    for n, k, copied in ((96, 2 * columns, 0), (90, columns, 90 * columns * 2)):
        blocks, w = random_matrix(format, n, k, np.random.default_rng(n), exact=True)
        bound = npu.bind((blocks, (n, k), format))
        assert bound.nbytes == len(blocks) * BYTES[format]
        before = device.counters()
        out = npu.dequantize(bound, out=np.full((n, k), 7, BF16))
        after = device.counters()
        assert np.array_equal(out, w.astype(BF16))
        assert after["host_copy_bytes"] - before["host_copy_bytes"] == copied
        assert after["configuration_loads"] - before["configuration_loads"] <= 1


def test_one_configuration_serves_every_size():
    device = npu.current_device()
    npu.dequantize((matrix(64, 256, 0)[0], (64, 256)))
    loads = device.counters()["configuration_loads"]
    for n, k in ((64, 256), (1000, 40), (32, 3000)):
        npu.dequantize((matrix(n, k, 0)[0], (n, k)))
    assert device.counters()["configuration_loads"] == loads
    built = device.counters()["streams_built"]
    npu.dequantize((matrix(1000, 40, 1)[0], (1000, 40)))
    assert device.counters()["streams_built"] == built


@pytest.mark.parametrize("device", DEVICES)
def test_the_result_is_a_column_major_operand_of_matmul(device):
    blocks, want = matrix(160, 512, 2, spread=1)
    w = npu.dequantize((blocks, (160, 512)), device=device)
    x = np.random.default_rng(0).standard_normal((20, 512)).astype(BF16)
    product = npu.matmul(x, w.T, out_dtype=np.float32, bf16="native", device=device)
    exact = x.astype(np.float64) @ want.view(BF16).astype(np.float64).T
    scale = np.abs(x.astype(np.float64)) @ np.abs(want.view(BF16).astype(np.float64)).T
    assert (np.abs(product - exact) <= 512 * 2.0**-24 * scale).all()


def test_tensor_and_host_formula_agree():
    tensor = q4nx.quantize(np.random.default_rng(4).standard_normal((70, 300)))
    assert np.array_equal(bits(npu.dequantize(tensor)), bits(tensor.to_numpy()))


def test_errors():
    blocks, _ = matrix(64, 256, 0)
    w = (blocks, (64, 256))
    with pytest.raises(DtypeError, match=r"\[dequantize\] out has dtype float32"):
        npu.dequantize(w, out=np.empty((64, 256), np.float32))
    with pytest.raises(ShapeError, match=r"out has shape \(64, 255\), the result \(64, 256\)"):
        npu.dequantize(w, out=np.empty((64, 255), BF16))
    with pytest.raises(ArgumentError, match="not C-contiguous"):
        npu.dequantize(w, out=np.empty((256, 64), BF16).T)
    frozen = np.empty((64, 256), BF16)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        npu.dequantize(w, out=frozen)
    with pytest.raises(ArgumentError, match="out is list"):
        npu.dequantize(w, out=[1])
    with pytest.raises(ShapeError, match=r"2 q4_0 blocks of 4608 bytes, 9216 bytes; .* has 10240"):
        npu.dequantize((blocks, (64, 256), "q4_0"))
    with pytest.raises(ShapeError, match="has 4 q8_0 blocks of 4608 bytes"):
        npu.dequantize((blocks, (64, 256), "q8_0"))
    with pytest.raises(ShapeError, match="has 2 q4nx blocks"):
        npu.dequantize((blocks[:1], (64, 256)))
    wide = np.zeros(820 * 5120, np.uint8)  # a step of 2^20 words is the shim's largest
    with pytest.raises(ShapeError, match="x 820 blocks, more than the shim"):
        npu.dequantize((wide, (32, 820 * 256)))
    assert not npu.dequantize((wide[5120:], (32, 819 * 256))).any()
    wide = np.full(911 * 4608, 0x88, np.uint8)
    wide.reshape(-1, 4608)[:, :512] = 0
    with pytest.raises(ShapeError, match="x 911 blocks, more than the shim"):
        npu.dequantize((wide, (32, 911 * 256), "q4_0"))
    assert not npu.dequantize((wide[4608:], (32, 910 * 256), "q4_0")).any()
    with pytest.raises(ArgumentError, match=r"\[dequantize\] w is int"):
        npu.dequantize(3)
    memory = np.zeros(2 * 5120 + 64 * 256 * 2, np.uint8)
    inside = memory[: 64 * 256 * 2].view(BF16).reshape(64, 256)
    with pytest.raises(ArgumentError, match="overlaps"):
        npu.dequantize((memory[5120:15360], (64, 256)), out=inside)
    with pytest.raises(ArgumentError, match="bound to"):
        npu.dequantize(npu.bind(w, device="emu:npu1"), device="emu:npu2")
    zero_point = q4nx.Tensor.from_blocks(blocks, (64, 256), dialect="zero_point")
    with pytest.raises(ArgumentError, match="zero_point dialect"):
        npu.dequantize(zero_point)
