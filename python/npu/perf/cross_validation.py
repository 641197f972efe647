"""How far figures are off that the timing constants were not fitted on.

The fitted constants are fitted again, from values that no published GEMM figure went into, on a
part of the published throughputs, and the closed form predicts the others: every figure once from
all others (leave one out) and from the other half, for many random halves. `npu validate-model
--cross-validate` prints the errors.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from npu.perf import fitting
from npu.perf.published import Predictor, Published, figures

METRICS = ("tops", "macs_per_cycle")
# Starting points: the paper's bandwidth micro-benchmarks, the documented peak of the BFP16 path on
# half its multipliers, and round numbers for what nobody measured.
START = {
    "dram_read_npu1": 15.0,
    "dram_read_npu2": 50.0,
    "row_visit": 100.0,
    "round": 1.0,
    "dispatch": 100.0,
    "token": 10.0,
    "integer_move_npu1": 0.03,
    "integer_move_npu2": 0.03,
    "mac_bf16_npu2": 256.0,
}
_FIGURE_SPREAD = 0.02  # relative error expected of a fitted figure
_STEPS = 8


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A figure and its relative errors when it was not fitted on: alone, and mean over halves."""

    published: Published
    leave_one_out: float
    half: float


def _errors(rows: list[Published], logs: np.ndarray) -> np.ndarray:
    constants = dict(zip(START, np.exp(logs).tolist(), strict=True))
    found = [Predictor(row, "closed-form", constants).predict() / row.value for row in rows]
    return np.log(found)


def fit(rows: list[Published]) -> np.ndarray:
    """Logarithms of the constants (order of START)."""
    return fitting.fit(lambda logs: _errors(rows, logs), START, _FIGURE_SPREAD, _STEPS)


def cross_validate(halves: int = 20, seed: int = 0) -> list[HeldOut]:
    """The held-out errors of every published throughput."""
    rows = [row for row in figures() if row.metric in METRICS]
    alone = []
    for i, row in enumerate(rows):
        alone.append(float(np.exp(_errors([row], fit(rows[:i] + rows[i + 1 :]))[0]) - 1))
    rng = np.random.default_rng(seed)
    split: list[list[float]] = [[] for _ in rows]
    for _ in range(halves):
        order = rng.permutation(len(rows))
        for part in (order[: len(rows) // 2], order[len(rows) // 2 :]):
            held = np.setdiff1d(order, part)
            errors = _errors([rows[i] for i in held], fit([rows[i] for i in part]))
            for i, error in zip(held, np.expm1(errors), strict=True):
                split[i].append(abs(float(error)))
    return [
        HeldOut(row, one, float(np.mean(half)))
        for row, one, half in zip(rows, alone, split, strict=True)
    ]
