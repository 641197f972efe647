"""Rows of GGUF tensors to weight blocks (``npu._npu.weights``).

Random bytes as tensors of every type, so that every code, sub-scale and bit of every block is used:
values against the `gguf` package's dequantisation, bit for bit; blocks against the layouts of
``npu.formats.blocks`` and Q4NX, read element by element; fitted ones against a search in float64.
"""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from npu._npu import weights as core
from npu.errors import NpuError
from npu.formats import blocks
from npu.formats.blocks import BlockTensor
from npu.formats.q4nx import layout

HALVES = {  # where a block has float16 numbers
    Type.Q4_0: (0,), Type.Q4_1: (0, 2), Type.Q5_0: (0,), Type.Q5_1: (0, 2), Type.Q8_0: (0,),
    Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,),
}  # fmt: skip
FLOATS = {Type.F32: np.float32, Type.F16: np.float16, Type.BF16: ml_dtypes.bfloat16}
TYPES = [*HALVES, *FLOATS]
CODES4, CODES8 = (Type.Q4_0, Type.Q4_1, Type.Q4_K), (Type.Q8_0, Type.Q5_0, Type.Q6_K)
SMALL = {Type.Q4_0: "q4_0", Type.Q5_0: "q8_0", Type.Q8_0: "q8_0"}  # what small blocks are made of
COLUMNS = {"q4nx": 256, "q8": 128, "bf16": 80, "q4_0": 256, "q8_0": 128}
BYTES = {"q4nx": 5120, "q8": 5120, "bf16": 5120, "q4_0": 4608, "q8_0": 4608}


