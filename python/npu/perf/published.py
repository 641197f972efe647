"""Published GEMM figures (published.csv) and what the simulations say about each of them.

The closed form answers everything, the emulator all but what is about memory or a kernel alone.
The largest value of a sweep is searched with the closed form; the emulator repeats the size found.
Means over sweeps are taken over fewer sizes by the emulator.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from npu.designs import gemm_limits
from npu.designs.gemm import DesignPoint
from npu.errors import DesignError
from npu.perf.execution import constant
from npu.perf.problem import Size, design_point
from npu.perf.simulate import MODELS, SimulatedGemm, simulate_gemm

FILE = Path(__file__).with_name("published.csv")
_DTYPES = {
    "i8i8": ("int8", "int8"),
    "i8i16": ("int8", "int16"),
    "i8i32": ("int8", "int32"),
    "bf16": ("bfloat16", "bfloat16"),
}
SWEEP_LIMIT = 8192
_SWEEP_STEPS = 8  # sizes per dimension: 8 x 8 x 8 >= 400 points
_EMULATED_STEPS = 4  # means over 64 sizes are within 1 percentage point of those over 512
_BOUNDS = ("zero_share_below", "kmt_gain_below", "single_buffer_loss_below")
_KERNEL_ONLY = ("macs_per_cycle", "l1_kib", "l2_kib", "zero_share_below")


@dataclasses.dataclass(frozen=True)
class Published:
    """One line of published.csv."""

    id: str
    where: str
    device: str
    pair: str
    metric: str
    value: float
    tile: Size
    k_mt: int | None
    b_layout: str
    c_buffers: int
    overlap: bool
    size: Size | None
    note: str

    @property
    def is_bound(self) -> bool:
        """Whether the figure is an upper limit and not a value."""
        return self.metric in _BOUNDS

    @property
    def design(self) -> DesignPoint:
        a, c = _DTYPES[self.pair]
        return design_point(
            self.device, dtype_in=a, dtype_out=c, tile=self.tile, k_mt=self.k_mt or self.tile[1],
            b_layout=self.b_layout, c_buffers=self.c_buffers,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A prediction beside the published value; ``error`` is relative, None for a bound."""

    published: Published
    model: str
    predicted: float
    error: float | None

    @property
    def holds(self) -> bool:
        """Bounds: whether the prediction respects it."""
        return self.predicted < self.published.value


def _size(text: str) -> Size:
    a, b, c = (int(part) for part in text.split("x"))
    return a, b, c


