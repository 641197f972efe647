"""GEMM, output-stationary: C[M,N] = A[M,K] B[K,N] on 4 rows and all columns of cores.

Each core computes m x n tiles of C. Core row r reads its A tiles (m x k) from one broadcast, core
column c its B tiles (k x n) from another; C tiles of a column are joined in its memtile and leave
row-major. Loop counts are RTPs, so one configuration serves every problem size. The mapping is the
one of mlir-aie's whole_array example; see also Taka et al., arXiv 2512.13282.
"""

from __future__ import annotations

from functools import cache

from npu.errors import DesignError

from .api import Design, ObjectFifo
from .hardware import DTYPE_BYTES, FIRST_CORE_ROW
from .lowering import configuration as lower_to_bytes
from .lowering import mlir as lower_to_mlir

Tile3 = tuple[int, int, int]  # m, k, n

ROWS = 4
# Input and output element types -> design name; the kernels are matmul_<in>_<accumulator>.
PAIRS = {
    ("bfloat16", "float32"): "gemm_bf16_f32",
    ("bfloat16", "bfloat16"): "gemm_bf16_bf16",
    ("int8", "int32"): "gemm_i8_i32",
}
DEFAULT_TILE: dict[str, Tile3] = {"bfloat16": (64, 64, 64), "int8": (64, 128, 64)}
# r, s, t of aie::mmul: A tiles r x s, B tiles s x t.
MMUL: dict[tuple[str, str], Tile3] = {
    ("npu1", "bfloat16"): (4, 8, 4),
    ("npu1", "int8"): (4, 8, 8),
    ("npu2", "bfloat16"): (8, 8, 8),
    ("npu2", "int8"): (8, 8, 8),
}


def design(generation: str, a_dtype: str, c_dtype: str, *, tile: Tile3 | None = None) -> Design:
    """The GEMM design of a generation ("npu1", "npu2") and dtype pair; tile = (m, k, n) per core.

    Raises DesignError for an unknown pair or a tile that the cores cannot hold or compute.
    """
    name = PAIRS.get((a_dtype, c_dtype))
    if name is None or (generation, a_dtype) not in MMUL:
        pairs = ", ".join(f"{a} -> {c}" for a, c in PAIRS)
        raise DesignError(
            f"[gemm] {a_dtype} -> {c_dtype} on {generation}: no such design; there are {pairs} on "
            "npu1 and npu2"
        )
    m, k, n = tile or DEFAULT_TILE[a_dtype]
    r, s, t = MMUL[generation, a_dtype]
    for label, size, unit in (("m", m, 2 * r), ("k", k, s), ("n", n, 2 * t)):
        if size < 1 or size % unit:
            raise DesignError(
                f"[gemm] tile {label} = {size}: on {generation} with {a_dtype} it must be a "
                f"multiple of {unit}"
            )
    out = Design(name, generation, object_file="gemm.o")
    stride = out.columns // ROWS
    out.params = {
        "tile_m": m, "tile_k": k, "tile_n": n, "rows": ROWS, "columns": out.columns,
        "a_bytes": DTYPE_BYTES[a_dtype], "c_bytes": DTYPE_BYTES[c_dtype],
        "a_columns_stride": stride, "r": r, "s": s, "t": t,
    }  # fmt: skip
    rows = [_feed_a(out, row, stride, a_dtype, (m, k), (r, s)) for row in range(ROWS)]
    columns = [_feed_b(out, col, a_dtype, (k, n), (s, t)) for col in range(out.columns)]
    for col in range(out.columns):
        drains = _drain_c(out, col, c_dtype, (m, n), (r, t))
        for row in range(ROWS):
            _worker(out, col, row, rows[row], columns[col], drains[row], (m, k, n))
    return out


def configuration(
    generation: str, a_dtype: str, c_dtype: str, *, tile: Tile3 | None = None
) -> bytes:
    """The serialised configuration (backend/configuration.h) of a GEMM design."""
    return _configuration(generation, a_dtype, c_dtype, tile)


@cache
def _configuration(generation: str, a_dtype: str, c_dtype: str, tile: Tile3 | None) -> bytes:
    return lower_to_bytes(design(generation, a_dtype, c_dtype, tile=tile))


def mlir(generation: str, a_dtype: str, c_dtype: str, *, tile: Tile3 | None = None) -> str:
    """A GEMM design as AIE-dialect MLIR."""
    return lower_to_mlir(design(generation, a_dtype, c_dtype, tile=tile))