def stored_rows(kind: Type, rows: int, k: int, seed: int = 0) -> np.ndarray:
    """Rows of a tensor as bytes: all random but the float16 scales, which are sensible."""
    random = np.random.default_rng(seed)
    if kind in FLOATS:
        values = random.normal(0, 0.02, (rows, k)).astype(FLOATS[kind])
        return values.view(np.uint8).reshape(rows, -1)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (rows, k // elements, size), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = random.normal(0, 0.01, raw.shape[:2]).astype(np.float16)
        raw[:, :, at : at + 2] = scales.view(np.uint8).reshape(*raw.shape[:2], 2)
    return raw.reshape(rows, -1)


def values_of(raw: np.ndarray, kind: Type) -> np.ndarray:
    """What the `gguf` package says a tensor's values are."""
    return gguf.quants.dequantize(raw, kind).astype(np.float32)


def converted(raw: np.ndarray, kind: Type, k: int, format: str) -> np.ndarray:
    out = np.full((*blocks.grid((len(raw), k), format), BYTES[format]), 0xA5, np.uint8)
    assert core.convert_rows(raw, int(kind), k, format, out.reshape(-1)) == -1
    return out


def element(block_rows: np.ndarray, format: str, row: int, column: int) -> float:
    """One weight, read from its block by the written layout."""
    block = block_rows[row // 32, column // COLUMNS[format]]
    r, c = row % 32, column % COLUMNS[format]
    if format == "bf16":
        return float(block[2 * (c * 32 + r) :][:2].view(ml_dtypes.bfloat16)[0])
    if format == "q8":
        scale = block[4 * (c // 16 * 32 + r) :][:4].view(np.float32)[0]
        return float(scale * np.float32(block[1024 + c * 32 + r].view(np.int8)))
    if format == "q8_0":
        scale = block[4 * (c // 32 * 32 + r) :][:4].view(np.float32)[0]
        return float(scale * np.float32(block[512 + c * 32 + r].view(np.int8)))
    if format == "q4_0":
        scale = block[2 * (c // 32 * 32 + r) :][:2].view(ml_dtypes.bfloat16)[0]
        pair = int(block[512 + r // 16 * 2048 + c * 8 + r % 16 // 2])
        return float(scale) * ((pair >> 4 if r % 2 else pair & 15) - 8)
    d, m = (block[at + 2 * (c // 32 * 32 + r) :][:2].view(ml_dtypes.bfloat16)[0] for at in (0, 512))
    pair = int(block[1024 + r // 16 * 2048 + c * 8 + r % 16 // 2])
    return float(m) + float(d) * (pair >> 4 if r % 2 else pair & 15)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_values_are_those_of_the_gguf_package(kind: Type) -> None:
    raw = stored_rows(kind, 5, 1024)
    out = np.empty((5, 1024), np.float32)
    core.dequantize_rows(raw, int(kind), out)
    np.testing.assert_array_equal(out, values_of(raw, kind))


def test_float16_subnormals_and_signs() -> None:
    """All finite float16 numbers."""
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = np.ascontiguousarray(bits[np.isfinite(bits)])[None]
    out = np.empty(halves.shape, np.float32)
    core.dequantize_rows(halves.view(np.uint8), int(Type.F16), out)
    assert np.array_equal(out.view(np.uint32), halves.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("kind", CODES8, ids=lambda kind: kind.name)
def test_8_bit_blocks_are_exact(kind: Type) -> None:
    raw = stored_rows(kind, 70, 768)
    made = BlockTensor(converted(raw, kind, 768, "q8"), (70, 768), "q8")
    np.testing.assert_array_equal(made.to_numpy(), values_of(raw, kind))


@pytest.mark.parametrize("kind", CODES4, ids=lambda kind: kind.name)
def test_4_bit_codes_are_kept(kind: Type) -> None:
    """d and m rounded to bfloat16, to nearest: half of 2^-8 of 15 d and of m at most."""
    raw = stored_rows(kind, 40, 512)
    made = BlockTensor(converted(raw, kind, 512, "q4nx"), (40, 512), "q4nx")
    expected = values_of(raw, kind)
    groups = expected.reshape(40, -1, 32)
    low = np.abs(np.where(groups.max(2) > -groups.min(2), groups.min(2), groups.max(2)))
    span = np.repeat(np.ptp(groups, axis=2) * 2 + low + np.abs(groups).max(2), 32, axis=1)
    assert (np.abs(made.to_numpy() - expected) <= 2.0**-9 * 1.01 * span.reshape(40, -1)).all()
    codes, scales, minima = layout.unpack(made.blocks)
    # The planes are the rounded numbers of the file.
    halves = raw.reshape(40, -1, gguf.GGML_QUANT_SIZES[kind][1])[:, :, :2].copy().view(np.float16)
    if kind is not Type.Q4_K:
        d = halves[:, :, 0].astype(np.float32).astype(ml_dtypes.bfloat16)
        assert np.array_equal(scales[:40, :16].view(np.uint16), d.view(np.uint16))
        nibbles = raw.reshape(40, 16, -1)[:, :, -16:]
        stored = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(40, -1)
        assert np.array_equal(codes[:40], stored)
    assert np.isfinite(minima.astype(np.float32)).all()


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(SMALL)),
    rows=st.integers(1, 70),
    groups=st.integers(1, 20),
    seed=st.integers(0, 2**31),
)
def test_small_blocks_are_exact_but_for_the_rounding_of_d(
    kind: Type, rows: int, groups: int, seed: int
) -> None:
    """Against the `gguf` package in float64, of Q4_0 with d rounded to bfloat16 beforehand; every
    element where the layout says, everything else zero."""
    k, format = 32 * groups, SMALL[kind]
    raw = stored_rows(kind, rows, k, seed)
    made = converted(raw, kind, k, format)
    values = values_of(raw, kind).astype(np.float64)
    if kind is Type.Q4_0:
        d = np.ascontiguousarray(raw.reshape(rows, groups, 18)[:, :, :2]).view(np.float16)
        rounded = d.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
        expected = values.reshape(rows, groups, 32) / d.astype(np.float64) * rounded
        expected = np.where(d == 0, 0, expected).reshape(rows, k)
        # Eight bits of d: half a step of each.
        assert (np.abs(expected - values) <= 2.0**-8 * np.abs(values)).all()
    else:
        expected = values
    random = np.random.default_rng(seed)
    for _ in range(8):
        row, column = int(random.integers(rows)), int(random.integers(k))
        assert element(made, format, row, column) == expected[row, column]
    shape = (made.shape[0] * 32, made.shape[1] * COLUMNS[format])
    whole = BlockTensor(made, shape, format).to_numpy()
    np.testing.assert_array_equal(whole[:rows, :k], expected)
    assert not whole[rows:].any() and not whole[:, k:].any()


def test_small_blocks_hold_the_values_of_large_ones() -> None:
    """Q4_0: m = -8 d is exact in bfloat16, so q4nx has the same values; and those bytes that
    npu.blocks packs of codes and scales."""
    raw = stored_rows(Type.Q4_0, 70, 800)
    small = converted(raw, Type.Q4_0, 800, "q4_0")
    large = BlockTensor(converted(raw, Type.Q4_0, 800, "q4nx"), (70, 800), "q4nx")
    assert np.array_equal(BlockTensor(small, (70, 800), "q4_0").to_numpy(), large.to_numpy())
    codes, d, _ = layout.unpack(large.blocks)
    assert np.array_equal(blocks.pack_q4_0(codes[:70, :800], d[:70, :25]), small)
    for kind in (Type.Q5_0, Type.Q8_0):
        raw = stored_rows(kind, 70, 800)
        parts = [converted(raw, kind, 800, format) for format in ("q8_0", "q8")]
        tensors = [BlockTensor(b, (70, 800), f) for b, f in zip(parts, ("q8_0", "q8"), strict=True)]
        assert np.array_equal(tensors[0].to_numpy(), tensors[1].to_numpy())
        assert parts[0].nbytes * 10 == parts[1].nbytes * 9


def test_only_q4_0_becomes_small_4_bit_blocks() -> None:
    for kind in TYPES:
        assert core.converts(int(kind), "q8_0")
        assert core.converts(int(kind), "q4_0") == (kind is Type.Q4_0)
        if kind is not Type.Q4_0:
            raw, out = stored_rows(kind, 1, 256), np.zeros(2 * 4608, np.uint8)
            message = rf"type {int(kind)} does not become q4_0 blocks"
            with pytest.raises(NpuError, match=message):
                core.convert_rows(raw, int(kind), 256, "q4_0", out)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_bfloat16_blocks_are_rounded_to_nearest_even(kind: Type) -> None:
    raw = stored_rows(kind, 33, 512)
    made = BlockTensor(converted(raw, kind, 512, "bf16"), (33, 512), "bf16")
    expected = values_of(raw, kind).astype(ml_dtypes.bfloat16)
    assert np.array_equal(made.to_numpy(ml_dtypes.bfloat16), expected)


FITTED = [
    *((kind, "q8") for kind in (Type.Q5_1, Type.Q5_K, Type.F16, Type.F32)),
    *((kind, "q8_0") for kind in (Type.Q5_1, Type.Q6_K, Type.F16, Type.F32)),
]


@pytest.mark.parametrize("kind, format", FITTED, ids=lambda of: getattr(of, "name", of))
def test_fitted_8_bit_blocks_are_near_the_best(kind: Type, format: str) -> None:
    """Squared error per group in float64: never above that of the scale largest / 127, and in sum
    near that of the best of 400 scales (numbers on a lattice fit some of these far better)."""
    raw, group = stored_rows(kind, 32, 256), {"q8": 16, "q8_0": 32}[format]
    values = values_of(raw, kind).astype(np.float64).reshape(-1, group)
    made = BlockTensor(converted(raw, kind, 256, format), (32, 256), format).to_numpy()
    error = np.square(made.reshape(-1, group) - values).sum(axis=1)

    def error_with(steps: float) -> np.ndarray:
        d = np.abs(values).max(axis=1, keepdims=True) / steps
        return np.square(values - d * np.clip(np.rint(values / d), -127, 127)).sum(axis=1)

    best = np.min([error_with(steps) for steps in np.linspace(100, 127, 400)], axis=0)
    assert (error <= error_with(127) * (1 + 1e-4) + 1e-12).all()
    lattice = kind in (Type.Q5_1, Type.Q5_K, Type.Q6_K)
    assert error.sum() < (2.5 if lattice else 1.6) * best.sum()
    assert np.sqrt(error.sum() / np.square(values).sum()) < 0.005


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 70),
    k=st.integers(1, 300),
    format=st.sampled_from(["q8", "bf16"]),
    seed=st.integers(0, 2**31),
)
def test_any_size_of_floats(rows: int, k: int, format: str, seed: int) -> None:
    """Every element is where the layout says, everything else is zero."""
    random = np.random.default_rng(seed)
    # Small whole numbers, the largest of a group 127: exact but for d in float32.
    values = random.integers(-20, 21, (rows, k)).astype(np.float32)
    values[:, ::16] = 127
    made = converted(values.view(np.uint8).reshape(rows, -1), Type.F32, k, format)
    for _ in range(8):
        row, column = int(random.integers(rows)), int(random.integers(k))
        assert element(made, format, row, column) == pytest.approx(values[row, column], 1e-6)
    padded = BlockTensor(made, (made.shape[0] * 32, made.shape[1] * blocks.COLUMNS[format]), format)
    whole = padded.to_numpy()
    np.testing.assert_allclose(whole[:rows, :k], values, 1e-6)
    assert not whole[rows:].any() and not whole[:, k:].any()


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 70), groups=st.integers(1, 20), seed=st.integers(0, 2**31))
def test_any_size_of_4_bit_rows(rows: int, groups: int, seed: int) -> None:
    k = 32 * groups
    raw = stored_rows(Type.Q4_0, rows, k, seed)
    # Scales that bfloat16 holds.
    scales = raw.reshape(rows, groups, 18)[:, :, :2]
    scales[...] = np.full((rows, groups), 0.25, np.float16).view(np.uint8).reshape(rows, groups, 2)
    made, expected = converted(raw, Type.Q4_0, k, "q4nx"), values_of(raw, Type.Q4_0)
    random = np.random.default_rng(seed)
    for _ in range(8):
        row, column = int(random.integers(rows)), int(random.integers(k))
        assert element(made, "q4nx", row, column) == expected[row, column]
    shape = (made.shape[0] * 32, made.shape[1] * 256)
    whole = BlockTensor(made, shape, "q4nx").to_numpy()
    assert np.array_equal(whole[:rows, :k], expected)
    assert not whole[rows:].any() and not whole[:, k:].any()


@pytest.mark.parametrize(
    ("kind", "format"),
    [(kind, format) for kind in TYPES for format in ("q8", "bf16")]
    + [(kind, "q4nx") for kind in CODES4]
    + list(SMALL.items()),
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_found(kind: Type, format: str, bad: float) -> None:
    assert core.converts(int(kind), format)
    raw = stored_rows(kind, 40, 512)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    for at in HALVES.get(kind, (0,)):
        broken = raw.reshape(40, -1, size).copy()
        number = np.array([bad], FLOATS.get(kind, np.float16)).view(np.uint8)
        broken[37, -1, at : at + len(number)] = number
        if kind in (Type.Q4_K, Type.Q5_K, Type.Q2_K):
            broken[37, -1, 4:16] = 0xFF if kind is not Type.Q2_K else broken[37, -1, 4:16]
        out = np.empty((*blocks.grid((40, 512), format), BYTES[format]), np.uint8)
        found = core.convert_rows(broken.reshape(40, -1), int(kind), 512, format, out.reshape(-1))
        assert found == 37


def test_float32_beyond_bfloat16_is_refused() -> None:
    values = np.zeros((2, 16), np.float32)
    values[1, 3] = 3.4e38
    out = np.empty(5120, np.uint8)
    assert core.convert_rows(values.view(np.uint8), 0, 16, "bf16", out) == 1
    assert core.convert_rows(values.view(np.uint8), 0, 16, "q8", out) == -1


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e30, 1e37])
def test_8_bit_blocks_of_extreme_floats(scale: float) -> None:
    values = np.random.default_rng(3).normal(size=(32, 128)).astype(np.float32) * np.float32(scale)
    made = BlockTensor(converted(values.view(np.uint8), Type.F32, 128, "q8"), (32, 128), "q8")
    error = (made.to_numpy().astype(np.float64) - values) / scale
    assert np.abs(error).max() < 0.02


def test_wrong_sizes_are_refused() -> None:
    raw, out = np.zeros((3, 18), np.uint8), np.zeros(5120, np.uint8)
    for arguments in (
        (raw, 2, 64, "q4nx", out),  # rows of 32 elements
        (raw, 2, 33, "q4nx", out),  # no multiple of a block
        (raw, 2, 32, "q4nx", out[:-1]),
        (raw, 2, 32, "q4_0", out),  # 4608 bytes are needed, not 5120
        (raw, 99, 32, "q4nx", out),  # no such type
        (raw, 2, 32, "q5", out),
        (np.zeros((3, 34), np.uint8), 8, 32, "q4nx", out),  # needs a fit
        (raw, 2, 0, "q4nx", out),
        # 4 k, and the bytes of the blocks, are 16 and 5120 modulo 2^64.
        (np.zeros((1, 16), np.uint8), 0, 2**62 + 4, "q8", np.empty(5120, np.uint8)),
    ):
        with pytest.raises(NpuError, match=r"\[convert_rows\]"):
            core.convert_rows(*arguments)
    with pytest.raises(NpuError, match="type 8 does not become q4nx blocks"):
        core.convert_rows(np.zeros((3, 34), np.uint8), 8, 32, "q4nx", out)
    with pytest.raises(NpuError, match=r"\[dequantize_rows\]"):
        core.dequantize_rows(raw, 2, np.empty((2, 32), np.float32))
