"""Every GEMM configuration (precision, B layout, k_mt, C buffers, accumulation) executed on the
emulated array with NumPy kernels written from the kernel contract, against a product computed
directly: the designs, their DMA patterns and the runtime streams together. Also that buffers which
overflow a memtile work from its neighbour.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from designs_reference import chains, read_configuration, run_txn
from gemm_kernels import DTYPES, SHORT, kernels, shift_round_saturate
from test_designs_golden import unroll

from npu import _npu
from npu.designs import gemm
from npu.designs.lowering import lower
from npu.emulator import Array
from npu.errors import DesignError

CASES = [(g, *p, b) for g in ("npu1", "npu2") for p in gemm.PAIRS for b in ("row", "col")]
BF16 = np.dtype(ml_dtypes.bfloat16)


def dtype_of(name: str) -> np.dtype:
    return DTYPES[SHORT[name]]


def execute(
    config_bytes: bytes,
    generation: str,
    a: np.ndarray,
    b: np.ndarray,
    c_dtype: np.dtype,
    shift: int = 0,
    overlap: bool = True,
) -> np.ndarray:
    """C of a configuration on the emulated array, cores replaced by NumPy kernels.

    a: (M, K); b: as the configuration lays it out, (K, N) or (N, K).
    """
    config = read_configuration(config_bytes)
    p = config.params
    m, k = a.shape
    n = b.size // k
    request = {"m": m, "k": k, "n": n, "shift": shift, "overlap": overlap}
    (submission,) = _npu.operations.submissions("gemm", config_bytes, request)
    rounds = m // (p["tile_m"] * p["rows"]) * (n // (p["tile_n"] * p["columns"]))
    values = {"k_tiles": k // p["tile_k"], "tiles": rounds, "shift": shift}
    array = Array(generation)
    array.configure(config.txn)
    functions = kernels(generation)
    for core, lines in config.cores.items():
        words = {config.rtps[name, at]: values[name] for name, at in config.rtps if at == core}
        fixed = [replace_rtps(line, words) for line in lines]
        array.attach(*core, [golden_form(o) for o in unroll(fixed)], functions)
    c = np.zeros((m, n), c_dtype)
    array.submit(submission["stream"], [a, b, c])
    return c


def replace_rtps(line: str, values: dict[int, int]) -> str:
    words = line.split()
    for i, word in enumerate(words):
        if word.startswith("rtp:"):
            words[i] = str(values[int(word[4:])])
        elif word[0] == "$":
            words[i] = f"#{values[int(word[1:])]}"
    return " ".join(words)


def golden_form(op: list) -> list:
    """Operands as `attach` takes them: the first two or three of a GEMM kernel are buffers."""
    if op[0] != "call":
        return op
    buffers = {"matmul": 3, "zero": 1, "narrow": 2, "convert": 2}[op[1].split("_")[0]]
    return ["call", op[1],
            [{"buffer": x} if i < buffers else x for i, x in enumerate(op[2])]]  # fmt: skip


def operands(rng: np.random.Generator, dtype: np.dtype, m: int, k: int, n: int):
    if dtype == BF16:
        # Small integers: sums are exact in float32, and in bfloat16 where the test says so.
        return (
            rng.integers(-4, 5, shape).astype(np.float32).astype(dtype)
            for shape in ((m, k), (k, n))
        )
    info = np.iinfo(dtype)
    return (rng.integers(info.min, info.max + 1, shape).astype(dtype) for shape in ((m, k), (k, n)))


def expected_product(
    a: np.ndarray, b: np.ndarray, c_dtype: np.dtype, shift: int, narrow_k: int
) -> np.ndarray:
    """narrow_k: the k step after which sums are kept in C's type, 0 for wide accumulation."""
    if a.dtype == BF16:
        a, b = a.astype(np.float32), b.astype(np.float32)
        if not narrow_k:
            return (a @ b).astype(c_dtype)
        c = np.zeros((a.shape[0], b.shape[1]), c_dtype)
        for at in range(0, a.shape[1], narrow_k):
            part = a[:, at : at + narrow_k] @ b[at : at + narrow_k]
            c = (c.astype(np.float32) + part).astype(c_dtype)
        return c
    a, b = a.astype(np.int64), b.astype(np.int64)
    if c_dtype.itemsize == 4:
        return (a @ b).astype(c_dtype)  # wraps around
    if not narrow_k:
        return shift_round_saturate(a @ b, shift, c_dtype)
    c = np.zeros((a.shape[0], b.shape[1]), c_dtype)
    for at in range(0, a.shape[1], narrow_k):
        part = a[:, at : at + narrow_k] @ b[at : at + narrow_k]
        c = shift_round_saturate((c.astype(np.int64) << shift) + part, shift, c_dtype)
    return c


