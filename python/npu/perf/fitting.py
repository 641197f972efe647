"""Constants of a timing model fitted to published figures, for predictions of figures that were
left out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

_START_SPREAD = 0.7  # of the logarithm of a constant: a factor of two
_DELTA = 1e-4  # of a logarithm, for slopes
_LONGEST_STEP = 0.5


def fit(
    errors: Callable[[np.ndarray], np.ndarray],
    start: Mapping[str, float],
    figure_spread: float,
    steps: int,
) -> np.ndarray:
    """Logarithms of the constants, in the order of ``start``: damped Gauss-Newton steps from there.

    ``errors``: logarithms of prediction over figure, from logarithms of the constants;
    ``figure_spread``: the relative error that is expected of a figure.
    """
    first = np.log(list(start.values()))
    logs = first.copy()
    for _ in range(steps):
        here = errors(logs)
        moved = [errors(logs + _DELTA * unit) for unit in np.eye(len(logs))]
        slopes = (np.array(moved).T - here[:, None]) / _DELTA
        system = np.vstack([slopes / figure_spread, np.eye(len(logs)) / _START_SPREAD])
        rest = np.concatenate([here / figure_spread, (logs - first) / _START_SPREAD])
        step = np.linalg.lstsq(system, -rest, rcond=None)[0]
        logs = logs + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
    return logs
