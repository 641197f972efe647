"""Runs the self-test: every check, then every measurement. A failure ends that one only: after a
run that failed, the device is configured again."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from npu.devices import Device, open_device
from npu.errors import MissingBuildError, NpuError
from npu.hardware.doctor.live import own_names
from npu.hardware.doctor.privacy import Scrubber
from npu.hardware.selftest import report
from npu.hardware.selftest.checks import Check, checks, compare
from npu.hardware.selftest.measure import Case, cases, measure, simulated_seconds

Progress = Callable[[str], None]


def run(
    device: Device, *, runs: int = 10, times: bool = True, progress: Progress = lambda line: None
) -> dict[str, Any]:
    """The report of a self-test (``report.save`` writes it). ``runs`` of each measurement;
    ``times``: False leaves the measurements out. ``progress`` gets a line per result."""
    start = time.monotonic()
    reference = open_device(f"emu:{device.generation}", "silicon")
    results = []
    for check in checks(device.generation):
        results.append(_checked(check, device, reference))
        progress(line_of(results[-1]))
    measured = []
    for case in cases() if times else ():
        measured.append(_measured(case, device, runs))
        progress(line_of(measured[-1]))
    info = device.handle.info()
    return {
        "format": report.FORMAT,
        "device": {
            "name": device.name, "generation": device.generation, "emulated": device.emulated,
            "arithmetic": device.arithmetic, "columns": device.columns,
            "clock_hz": info.get("clock_hz"),
        },
        "reference": f"{reference.name}, arithmetic {reference.arithmetic}",
        "times": "host time of the emulation" if device.emulated else "measured",
        "passed": all(row["passed"] for row in results),
        "seconds": round(time.monotonic() - start, 1),
        "checks": results,
        "measurements": measured,
    }  # fmt: skip


def _checked(check: Check, device: Device, reference: Device) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": check.name, "operation": check.operation, "sizes": check.sizes,
        "compared": "bits" if check.bound is None else "bound",
    }  # fmt: skip
    try:
        found = check.compute(device=device)
        expected = check.compute(device=reference)
    except NpuError as error:
        missing = isinstance(error, MissingBuildError)
        return row | {"passed": False, "not_built": missing, "error": scrubbed(str(error))}
    row |= dataclasses.asdict(compare(check, found, expected))
    # JSON has no infinity and no NaN.
    return row | {key: _finite(row[key]) for key in ("worst", "found", "expected")}


def _finite(value: float) -> float | str:
    return value if abs(value) < float("inf") else str(value)


def _measured(case: Case, device: Device, runs: int) -> dict[str, Any]:
    row: dict[str, Any] = dataclasses.asdict(case)
    try:
        took = measure(device, case, runs)
    except NpuError as error:
        return row | {"error": scrubbed(str(error))}
    return row | {
        "first_seconds": took.first, "median_seconds": took.median,
        "fastest_seconds": took.fastest, "runs": took.runs,
        "simulated_seconds": simulated_seconds(device.generation, case),
    }  # fmt: skip


def scrubbed(text: str) -> str:
    """A message without the names of user and host and the home folder: reports are attached to
    issues."""
    return Scrubber(os.path.expanduser("~"), own_names())(text)


def line_of(row: dict[str, Any]) -> str:
    """A check or a measurement as a line of a table."""
    if "compared" in row:
        head = f"{'passed' if row['passed'] else 'FAILED':7} {row['name']:32} {row['sizes']:>12}"
        if "error" in row:
            return f"{head}  {row['error']}"
        if row["compared"] == "bits":
            return f"{head}  {row['worst']:g} elements differ"
        worst = row["worst"]
        share = f"{100 * worst:.2g} %" if isinstance(worst, float) else worst
        return f"{head}  {share} of the bound"
    head = f"{row['operation']:10} {row['example']:46}"
    if "error" in row:
        return f"{head} {row['error']}"
    return f"{head} {1e6 * row['median_seconds']:11.1f} {1e6 * row['simulated_seconds']:11.1f}"