def _feed_a(
    out: Design, row: int, stride: int, dtype: str, tile: tuple[int, int], block: tuple[int, int]
) -> ObjectFifo:
    """A tiles for core row `row`: L3 -> L2 row-major, L2 -> L1 as [m/r][k/s][r][s]."""
    (m, k), (r, s) = tile, block
    col = row * stride
    memtile = out.tile(col, 1)
    outer = out.fifo(
        f"A2_{row}", out.tile(col, 0), memtile, (m, k), dtype, port=f"A{row}", producer_channel=0
    )
    cores = [out.tile(c, FIRST_CORE_ROW + row) for c in range(out.columns)]
    blocks = [(m // r, r * k), (k // s, s), (r, k), (s, 1)]
    inner = out.fifo(
        f"A1_{row}", memtile, cores, (m, k), dtype, to_stream=blocks, consumer_channel=0
    )
    out.forward(outer, inner)
    return inner


def _feed_b(
    out: Design, col: int, dtype: str, tile: tuple[int, int], block: tuple[int, int]
) -> ObjectFifo:
    """B tiles for core column `col`: L3 -> L2 row-major, L2 -> L1 as [k/s][n/t][s][t]."""
    (k, n), (s, t) = tile, block
    memtile = out.tile(col, 1)
    outer = out.fifo(
        f"B2_{col}", out.tile(col, 0), memtile, (k, n), dtype, port=f"B{col}", producer_channel=1
    )
    cores = [out.tile(col, FIRST_CORE_ROW + row) for row in range(ROWS)]
    blocks = [(k // s, s * n), (n // t, t), (s, n), (t, 1)]
    inner = out.fifo(
        f"B1_{col}", memtile, cores, (k, n), dtype, to_stream=blocks, consumer_channel=1
    )
    out.forward(outer, inner)
    return inner


def _drain_c(
    out: Design, col: int, dtype: str, tile: tuple[int, int], block: tuple[int, int]
) -> list[ObjectFifo]:
    """C tiles of core column `col`, joined in L2 and sent to L3 as one row-major 4m x n tile."""
    (m, n), (r, t) = tile, block
    memtile = out.tile(col, 1)
    parts = [
        out.fifo(
            f"C1_{col}_{row}", out.tile(col, FIRST_CORE_ROW + row), memtile, (m, n), dtype, depth=1
        )
        for row in range(ROWS)
    ]
    rows = [(m // r, r * n), (r, t), (n // t, r * t), (t, 1)]
    joined = out.fifo(
        f"C2_{col}",
        memtile,
        out.tile(col, 0),
        (ROWS * m, n),
        dtype,
        to_stream=rows,
        port=f"C{col}",
        consumer_channel=0,
    )
    out.join(parts, joined)
    return parts


def _worker(
    out: Design, col: int, row: int, a: ObjectFifo, b: ObjectFifo, c: ObjectFifo, tile: Tile3
) -> None:
    """One core: per output tile zero C, accumulate K/k products, hand C on.

    With bf16 output the sum is kept in a local f32 tile and converted once at the end.
    """
    m, k, n = tile
    short = {"bfloat16": "bf16", "float32": "f32", "int8": "i8", "int32": "i32"}
    narrow = c.dtype == "bfloat16"
    sum_dtype = "float32" if narrow else c.dtype
    zero = out.kernel(f"zero_{short[sum_dtype]}", [(sum_dtype, (m, n)), "int32"])
    matmul = out.kernel(
        f"matmul_{short[a.dtype]}_{short[sum_dtype]}",
        [(a.dtype, (m, k)), (b.dtype, (k, n)), (sum_dtype, (m, n)), "int32", "int32", "int32"],
    )
    convert = out.kernel("convert_f32_bf16", [("float32", (m, n)), ("bfloat16", (m, n)), "int32"])
    w = out.worker(out.tile(col, FIRST_CORE_ROW + row))
    k_tiles, tiles = w.rtp("k_tiles"), w.rtp("tiles")
    local = w.buffer(f"acc_{col}_{row}", "float32", (m, n)) if narrow else None
    with w.forever():
        w.wait_rtps()
        with w.loop(tiles):
            total = local or w.acquire(c)
            w.call(zero, total, m * n)
            with w.loop(k_tiles):
                w.call(matmul, w.acquire(a), w.acquire(b), total, m, k, n)
                w.release(a)
                w.release(b)
            if local:
                w.call(convert, local, w.acquire(c), m * n)
            w.release(c)
