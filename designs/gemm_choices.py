"""What a user may choose of a GEMM design, checked.

Choices become a `DesignPoint`, or the error that says which limit they violate.
"""

from __future__ import annotations

import operator
from typing import TypedDict

from npu.errors import DesignError

from . import gemm_limits
from .gemm_point import (
    ACCUMULATE,
    B_LAYOUTS,
    BF16,
    BFP16,
    BLOCK_ACCUMULATE,
    BLOCK_PAIRS,
    DEFAULT_DEPTH,
    DEFAULT_TILE,
    KERNELS,
    MAX_A_PARTS,
    MAX_B_L2_TILES,
    PAIRS,
    PIPELINED_K,
    PIPELINED_TILE,
    ROWS,
    DesignPoint,
    Tile3,
    mmul,
)
from .hardware import device_columns

SQUARE = ("npu1", "bfloat16", "float32", "col")  # generation, input, sums, layout of B


class Choices(TypedDict, total=False):
    """Keyword arguments of `design`, `configuration` and `mlir`."""

    tile: Tile3 | None
    """(m, k, n) per core; default `default_tile`."""
    k_mt: int | None
    """Columns of A that a memtile holds at a time, a multiple of k; default 2 k, of a
    column-major B 4 k, with the default tile, else k."""
    b_layout: str | None
    """"row" (default): B is (K, N) row-major; "col": column-major, that is (N, K) row-major, as
    every B in blocks is."""
    c_buffers: int
    """C tiles per core, 1 (default) or 2. 0, for sums wider than C: the tile of the sums is
    narrowed where it lies and leaves from there, which makes room for a larger tile, but the core
    waits until it has left."""
    c_l2_buffers: int
    """Joined C tiles per memtile, 1 (default) or 2."""
    accumulate: str
    """For C narrower than 32 bits. "wide" (default) keeps sums in an int32 or float32 tile and
    narrows once. "narrow" keeps them in C's type, rounded and saturated at every k step, as the
    published designs do; it leaves room for larger tiles. "bfloat16", for C in BFP16 blocks: sums
    are bfloat16 and become blocks once."""
    bf16: str | None
    """How npu2 multiplies bfloat16: "native" (default), or "bfp16", which rounds both operands to
    blocks of 8 along K with one exponent and is faster."""
    kernel: str | None
    """"published" (default): C blocks are loaded, accumulated and stored one after the other.
    "pipelined" (npu2; int8, or bfloat16 with bf16="bfp16"): loads and stores of C run beside the
    multiplications of other blocks; bfloat16 is converted to BFP16 in the core's memory once per
    tile. Same results. The one kind for a B in blocks."""
    b_dtype: str | None
    """Of B, default A's. "bfp16" (npu2, A bfloat16 or "bfp16"): stored in blocks of 8 values along
    K with one exponent, as tiles of 8 x 8 (docs/gemm_designs.md); C may be "bfp16" too."""
    b_pairs: bool
    """npu2, row-major B, k a multiple of 2 s: two shim channels read the columns of two
    neighbouring core columns together, each half the rows; runs in DRAM are twice as long."""
    l2_buffers: int
    """Objects of A and of B per memtile, 2 (default) or 3: what is read ahead while cores wait for
    C to leave."""
    b_l2_tiles: int
    """Row-major B: its tiles per memtile object, 1 (default) to 8, k_mt a multiple of them."""
    square: bool
    """npu1, bfloat16 with wide sums, a column-major B, m = k = n: A may also be (K, M) and B (K, N)
    row-major in memory; cores turn the tiles, as an RTP says."""
    keeps: bool
    """With square: memtiles keep an A of up to 12 objects of k_mt, or a B of 3, which they send for
    every column, or row, of blocks of C; such a design can only be simulated."""
    cores: tuple[int, int] | None
    """Rows and columns of cores that compute, the lower left ones; default: all of the array. A few
    are what a host that emulates the array computes small products fastest with."""
    a_parts: int
    """Row parts in which an A tile reaches the core, one kernel call each (default 1): the core
    buffers m / a_parts rows of A and keeps B and C whole (asymmetric tile buffering)."""


