"""npu.q4nx.quantize: error against exhaustive search and gguf's Q4_1, exactness for what the format
can hold, padding, and values it cannot hold.

Values are read back by the loops of q4nx_files.py, never by the package's own unpacker alone.
"""

from __future__ import annotations

import itertools

import gguf
import ml_dtypes
import numpy as np
import pytest
import q4nx_files
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npu import q4nx
from npu.errors import ArgumentError, DtypeError, ShapeError

Q4_1 = gguf.GGMLQuantizationType.Q4_1


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def bf16(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def through_q4_1(x: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(gguf.quants.quantize(x, Q4_1), Q4_1)


DISTRIBUTIONS = {
    "normal": lambda r: r.normal(size=(64, 512)),
    "laplace": lambda r: r.laplace(size=(64, 512)),
    "student t3": lambda r: r.standard_t(3, size=(64, 512)),
    "uniform": lambda r: r.uniform(-1, 1, (64, 512)),
    "positive": lambda r: r.uniform(1, 2, (64, 512)),
    "far from zero": lambda r: r.normal(size=(64, 512)) + 40,
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_better_than_q4_1_of_gguf(name: str) -> None:
    """Q4_1 keeps float16 scales and takes the extremes; least squares gains more than bfloat16
    costs. The gain on every distribution is 7 % or more."""
    x = DISTRIBUTIONS[name](np.random.default_rng(1)).astype(np.float32)
    ours = rms(q4nx.quantize(x).to_numpy(np.float32) - x)
    assert ours < 0.93 * rms(through_q4_1(x) - x)


def nearest_error(group: np.ndarray, d: np.ndarray, m: np.ndarray) -> np.ndarray:
    codes = np.clip(np.rint((group - m[:, None]) / d[:, None]), 0, 15)
    return np.square(group - m[:, None] - d[:, None] * codes).sum(axis=1)


@pytest.mark.slow
def test_near_the_best_of_an_exhaustive_search() -> None:
    """All bfloat16 pairs d, m around the extremes: the alternation ends within 1 % of the least
    RMS error on average, and no group is more than 10 % above it."""
    x = np.random.default_rng(2).normal(size=(64, 32)).astype(np.float32)
    ours = np.sqrt(
        np.square(q4nx.quantize(x).to_numpy(np.float32) - x, dtype=np.float64).sum(axis=1)
    )
    best = []
    for group in x.astype(np.float64):
        span = group.max() - group.min()
        ds = np.unique(np.linspace(span / 30, span / 14, 800).astype(ml_dtypes.bfloat16))
        ms = np.linspace(group.min() - 0.1 * span, group.min() + 0.5 * span, 1200)
        ms = np.unique(ms.astype(ml_dtypes.bfloat16)).astype(np.float64)
        pairs = np.array(list(itertools.product(ds.astype(np.float64), ms)))
        best.append(np.sqrt(nearest_error(group, pairs[:, 0], pairs[:, 1]).min()))
    ratio = ours / np.array(best)
    assert ratio.mean() < 1.01 and ratio.max() < 1.1


@pytest.mark.parametrize(("low", "high"), [(0, 15), (1, 15), (0, 13), (2, 14), (3, 14), (4, 14)])
def test_what_the_format_holds_is_kept(low: int, high: int) -> None:
    """Weights on a lattice with bfloat16 d and m come back exactly, whether the group's codes use
    all 16 levels or, as those of K-quants often do, fewer."""
    matrix = q4nx_files.random_matrix(48, 320, seed=3)
    matrix.codes = np.clip(matrix.codes, low, high)
    matrix.codes[:, ::32], matrix.codes[:, 1::32] = low, high
    x = matrix.exact().astype(np.float32)
    error = np.abs(q4nx.quantize(x).to_numpy(np.float32) - x)
    assert error.max() <= 2.0**-23  # x itself was rounded to float32


def test_k_quants_lose_only_the_rounding_of_their_scales() -> None:
    """Q4_K's groups are Q4NX's with a 6-bit scale and minimum of a float16 each: keeping the codes
    and rounding d and m to bfloat16 is possible, so the search must not be worse."""
    random = np.random.default_rng(8)
    d = random.integers(20, 64, (512, 1)) * np.float16(1.3e-4).astype(np.float64)
    m = -random.integers(20, 64, (512, 1)) * np.float16(9e-4).astype(np.float64)
    top = random.integers(11, 16, (512, 1))  # levels in use
    codes = np.minimum(random.integers(0, 16, (512, 32)), top)
    x = (m + d * codes).astype(np.float32)
    kept = bf16(m) + bf16(d) * codes
    ours = q4nx.quantize(x).to_numpy(np.float32)
    assert rms(ours - x) < rms(kept - x)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 100.3, -100.3, 1e-3, -7e-30, 3e37, 1e-38])
def test_constant_groups(value: float) -> None:
    """m rounded down plus d * code: 8 bits below the 8 bits of m."""
    tensor = q4nx.quantize(np.full((32, 64), value, np.float32))
    error = np.abs(tensor.to_numpy(np.float32).astype(np.float64) - np.float32(value))
    assert error.max() <= abs(value) * 2.0**-15 + 15 * 2.0**-134  # bfloat16 subnormals


def test_zeros_are_all_zero_bytes() -> None:
    assert not q4nx.quantize(np.zeros((32, 256), np.float32)).blocks.any()


@pytest.mark.parametrize("shape", [(1, 1), (5, 31), (33, 33), (32, 255), (31, 257), (40, 1152)])
def test_padding(shape: tuple[int, int]) -> None:
    """Padding is d = m = code = 0 outside the last group, code 0 inside, and changes no value."""
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    tensor = q4nx.quantize(x)
    raw = tensor.blocks.tobytes()
    n, k = tensor.padded_shape
    groups = -(-shape[1] // 32) * 32
    for i, j in itertools.product((0, shape[0] - 1, shape[0], n - 1), (0, shape[1], groups, k - 1)):
        if i >= n or j >= k or (i < shape[0] and j < groups):
            continue
        assert q4nx_files.value(raw, shape[1], i, j) == 0
    if shape[1] % 32 == 0:
        return
    # A short last group: its fit sees its own values only.
    count = shape[1] % 32
    repeated = np.tile(x[:, -count:], (1, 32))[:, :32]
    alone = q4nx.quantize(repeated).to_numpy(np.float32)[:, :count]
    assert (tensor.to_numpy(np.float32)[:, -count:] == alone).all()


def test_chunks_do_not_show() -> None:
    x = np.random.default_rng(5).normal(size=(4096, 300)).astype(np.float32)
    whole = q4nx.quantize(x)
    part = q4nx.quantize(x[2048:2112])
    assert (whole[2048:2112].blocks == part.blocks).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.float32, ">f4"])
