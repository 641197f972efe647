"""Runs the self-test: every check, then every measurement. A failure, whatever is raised, ends that
one only and is in the report: after a run that failed, the device is configured again."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from npu.devices import Device, open_device
from npu.errors import MissingBuildError, NpuError
from npu.hardware.doctor.live import own_names
from npu.hardware.doctor.privacy import Scrubber
from npu.hardware.selftest import report
from npu.hardware.selftest.checks import Check, checks, compare
from npu.hardware.selftest.measure import Case, cases, measure, simulated_seconds

Progress = Callable[[str], None]
_WARM_UP = 4.0  # seconds; the clock takes up to 3.5 to rise (xdna-driver, aie2_pm.c)


def run(
    device: Device, *, runs: int = 10, times: bool = True, progress: Progress = lambda line: None
) -> dict[str, Any]:
    """The report of a self-test (``report.save`` writes it). ``runs`` of each measurement;
    ``times``: False leaves the measurements out. ``progress`` gets a line per result."""
    start = time.monotonic()
    reference = open_device(f"emu:{device.generation}", "silicon", designs=device.prefers)
    results = []
    for check in _made(checks(device.generation)):
        results.append(_checked(check, device, reference))
        progress(line_of(results[-1]))
    measured = []
    warm_up = 0.0 if device.emulated else _WARM_UP
    for case in cases() if times else ():
        measured.append(_measured(case, device, runs, warm_up))
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
        "warm_up_seconds": warm_up,
        "passed": all(row["passed"] for row in results),
        "seconds": round(time.monotonic() - start, 1),
        "checks": [_private(row) for row in results],
        "measurements": [_private(row) for row in measured],
    }  # fmt: skip


def _made(found: Iterator[Check]) -> Iterator[Check]:
    """All checks; where one cannot be made, a check that fails so, the last."""
    try:
        yield from found
    except Exception as error:
        yield Check("further checks", "", "", functools.partial(_raised, error))


def _raised(error: Exception, *, device: Device) -> Any:
    raise error


def _checked(check: Check, device: Device, reference: Device) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": check.name, "operation": check.operation, "sizes": check.sizes,
        "compared": "bits" if check.bound is None else "bound",
    }  # fmt: skip
    try:
        found = check.compute(device=device)
        expected = check.compute(device=reference)
        row |= dataclasses.asdict(compare(check, found, expected))
    except Exception as error:
        missing = isinstance(error, MissingBuildError)
        return row | {"passed": False, "not_built": missing} | _failure(error)
    # JSON has no infinity and no NaN.
    return row | {key: _finite(row[key]) for key in ("worst", "found", "expected")}


def _finite(value: float) -> float | str:
    return value if abs(value) < float("inf") else str(value)


def _failure(error: Exception) -> dict[str, str]:
    """What a row of the report says of an error; one that is no NpuError is a mistake of ours."""
    if isinstance(error, NpuError):
        return {"kind": error.kind, "error": str(error)}
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return {"kind": "untyped", "error": text}


def _measured(case: Case, device: Device, runs: int, warm_up: float) -> dict[str, Any]:
    row: dict[str, Any] = dataclasses.asdict(case)
    try:
        took = measure(device, case, runs, warm_up=warm_up)
        simulated = simulated_seconds(device.generation, case)
    except Exception as error:
        return row | _failure(error)
    return row | {
        "first_seconds": took.first, "median_seconds": took.median,
        "fastest_seconds": took.fastest, "runs": took.runs,
        "simulated_seconds": simulated,
    }  # fmt: skip


def _private(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose message has no names of user and host and no home folder: reports are attached
    to issues."""
    if "error" not in row:
        return row
    return row | {"error": Scrubber(os.path.expanduser("~"), own_names())(row["error"])}


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
    head = f"{row['operation']:10} {row['example']:52}"
    if "error" in row:
        return f"{head} {row['error']}"
    return f"{head} {1e6 * row['median_seconds']:11.1f} {1e6 * row['simulated_seconds']:11.1f}"