@pytest.mark.parametrize(("generation", "a_dtype", "c_dtype", "b_layout"), CASES)
@pytest.mark.parametrize("accumulate", gemm.ACCUMULATE)
@pytest.mark.parametrize(("tiles", "c_buffers"), [(1, 1), (3, 2)])
def test_product(
    generation: str, a_dtype: str, c_dtype: str, b_layout: str, accumulate: str, tiles: int,
    c_buffers: int,
) -> None:  # fmt: skip
    r, s, t = gemm.mmul(generation, a_dtype)
    tile = m, k, n = 2 * r, 3 * s, 4 * t
    config = gemm.configuration(
        generation, a_dtype, c_dtype, tile=tile, k_mt=tiles * k, b_layout=b_layout,
        c_buffers=c_buffers, c_l2_buffers=c_buffers, accumulate=accumulate,
    )  # fmt: skip
    columns = {"npu1": 4, "npu2": 8}[generation]
    size = 2 * 4 * m, 2 * tiles * k, columns * n
    rng = np.random.default_rng(1)
    a, b = operands(rng, dtype_of(a_dtype), *size)
    shift = {"int8": 9, "int16": 1}.get(c_dtype, 0)  # most results in range, some saturate
    stored = np.ascontiguousarray(b.T) if b_layout == "col" else b
    c = execute(config, generation, a, stored, dtype_of(c_dtype), shift)
    narrow_k = k if accumulate == "narrow" and dtype_of(c_dtype).itemsize < 4 else 0
    np.testing.assert_array_equal(c, expected_product(a, b, dtype_of(c_dtype), shift, narrow_k))
    if c_dtype in ("int8", "int16"):
        info = np.iinfo(c_dtype)
        assert (c == info.max).any() and (c == info.min).any()
        assert ((c > info.min) & (c < info.max)).any(), "saturated everywhere"


@pytest.mark.parametrize("cores", [(1, 1), (1, 3), (2, 2), (4, 1), (3, 4)])
@pytest.mark.parametrize("b_layout", gemm.B_LAYOUTS)
@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_part_of_the_array(generation: str, b_layout: str, cores: tuple[int, int]) -> None:
    """Only these cores have programs."""
    r, s, t = gemm.mmul(generation, "int8")
    tile = m, k, n = 2 * r, 3 * s, 4 * t
    config = gemm.configuration(
        generation, "int8", "int16", tile=tile, k_mt=2 * k, b_layout=b_layout, cores=cores
    )
    rows, columns = cores
    point = gemm.design_point(
        generation, "int8", "int16", tile=tile, k_mt=2 * k, b_layout=b_layout, cores=cores
    )
    assert point.native == (rows * m, 2 * k, columns * n)
    parts = read_configuration(config)
    assert set(parts.cores) == {(c, 2 + r) for c in range(columns) for r in range(rows)}
    rng = np.random.default_rng(8)
    a, b = operands(rng, dtype_of("int8"), 2 * rows * m, 4 * k, 3 * columns * n)
    stored = np.ascontiguousarray(b.T) if b_layout == "col" else b
    c = execute(config, generation, a, stored, dtype_of("int16"), 9)
    np.testing.assert_array_equal(c, expected_product(a, b, dtype_of("int16"), 9, 0))


