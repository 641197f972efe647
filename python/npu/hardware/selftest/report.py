"""The report of a self-test: one JSON file, with what was run where, results and times.

Users attach it to an issue; `npu validate-model --report` compares its times with simulated ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu.errors import FormatError
from npu.formats.atomic_file import replacing

FORMAT = "npu-selftest 1"
_LARGEST = 16 << 20  # bytes of a file that is read
_TIMES = ("first_seconds", "median_seconds", "fastest_seconds", "simulated_seconds")


def save(path: str | Path, report: Mapping[str, Any]) -> None:
    """Writes a report whole or not at all. Raises NpuError for a path that cannot be written."""
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    with replacing(Path(path), "selftest") as file:
        file.write(text.encode())


def load(path: str | Path) -> dict[str, Any]:
    """A report with everything that is read from it checked. Raises FormatError."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"[selftest] {path}: {reason}") from error
    if len(data) > _LARGEST:
        raise _not_one(path, f"it has more than {_LARGEST >> 20} MiB")
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise _not_one(path, "it is not JSON") from error
    problem = _problem(found)
    if problem:
        raise _not_one(path, problem)
    return dict(found)


def _not_one(path: str | Path, why: str) -> FormatError:
    return FormatError(
        f"[selftest] {path} is no report of a self-test: {why}; `npu selftest -o FILE` makes one"
    )


def _problem(found: Any) -> str | None:
    """What keeps a document from being a report, in words."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return f'its "format" is not "{FORMAT}"'
    device = found.get("device")
    if not isinstance(device, dict) or not isinstance(device.get("emulated"), bool):
        return 'its "device" is incomplete'
    if device.get("generation") not in ("npu1", "npu2"):
        return 'its "device" has no generation'
    for name in ("checks", "measurements"):
        rows = found.get(name)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return f'its "{name}" is no list of objects'
    for row in found["measurements"]:
        if not _is_measurement(row):
            return 'one of its "measurements" is incomplete'
    return None


def _is_measurement(row: Mapping[str, Any]) -> bool:
    if not isinstance(row.get("operation"), str) or not isinstance(row.get("example"), str):
        return False
    if isinstance(row.get("error"), str):
        return True
    request = row.get("request")
    if not isinstance(request, dict) or not all(_is_int(value) for value in request.values()):
        return False
    return all(_is_time(row.get(name)) for name in _TIMES)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_time(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value < 1e6