def design_point(
    generation: str,
    a_dtype: str,
    c_dtype: str,
    *,
    tile: Tile3 | None = None,
    k_mt: int | None = None,
    b_layout: str | None = None,
    c_buffers: int = 1,
    c_l2_buffers: int = 1,
    accumulate: str = "wide",
    bf16: str | None = None,
    kernel: str | None = None,
    a_parts: int = 1,
    b_pairs: bool = False,
    l2_buffers: int = 2,
    b_l2_tiles: int = 1,
    b_dtype: str | None = None,
    square: bool = False,
    keeps: bool = False,
    cores: tuple[int, int] | None = None,
) -> DesignPoint:
    """The checked design point of a GEMM; see `Choices` and `design`."""
    b_dtype = a_dtype if b_dtype is None else b_dtype
    _check_types(generation, a_dtype, b_dtype, c_dtype)
    blocks = b_dtype == BFP16
    b_layout = ("col" if blocks else "row") if b_layout is None else b_layout
    bf16 = ("bfp16" if blocks else "native") if bf16 is None else bf16
    kernel = ("pipelined" if blocks else "published") if kernel is None else kernel
    c_buffers, c_l2_buffers, a_parts, l2_buffers, b_l2_tiles = (
        _whole(label, value)
        for label, value in (
            ("c_buffers", c_buffers), ("c_l2_buffers", c_l2_buffers), ("a_parts", a_parts),
            ("l2_buffers", l2_buffers), ("b_l2_tiles", b_l2_tiles),
        )
    )  # fmt: skip
    for label, value, allowed in (
        ("b_layout", b_layout, B_LAYOUTS[1:] if blocks else B_LAYOUTS),
        ("c_buffers", c_buffers, (0, 1, 2)),
        ("c_l2_buffers", c_l2_buffers, (1, 2)),
        ("accumulate", accumulate, BLOCK_ACCUMULATE if c_dtype == BFP16 else ACCUMULATE),
        ("bf16", bf16, _modes(generation, a_dtype, blocks)),
        ("kernel", kernel, KERNELS[1:] if blocks else KERNELS),
        ("a_parts", a_parts, tuple(range(1, MAX_A_PARTS + 1))),
        ("b_pairs", b_pairs, (False, True)),
        ("l2_buffers", l2_buffers, (2, 3)),
        ("b_l2_tiles", b_l2_tiles, tuple(range(1, MAX_B_L2_TILES + 1))),
    ):
        if value not in allowed:
            raise DesignError(f"[gemm] {label} is {value!r}; use one of {allowed}")
    if tile is not None and (not isinstance(tile, (tuple, list)) or len(tile) != 3):
        raise DesignError(f"[gemm] tile is {tile!r}; it must be (m, k, n)")
    m, k, n = (
        _whole(f"tile {label}", size)
        for label, size in zip("mkn", tile or default_tile(a_dtype, kernel), strict=True)
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
    r, s, t = mmul(generation, a_dtype)
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
    if b_l2_tiles > 1 and (b_layout != "row" or depth % (b_l2_tiles * k)):
        raise DesignError(
            f"[gemm] b_l2_tiles = {b_l2_tiles} with B {b_layout}-major and k_mt = {depth}: it is "
            f"for a row-major B and k_mt a multiple of {b_l2_tiles} tiles of k = {k}"
        )
    rows, columns = _cores(generation, cores)
    if (square or b_pairs) and (rows, columns) != _cores(generation, None):
        raise DesignError(f"[gemm] cores = {cores} with square or b_pairs: those use all of them")
    out = DesignPoint(
        generation, a_dtype, c_dtype, (m, k, n), depth, b_layout, c_buffers, c_l2_buffers,
        accumulate, bf16, kernel, a_parts, bool(b_pairs), l2_buffers, b_l2_tiles, b_dtype,
        bool(square), bool(keeps), rows, columns,
    )  # fmt: skip
    if keeps and not square:
        raise DesignError("[gemm] keeps without square: only that design keeps operands")
    if square and ((generation, a_dtype, out.sum_dtype, b_layout) != SQUARE or not m == k == n):
        raise DesignError(
            f"[gemm] square with {a_dtype}, sums {out.sum_dtype}, B {b_layout}-major and tile "
            f"{m} x {k} x {n} on {generation}: it is for bfloat16, float32 sums, a column-major B "
            "and a tile of three equal sizes on npu1"
        )
    if c_buffers == 0 and out.sum_dtype == c_dtype:
        raise DesignError(
            f"[gemm] c_buffers = 0 for {accumulate} sums of {a_dtype} -> {c_dtype}: only sums "
            "wider than C are narrowed where they lie; use 1 or 2"
        )
    gemm_limits.check_core(out, "gemm")
    gemm_limits.check_shim(out, "gemm")
    return out


def _cores(generation: str, cores: object) -> tuple[int, int]:
    """(rows, columns) that compute."""
    most = ROWS, device_columns(generation)
    if cores is None:
        return most
    if not isinstance(cores, (tuple, list)) or len(cores) != 2:
        raise DesignError(f"[gemm] cores is {cores!r}; it must be (rows, columns)")
    rows, columns = (_whole("cores", count) for count in cores)
    if not (1 <= rows <= most[0] and 1 <= columns <= most[1]):
        raise DesignError(f"[gemm] cores = {cores!r}: {generation} has {most[0]} x {most[1]}")
    return rows, columns


def default_tile(a_dtype: str, kernel: str = "published") -> Tile3:
    """The tile of a design that names none."""
    return PIPELINED_TILE if kernel == "pipelined" else DEFAULT_TILE.get(a_dtype, PIPELINED_TILE)


def kernel_exists(generation: str, a_dtype: str, kernel: str, bf16: str = "native") -> bool:
    """Whether a kind of kernel is there for operands of a type."""
    return kernel == "published" or (
        kernel == "pipelined"
        and generation == "npu2"
        and (a_dtype in ("int8", BFP16) or (a_dtype == "bfloat16" and bf16 == "bfp16"))
    )


def _modes(generation: str, a_dtype: str, blocks: bool) -> tuple[str, ...]:
    """What `bf16` may be."""
    if blocks:
        return BF16[1:]
    return BF16 if (generation, a_dtype) == ("npu2", "bfloat16") else BF16[:1]


def _check_types(generation: str, a_dtype: str, b_dtype: str, c_dtype: str) -> None:
    """Raises DesignError for element types that no design has."""
    named = all(isinstance(name, str) for name in (generation, a_dtype, b_dtype, c_dtype))
    known = named and generation in ("npu1", "npu2")
    if known and b_dtype == a_dtype and (a_dtype, c_dtype) in PAIRS:
        return
    if named and b_dtype == BFP16 and generation == "npu2" and (a_dtype, c_dtype) in BLOCK_PAIRS:
        return
    pairs = ", ".join(f"{a} -> {c}" for a, c in PAIRS)
    blocks = ", ".join(f"{a} -> {c}" for a, c in BLOCK_PAIRS)
    types = a_dtype if b_dtype == a_dtype else f"{a_dtype} x {b_dtype}"
    raise DesignError(
        f"[gemm] {types} -> {c_dtype} on {generation}: no such design; there are {pairs} on "
        f"npu1 and npu2, and on npu2 with B in bfp16 {blocks}"
    )


def _whole(label: str, value: object) -> int:
    """A size as Python's int, which does not wrap around."""
    try:
        if not isinstance(value, bool) and getattr(value, "ndim", 0) == 0:
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise DesignError(f"[gemm] {label} is {value!r}; it must be a whole number")