@pytest.mark.parametrize(("a_dtype", "c_dtype"), [
    ("int8", "int8"), ("int8", "int16"), ("bfloat16", "bfloat16"),
])  # fmt: skip
@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_wide_sums_narrowed_where_they_lie(generation: str, a_dtype: str, c_dtype: str) -> None:
    """c_buffers = 0: the core has one tile of 32-bit sums, and sends the narrow C at its start."""
    r, s, t = gemm.mmul(generation, a_dtype)
    tile = m, k, n = 4 * r, 2 * s, 4 * t
    config = gemm.configuration(generation, a_dtype, c_dtype, tile=tile, k_mt=2 * k, c_buffers=0)
    parts = lower(gemm.design(generation, a_dtype, c_dtype, tile=tile, k_mt=2 * k, c_buffers=0))
    core = next(memories for at, memories in parts.memories.items() if at.kind == "core")
    assert sum(x.bytes for x in core if x.name[0] in "Ca") == 4 * m * n
    rng = np.random.default_rng(4)
    columns = {"npu1": 4, "npu2": 8}[generation]
    a, b = operands(rng, dtype_of(a_dtype), 3 * 4 * m, 4 * k, 2 * columns * n)
    shift = {"int8": 9, "int16": 1}.get(c_dtype, 0)
    c = execute(config, generation, a, b, dtype_of(c_dtype), shift)
    np.testing.assert_array_equal(c, expected_product(a, b, dtype_of(c_dtype), shift, 0))


@pytest.mark.parametrize(("a_dtype", "c_dtype"), list(gemm.PAIRS))
@pytest.mark.parametrize("tiles", [1, 3])
def test_columns_of_b_in_pairs(a_dtype: str, c_dtype: str, tiles: int) -> None:
    """b_pairs: both ports of a pair are of the odd shim tile; every core gets its own columns."""
    r, s, t = gemm.mmul("npu2", a_dtype)
    tile = m, k, n = 2 * r, 4 * s, 4 * t
    config = gemm.configuration("npu2", a_dtype, c_dtype, tile=tile, k_mt=tiles * k, b_pairs=True)
    ports = read_configuration(config).ports
    assert [ports[f"B{c}"] for c in range(8)] == [(c | 1, "mm2s", c % 2) for c in range(8)]
    rng = np.random.default_rng(5)
    a, b = operands(rng, dtype_of(a_dtype), 2 * 4 * m, 2 * tiles * k, 2 * 8 * n)
    shift = {"int8": 9, "int16": 1}.get(c_dtype, 0)
    c = execute(config, "npu2", a, b, dtype_of(c_dtype), shift)
    np.testing.assert_array_equal(c, expected_product(a, b, dtype_of(c_dtype), shift, 0))


