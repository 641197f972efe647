"""GEMM, output-stationary: C[M,N] = A[M,K] B[K,N] on 4 rows and all columns of cores.

Each core computes m x n tiles of C. Core row r reads its A tiles (m x k) from one broadcast, core
column c its B tiles (k x n) from another; C tiles of a column are joined in its memtile and leave
row-major. Memtiles take k_mt columns of A (and of a column-major B) at a time, so that reads of
host memory are long runs. Loop counts and the output shift are RTPs: one configuration serves every
problem size. The mapping is the one of Taka et al., arXiv 2512.13282, section 4.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from .api import Design
from .fifo import ObjectFifo, StoreSide
from .gemm_choices import Choices, default_tile, design_point, kernel_exists
from .gemm_limits import SIMULATED_STACK, kept_ring, leaves_room
from .gemm_point import (
    ACCUMULATE,
    B_LAYOUTS,
    BF16,
    BFP16,
    BLOCK_ACCUMULATE,
    BLOCK_PAIRS,
    BLOCK_SIDE,
    BLOCK_TILE_BYTES,
    DEFAULT_DEPTH,
    DEFAULT_TILE,
    KEPT,
    KEPT_TIMES,
    KERNELS,
    LEAST_RING,
    MAX_A_PARTS,
    PAIRS,
    PIPELINED_K,
    ROWS,
    SHORT,
    TYPES,
    DesignPoint,
    Tile3,
    bytes_of,
    mmul,
    stored,
)
from .hardware import FIRST_CORE_ROW, Tile, tile_limits
from .kernel import Kernel
from .lowering import configuration as lower_to_bytes
from .lowering import mlir as lower_to_mlir
from .lowering.stack import DATA_BYTES
from .worker import Buffer, Object, Worker

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "ACCUMULATE",
    "BF16",
    "BFP16",
    "BLOCK_ACCUMULATE",
    "BLOCK_PAIRS",
    "BLOCK_SIDE",
    "BLOCK_TILE_BYTES",
    "B_LAYOUTS",
    "DEFAULT_DEPTH",
    "DEFAULT_TILE",
    "KERNELS",
    "MAX_A_PARTS",
    "PAIRS",
    "PIPELINED_K",
    "ROWS",
    "Choices",
    "DesignPoint",
    "Tile3",
    "configuration",
    "configuration_of",
    "default_tile",
    "design",
    "design_point",
    "kernel_exists",
    "mlir",
    "mlir_of",
    "mmul",
]


def design(generation: str, a_dtype: str, c_dtype: str, **choices: Unpack[Choices]) -> Design:
    """The GEMM design of a generation ("npu1", "npu2") and dtype pair (PAIRS).

    Raises DesignError for an unknown pair, an unknown choice, or a tile that the array cannot hold
    or compute.
    """
    return _build(design_point(generation, a_dtype, c_dtype, **choices))


def configuration(generation: str, a_dtype: str, c_dtype: str, **choices: Unpack[Choices]) -> bytes:
    """The serialised configuration (runtime/configuration.h) of a GEMM design, see `design`."""
    return configuration_of(design_point(generation, a_dtype, c_dtype, **choices))


@cache
def configuration_of(point: DesignPoint) -> bytes:
    """The serialised configuration of a design point."""
    return lower_to_bytes(_build(point))


def design_of(point: DesignPoint) -> Design:
    """The design of a design point."""
    return _build(point)


def mlir(generation: str, a_dtype: str, c_dtype: str, **choices: Unpack[Choices]) -> str:
    """A GEMM design as AIE-dialect MLIR, see `design`."""
    return mlir_of(design_point(generation, a_dtype, c_dtype, **choices))


def mlir_of(point: DesignPoint) -> str:
    """The MLIR of a design point."""
    return lower_to_mlir(_build(point))


def _build(o: DesignPoint) -> Design:
    # Seven unrolled depths reach the limit by the conservative estimate, with some loops beyond it.
    over = o.kernel == "pipelined"
    out = Design(o.name, o.generation, object_file="gemm.o", program_over=over)
    out.room_over = not leaves_room(o)
    stride = out.columns // ROWS
    m, k, n = o.tile
    out.params = {
        "tile_m": m, "tile_k": k, "tile_n": n, "rows": o.rows, "columns": o.columns,
        "a_type": TYPES.index(o.a_dtype), "b_type": TYPES.index(o.b_dtype),
        "c_type": TYPES.index(o.c_dtype),
        "k_mt": o.k_mt, "b_layout": B_LAYOUTS.index(o.b_layout), "b_pairs": int(o.b_pairs),
        "b_rows": o.b_rows,
    }  # fmt: skip
    if o.square:
        out.params["square"] = 1
    if o.keeps:
        rows, columns = _feed_kept(out, o)
    else:
        rows = [_feed_a(out, o, row, stride) for row in range(o.rows)]
        columns = []
    for col in range(o.columns if not o.keeps else 0):
        if o.b_pairs:
            columns += _feed_b_pair(out, o, col) if col % 2 == 0 else []
        else:
            columns.append((_feed_b_col if o.b_layout == "col" else _feed_b_row)(out, o, col))
    for col in range(o.columns):
        drains = _drain_c(out, o, col)
        for row in range(o.rows):
            _worker(out, o, col, row, rows[row], columns[col], drains[row])
    return out


def _feed_a(out: Design, o: DesignPoint, row: int, stride: int) -> ObjectFifo:
    """A tiles for core row `row`: row-major in L3, [m/r][k/s][r][s] in L1."""
    (m, _, _), (r, _, _) = o.tile, mmul(o.generation, o.a_dtype)
    cores = [out.tile(c, FIRST_CORE_ROW + row) for c in range(o.columns)]
    outer, inner = _along_k(
        out, o, ("A", row), row * stride, cores, (m, r), o.a_dtype, 0, o.a_parts
    )  # fmt: skip
    out.forward(outer, inner)
    return inner


def _feed_b_col(out: Design, o: DesignPoint, col: int) -> ObjectFifo:
    """Column-major B tiles for core column `col`: [n/t][k/s][t][s] in L1, the mirror of A."""
    (_, _, n), (_, _, t) = o.tile, mmul(o.generation, o.a_dtype)
    cores = [out.tile(col, FIRST_CORE_ROW + row) for row in range(o.rows)]
    outer, inner = _along_k(out, o, ("B", col), col, cores, (n, t), o.b_dtype, 1)
    out.forward(outer, inner)
    return inner


def _feed_kept(out: Design, o: DesignPoint) -> tuple[list[ObjectFifo], list[ObjectFifo]]:
    """A and B tiles for all cores through memtiles that keep one of both, as runtime streams say
    (docs/gemm_designs.md). What passes by takes slots that the other operand leaves free."""
    (m, _, n), (r, _, t) = o.tile, mmul(o.generation, o.a_dtype)
    (of_a, of_b), ring = KEPT, kept_ring(o)
    # Slots in use where B stays are the last ones of A, which may arrive for the next product.
    sides = (
        StoreSide("a", 0, of_a, of_a - of_b - LEAST_RING, LEAST_RING, KEPT_TIMES),
        StoreSide("b", of_a - of_b, of_b, of_a, ring, KEPT_TIMES, halves=True),
    )
    rows, columns = [], []
    for i in range(ROWS):
        of_row = [out.tile(c, FIRST_CORE_ROW + i) for c in range(out.columns)]
        of_column = [out.tile(i, FIRST_CORE_ROW + row) for row in range(o.rows)]
        a = _along_k(out, o, ("A", i), i, of_row, (m, r), o.a_dtype, 0)
        b = _along_k(out, o, ("B", i), i, of_column, (n, t), o.b_dtype, 1)
        out.store((a, b), sides)
        rows.append(a[1])
        columns.append(b[1])
    return rows, columns


def _in_banks(o: DesignPoint) -> tuple[tuple[int, ...], ...]:
    """Addresses of A's tiles, of B's and of sums beside a narrower C in a design that keeps
    operands: banks of their own but for what the data section at the end shifts them, so that a
    product's accesses do not meet. Nothing: the lowering chooses."""
    if not (o.keeps and o.narrows):
        return (), (), ()
    (m, k, n), end = o.tile, tile_limits("core").memory_bytes - DATA_BYTES
    sums = end - bytes_of(o.sum_dtype, m * n)
    b = bytes_of(o.b_dtype, k * n)
    a = bytes_of(o.a_dtype, m * k)
    of_b = sums - 2 * b
    return (of_b - 2 * a, of_b - a), (of_b, of_b + b), (sums,)


