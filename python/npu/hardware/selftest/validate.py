"""How far simulated times are off those that a self-test measured on an NPU."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path

from npu.errors import ArgumentError, NpuError
from npu.hardware.selftest import report
from npu.hardware.selftest.measure import Case, simulated_seconds
from npu.perf import kernel_profile
from npu.perf.machines import constants_of


@dataclasses.dataclass(frozen=True)
class Row:
    """Seconds of one example; ``error``: of the simulated time, relative to the measured one."""

    operation: str
    example: str
    measured: float
    simulated: float
    error: float


@dataclasses.dataclass(frozen=True)
class Validation:
    """``skipped``: examples that were not measured, or that this version does not have."""

    device: str
    machine: str
    kernels: str
    rows: list[Row]
    skipped: list[str]
    mean_absolute_error: float


def validate(
    path: str | Path, machine: str | None = None, kernels: str | None = None
) -> Validation:
    """A report's times beside what this version simulates for the same requests on ``machine``, a
    profile of ``npu.perf.machines`` (default: that of the generation), kernels as of
    ``npu.simulate_gemm``.

    Raises FormatError for a file that is no report, ArgumentError for one that has no times of an
    NPU.
    """
    found = report.load(path)
    device = found["device"]
    if device["emulated"]:
        raise ArgumentError(
            f"[validate-model] {path} is of an emulated device, whose times are those of this "
            "computer; run `npu selftest` on an NPU"
        )
    constants = constants_of("validate-model", device["generation"], machine, {}, kernels)
    rows, skipped = [], []
    for one in found["measurements"]:
        name = f"{one['operation']} {one['example']}"
        if "error" in one:
            skipped.append(f"{name}: {one['error']}")
            continue
        case = Case(one["operation"], one["example"], one["request"])
        try:
            simulated = simulated_seconds(device["generation"], case, constants)
        except NpuError as error:
            skipped.append(f"{name}: {error}")
            continue
        measured = float(one["median_seconds"])
        rows.append(
            Row(case.operation, case.example, measured, simulated, simulated / measured - 1)
        )
    if not rows:
        raise ArgumentError(
            f"[validate-model] {path} has no measured times; run `npu selftest` without --no-times"
        )
    mean = statistics.fmean(abs(row.error) for row in rows)
    label = kernel_profile.chosen(kernels)
    return Validation(str(device.get("name")), constants.label, label, rows, skipped, mean)
