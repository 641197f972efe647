"""The configuration that reads both operands by rows and by columns (square=True, npu1): results in
every orientation against float64, in both arithmetics; what is read in place; one configuration for
the products of a bfloat16 layer, without a transposition, a copy or a load.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compare import assert_matmul_close

import npu
from npu.designs import gemm
from npu.devices import open_device
from npu.errors import DesignError
from npu.ops.arrays import bytes_of, typed_view

BF16 = np.dtype(ml_dtypes.bfloat16)
POINT = gemm.design_point(
    "npu1", "bfloat16", "float32", tile=(64, 64, 64), k_mt=256, b_layout="col", square=True
)
ORIENTATIONS = [(a, b) for a in ("rows", "columns") for b in ("rows", "columns")]


def stored(rows: int, columns: int, orientation: str, seed: int) -> np.ndarray:
    """A matrix whose rows, or columns, are dense in memory."""
    rng = np.random.default_rng(seed)
    shape = (rows, columns) if orientation == "rows" else (columns, rows)
    x = rng.standard_normal(shape, np.float32).astype(BF16)
    return x if orientation == "rows" else x.T


def multiplied(a: np.ndarray, b: np.ndarray, arithmetic: str) -> tuple[np.ndarray, npu.Stats]:
    device = open_device("emu:npu1", arithmetic)
    out = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    before = npu.stats()
    device.gemm_of(POINT).run(*typed_view(a), *typed_view(b), bytes_of(out), 0)
    return out, npu.stats() - before


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize(
    "arithmetic, size",
    [("fast", (512, 768, 256)), ("silicon", (256, 256, 256)), ("fast", (300, 600, 330))],
)
def test_every_orientation(
    orientation: tuple[str, str], arithmetic: str, size: tuple[int, int, int]
) -> None:
    """Whole native sizes are read where they lie, but for columns of A beside columns of B; edges
    and ends of K are packed."""
    m, k, n = size
    a, b = stored(m, k, orientation[0], 1), stored(k, n, orientation[1], 2)
    result, counted = multiplied(a, b, arithmetic)
    silicon = arithmetic == "silicon"
    assert_matmul_close(result, a.astype(np.float32), b.astype(np.float32), silicon)
    whole = all(side % 256 == 0 for side in size) and orientation != ("columns", "columns")
    assert (counted.host_copy_bytes == 0) == whole


@pytest.mark.parametrize("arithmetic", ["fast", "silicon"])
def test_orientations_agree_with_the_column_major_design(arithmetic: str) -> None:
    """The same operands give the same bits as the design for a column-major B of the same tile,
    whose kernel is another: sums over 64 of K at a time are in the same order, but for two operands
    across their rows, which have every fourth row of K."""
    a, b = stored(256, 256, "rows", 3), stored(256, 256, "columns", 4)
    like = gemm.design_point(
        "npu1", "bfloat16", "float32", tile=(64, 64, 64), k_mt=256, b_layout="col"
    )
    expected = np.empty((256, 256), np.float32)
    run = open_device("emu:npu1", arithmetic).gemm_of(like).run
    run(*typed_view(a), *typed_view(b), bytes_of(expected), 0)
    turned = np.ascontiguousarray(b)
    np.testing.assert_array_equal(multiplied(a, b, arithmetic)[0], expected)
    np.testing.assert_array_equal(multiplied(a, turned, arithmetic)[0], expected)


def test_k_longer_than_a_bd_repeats() -> None:
    """64 objects of k_mt rows per task: 65 take two, and an end of K a third."""
    a, b = stored(256, 65 * 256 + 64, "rows", 5), stored(65 * 256 + 64, 256, "rows", 6)
    result, counted = multiplied(a, b, "fast")
    assert_matmul_close(result, a.astype(np.float32), b.astype(np.float32))
    assert counted.host_copy_bytes == 2 * 2 * 256 * 256  # the ends, in whole objects


@pytest.mark.parametrize("input_first", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer(input_first: bool, dtype: str) -> None:
    """Three products against float64, on a device as it is opened; no transposition, no load after
    the first, and one submission for both gradients. In bfloat16 no copy; in float32 x and dy are
    rounded as they lie, and the weight once until it changes."""
    torch = pytest.importorskip("torch")
    from npu.torch import products
    from npu.torch.device_words import word_of
    from npu.torch.tensors import array_of

    device = open_device("emu:npu1")
    choices = (None, "wide", word_of(device))
    rng = torch.Generator().manual_seed(7)
    shapes = (256, 512), ((512, 768) if input_first else (768, 512)), (256, 768), (768,)
    kind = getattr(torch, dtype)
    x, weight, dy, bias = (torch.randn(s, generator=rng).to(kind) for s in shapes)

    def step() -> list[np.ndarray]:
        y = products.linear(x, weight, bias, input_first, kind, choices)
        gradients = products.linear_gradients(dy, x, weight, [True, True], input_first, choices)
        return [array_of(one) for one in (y, *gradients)]

    step()
    assert device.last_gemm.options.keeps
    copied = 0 if dtype == "bfloat16" else 2 * (2 * x.numel() + dy.numel())
    for changed in (0, 2 * weight.numel() if copied else 0):
        before = npu.stats()
        y, dx, dw = step()
        counted = npu.stats() - before
        assert (counted.configuration_loads, counted.submissions) == (0, 2)
        assert (counted.transpose_ns, counted.host_copy_bytes) == (0, copied + changed)
        assert (counted.pack_ns == 0) == (copied == 0)
        with torch.no_grad():
            weight *= 1
    x32, w32, dy32 = (array_of(one).astype(np.float32) for one in (x, weight, dy))
    w32 = w32 if input_first else w32.T
    without = y.astype(np.float32) - array_of(bias).astype(np.float32)
    exact = x32.astype(np.float64) @ w32
    # As of the operands; a bias in bfloat16 is added to a result that has been rounded, once more.
    bound = 2.0**-7 * (np.abs(x32) @ np.abs(w32))
    bound += 2.0**-7 * (np.abs(exact) + np.abs(array_of(bias).astype(np.float32)))
    assert (np.abs(without - exact) <= bound).all()
    assert_matmul_close(dx, *rounded(dy32, w32.T))
    assert_matmul_close(dw, *(rounded(x32.T, dy32) if input_first else rounded(dy32.T, x32)))


def rounded(*of: np.ndarray) -> list[np.ndarray]:
    return [x.astype(BF16).astype(np.float32) for x in of]


@pytest.mark.parametrize(
    "choices",
    [
        {"tile": (64, 64, 32)},
        {"b_layout": "row"},
        {"generation": "npu2"},
        {"accumulate": "narrow", "c_dtype": "bfloat16"},
        {"a_dtype": "int8", "c_dtype": "int32"},
    ],
)
def test_what_is_not_square_is_refused(choices: dict) -> None:
    given = {"generation": "npu1", "a_dtype": "bfloat16", "c_dtype": "float32", "b_layout": "col"}
    given |= {"tile": (64, 64, 64)} | choices
    with pytest.raises(DesignError, match="square"):
        gemm.design_point(**given, square=True)
