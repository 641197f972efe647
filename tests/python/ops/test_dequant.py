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

import npu
from npu import q4nx
from npu.errors import ArgumentError, DtypeError, ShapeError

BF16 = np.dtype(ml_dtypes.bfloat16)


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
        "sys.exit(not (np.array_equal(bits(got), want)"
        " and np.array_equal(bits(tied), expected_bits(*p))))"
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
    with pytest.raises(ShapeError, match="has 2 q4nx blocks"):
        npu.dequantize((blocks[:1], (64, 256)))
    wide = np.zeros(820 * 5120, np.uint8)  # a step of 2^20 words is the shim's largest
    with pytest.raises(ShapeError, match="x 820 blocks, more than the shim"):
        npu.dequantize((wide, (32, 820 * 256)))
    assert not npu.dequantize((wide[5120:], (32, 819 * 256))).any()
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