@functools.cache
def figures() -> tuple[Published, ...]:
    """All lines of published.csv."""
    with FILE.open(newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return tuple(
        Published(
            row["id"], row["where"], row["device"], row["pair"], row["metric"],
            float(row["value"]), _size(row["tile"]), int(row["k_mt"]) if row["k_mt"] else None,
            row["b_layout"], int(row["c_buffers"]), row["overlap"] == "1",
            _size(row["size"]) if row["size"] else None, row["note"],
        )
        for row in csv.DictReader(lines)
    )  # fmt: skip


def sweep(design: DesignPoint, max_steps: int = _SWEEP_STEPS) -> Iterator[Size]:
    """Multiples of the native size up to 8K in every dimension, evenly thinned out to
    ``max_steps`` each."""
    per_dimension = []
    for unit in design.native:
        count = SWEEP_LIMIT // unit
        steps = min(count, max_steps)
        per_dimension.append([unit * math.ceil(count * (i + 1) / steps) for i in range(steps)])
    for m, k, n in itertools.product(*per_dimension):  # noqa: UP028 (typed as three numbers)
        yield m, k, n


class Predictor:
    """What a model says about one published figure."""

    def __init__(
        self,
        row: Published,
        model: str,
        constants: Mapping[str, float] | None,
        kernels: str | None = None,
    ) -> None:
        self.row, self.model, self.constants, self.kernels = row, model, constants, kernels

    def run(self, size: Size, *, model: str | None = None, **changes: object) -> SimulatedGemm:
        design = dataclasses.replace(self.row.design, **changes)  # type: ignore[arg-type]
        return simulate_gemm(
            design.generation, *size, design=design, overlap_bds=self.row.overlap,
            model=model or self.model, constants=self.constants, kernels=self.kernels,
        )  # fmt: skip

    @property
    def size(self) -> Size:
        assert self.row.size
        return self.row.size

    def _memory_kib(self) -> float:
        in_l1 = self.row.metric == "l1_kib"
        used = gemm_limits.core_bytes if in_l1 else gemm_limits.memtile_bytes
        return float(used(self.row.design)) / 1024

    def _best(self) -> Size:
        sizes = sweep(self.row.design)
        return max(sizes, key=lambda size: self.run(size, model="closed-form").tops)

    def _gain_of_columns(self) -> float:
        gains = []
        for size in sweep(
            self.row.design, _EMULATED_STEPS if self.model == "emulator" else _SWEEP_STEPS
        ):
            col = self.run(size).tops
            row = self.run(size, b_layout="row").tops
            gains.append(col / row - 1)
        return 100 * sum(gains) / len(gains)

    def predict(self) -> float:
        row = self.row
        match row.metric:
            case "macs_per_cycle":
                size = row.size or row.design.native
                model = self.model if row.size else "closed-form"
                return self.run(size, model=model).macs_per_cycle
            case "l1_kib" | "l2_kib":
                return self._memory_kib()
            case "tops":
                return self.run(self.size).tops
            case "milliseconds":
                return 1e3 * self.run(self.size).seconds
            case "max_tops":
                return self.run(self._best()).tops
            case "col_gain":
                return self._gain_of_columns()
            case "kmt_ratio":
                return self.run(self.size).tops / self.run(self.size, k_mt=row.tile[1]).tops
            case "kmt_gain_below":
                return 100 * (self.run(self.size).tops / self.run(self.size, k_mt=224).tops - 1)
            case "single_buffer_loss_below":
                both = self.run(self.size, c_buffers=2).tops
                return 100 * (1 - self.run(self.size).tops / both)
            case "zero_share_below":
                return 100 * self._zero_share()
        raise AssertionError(row.metric)

    def _zero_share(self) -> float:
        m, k, n = self.row.tile
        native = self.run(self.row.design.native, model="closed-form")
        stores = m * n * self.row.design.c_bytes / constant(f"l1_port_{self.row.device}")
        return stores / (m * k * n / native.macs_per_cycle)


def compare(
    model: str,
    constants: Mapping[str, float] | None = None,
    sweeps: bool = True,
    kernels: str | None = None,
) -> list[Comparison]:
    """Every published figure the model can answer, with its prediction; kernels: as of
    ``simulate_gemm``.

    ``sweeps=False`` leaves out the figures that need hundreds of sizes. Figures whose design does
    not lower (DesignError) are left out of the emulator's answers.
    """
    assert model in MODELS
    found = []
    for row in figures():
        if not sweeps and row.metric in ("col_gain", "max_tops"):
            continue
        if model == "emulator" and row.metric in _KERNEL_ONLY[1:]:
            continue
        try:
            predicted = Predictor(row, model, constants, kernels).predict()
        except DesignError:
            if model == "closed-form":
                raise
            continue
        if row.is_bound:
            error = None
        elif row.metric == "col_gain":  # percent: compare the ratios they stand for
            error = (100 + predicted) / (100 + row.value) - 1
        else:
            error = predicted / row.value - 1
        found.append(Comparison(row, model, predicted, error))
    return found


def mean_errors(comparisons: list[Comparison]) -> dict[str, float]:
    """Mean absolute relative error per metric, and of array TOPS per table."""
    groups: dict[str, list[float]] = {}
    for c in comparisons:
        if c.error is None:
            continue
        groups.setdefault(c.published.metric, []).append(abs(c.error))
        if c.published.metric in ("tops", "macs_per_cycle"):
            key = f"{c.published.metric}, {c.published.where}"
            groups.setdefault(key, []).append(abs(c.error))
    return {name: sum(errors) / len(errors) for name, errors in groups.items()}