def test_dtypes_and_strides(dtype: type | str) -> None:
    x = np.random.default_rng(6).normal(size=(300, 80)).astype(dtype)
    expected = q4nx.quantize(np.ascontiguousarray(x.T).astype(np.float32))
    assert (q4nx.quantize(x.T).blocks == expected.blocks).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**126, 3.4e38])
def test_values_it_cannot_hold(bad: float) -> None:
    x = np.ones((70, 300), np.float32)
    x[65, 299] = bad
    with pytest.raises(ArgumentError, match="1 values are NaN, infinite"):
        q4nx.quantize(x)
    with pytest.raises(ArgumentError, match="NaN, infinite"):
        q4nx.quantize(np.full((2, 2), 1e300))


def test_wrong_arguments() -> None:
    with pytest.raises(DtypeError, match="int64"):
        q4nx.quantize(np.ones((2, 2), np.int64))
    with pytest.raises(ArgumentError, match="mask"):
        q4nx.quantize(np.ma.masked_array(np.ones((2, 2), np.float32), [[1, 0], [0, 0]]))
    with pytest.raises(ArgumentError, match="not a matrix"):
        q4nx.quantize([[1.0, 2.0], [3.0]])
    for shape in ((2,), (0, 4), (2, 2, 2)):
        with pytest.raises(ShapeError, match="matrix"):
            q4nx.quantize(np.ones(shape, np.float32))


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 70)),
        elements=st.floats(-(2.0**125), 2.0**125, width=32),
    )
)
@settings(max_examples=200, deadline=None)
def test_any_finite_matrix(x: np.ndarray) -> None:
    """Finite values, never worse than half a step of the extremes' line and the rounding of m."""
    tensor = q4nx.quantize(x)
    actual = tensor.to_numpy(np.float32).astype(np.float64)
    assert np.isfinite(actual).all() and np.isfinite(tensor.to_numpy().astype(np.float32)).all()
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], 32):
            group = x[row, start : start + 32].astype(np.float64)
            error = rms(actual[row, start : start + 32] - group)
            span, size = group.max() - group.min(), np.abs(group).max()
            # Nearest codes on the line through the extremes: span / 30; d rounds by 2^-9 of the
            # span over 15 steps, m by 2^-9 of itself. 5 % more, since rounding to bfloat16 can undo
            # a little of what a round gains.
            assert error <= 1.05 * (span / 30 + (span + size) * 2.0**-9 + 2.0**-129)