def _along_k(
    out: Design,
    o: DesignPoint,
    name: tuple[str, int],
    col: int,
    cores: list[Tile],
    rows: tuple[int, int],
    dtype: str,
    channel: int,
    parts: int = 1,
) -> tuple[ObjectFifo, ObjectFifo]:
    """A matrix whose rows run along K, through the memtile of `col` to `cores`; rows = (m, r). The
    FIFOs to the memtile and on from there, which whoever calls links.

    A tile reaches the cores as `parts` objects of m / parts rows.

    L3 -> L2 brings (m, k_mt). With one tile in it, the memtile's four dimensions reach
    [m/r][k/s][r][s] alone. Otherwise it takes five, so they are shared out (paper, section 4.3):
    the memtile stores (m, k) tiles and sends each as m x s columns, whose r x s blocks lie
    together, and the cores put the blocks in their places. Tiles of BFP16 blocks are in their
    order everywhere: (m, k) tiles are cut out of k_mt columns and no more.
    """
    (m, r), k, s = rows, o.tile[1], mmul(o.generation, o.a_dtype)[1]
    matrix, index = name
    memtile = out.tile(col, 1)
    tiles = o.k_mt // k
    partition: list[tuple[int, int]] = []
    send: list[tuple[int, int]] = []
    place: list[tuple[int, int]] = []
    if dtype == BFP16:
        height, width = stored(dtype, m, k)[1]
        if tiles > 1:
            partition = [(height, width), (tiles, height * width), (width, 1)]
    elif tiles == 1:
        send = [(m // r, r * k), (k // s, s), (r, k), (s, 1)]
    elif o.keeps:  # in the order in which they are sent, of which a BD may then send any stretch
        partition = [(m, s), (o.k_mt // s, m * s), (s, 1)]
        place = [(k // s, r * s), (m // r, r * k), (r * s, 1)]
    else:
        partition = [(m, k), (tiles, m * k), (k, 1)]
        part = m // parts
        send = [(tiles * parts, part * k), (k // s, s), (part, k), (s, 1)]
        place = [(k // s, r * s), (part // r, r * k), (r * s, 1)]
    dtype_l2, shape_l2 = stored(dtype, m, o.k_mt)
    dtype_l1, shape_l1 = stored(dtype, m // parts, k)
    outer = out.fifo(
        f"{matrix}2_{index}", out.tile(col, 0), memtile, shape_l2, dtype_l2,
        depth=o.l2_buffers, from_stream=partition, port=f"{matrix}{index}",
        producer_channel=channel, consumer_channel=channel if o.keeps else None,
    )  # fmt: skip
    inner = out.fifo(
        f"{matrix}1_{index}", memtile, cores, shape_l1, dtype_l1,
        depth=o.input_buffers[channel], to_stream=send, from_stream=place,
        # Of the other parity than the way in: BDs are shared out by it.
        producer_channel=1 - channel if o.keeps else None, consumer_channel=channel,
        consumer_addresses=_in_banks(o)[channel],
    )  # fmt: skip
    return outer, inner


def _feed_b_row(out: Design, o: DesignPoint, col: int) -> ObjectFifo:
    """B tiles for core column `col`: L3 -> L2 row-major, L2 -> L1 as [k/s][n/t][s][t]."""
    (_, k, n), (_, s, t) = o.tile, mmul(o.generation, o.a_dtype)
    memtile = out.tile(col, 1)
    outer = out.fifo(
        f"B2_{col}", out.tile(col, 0), memtile, (o.b_rows, n), o.a_dtype,
        depth=o.l2_buffers, port=f"B{col}", producer_channel=1,
    )  # fmt: skip
    cores = [out.tile(col, FIRST_CORE_ROW + row) for row in range(o.rows)]
    blocks = [(o.b_rows // s, s * n), (n // t, t), (s, n), (t, 1)]
    inner = out.fifo(
        f"B1_{col}", memtile, cores, (k, n), o.a_dtype, depth=o.input_buffers[1],
        to_stream=blocks, consumer_channel=1,
    )  # fmt: skip
    out.forward(outer, inner)
    return inner


def _feed_b_pair(out: Design, o: DesignPoint, col: int) -> list[ObjectFifo]:
    """B tiles for core columns `col` and `col` + 1 through the odd memtile, which has no A: each of
    two shim channels brings half the rows of an object, which is one or several tiles of both."""
    (_, k, n), (_, s, t) = o.tile, mmul(o.generation, o.a_dtype)
    shim, memtile = out.tile(col + 1, 0), out.tile(col + 1, 1)
    halves = [
        out.fifo(
            f"B2_{col + half}", shim, memtile, (o.b_rows // 2, 2 * n), o.a_dtype,
            depth=o.l2_buffers, port=f"B{col + half}", producer_channel=half,
            consumer_channel=half,
        )
        for half in range(2)
    ]  # fmt: skip
    blocks = [(o.b_rows // 2 // s, s * 2 * n), (n // t, t), (s, 2 * n), (t, 1)]
    tiles = [
        out.fifo(
            f"B1_{column}", memtile,
            [out.tile(column, FIRST_CORE_ROW + row) for row in range(o.rows)], (k, n), o.a_dtype,
            depth=o.input_buffers[1], to_stream=blocks, producer_channel=side,
            consumer_channel=1,
        )
        for side, column in enumerate((col, col + 1))
    ]  # fmt: skip
    out.cross(halves, tiles)
    return tiles


def _drain_c(out: Design, o: DesignPoint, col: int) -> list[ObjectFifo]:
    """C tiles of core column `col`, joined in L2 and sent to L3 as one row-major 4m x n tile."""
    (m, _, n), (r, _, t) = o.tile, mmul(o.generation, o.a_dtype)
    memtile = out.tile(col, 1)
    dtype, shape = stored(o.c_dtype, m, n)
    parts = [
        out.fifo(
            f"C1_{col}_{row}", out.tile(col, FIRST_CORE_ROW + row), memtile, shape, dtype,
            depth=max(1, o.c_buffers),
            producer_type=stored(o.sum_dtype, m, n) if o.c_buffers == 0 else (dtype, shape),
        )
        for row in range(o.rows)
    ]  # fmt: skip
    rows = [] if o.c_dtype == BFP16 else [(m // r, r * n), (r, t), (n // t, r * t), (t, 1)]
    joined = out.fifo(
        f"C2_{col}", memtile, out.tile(col, 0), stored(o.c_dtype, o.rows * m, n)[1], dtype,
        depth=o.c_l2_buffers, to_stream=rows, port=f"C{col}", consumer_channel=0,
        producer_channel=2 if o.keeps else None,
    )  # fmt: skip
    out.join(parts, joined)
    return parts


def _worker(
    out: Design, o: DesignPoint, col: int, row: int, a: ObjectFifo, b: ObjectFifo, c: ObjectFifo
) -> None:
    """One core: per output tile zero the sums, accumulate K/k products, narrow, hand C on."""
    m, k, n = o.tile
    narrowed = o.sum_dtype != o.c_dtype
    local = narrowed and o.c_buffers > 0
    rows = m // o.a_parts
    zero = out.kernel(f"zero_{SHORT[o.sum_dtype]}")
    stack = SIMULATED_STACK if out.room_over else None
    w = out.worker(out.tile(col, FIRST_CORE_ROW + row), stack_bytes=stack)
    k_tiles, tiles = w.rtp("k_tiles"), w.rtp("tiles")
    shift = [w.rtp("shift")] if o.has_shift else []
    across = [w.rtp("across")] if o.square else []
    acc = None
    if local:
        sums = _in_banks(o)[2]
        acc = w.buffer(
            f"acc_{col}_{row}", *stored(o.sum_dtype, m, n), address=sums[0] if sums else None
        )
    take_a, take_b = _Input(out, o, w, a), _Input(out, o, w, b, k)
    matmul = _matmul_kernel(out, o)
    with w.forever():
        w.wait_rtps()
        with w.loop(tiles):
            total = acc or w.acquire(c)
            w.call(zero, total, m * n)
            with w.loop(k_tiles):
                extra = [] if narrowed else shift
                b_tile: Object | Buffer | None = None
                for part in range(o.a_parts):
                    a_tile = take_a.begin()
                    b_tile = b_tile or take_b.begin()
                    at = [part * rows] if o.kernel == "pipelined" else []
                    w.call(matmul, a_tile, b_tile, total, rows, k, n, *extra, *at, *across)
                    take_a.end()
                take_b.end()
            if narrowed:
                target = w.acquire(c) if local else total
                w.call(_narrowing_kernel(out, o), total, target, m * n, *shift)
            w.release(c)


class _Input:
    """Objects of A or B as the matmul kernel reads them: where they arrived or, in designs that
    convert, a BFP16 copy; then an object is given back before it is multiplied."""

    def __init__(
        self, out: Design, o: DesignPoint, w: Worker, fifo: ObjectFifo, depth: int = 0
    ) -> None:
        """depth: k if it is B, of which row-major tiles are also put in column order."""
        self._worker, self._fifo = w, fifo
        self._copy: Buffer | None = None
        if not o.converts[1 if depth else 0]:
            return
        label = "b" if depth else "a"
        in_order = not depth or o.b_layout == "col"
        self._integers = [fifo.elements] if in_order else [fifo.elements, depth]
        self._convert = out.kernel(
            f"convert_bf16_bfp16_{label}" + ("_bcol" if depth and in_order else "")
        )
        _, blocks = self._convert.counts(*self._integers)
        assert blocks is not None
        name = f"{label}_bfp16_{w.tile.col}_{w.tile.row}"
        self._copy = w.buffer(name, "uint8", (blocks,))

    def begin(self) -> Object | Buffer:
        """The next object."""
        arrived = self._worker.acquire(self._fifo)
        if self._copy is None:
            return arrived
        self._worker.call(self._convert, arrived, self._copy, *self._integers)
        self._worker.release(self._fifo)
        return self._copy

    def end(self) -> None:
        """Gives the object back, where that is not done yet."""
        if self._copy is None:
            self._worker.release(self._fifo)


def _matmul_kernel(out: Design, o: DesignPoint) -> Kernel:
    """C += A B on one object of A and one of B."""
    name = f"{SHORT[o.a_dtype]}{'bfp16' if o.bf16 == 'bfp16' else ''}_{SHORT[o.sum_dtype]}"
    if o.bf16 == "bfp16" and o.kernel == "pipelined":  # blocks of B have one layout
        name = f"bfp16_{SHORT[o.sum_dtype]}_pipelined"
    else:
        name += ("_pipelined" if o.kernel == "pipelined" else "") + (
            "_square" if o.square else "_bcol" if o.b_layout == "col" else ""
        )
    return out.kernel(f"matmul_{name}")


def _narrowing_kernel(out: Design, o: DesignPoint) -> Kernel:
    verb = "narrow" if o.has_shift else "convert"
    name = f"{verb}_{SHORT[o.sum_dtype]}_{SHORT[o.c_dtype]}"
    return out.kernel(name + ("_c" if o.c_dtype == BFP16 else ""))  # _a and _b: operands
