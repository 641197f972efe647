"""Both timing models on designs of a space: the closed form on arrays, the emulator on one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from npu import _npu
from npu.errors import ArgumentError
from npu.perf.simulate import simulate_gemm
from npu.perf.tune.space import FAMILIES, ROWS, Family, Space, Tiles
from npu.perf.tune.workload import Size, Workload, geometric_mean

BOUNDS: list[str] = _npu.tune.bounds()


@dataclasses.dataclass(frozen=True)
class Point:
    """One design of a space."""

    family: str
    tile: Size
    k_mt: int
    c_buffers: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The closed form's answers for arrays of designs; `bound` is the largest size's."""

    tops: np.ndarray
    macs_per_cycle: np.ndarray
    bound: np.ndarray  # indices of BOUNDS


@dataclasses.dataclass(frozen=True)
class Model:
    """The models with a workload and, optionally, other constants than docs/timing.md's."""

    space: Space
    workload: Workload = dataclasses.field(default_factory=Workload)
    stream_bytes: int | None = None
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stream_bytes not in (None, 4, 8):
            raise ArgumentError(
                f"[tune] stream_bytes is {self.stream_bytes!r}; use 4 or 8 (bytes per cycle)"
            )

    @property
    def values(self) -> dict[str, float]:
        """Constants that differ from the table."""
        values = dict(self.constants)
        if self.stream_bytes is not None:
            values[f"stream_{self.space.generation}"] = float(self.stream_bytes)
        return values

    def constant(self, name: str) -> float:
        """A constant as this model uses it."""
        table: dict[str, float] = {c["name"]: c["value"] for c in _npu.model.constants()}
        return self.values.get(name, table[name])

    def estimate(self, family: Family, tiles: Tiles, k_mt: np.ndarray) -> Estimate:
        """The closed form for each tile with its k_mt."""
        space = self.space
        unit = ROWS * tiles.m, k_mt, space.columns * tiles.n
        tops, largest = [], -1.0
        for size in self.workload.each(unit):
            points = np.empty((len(tiles), 8), np.int64)
            for column, values in enumerate(
                (tiles.m, tiles.k, tiles.n, k_mt, tiles.c_buffers, *size)
            ):
                points[:, column] = values
            out = np.empty((len(tiles), 3))
            _npu.tune.estimate(
                space.generation, space.dtype_in, space.dtype_out, space.b_layout == "col",
                space.bf16 == "native", family.kernel == "pipelined", family.a_parts,
                space.accumulate == "wide", self.values, points, out,
            )  # fmt: skip
            work = 2.0 * points[:, 5] * points[:, 6] * points[:, 7]
            tops.append(work / out[:, 0] / 1e12)
            if len(work) and work.max() > largest:
                largest, bound = work.max(), out[:, 2].astype(int)
        macs = 1.0 * tiles.m * tiles.k * tiles.n / out[:, 1]
        return Estimate(geometric_mean(tops), macs, bound if largest >= 0 else out[:, 2])

    def estimate_point(self, point: Point) -> tuple[float, float, str]:
        """The closed form for one design: TOPS, MACs per cycle, bound."""
        columns = [np.array([v]) for v in (*point.tile, point.c_buffers)]
        found = self.estimate(FAMILIES[point.family], Tiles(*columns), np.array([point.k_mt]))
        return float(found.tops[0]), float(found.macs_per_cycle[0]), BOUNDS[int(found.bound[0])]

    def sizes(self, point: Point) -> list[Size]:
        m, _, n = point.tile
        sizes = self.workload.each((ROWS * m, point.k_mt, self.space.columns * n))
        return [(int(a), int(b), int(c)) for a, b, c in sizes]

    def emulate(self, point: Point) -> tuple[float, str, dict[str, float]]:
        """The timed emulator for one design: TOPS, bound and shares (of the largest size).

        Raises DesignError when the design cannot be lowered.
        """
        space = self.space
        tops, largest = [], 0
        for size in self.sizes(point):
            run = simulate_gemm(
                space.generation, *size, dtype_in=space.dtype_in, dtype_out=space.dtype_out,
                tile=point.tile, k_mt=point.k_mt, b_layout=space.b_layout,
                c_buffers=point.c_buffers, bf16=space.bf16, accumulate=space.accumulate,
                constants=self.values,
                **FAMILIES[point.family].keywords,
            )  # fmt: skip
            tops.append(run.tops)
            if math.prod(size) > largest:
                largest, answer = math.prod(size), run
        return float(geometric_mean(tops)), answer.bound, answer.shares

    def stream_cycles(self, tiles: Tiles) -> Any:
        """Cycles to bring the slower of an A and a B tile into a core (equations 2 and 3)."""
        stream = self.constant(f"stream_{self.space.generation}")
        return np.maximum(tiles.m, tiles.n) * tiles.k * self.space.a_bytes / stream