@pytest.mark.parametrize(("generation", "pairs"), [("npu1", 0), ("npu2", 0), ("npu2", 1)])
@pytest.mark.parametrize("b_layout", ["row", "col"])
@pytest.mark.parametrize("count", [1, 3])
def test_what_memtiles_read_ahead(generation: str, pairs: int, b_layout: str, count: int) -> None:
    """l2_buffers and b_l2_tiles: BDs per object and its size change, results do not."""
    if b_layout == "col" and (pairs or count > 1):
        pytest.skip("b_pairs and b_l2_tiles are for a row-major B")
    r, s, t = gemm.mmul(generation, "int8")
    tile = m, k, n = 2 * r, 2 * s, 2 * t
    choices: gemm.Choices = {
        "tile": tile, "k_mt": 6 * k, "b_layout": b_layout, "b_pairs": bool(pairs),
        "l2_buffers": 3, "b_l2_tiles": count,
    }  # fmt: skip
    memory = lower(gemm.design(generation, "int8", "int32", **choices)).memories
    found = [x for at, memories in memory.items() if at.kind == "mem" for x in memories]
    columns = {"npu1": 4, "npu2": 8}[generation]
    rows = 6 * k if b_layout == "col" else count * k
    b_objects = [x.bytes for x in found if x.name.startswith("B2_")]
    assert b_objects == 3 * columns // (1 + pairs) * [rows * n * (1 + pairs)]
    assert [x.bytes for x in found if x.name.startswith("A2_")] == 3 * 4 * [m * 6 * k]
    config = gemm.configuration(generation, "int8", "int32", **choices)
    a, b = operands(np.random.default_rng(6), np.dtype(np.int8), 2 * 4 * m, 12 * k, 2 * columns * n)
    given = np.ascontiguousarray(b.T) if b_layout == "col" else b
    c = execute(config, generation, a, given, np.dtype(np.int32))
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize(("wrong", "message"), [
    ({"l2_buffers": 4}, "l2_buffers is 4"),
    ({"l2_buffers": True}, "l2_buffers is True"),
    ({"b_l2_tiles": 9}, "b_l2_tiles is 9"),
    ({"b_l2_tiles": 2}, "k_mt a multiple of 2 tiles"),
    ({"b_l2_tiles": 3, "b_layout": "col"}, "for a row-major B"),
])  # fmt: skip
def test_read_ahead_that_does_not_exist(wrong: dict, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        gemm.configuration("npu1", "int8", "int32", tile=(32, 32, 32), k_mt=96, **wrong)


@pytest.mark.parametrize("wrong", [
    {"generation": "npu1"}, {"b_layout": "col"}, {"tile": (64, 24, 64)}, {"b_pairs": 2},
])  # fmt: skip
def test_pairs_that_do_not_exist(wrong: dict) -> None:
    choices = {"generation": "npu2", "b_pairs": True, **wrong}
    with pytest.raises(DesignError, match="b_pairs"):
        gemm.configuration(choices.pop("generation"), "int8", "int32", **choices)


def test_rounds_in_flight_do_not_change_the_result() -> None:
    """More rounds than the ring of five, with and without overlap."""
    config = gemm.configuration("npu1", "int8", "int32", tile=(8, 8, 16))
    rng = np.random.default_rng(2)
    a, b = operands(rng, np.dtype(np.int8), 4 * 32, 16, 3 * 64)
    exact = a.astype(np.int32) @ b.astype(np.int32)
    for overlap in (True, False):
        c = execute(config, "npu1", a, b, np.dtype(np.int32), overlap=overlap)
        np.testing.assert_array_equal(c, exact)


def test_neighbouring_memtiles_share_memory() -> None:
    """npu2: A and B of even columns exceed 512 KiB; buffers move to the odd columns beside them."""
    tile, k_mt = (128, 72, 48), 1440  # A 2 x 180 KiB, B 2 x 67.5 KiB, C 96 KiB
    kwargs = {"tile": tile, "k_mt": k_mt, "b_layout": "col", "accumulate": "wide"}
    config_bytes = gemm.configuration("npu2", "int8", "int32", **kwargs)
    config = read_configuration(config_bytes)
    found = chains(run_txn(config.txn))
    for col in range(8):
        bases = [bd.base for (at, _, c), bds in found.items() if at == (col, 1) for bd in bds]
        outside = [base for base in bases if not 0 <= base < 1 << 19]
        assert bool(outside) == (col % 2 == 0), (col, bases)
        for (at, _, channel), bds in found.items():
            if at == (col, 1) and channel > 3:
                assert all(0 <= bd.base < 1 << 19 for bd in bds)
        used, limit = config.resources[col, 1, "memory"]
        assert used <= limit == 1 << 19
    rng = np.random.default_rng(3)
    a, b = operands(rng, np.dtype(np.int8), 4 * 128, k_mt, 8 * 48)
    c = execute(config_bytes, "npu2", a, np.ascontiguousarray(b.T), np.dtype(np.int32))
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


def test_memtiles_that_are_all_full_are_refused() -> None:
    with pytest.raises(DesignError, match=r"memtile .* does not hold"):
        gemm.configuration(
            "npu1", "int8", "int8", tile=(112, 112, 112), k_mt=1120, b_layout="col",
            accumulate="narrow",
        )  # fmt: skip
