"""GEMM, output-stationary: C[M,N] = A[M,K] B[K,N] on 4 rows and all columns of cores.

Each core computes m x n tiles of C. Core row r reads its A tiles (m x k) from one broadcast, core
column c its B tiles (k x n) from another; C tiles of a column are joined in its memtile and leave
row-major. Memtiles take k_mt columns of A (and of a column-major B) at a time, so that reads of
host memory are long runs. Loop counts and the output shift are RTPs: one configuration serves every
problem size. The mapping is the one of Taka et al., arXiv 2512.13282, section 4.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypedDict

from npu.errors import DesignError

from .api import Design
from .fifo import ObjectFifo
from .hardware import (
    DTYPE_BYTES,
    FIRST_CORE_ROW,
    STACK_BYTES,
    Tile,
    device_columns,
    tile_limits,
)
from .kernel import Kernel, limits
from .lowering import configuration as lower_to_bytes
from .lowering import mlir as lower_to_mlir
from .worker import Buffer, Object, Worker

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tile3 = tuple[int, int, int]  # m, k, n

ROWS = 4
# Input and output element types -> design name; kernels are matmul_<in>_<type of the C tile>.
PAIRS = {
    ("bfloat16", "float32"): "gemm_bf16_f32",
    ("bfloat16", "bfloat16"): "gemm_bf16_bf16",
    ("int8", "int32"): "gemm_i8_i32",
    ("int8", "int16"): "gemm_i8_i16",
    ("int8", "int8"): "gemm_i8_i8",
    ("int16", "int32"): "gemm_i16_i32",
}
DEFAULT_TILE: dict[str, Tile3] = {
    "bfloat16": (64, 64, 64),
    "int8": (64, 128, 64),
    "int16": (64, 64, 64),
}
PIPELINED_TILE: Tile3 = (64, 64, 64)  # of every type
# k_mt of the default tiles, in k, per layout of B: deeper wastes more on small K than reads gain
# (docs/tuning.md).
DEFAULT_DEPTH = {"row": 2, "col": 4}
# r, s, t of aie::mmul: A tiles r x s, B tiles s x t.
MMUL: dict[tuple[str, str], Tile3] = {
    ("npu1", "bfloat16"): (4, 8, 4),
    ("npu1", "int8"): (4, 8, 8),
    ("npu1", "int16"): (4, 4, 4),
    ("npu2", "bfloat16"): (8, 8, 8),
    ("npu2", "int8"): (8, 8, 8),
    ("npu2", "int16"): (4, 4, 8),
}
TYPES = ("float32", "bfloat16", "int8", "int16", "int32")  # as the *_type parameters number them
B_LAYOUTS = ("row", "col")  # as the `b_layout` parameter numbers them
ACCUMULATE = ("wide", "narrow")
BF16 = ("native", "bfp16")
KERNELS = ("published", "pipelined")
PIPELINED_K = limits("matmul_i8_i32_pipelined", "npu2", "k")  # what they are unrolled for
MAX_A_PARTS = 8
_SHORT = {"bfloat16": "bf16", "float32": "f32", "int8": "i8", "int16": "i16", "int32": "i32"}
_RTP_BYTES = 64  # of the 1 KiB that tiles leave free for the stack


class Choices(TypedDict, total=False):
    """Keyword arguments of `design`, `configuration` and `mlir`."""

    tile: Tile3 | None
    """(m, k, n) per core; default `default_tile`."""
    k_mt: int | None
    """Columns of A that a memtile holds at a time, a multiple of k; default 2 k, of a
    column-major B 4 k, with the default tile, else k."""
    b_layout: str
    """"row" (default): B is (K, N) row-major; "col": column-major, that is (N, K) row-major."""
    c_buffers: int
    """C tiles per core, 1 (default) or 2. 0, for wide sums of a narrower C: the tile of the sums is
    narrowed where it lies and leaves from there, which makes room for a larger tile, but the core
    waits until it has left."""
    c_l2_buffers: int
    """Joined C tiles per memtile, 1 (default) or 2."""
    accumulate: str
    """For C narrower than 32 bits. "wide" (default) keeps sums in an int32 or float32 tile and
    narrows once. "narrow" keeps them in C's type, rounded and saturated at every k step, as the
    published designs do; it leaves room for larger tiles."""
    bf16: str
    """How npu2 multiplies bfloat16: "native" (default), or "bfp16", which rounds both operands to
    blocks of 8 along K with one exponent and is faster."""
    kernel: str
    """"published" (default): C blocks are loaded, accumulated and stored one after the other.
    "pipelined" (npu2; int8, or bfloat16 with bf16="bfp16"): loads and stores of C run beside the
    multiplications of other blocks; bfloat16 is converted to BFP16 in the core's memory once per
    tile. Same results."""
    b_pairs: bool
    """npu2, row-major B, k a multiple of 2 s: two shim channels read the columns of two
    neighbouring core columns together, each half the rows; runs in DRAM are twice as long."""
    a_parts: int
    """Row parts in which an A tile reaches the core, one kernel call each (default 1): the core
    buffers m / a_parts rows of A and keeps B and C whole (asymmetric tile buffering)."""


@dataclass(frozen=True)
class DesignPoint:
    """Everything that distinguishes one GEMM configuration from another. `design_point` makes
    checked ones; where only sizes count, they may be NumPy arrays of many points."""

    generation: str
    a_dtype: str
    c_dtype: str
    tile: Tile3
    k_mt: int  # columns of A (rows of a column-major B) per memtile object
    b_layout: str
    c_buffers: int
    c_l2_buffers: int
    accumulate: str
    bf16: str
    kernel: str
    a_parts: int
    b_pairs: bool = False

    @property
    def narrows(self) -> bool:
        """Whether C has fewer bits than the products are accumulated in."""
        return DTYPE_BYTES[self.c_dtype] < 4

    @property
    def wide_dtype(self) -> str:
        """What the multiplier accumulates in."""
        return "float32" if self.a_dtype == "bfloat16" else "int32"

    @property
    def sum_dtype(self) -> str:
        """Element type of the tile that partial sums are kept in between k steps."""
        return self.wide_dtype if self.accumulate == "wide" else self.c_dtype

    @property
    def name(self) -> str:
        base = PAIRS[self.a_dtype, self.c_dtype]
        base += "_bfp16" if self.bf16 == "bfp16" else ""
        base += "_bcol" if self.b_layout == "col" else ""
        base += "_pipelined" if self.kernel == "pipelined" else ""
        base += f"_parts{self.a_parts}" if self.a_parts > 1 else ""
        base += "_pairs" if self.b_pairs else ""
        return base + ("_narrow" if self.narrows and self.accumulate == "narrow" else "")

    @property
    def converts(self) -> bool:
        """Whether the core keeps BFP16 copies of its inputs."""
        return self.kernel == "pipelined" and self.bf16 == "bfp16"

    @property
    def input_buffers(self) -> int:
        """Buffers of A and of B in a core: with BFP16 copies they are free while it multiplies."""
        return 1 if self.converts else 2

    @property
    def has_shift(self) -> bool:
        return self.narrows and self.wide_dtype == "int32"

    @property
    def text(self) -> str:
        """Name and tile, for people."""
        return f"{self.name} tile {'x'.join(map(str, self.tile))} k_mt {self.k_mt}"

    @property
    def key(self) -> str:
        """A short text that no other design point of the package has: its file's name."""
        more = f"-c{self.c_buffers}" + (f"-l{self.c_l2_buffers}" if self.c_l2_buffers > 1 else "")
        tile = "x".join(map(str, self.tile))
        return f"{self.generation}-{self.name}-{tile}-{self.k_mt}{more}"

    @property
    def columns(self) -> int:
        return device_columns(self.generation)

    @property
    def a_bytes(self) -> int:
        """Bytes of an element of A and of B."""
        return DTYPE_BYTES[self.a_dtype]

    @property
    def c_bytes(self) -> int:
        return DTYPE_BYTES[self.c_dtype]

    @property
    def native(self) -> Tile3:
        """What the whole array computes in one output round; sizes are padded to multiples."""
        m, _, n = self.tile
        return ROWS * m, self.k_mt, self.columns * n

    @property
    def granularity(self) -> Tile3:
        """Units of the tile: a 2 x 2 cluster of r x s x t products, in every part of A and every
        half of a pair's B."""
        r, s, t = MMUL[self.generation, self.a_dtype]
        return 2 * r * self.a_parts, s * (2 if self.b_pairs else 1), 2 * t

    @property
    def shim_runs(self) -> list[tuple[str, int, int]]:
        """(name, elements, bytes each) of the runs that runtime streams put in shim BDs."""
        runs = [("k_mt", self.k_mt, self.a_bytes), ("tile n", self.tile[2], self.c_bytes)]
        panel = ("2 x tile n" if self.b_pairs else "tile n", self.b_panel, self.a_bytes)
        return runs + ([panel] if self.b_layout == "row" else [])

    @property
    def b_panel(self) -> int:
        """Columns of a row-major B that a shim channel reads."""
        return self.tile[2] * (2 if self.b_pairs else 1)

    def padded(self, size: Tile3) -> Tile3:
        """M, K and N in whole output rounds."""
        m, k, n = (-(-s // unit) * unit for s, unit in zip(size, self.native, strict=True))
        return m, k, n


def design_point(
    generation: str,
    a_dtype: str,
    c_dtype: str,
    *,
    tile: Tile3 | None = None,
    k_mt: int | None = None,
    b_layout: str = "row",
    c_buffers: int = 1,
    c_l2_buffers: int = 1,
    accumulate: str = "wide",
    bf16: str = "native",
    kernel: str = "published",
    a_parts: int = 1,
    b_pairs: bool = False,
) -> DesignPoint:
    """The checked design point of a GEMM; see `Choices` and `design`."""
    names = (generation, a_dtype, c_dtype)
    if (
        not all(isinstance(name, str) for name in names)
        or (a_dtype, c_dtype) not in PAIRS
        or (generation, a_dtype) not in MMUL
    ):
        pairs = ", ".join(f"{a} -> {c}" for a, c in PAIRS)
        raise DesignError(
            f"[gemm] {a_dtype} -> {c_dtype} on {generation}: no such design; there are {pairs} on "
            "npu1 and npu2"
        )
    c_buffers, c_l2_buffers, a_parts = (
        _whole(label, value)
        for label, value in (
            ("c_buffers", c_buffers), ("c_l2_buffers", c_l2_buffers), ("a_parts", a_parts)
        )
    )  # fmt: skip
    for label, value, allowed in (
        ("b_layout", b_layout, B_LAYOUTS),
        ("c_buffers", c_buffers, (0, 1, 2)),
        ("c_l2_buffers", c_l2_buffers, (1, 2)),
        ("accumulate", accumulate, ACCUMULATE),
        ("bf16", bf16, BF16 if (generation, a_dtype) == ("npu2", "bfloat16") else BF16[:1]),
        ("kernel", kernel, KERNELS),
        ("a_parts", a_parts, tuple(range(1, MAX_A_PARTS + 1))),
        ("b_pairs", b_pairs, (False, True)),
    ):
        if value not in allowed:
            raise DesignError(f"[gemm] {label} is {value!r}; use one of {allowed}")
    if tile is not None and (not isinstance(tile, (tuple, list)) or len(tile) != 3):
        raise DesignError(f"[gemm] tile is {tile!r}; it must be (m, k, n)")
    m, k, n = (
        _whole(f"tile {label}", size)
        for label, size in zip("mkn", tile or default_tile(a_dtype, kernel), strict=True)
    )
    if c_buffers == 0 and (accumulate != "wide" or DTYPE_BYTES[c_dtype] == 4):
        raise DesignError(
            f"[gemm] c_buffers = 0 for {accumulate} sums of {a_dtype} -> {c_dtype}: only wide sums "
            "of a narrower C are narrowed where they lie; use 1 or 2"
        )
    if not kernel_exists(generation, a_dtype, kernel, bf16):
        raise DesignError(
            f'[gemm] kernel="pipelined" with {a_dtype} on {generation}: it exists on npu2 for int8 '
            'and for bfloat16 with bf16="bfp16"'
        )
    if kernel == "published" and a_parts > 1:
        raise DesignError(
            f'[gemm] a_parts = {a_parts} with kernel="published": its kernels compute whole tiles; '
            'use kernel="pipelined"'
        )
    r, s, t = MMUL[generation, a_dtype]
    for label, size, unit in (("m", m, 2 * r * a_parts), ("k", k, s), ("n", n, 2 * t)):
        if size < 1 or size % unit:
            raise DesignError(
                f"[gemm] tile {label} = {size}: on {generation} with {a_dtype} it must be a "
                f"multiple of {unit}" + (f" for a_parts={a_parts}" if label == "m" else "")
            )
    if b_pairs and (generation != "npu2" or b_layout != "row" or k % (2 * s)):
        raise DesignError(
            f"[gemm] b_pairs with B {b_layout}-major and tile k = {k} on {generation}: it is for a "
            f"row-major B on npu2 and k a multiple of {2 * s}"
        )
    if kernel == "pipelined" and not PIPELINED_K[0] <= k <= PIPELINED_K[1]:
        raise DesignError(
            f'[gemm] tile k = {k}: kernel="pipelined" is unrolled for {PIPELINED_K[0]} to '
            f"{PIPELINED_K[1]}"
        )
    default = k if tile else k * DEFAULT_DEPTH[b_layout]
    depth = default if k_mt is None else _whole("k_mt", k_mt)
    if depth < k or depth % k:
        raise DesignError(f"[gemm] k_mt = {depth}: it must be a multiple of the tile's k = {k}")
    out = DesignPoint(
        generation, a_dtype, c_dtype, (m, k, n), depth, b_layout, c_buffers, c_l2_buffers,
        accumulate, bf16, kernel, a_parts, bool(b_pairs),
    )  # fmt: skip
    check_shim(out)
    return out


def default_tile(a_dtype: str, kernel: str = "published") -> Tile3:
    """The tile of a design that names none."""
    return PIPELINED_TILE if kernel == "pipelined" else DEFAULT_TILE[a_dtype]


def kernel_exists(generation: str, a_dtype: str, kernel: str, bf16: str = "native") -> bool:
    """Whether a kind of kernel is there for operands of a type."""
    return kernel == "published" or (
        kernel == "pipelined"
        and generation == "npu2"
        and (a_dtype == "int8" or (a_dtype == "bfloat16" and bf16 == "bfp16"))
    )


def _whole(label: str, value: object) -> int:
    """A size as Python's int, which does not wrap around."""
    try:
        if not isinstance(value, bool) and getattr(value, "ndim", 0) == 0:
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise DesignError(f"[gemm] {label} is {value!r}; it must be a whole number")


def check_shim(o: DesignPoint) -> None:
    """The runs that runtime streams put in shim BDs must fit the wrap field."""
    limit = tile_limits("shim").max_wrap
    for label, elements, size in o.shim_runs:
        if elements * size > 4 * limit:
            raise DesignError(
                f"[gemm] {label} = {elements}: a shim BD addresses runs of at most {limit} words, "
                f"this needs {elements * size // 4}"
            )


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


def mlir(generation: str, a_dtype: str, c_dtype: str, **choices: Unpack[Choices]) -> str:
    """A GEMM design as AIE-dialect MLIR, see `design`."""
    return mlir_of(design_point(generation, a_dtype, c_dtype, **choices))


def mlir_of(point: DesignPoint) -> str:
    """The MLIR of a design point."""
    return lower_to_mlir(_build(point))


def _build(o: DesignPoint) -> Design:
    out = Design(o.name, o.generation, object_file="gemm.o")
    stride = out.columns // ROWS
    m, k, n = o.tile
    out.params = {
        "tile_m": m, "tile_k": k, "tile_n": n, "rows": ROWS, "columns": out.columns,
        "a_bytes": o.a_bytes, "c_bytes": o.c_bytes,
        "a_type": TYPES.index(o.a_dtype), "c_type": TYPES.index(o.c_dtype),
        "k_mt": o.k_mt, "b_layout": B_LAYOUTS.index(o.b_layout), "b_pairs": int(o.b_pairs),
    }  # fmt: skip
    rows = [_feed_a(out, o, row, stride) for row in range(ROWS)]
    columns: list[ObjectFifo] = []
    for col in range(out.columns):
        if o.b_pairs:
            columns += _feed_b_pair(out, o, col) if col % 2 == 0 else []
        else:
            columns.append((_feed_b_col if o.b_layout == "col" else _feed_b_row)(out, o, col))
    for col in range(out.columns):
        drains = _drain_c(out, o, col)
        for row in range(ROWS):
            _worker(out, o, col, row, rows[row], columns[col], drains[row])
    return out


def _feed_a(out: Design, o: DesignPoint, row: int, stride: int) -> ObjectFifo:
    """A tiles for core row `row`: row-major in L3, [m/r][k/s][r][s] in L1."""
    (m, _, _), (r, _, _) = o.tile, MMUL[o.generation, o.a_dtype]
    cores = [out.tile(c, FIRST_CORE_ROW + row) for c in range(out.columns)]
    return _feed_along_k(out, o, ("A", row), row * stride, cores, (m, r), 0, o.a_parts)


def _feed_b_col(out: Design, o: DesignPoint, col: int) -> ObjectFifo:
    """Column-major B tiles for core column `col`: [n/t][k/s][t][s] in L1, the mirror of A."""
    (_, _, n), (_, _, t) = o.tile, MMUL[o.generation, o.a_dtype]
    cores = [out.tile(col, FIRST_CORE_ROW + row) for row in range(ROWS)]
    return _feed_along_k(out, o, ("B", col), col, cores, (n, t), 1)


def _feed_along_k(
    out: Design,
    o: DesignPoint,
    name: tuple[str, int],
    col: int,
    cores: list[Tile],
    rows: tuple[int, int],
    channel: int,
    parts: int = 1,
) -> ObjectFifo:
    """A matrix whose rows run along K, through the memtile of `col` to `cores`; rows = (m, r).

    A tile reaches the cores as `parts` objects of m / parts rows.

    L3 -> L2 brings (m, k_mt). With one tile in it, the memtile's four dimensions reach
    [m/r][k/s][r][s] alone. Otherwise it takes five, so they are shared out (paper, section 4.3):
    the memtile stores (m, k) tiles and sends each as m x s columns, whose r x s blocks lie
    together, and the cores put the blocks in their places.
    """
    (m, r), k, s = rows, o.tile[1], MMUL[o.generation, o.a_dtype][1]
    matrix, index = name
    memtile = out.tile(col, 1)
    tiles = o.k_mt // k
    if tiles == 1:
        partition, send = [], [(m // r, r * k), (k // s, s), (r, k), (s, 1)]
        place: list[tuple[int, int]] = []
    else:
        partition = [(m, k), (tiles, m * k), (k, 1)]
        part = m // parts
        send = [(tiles * parts, part * k), (k // s, s), (part, k), (s, 1)]
        place = [(k // s, r * s), (part // r, r * k), (r * s, 1)]
    outer = out.fifo(
        f"{matrix}2_{index}", out.tile(col, 0), memtile, (m, o.k_mt), o.a_dtype,
        from_stream=partition, port=f"{matrix}{index}", producer_channel=channel,
    )  # fmt: skip
    inner = out.fifo(
        f"{matrix}1_{index}", memtile, cores, (m // parts, k), o.a_dtype,
        depth=o.input_buffers, to_stream=send, from_stream=place, consumer_channel=channel,
    )  # fmt: skip
    out.forward(outer, inner)
    return inner


def _feed_b_row(out: Design, o: DesignPoint, col: int) -> ObjectFifo:
    """B tiles for core column `col`: L3 -> L2 row-major, L2 -> L1 as [k/s][n/t][s][t]."""
    (_, k, n), (_, s, t) = o.tile, MMUL[o.generation, o.a_dtype]
    memtile = out.tile(col, 1)
    outer = out.fifo(
        f"B2_{col}", out.tile(col, 0), memtile, (k, n), o.a_dtype,
        port=f"B{col}", producer_channel=1,
    )  # fmt: skip
    cores = [out.tile(col, FIRST_CORE_ROW + row) for row in range(ROWS)]
    blocks = [(k // s, s * n), (n // t, t), (s, n), (t, 1)]
    inner = out.fifo(
        f"B1_{col}", memtile, cores, (k, n), o.a_dtype, depth=o.input_buffers,
        to_stream=blocks, consumer_channel=1,
    )  # fmt: skip
    out.forward(outer, inner)
    return inner


def _feed_b_pair(out: Design, o: DesignPoint, col: int) -> list[ObjectFifo]:
    """B tiles for core columns `col` and `col` + 1 through the odd memtile, which has no A: each of
    two shim channels brings half the rows of both tiles."""
    (_, k, n), (_, s, t) = o.tile, MMUL[o.generation, o.a_dtype]
    shim, memtile = out.tile(col + 1, 0), out.tile(col + 1, 1)
    halves = [
        out.fifo(
            f"B2_{col + half}", shim, memtile, (k // 2, 2 * n), o.a_dtype,
            port=f"B{col + half}", producer_channel=half, consumer_channel=half,
        )
        for half in range(2)
    ]  # fmt: skip
    blocks = [(k // 2 // s, s * 2 * n), (n // t, t), (s, 2 * n), (t, 1)]
    tiles = [
        out.fifo(
            f"B1_{column}", memtile,
            [out.tile(column, FIRST_CORE_ROW + row) for row in range(ROWS)], (k, n), o.a_dtype,
            depth=o.input_buffers, to_stream=blocks, producer_channel=side, consumer_channel=1,
        )
        for side, column in enumerate((col, col + 1))
    ]  # fmt: skip
    out.cross(halves, tiles)
    return tiles


def _drain_c(out: Design, o: DesignPoint, col: int) -> list[ObjectFifo]:
    """C tiles of core column `col`, joined in L2 and sent to L3 as one row-major 4m x n tile."""
    (m, _, n), (r, _, t) = o.tile, MMUL[o.generation, o.a_dtype]
    memtile = out.tile(col, 1)
    parts = [
        out.fifo(
            f"C1_{col}_{row}", out.tile(col, FIRST_CORE_ROW + row), memtile, (m, n), o.c_dtype,
            depth=max(1, o.c_buffers),
            producer_type=(o.sum_dtype if o.c_buffers == 0 else o.c_dtype, (m, n)),
        )
        for row in range(ROWS)
    ]  # fmt: skip
    rows = [(m // r, r * n), (r, t), (n // t, r * t), (t, 1)]
    joined = out.fifo(
        f"C2_{col}", memtile, out.tile(col, 0), (ROWS * m, n), o.c_dtype,
        depth=o.c_l2_buffers, to_stream=rows, port=f"C{col}", consumer_channel=0,
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
    zero = out.kernel(f"zero_{_SHORT[o.sum_dtype]}")
    w = out.worker(out.tile(col, FIRST_CORE_ROW + row), stack_bytes=STACK_BYTES - _RTP_BYTES)
    k_tiles, tiles = w.rtp("k_tiles"), w.rtp("tiles")
    shift = [w.rtp("shift")] if o.has_shift else []
    acc = w.buffer(f"acc_{col}_{row}", o.sum_dtype, (m, n)) if local else None
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
                    w.call(matmul, a_tile, b_tile, total, rows, k, n, *extra, *at)
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
        if not o.converts:
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
    name = f"{_SHORT[o.a_dtype]}{'bfp16' if o.bf16 == 'bfp16' else ''}_{_SHORT[o.sum_dtype]}"
    if o.converts:  # copies of B have one layout
        name = f"bfp16_{_SHORT[o.sum_dtype]}_pipelined"
    else:
        name += ("_pipelined" if o.kernel == "pipelined" else "") + (
            "_bcol" if o.b_layout == "col" else ""
        )
    return out.kernel(f"matmul_{name}")


def _narrowing_kernel(out: Design, o: DesignPoint) -> Kernel:
    verb = "narrow" if o.has_shift else "convert"
    return out.kernel(f"{verb}_{_SHORT[o.sum_dtype]}_{_SHORT[o.c_dtype]}")
