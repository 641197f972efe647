"""The tiles a GEMM design can have: granularity of the multiply instruction, L1, L2, shim BDs.

All limits are evaluated on NumPy arrays, one element per design point, and are exact: what passes
here can be lowered, what does not cannot (tests/python/perf/test_tune_space.py compares).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from npu.designs import gemm
from npu.designs.hardware import DTYPE_BYTES, STACK_BYTES, device_columns, tile_limits
from npu.errors import ArgumentError, DeviceError, DtypeError

ROWS = gemm.ROWS
_ALIGNMENT = 64  # of buffers, designs/lowering/memory.py
_CHUNK = 1 << 18  # design points at a time: a few 10 MB
C_BUFFERS = (0, 1, 2)  # 0: wide sums, narrowed where they lie


@dataclasses.dataclass(frozen=True)
class Family:
    """A variant of the GEMM design; see Choices of npu.designs.gemm."""

    name: str
    kernel: str = "published"
    a_parts: int = 1

    @property
    def keywords(self) -> dict[str, Any]:
        """Arguments of npu.designs.gemm beside tile, k_mt, layout and buffers."""
        return {"kernel": self.kernel, "a_parts": self.a_parts}


FAMILIES = {"published": Family("published")} | {
    name: Family(name, "pipelined", parts)
    for parts in range(1, gemm.MAX_A_PARTS + 1)
    for name in [f"pipelined/{parts}" if parts > 1 else "pipelined"]
}
# What `designs` may name: the paper's design, kernels that hide C (A tiles whole or in parts), all.
DESIGNS: dict[str, tuple[str, ...]] = {
    "published": ("published",),
    "pipelined": tuple(f.name for f in FAMILIES.values() if f.kernel == "pipelined"),
    "all": tuple(FAMILIES),
}


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Legal (m, k, n, C buffers) of one family, one per element."""

    m: np.ndarray
    k: np.ndarray
    n: np.ndarray
    c_buffers: np.ndarray

    def __len__(self) -> int:
        return len(self.m)

    def __getitem__(self, where: Any) -> Tiles:
        return Tiles(self.m[where], self.k[where], self.n[where], self.c_buffers[where])


