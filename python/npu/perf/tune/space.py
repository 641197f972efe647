"""The design points that are searched: every tile, k_mt and number of C buffers that is legal.

Limits (npu.designs.gemm_limits) are evaluated on NumPy arrays, one element per design point.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from npu.designs import gemm
from npu.designs import gemm_limits as limits
from npu.designs.gemm import DesignPoint
from npu.designs.hardware import tile_limits
from npu.errors import ArgumentError, DeviceError, DtypeError

_CHUNK = 1 << 18  # design points at a time: a few 10 MB
C_BUFFERS = (0, 1, 2)  # 0: wide sums, narrowed where they lie
# What `designs` may name: kernels, parts of A and whether B is read in pairs of columns. The
# paper's design, kernels that hide C, all.
_PIPELINED = tuple(
    ("pipelined", parts, pairs)
    for pairs in (False, True)
    for parts in range(1, gemm.MAX_A_PARTS + 1)
)
DESIGNS: dict[str, tuple[tuple[str, int, bool], ...]] = {
    "published": (("published", 1, False),),
    "pipelined": _PIPELINED,
    "all": (("published", 1, False), ("published", 1, True), *_PIPELINED),
}


def variant_name(point: DesignPoint) -> str:
    """Kernel, parts of A, pairs of columns of B: "published", "pipelined/2", "pipelined+pairs"."""
    parts = f"/{point.a_parts}" if point.a_parts > 1 else ""
    return point.kernel + parts + ("+pairs" if point.b_pairs else "")


@dataclasses.dataclass(frozen=True)
class Points:
    """Many design points that only differ in these sizes, one element each."""

    variant: DesignPoint
    m: np.ndarray
    k: np.ndarray
    n: np.ndarray
    k_mt: np.ndarray
    c_buffers: np.ndarray

    @classmethod
    def of(cls, point: DesignPoint) -> Points:
        return cls(point, *(np.array([v]) for v in (*point.tile, point.k_mt, point.c_buffers)))

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, where: Any) -> Points:
        sizes = (self.m, self.k, self.n, self.k_mt, self.c_buffers)
        return Points(self.variant, *(size[where] for size in sizes))

    def point(self, index: int) -> DesignPoint:
        tile = int(self.m[index]), int(self.k[index]), int(self.n[index])
        return dataclasses.replace(
            self.variant,
            tile=tile,
            k_mt=int(self.k_mt[index]),
            c_buffers=int(self.c_buffers[index]),
        )

    def with_depth(self, k_mt: np.ndarray) -> Points:
        return dataclasses.replace(self, k_mt=k_mt)

    @property
    def arrays(self) -> DesignPoint:
        """All of them as one design point with arrays, for formulas."""
        return with_sizes(self.variant, self.m, self.k, self.n, self.k_mt, self.c_buffers)


def with_sizes(
    variant: DesignPoint, m: Any, k: Any, n: Any, k_mt: Any, c_buffers: Any
) -> DesignPoint:
    """A design point with other sizes: numbers, or arrays of many points."""
    return dataclasses.replace(variant, tile=(m, k, n), k_mt=k_mt, c_buffers=c_buffers)


@dataclasses.dataclass(frozen=True)
class Space:
    """What is searched: one device and element types, any tile, k_mt and number of C buffers."""

    generation: str
    dtype_in: str
    dtype_out: str
    b_layout: str = "col"
    bf16: str = "bfp16"
    accumulate: str = "narrow"
    designs: str = "all"  # a key of DESIGNS
    dtype_b: str | None = None  # None: dtype_in; "bfp16": B in blocks

    def __post_init__(self) -> None:
        if self.generation not in ("npu1", "npu2"):
            raise DeviceError(f'[tune] device is {self.generation!r}; use "npu1" or "npu2"')
        object.__setattr__(self, "dtype_b", self.dtype_b or self.dtype_in)
        self._check_types()
        if self.blocks:
            object.__setattr__(self, "b_layout", "col")
        for name, value, allowed in (
            ("b_layout", self.b_layout, gemm.B_LAYOUTS),
            ("bf16", self.bf16, gemm.BF16),
            ("accumulate", self.accumulate, gemm.BLOCK_ACCUMULATE),
            ("designs", self.designs, tuple(DESIGNS)),
        ):
            if value not in allowed:
                raise ArgumentError(f"[tune] {name} is {value!r}; use one of {allowed}")
        if not self.blocks and (self.dtype_in != "bfloat16" or self.generation == "npu1"):
            object.__setattr__(self, "bf16", "native")
        if not self.variants:
            raise ArgumentError(
                f'[tune] designs="{self.designs}" has nothing for {self.dtype_in} on '
                f'{self.generation}; use "published"'
            )

    @property
    def blocks(self) -> bool:
        """Whether B is in blocks of BFP16."""
        return self.dtype_b == gemm.BFP16

    def _check_types(self) -> None:
        pairs = gemm.BLOCK_PAIRS if self.blocks and self.generation == "npu2" else gemm.PAIRS
        if (self.blocks or self.dtype_b == self.dtype_in) and (
            (self.dtype_in, self.dtype_out) in pairs
        ):
            return
        types = (
            self.dtype_in if self.dtype_b == self.dtype_in else f"{self.dtype_in} x {self.dtype_b}"
        )
        raise DtypeError(
            f"[tune] {types} -> {self.dtype_out} is not supported; there are "
            f"{', '.join(f'{a} -> {c}' for a, c in pairs)}"
            + (" with a B in bfp16" if pairs is gemm.BLOCK_PAIRS else "")
        )

    @property
    def variants(self) -> list[DesignPoint]:
        """The variants of ``designs`` that exist for this device and element type."""
        return [
            self.variant(kernel, parts, pairs)
            for kernel, parts, pairs in DESIGNS[self.designs]
            if gemm.kernel_exists(self.generation, self.dtype_in, kernel, self.bf16)
            and not (self.blocks and kernel == "published")
            and (not pairs or (self.generation == "npu2" and self.b_layout == "row"))
        ]

    def variant(
        self, kernel: str = "published", a_parts: int = 1, b_pairs: bool = False
    ) -> DesignPoint:
        """A kernel, A in some parts, B in pairs; its tile is the smallest unit of tiles."""
        point = DesignPoint(
            self.generation, self.dtype_in, self.dtype_out, (1, 1, 1), 1, self.b_layout,
            c_buffers=1, c_l2_buffers=1, accumulate=self.accumulate, bf16=self.bf16, kernel=kernel,
            a_parts=a_parts, b_pairs=b_pairs, b_dtype=self.dtype_b or "",
        )  # fmt: skip
        return dataclasses.replace(point, tile=point.granularity, k_mt=point.granularity[1])

    def tiles(self, variant: DesignPoint, c_buffers: tuple[int, ...] = C_BUFFERS) -> Points:
        """Every (m, k, n) and number of C buffers that is legal with k_mt = k."""
        found: list[Points] = []
        units = variant.granularity
        for buffers in c_buffers:
            if buffers == 0 and variant.sum_dtype == variant.c_dtype:
                continue
            # A dimension is largest where the other two are smallest.
            ranges: list[np.ndarray] = []
            for axis, unit in enumerate(units):
                values = np.arange(unit, limits.core_memory() // unit, unit)
                smallest: list[Any] = list(units)
                smallest[axis] = values
                m, k, n = smallest
                fitting = limits.fits_core(with_sizes(variant, m, k, n, k, buffers))
                ranges.append(values[fitting])
            m, k, n = np.meshgrid(*ranges, indexing="ij", sparse=True)
            i, j, h = np.nonzero(limits.fits(with_sizes(variant, m, k, n, k, buffers)))
            k = ranges[1][j]
            count = np.full(len(i), buffers)
            found.append(Points(variant, ranges[0][i], k, ranges[2][h], k, count))
        if not found:
            raise ArgumentError(
                f"[tune] 0 C buffers with sums in {variant.sum_dtype}: only wide sums of a "
                "narrower C are narrowed where they lie; use 1 or 2"
            )
        sizes = (np.concatenate([getattr(t, f) for t in found]) for f in _SIZES)
        return Points(variant, *sizes)

    def depths(self, tiles: Points) -> Iterator[tuple[np.ndarray, Points]]:
        """Every legal k_mt of each tile, in pieces that fit memory: the index of the tile, in
        ascending order, and the points."""
        most = 4 * tile_limits("shim").max_wrap // tiles.variant.shim_runs[0][2]
        longest = most // tiles.k
        ends = np.cumsum(longest)
        start = 0
        while start < len(tiles):
            done = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK)))
            tile = np.repeat(np.arange(start, stop), longest[start:stop])
            first = np.concatenate([[0], np.cumsum(longest[start:stop])[:-1]])
            multiple = np.arange(len(tile)) - np.repeat(first, longest[start:stop]) + 1
            points = tiles[tile].with_depth(tiles.k[tile] * multiple)
            keep = limits.fits_memtiles(points.arrays) & limits.fits_shim(points.arrays)
            yield tile[keep], points[keep]
            start = stop


_SIZES = [field.name for field in dataclasses.fields(Points)][1:]


def what_stops(point: DesignPoint) -> tuple[str, str]:
    """What stops a larger tile (any of m, k, n one unit up) and a larger k_mt."""
    stops = []
    for axis, unit in enumerate(point.granularity):
        grown = list(point.tile)
        grown[axis] += unit
        m, k, n = grown
        larger = with_sizes(point, m, k, n, -(-point.k_mt // k) * k, point.c_buffers)
        if not limits.fits_kernel(larger):
            stops.append("kernel")
        elif not limits.fits_core(larger):
            stops.append("L1")
        elif not limits.fits_memtiles(larger):
            stops.append("L2")
        else:
            stops.append("-")
    deeper = dataclasses.replace(point, k_mt=point.k_mt + point.tile[1])
    if not limits.fits_shim(deeper):
        depth = "shim"
    else:
        depth = "-" if limits.fits_memtiles(deeper) else "L2"
    return "/".join(stops) if len(set(stops)) > 1 else stops[0], depth
