"""Published figures of asymmetric tile buffering (published_atb.csv) and what npu.perf.atb and its
simulation say about each of them, on the paper's machine; and how far those are off that the
constants were not fitted on.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from npu import _npu
from npu.perf import atb, fitting
from npu.perf.atb import Precision, Tile
from npu.perf.atb_simulation import COLUMNS, ROWS, all_constants, terms
from npu.perf.machines import machine_of
from npu.perf.problem import Size

FILE = Path(__file__).with_name("published_atb.csv")
PAPER = "Can Asymmetric Tile Buffering Be Beneficial?"
MACHINE = "strix-atb"
CORE = ("microkernel_efficiency", "core_efficiency", "core_tflops")
EXACT = ("intensity", "memory_bound", "l1_kib", "l1_kib_symmetric")  # formulas without constants
_OTHERS = "mlir-aie"  # of `kernel`
_HELD_OUT = "never fitted"  # in `note`
# Starting points of a fit: round numbers that no figure of the paper went into.
START = {
    "atb_overhead": 10.0, "atb_interval": 1.0, "atb_unaligned": 0.2, "atb_switch": 50.0,
    "atb_call": 100.0, "atb_sums": 10.0, "atb_run": 256.0,
}  # fmt: skip
FITTED = ("microkernel_efficiency", "core_tflops", "tflops")
_FIGURE_SPREAD = 0.05  # relative error expected of a figure
_STEPS = 12


@dataclasses.dataclass(frozen=True)
class Published:
    """One line of published_atb.csv."""

    id: str
    where: str
    configuration: int
    metric: str
    value: float
    tile: Tile
    size: Size | None
    kernel: str
    note: str

    @property
    def precision(self) -> Precision:
        return atb.CONFIGURATIONS[self.configuration]

    @property
    def fitted(self) -> bool:
        """Whether constants may be fitted to it."""
        return self.metric in FITTED and _HELD_OUT not in self.note


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A prediction beside the published value; ``error`` is relative."""

    published: Published
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.published.value - 1


@functools.cache
def figures() -> tuple[Published, ...]:
    """All lines of published_atb.csv."""
    with FILE.open(newline="") as file:
        lines = [line for line in file if not line.startswith("#")]
    return tuple(
        Published(
            row["id"], row["where"], int(row["configuration"]), row["metric"], float(row["value"]),
            Tile(*_numbers(row["tile"]), int(row["a_parts"])),
            _numbers(row["size"]) if row["size"] else None, row["kernel"], row["note"],
        )
        for row in csv.DictReader(lines)
    )  # fmt: skip


def _numbers(text: str) -> Size:
    a, b, c = (int(part) for part in text.split("x"))
    return a, b, c


def values_of(constants: Mapping[str, float] | None = None) -> dict[str, float]:
    """All constants, on the paper's machine; ``constants`` come last."""
    return (
        all_constants()
        | machine_of("published_atb", "npu2", MACHINE).values
        | {**(constants or {})}
    )


def predict(row: Published, values: Mapping[str, float]) -> float:
    """What the model says; values: all constants."""
    tile, precision, cores = row.tile, row.precision, ROWS * COLUMNS
    clock = float(_npu.arch.device_geometry("npu2")["clock_hz"])
    theirs = row.kernel == _OTHERS
    match row.metric:
        case "microkernel_efficiency":
            return atb.eff_mk(tile.k, values)
        case "core_efficiency":
            return atb.eff_core(tile, precision, values)
        case "core_tflops" | "compute_bound":
            core = 2 * atb.PEAK_MACS * clock * atb.eff_core(tile, precision, values) / 1e12
            return core * (cores if row.metric == "compute_bound" else 1)
        case "l1_kib" | "l1_kib_symmetric":
            kept = tile if row.metric == "l1_kib" else tile.symmetric
            buffers = 2 if theirs else 1
            return atb.L1_bytes(kept, precision, buffers, convert=not theirs) / 1024
    assert row.size
    match row.metric:
        case "intensity":
            return atb.AI_array(tile, row.size[1], precision)
        case "memory_bound":
            return atb.AI_array(tile, row.size[1], precision) * values["dram_total_npu2"] / 1e3
        case "tflops":
            M, K, N = row.size
            return 2 * M * K * N / terms(row.size, tile, precision, values, clock).seconds / 1e12
    raise AssertionError(row.metric)


def compare(constants: Mapping[str, float] | None = None) -> list[Comparison]:
    """Every published figure with its prediction."""
    values = values_of(constants)
    return [Comparison(row, predict(row, values)) for row in figures()]


def mean_errors(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Mean absolute relative error per metric, of array TFLOPS per table, of all figures of cores
    and of all that no constant went into."""
    groups: dict[str, list[float]] = {}
    for c in comparisons:
        metric, error = c.published.metric, abs(c.error)
        if metric == "tflops":
            groups.setdefault(f"tflops, {c.published.where}", []).append(error)
            if _HELD_OUT in c.published.note:
                continue
        groups.setdefault(metric, []).append(error)
        if metric in CORE:
            groups.setdefault("core figures", []).append(error)
        if metric in EXACT:
            groups.setdefault("figures without fitted constants", []).append(error)
    return {name: sum(errors) / len(errors) for name, errors in groups.items()}


def fit(rows: Sequence[Published]) -> dict[str, float]:
    """The fitted constants from START on."""

    def constants(logs: np.ndarray) -> dict[str, float]:
        return dict(zip(START, np.exp(logs).tolist(), strict=True))

    def errors(logs: np.ndarray) -> np.ndarray:
        values = values_of(constants(logs))
        return np.log([predict(row, values) / row.value for row in rows])

    return constants(fitting.fit(errors, START, _FIGURE_SPREAD, _STEPS))


def cross_validate() -> list[tuple[Published, float]]:
    """Each figure that constants were fitted to, and its relative error when they are fitted to
    all others."""
    rows = [row for row in figures() if row.fitted]
    found = []
    for i, row in enumerate(rows):
        values = values_of(fit(rows[:i] + rows[i + 1 :]))
        found.append((row, predict(row, values) / row.value - 1))
    return found
