"""How good a design point is: the closed form on arrays of them, the emulator on one."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from npu import _npu
from npu.designs.gemm import DesignPoint
from npu.errors import ArgumentError
from npu.perf import kernel_profile
from npu.perf.execution import constant
from npu.perf.machines import Constants, constants_of, machine_of
from npu.perf.problem import Size
from npu.perf.simulate import simulate_gemm
from npu.perf.tune.space import Points, Space
from npu.perf.tune.workload import Workload, geometric_mean

BOUNDS: list[str] = _npu.tune.bounds()


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The closed form's answers for arrays of designs; `bound` is the largest size's."""

    tops: np.ndarray
    macs_per_cycle: np.ndarray
    bound: np.ndarray  # indices of BOUNDS


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Both simulations of a workload, optionally of another machine than the generation's default,
    or with other constants than docs/timing.md's; kernels: as of ``simulate_gemm``."""

    space: Space
    workload: Workload = dataclasses.field(default_factory=Workload)
    stream_bytes: int | None = None
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)
    machine: str | None = None
    kernels: str | None = None

    def __post_init__(self) -> None:
        if self.stream_bytes not in (None, 4, 8):
            raise ArgumentError(
                f"[tune] stream_bytes is {self.stream_bytes!r}; use 4 or 8 (bytes per cycle)"
            )
        machine_of("tune", self.space.generation, self.machine)
        kernel_profile.constant_of("tune", self.kernels)

    @property
    def _changed(self) -> dict[str, float]:
        changed = dict(self.constants)
        if self.stream_bytes is not None:
            changed[f"stream_{self.space.generation}"] = float(self.stream_bytes)
        return changed

    @functools.cached_property
    def values(self) -> Constants:
        """Constants that differ from the table: the machine's and those that are changed."""
        return constants_of(
            "tune", self.space.generation, self.machine, self._changed, self.kernels
        )

    def constant(self, name: str) -> float:
        """A constant as it is used here."""
        return constant(name, self.values)

    def estimate(self, points: Points) -> Estimate:
        """The closed form for each point."""
        tops, largest = [], -1.0
        for size in self.workload.each(points.arrays.native):
            sizes = (points.m, points.k, points.n, points.k_mt, points.c_buffers, *size)
            table = np.empty((len(points), len(sizes)), np.int64)
            for column, values in enumerate(sizes):
                table[:, column] = values
            out = np.empty((len(points), 3))
            _npu.tune.estimate(points.variant, self.values, table, out)
            work = 2.0 * table[:, 5] * table[:, 6] * table[:, 7]
            tops.append(work / out[:, 0] / 1e12)
            if len(work) and work.max() > largest:
                largest, bound = work.max(), out[:, 2].astype(int)
        macs = 1.0 * points.m * points.k * points.n / out[:, 1]
        return Estimate(geometric_mean(tops), macs, bound if largest >= 0 else out[:, 2])

    def estimate_point(self, point: DesignPoint) -> tuple[float, float, str]:
        """The closed form for one design: TOPS, MACs per cycle, bound."""
        found = self.estimate(Points.of(point))
        return float(found.tops[0]), float(found.macs_per_cycle[0]), BOUNDS[int(found.bound[0])]

    def sizes(self, point: DesignPoint) -> list[Size]:
        return [(int(m), int(k), int(n)) for m, k, n in self.workload.each(point.native)]

    def emulate(self, point: DesignPoint) -> tuple[float, str, dict[str, float]]:
        """The timed emulator for one design: TOPS, bound and shares (of the largest size).

        Raises DesignError when the design cannot be lowered.
        """
        tops, largest = [], 0
        for size in self.sizes(point):
            run = simulate_gemm(
                point.generation, *size, design=point, constants=self._changed,
                machine=self.machine, kernels=self.kernels,
            )  # fmt: skip
            tops.append(run.tops)
            if math.prod(size) > largest:
                largest, answer = math.prod(size), run
        return float(geometric_mean(tops)), answer.bound, answer.shares

    def stream_cycles(self, tiles: Points) -> Any:
        """Cycles to bring the slower of an A and a B tile into a core (equations 2 and 3)."""
        stream = self.constant(f"stream_{self.space.generation}")
        v = tiles.variant
        return np.maximum(tiles.m * v.a_bytes, tiles.n * v.b_bytes) * tiles.k / stream
