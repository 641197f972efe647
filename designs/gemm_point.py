"""What distinguishes one GEMM configuration from another, and the sizes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from .hardware import DTYPE_BYTES, device_columns
from .kernel import limits, step

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
# npu2 alone: B in blocks of BFP16 (bfp16ebs8: 8 values share an exponent), A and C or not.
BFP16 = "bfp16"
BLOCK_PAIRS = tuple((a, c) for a in ("bfloat16", BFP16) for c in ("float32", "bfloat16", BFP16))
BLOCK_SIDE = 8  # blocks are stored and moved as tiles of 8 x 8 values
BLOCK_TILE_BYTES = 72
DEFAULT_TILE: dict[str, Tile3] = {
    "bfloat16": (64, 64, 64),
    "int8": (64, 128, 64),
    "int16": (64, 64, 64),
}
PIPELINED_TILE: Tile3 = (64, 64, 64)  # of every type
# k_mt of the default tiles, in k, per layout of B: deeper wastes more on small K than reads gain
# (docs/tuning.md).
DEFAULT_DEPTH = {"row": 2, "col": 4}
# As the *_type parameters number them.
TYPES = ("float32", "bfloat16", "int8", "int16", "int32", BFP16)
B_LAYOUTS = ("row", "col")  # as the `b_layout` parameter numbers them
ACCUMULATE = ("wide", "narrow")
BLOCK_ACCUMULATE = (*ACCUMULATE, "bfloat16")  # of results in blocks
BF16 = ("native", "bfp16")
KERNELS = ("published", "pipelined")
PIPELINED_K = limits("matmul_i8_i32_pipelined", "npu2", "k")  # what they are unrolled for
MAX_A_PARTS = 8
MAX_B_L2_TILES = 8
# Objects of k_mt columns (rows) of A and of B that a memtile keeps at most. Others have rings of
# two slots; B's, which passes by where A stays, has three if L2 has room. Those that pass by can be
# sent KEPT_TIMES times, to all columns of a B, or all rows of an A, that is kept.
KEPT, KEPT_TIMES, LEAST_RING = (12, 3), 3, 2
SHORT = {
    "bfloat16": "bf16", "float32": "f32", "int8": "i8", "int16": "i16", "int32": "i32",
    BFP16: "bfp16",
}  # fmt: skip


@cache
def mmul(generation: str, a_dtype: str) -> Tile3:
    """r, s, t of aie::mmul: a core multiplies A tiles of r x s by B tiles of s x t. Kernels take
    clusters of 2 x 2 of them, hence the steps of their operands."""
    if a_dtype == BFP16:
        return BLOCK_SIDE, BLOCK_SIDE, BLOCK_SIDE
    name = f"matmul_{SHORT[a_dtype]}_{SHORT[wide_dtype(a_dtype)]}"
    m, k, n = (step(name, generation, operand) for operand in "mkn")
    return m // 2, k, n // 2


def wide_dtype(a_dtype: str) -> str:
    """What the multiplier accumulates in."""
    return "float32" if a_dtype in ("bfloat16", BFP16) else "int32"


def bytes_of(dtype: str, elements: Any) -> Any:
    """Bytes of so many elements, whole blocks of BFP16."""
    return elements * 9 // 8 if dtype == BFP16 else elements * DTYPE_BYTES[dtype]


def stored(dtype: str, rows: int, columns: int) -> tuple[str, tuple[int, int]]:
    """(dtype, shape) of a matrix in the array's memories: BFP16 is bytes, tiles of 8 x 8."""
    if dtype == BFP16:
        return "uint8", (rows // BLOCK_SIDE, columns // BLOCK_SIDE * BLOCK_TILE_BYTES)
    return dtype, (rows, columns)


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
    l2_buffers: int = 2
    b_l2_tiles: int = 1
    b_dtype: str = ""  # empty: A's
    square: bool = False  # operands are also read across their rows
    keeps: bool = False  # memtiles keep an operand that they send again and again
    rows: int = ROWS  # of cores that compute
    columns: int = 0  # of cores that compute; 0: all

    def __post_init__(self) -> None:
        object.__setattr__(self, "b_dtype", self.b_dtype or self.a_dtype)
        object.__setattr__(self, "columns", self.columns or device_columns(self.generation))

    @property
    def blocks(self) -> bool:
        """Whether B is stored in blocks of BFP16."""
        return self.b_dtype == BFP16

    @property
    def narrows(self) -> bool:
        """Whether C has fewer bits than the products are accumulated in."""
        return self.c_dtype == BFP16 or DTYPE_BYTES[self.c_dtype] < 4

    @property
    def wide_dtype(self) -> str:
        """What the multiplier accumulates in."""
        return wide_dtype(self.a_dtype)

    @property
    def sum_dtype(self) -> str:
        """Element type of the tile that partial sums are kept in between k steps."""
        if self.accumulate == "bfloat16":
            return "bfloat16"
        return self.wide_dtype if self.accumulate == "wide" else self.c_dtype

    @property
    def name(self) -> str:
        if self.blocks:  # always through BFP16, column-major, pipelined
            base = "_".join(
                ["gemm", *(SHORT[x] for x in (self.a_dtype, self.b_dtype, self.c_dtype))]
            )
            base += f"_parts{self.a_parts}" if self.a_parts > 1 else ""
            return base + (f"_sums_{SHORT[self.sum_dtype]}" if self.narrows else "")
        base = PAIRS[self.a_dtype, self.c_dtype]
        base += "_bfp16" if self.bf16 == "bfp16" else ""
        base += (
            "_kept"
            if self.keeps
            else "_square"
            if self.square
            else "_bcol"
            if self.b_layout == "col"
            else ""
        )
        base += "_pipelined" if self.kernel == "pipelined" else ""
        base += f"_parts{self.a_parts}" if self.a_parts > 1 else ""
        base += "_pairs" if self.b_pairs else ""
        return base + ("_narrow" if self.narrows and self.accumulate == "narrow" else "")

    @property
    def converts(self) -> tuple[bool, bool]:
        """Whether the core keeps a BFP16 copy of A, and one of B."""
        copies = self.kernel == "pipelined" and self.bf16 == "bfp16"
        return copies and self.a_dtype != BFP16, copies and self.b_dtype != BFP16

    @property
    def input_buffers(self) -> tuple[int, int]:
        """Buffers of A and of B in a core: with BFP16 copies they are free while it multiplies."""
        a, b = self.converts
        return 1 if a else 2, 1 if b else 2

    @property
    def whole(self) -> bool:
        """Whether all cores of the array compute."""
        return (self.rows, self.columns) == (ROWS, device_columns(self.generation))

    @property
    def has_shift(self) -> bool:
        return self.narrows and self.wide_dtype == "int32"

    @property
    def text(self) -> str:
        """Name and tile, for people."""
        cores = "" if self.whole else f" on {self.rows}x{self.columns} cores"
        return f"{self.name} tile {'x'.join(map(str, self.tile))} k_mt {self.k_mt}{cores}"

    @property
    def key(self) -> str:
        """A short text that no other design point of the package has: its file's name."""
        tile = "x".join(map(str, self.tile))
        buffers = f"c{self.c_buffers}{self.c_l2_buffers}-l{self.l2_buffers}{self.b_l2_tiles}"
        cores = "" if self.whole else f"-{self.rows}x{self.columns}"
        return f"{self.generation}-{self.name}-{tile}-{self.k_mt}-{buffers}{cores}"

    @property
    def a_bytes(self) -> int | float:
        """Bytes of an element of A: 9 of 8 in blocks."""
        return _element_bytes(self.a_dtype)

    @property
    def b_bytes(self) -> int | float:
        return _element_bytes(self.b_dtype)

    @property
    def c_bytes(self) -> int | float:
        return _element_bytes(self.c_dtype)

    @property
    def native(self) -> Tile3:
        """What all cores compute in one output round; sizes are padded to multiples."""
        m, _, n = self.tile
        return self.rows * m, self.k_mt, self.columns * n

    @property
    def granularity(self) -> Tile3:
        """Units of the tile: a 2 x 2 cluster of r x s x t products, in every part of A and every
        half of a pair's B."""
        r, s, t = mmul(self.generation, self.a_dtype)
        return 2 * r * self.a_parts, s * (2 if self.b_pairs else 1), 2 * t

    @property
    def shim_runs(self) -> list[tuple[str, int, int]]:
        """(name, elements, bytes each) of the runs that runtime streams put in shim BDs; those of
        blocks are of 8 rows."""
        a, b, c = (_run_bytes(dtype) for dtype in (self.a_dtype, self.b_dtype, self.c_dtype))
        depth = max(a, b if self.b_layout == "col" else 0)
        runs = [("k_mt", self.k_mt, depth), ("tile n", self.tile[2], c)]
        panel = ("2 x tile n" if self.b_pairs else "tile n", self.b_panel, b)
        return runs + ([panel] if self.b_layout == "row" else [])

    @property
    def b_rows(self) -> int:
        """Rows of a row-major B per memtile object."""
        return self.tile[1] * self.b_l2_tiles

    @property
    def b_panel(self) -> int:
        """Columns of a row-major B that a shim channel reads."""
        return self.tile[2] * (2 if self.b_pairs else 1)

    def padded(self, size: Tile3) -> Tile3:
        """M, K and N in whole output rounds."""
        m, k, n = (-(-s // unit) * unit for s, unit in zip(size, self.native, strict=True))
        return m, k, n


def _element_bytes(dtype: str) -> int | float:
    return BLOCK_TILE_BYTES / BLOCK_SIDE**2 if dtype == BFP16 else DTYPE_BYTES[dtype]


def _run_bytes(dtype: str) -> int:
    """Of an element of a run in host memory."""
    return BLOCK_TILE_BYTES // BLOCK_SIDE if dtype == BFP16 else DTYPE_BYTES[dtype]