@dataclasses.dataclass(frozen=True)
class Depths:
    """Tiles with every legal k_mt: `tile` is the index of the tile, in ascending order."""

    tile: np.ndarray
    k_mt: np.ndarray


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

    def __post_init__(self) -> None:
        if self.generation not in ("npu1", "npu2"):
            raise DeviceError(f'[tune] device is {self.generation!r}; use "npu1" or "npu2"')
        if (self.dtype_in, self.dtype_out) not in gemm.PAIRS:
            pairs = ", ".join(f"{a} -> {c}" for a, c in gemm.PAIRS)
            raise DtypeError(
                f"[tune] {self.dtype_in} -> {self.dtype_out} is not supported; there are {pairs}"
            )
        for name, value, allowed in (
            ("b_layout", self.b_layout, gemm.B_LAYOUTS),
            ("bf16", self.bf16, gemm.BF16),
            ("accumulate", self.accumulate, gemm.ACCUMULATE),
            ("designs", self.designs, tuple(DESIGNS)),
        ):
            if value not in allowed:
                raise ArgumentError(f"[tune] {name} is {value!r}; use one of {allowed}")
        if self.dtype_in != "bfloat16" or self.generation == "npu1":
            object.__setattr__(self, "bf16", "native")
        if not self.families:
            raise ArgumentError(
                f'[tune] designs="{self.designs}" has nothing for {self.dtype_in} on '
                f'{self.generation}; use "published"'
            )

    @property
    def families(self) -> list[Family]:
        """The variants of ``designs`` that exist for this device and element type."""
        pipelined = self.generation == "npu2" and (self.dtype_in == "int8" or self.bf16 == "bfp16")
        found = [FAMILIES[name] for name in DESIGNS[self.designs]]
        return [f for f in found if pipelined or f.kernel != "pipelined"]

    @property
    def columns(self) -> int:
        return device_columns(self.generation)

    @property
    def l1_size(self) -> int:
        """Bytes of a core's data memory, the stack's 1 KiB included."""
        return tile_limits("core").memory_bytes

    @property
    def l2_size(self) -> int:
        """Bytes of all memtiles in use."""
        return self.columns * tile_limits("mem").memory_bytes

    @property
    def a_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype_in]

    @property
    def c_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype_out]

    @property
    def sum_dtype(self) -> str:
        """Element type of the tile that the kernel accumulates in."""
        wide = "float32" if self.dtype_in == "bfloat16" else "int32"
        return wide if self.accumulate == "wide" else self.dtype_out

    def steps(self, family: Family) -> tuple[int, int, int]:
        """Units of m, k and n: a 2 x 2 cluster of r x s x t products, in every part of A."""
        r, s, t = gemm.MMUL[self.generation, self.dtype_in]
        return 2 * r * family.a_parts, s, 2 * t

    # Memory. Arguments are numbers or arrays.

    def l1_buffers(self, family: Family, m: Any, k: Any, n: Any, c_buffers: int) -> list[Any]:
        """Bytes of each buffer of a core, the stack apart."""
        a, b = m // family.a_parts * k, k * n  # elements
        sums = [m * n * 4] if self.sum_dtype != self.dtype_out else []
        if family.kernel == "pipelined" and self.bf16 == "bfp16":  # one of each, and BFP16 copies
            inputs = [a * 2, b * 2, a * 9 // 8, b * 9 // 8]
        else:
            inputs = 2 * [a * self.a_bytes, b * self.a_bytes]
        return [*inputs, *c_buffers * [m * n * self.c_bytes], *sums]

    def l1_bytes(self, family: Family, m: Any, k: Any, n: Any, c_buffers: int) -> Any:
        return sum(self.l1_buffers(family, m, k, n, c_buffers))

    def fits_l1(self, family: Family, m: Any, k: Any, n: Any, c_buffers: int) -> Any:
        buffers = self.l1_buffers(family, m, k, n, c_buffers)
        needed = sum(_aligned(size) for size in buffers)
        return needed <= self.l1_size - STACK_BYTES

    def l2_buffers(self, family: Family, m: Any, k: Any, n: Any, k_mt: Any) -> tuple[Any, Any, Any]:
        """Bytes of one A, one B and one joined C buffer of a memtile."""
        a = m * k_mt * self.a_bytes
        b = (k_mt if self.b_layout == "col" else k) * n * self.a_bytes
        return a, b, ROWS * m * n * self.c_bytes

    def l2_bytes(self, family: Family, m: Any, k: Any, n: Any, k_mt: Any) -> Any:
        """Of all memtiles."""
        a, b, c = self.l2_buffers(family, m, k, n, k_mt)
        return 2 * ROWS * a + self.columns * (2 * b + c)

    def fits_l2(self, family: Family, m: Any, k: Any, n: Any, k_mt: Any) -> Any:
        """Whether the memtiles hold their buffers.

        npu1: every memtile has A, B and C. npu2: only the even ones have A, and may place whole A
        or B buffers in the odd memtile beside them (largest first, as the lowering does).
        """
        size = tile_limits("mem").memory_bytes
        a, b, c = (_aligned(x) for x in self.l2_buffers(family, m, k, n, k_mt))
        over = 2 * a + 2 * b + c - size
        if self.columns == ROWS:
            return over <= 0
        room = size - 2 * b - c
        for buffer in (np.maximum(a, b), np.minimum(a, b)):
            for _ in range(2):
                moves = (over > 0) & (room >= buffer)
                over, room = over - moves * buffer, room - moves * buffer
        return (over <= 0) & (room >= 0)

    def fits_shim(self, n: Any, k_mt: Any) -> Any:
        """Runs of A, B and C must fit the wrap field of a shim BD."""
        limit = 4 * tile_limits("shim").max_wrap
        b_run = (k_mt if self.b_layout == "col" else n) * self.a_bytes
        longest = np.maximum(k_mt * self.a_bytes, b_run)
        return np.maximum(longest, n * self.c_bytes) <= limit

    def fits_kernel(self, family: Family, k: Any) -> Any:
        """Pipelined kernels are unrolled along k and cover a range of it."""
        least, most = gemm.PIPELINED_K if family.kernel == "pipelined" else (1, self.l1_size)
        return (k >= least) & (k <= most)

    def fits(self, family: Family, m: Any, k: Any, n: Any, k_mt: Any, c_buffers: int) -> Any:
        return (
            self.fits_kernel(family, k)
            & self.fits_l1(family, m, k, n, c_buffers)
            & self.fits_l2(family, m, k, n, k_mt)
            & self.fits_shim(n, k_mt)
        )

    # Enumeration

    def tiles(self, family: Family, c_buffers: tuple[int, ...] = C_BUFFERS) -> Tiles:
        """Every (m, k, n) and number of C buffers that is legal with k_mt = k."""
        found: list[Tiles] = []
        steps = self.steps(family)
        for buffers in c_buffers:
            if buffers == 0 and self.sum_dtype == self.dtype_out:
                continue
            # The largest of one dimension is with the other two smallest.
            ranges: list[np.ndarray] = []
            for axis, step in enumerate(steps):
                values = np.arange(step, self.l1_size // step, step)
                least: list[Any] = list(steps)
                least[axis] = values
                ranges.append(values[self.fits_l1(family, least[0], least[1], least[2], buffers)])
            m, k, n = np.meshgrid(*ranges, indexing="ij", sparse=True)
            i, j, h = np.nonzero(self.fits(family, m, k, n, k, buffers))
            count = np.full(len(i), buffers)
            found.append(Tiles(ranges[0][i], ranges[1][j], ranges[2][h], count))
        if not found:
            raise ArgumentError(
                f"[tune] 0 C buffers with sums in {self.sum_dtype}: only wide sums of a narrower C "
                "are narrowed where they lie; use 1 or 2"
            )
        return Tiles(*(np.concatenate([getattr(t, f) for t in found]) for f in _FIELDS))

    def depths(self, family: Family, tiles: Tiles) -> Iterator[Depths]:
        """Every legal k_mt of each tile, in pieces that fit memory."""
        most = 4 * tile_limits("shim").max_wrap // self.a_bytes // tiles.k
        ends = np.cumsum(most)
        start = 0
        while start < len(tiles):
            done = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK)))
            tile = np.repeat(np.arange(start, stop), most[start:stop])
            first = np.concatenate([[0], np.cumsum(most[start:stop])[:-1]])
            multiple = np.arange(len(tile)) - np.repeat(first, most[start:stop]) + 1
            k_mt = tiles.k[tile] * multiple
            t = tiles[tile]
            keep = self.fits_l2(family, t.m, t.k, t.n, k_mt) & self.fits_shim(t.n, k_mt)
            yield Depths(tile[keep], k_mt[keep])
            start = stop

    def limits(
        self, family: Family, tile: tuple[int, int, int], k_mt: int, c_buffers: int
    ) -> tuple[str, str]:
        """What stops a larger tile (any of m, k, n one step up) and a larger k_mt."""
        stops = []
        for axis, step in enumerate(self.steps(family)):
            grown = list(tile)
            grown[axis] += step
            m, k, n = grown
            if not self.fits_kernel(family, k):
                stops.append("kernel")
            elif not self.fits_l1(family, m, k, n, c_buffers):
                stops.append("L1")
            elif not self.fits_l2(family, m, k, n, -(-k_mt // k) * k):
                stops.append("L2")
            else:
                stops.append("-")
        deeper = k_mt + tile[1]
        if not self.fits_shim(tile[2], deeper):
            depth = "shim"
        else:
            depth = "-" if self.fits_l2(family, *tile, deeper) else "L2"
        return "/".join(stops) if len(set(stops)) > 1 else stops[0], depth


_FIELDS = [field.name for field in dataclasses.fields(Tiles)]


def _aligned(size: Any) -> Any:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
