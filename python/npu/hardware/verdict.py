"""The self-test's verdict on this machine's NPU, kept in a file of the cache.

It holds for one stamp: PCI id, firmware, driver, XRT and version of this package. With another
stamp, or if the file is damaged, there is no verdict. The file is ``selftest.json`` in the folder
of the cache (npu/cache_folder.py).
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from npu import cache_folder
from npu.errors import ArgumentError, FileError
from npu.formats.atomic_file import replacing

FILE = "selftest.json"
_FORMAT = 1
_MAX_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether the self-test passed; ``report``: what it wrote, or where; ``time``: when, in UTC."""

    passed: bool
    report: str
    time: str


def path() -> Path:
    """The file."""
    return cache_folder.root() / FILE


def write(stamp: dict[str, str], passed: bool, report: str) -> Path:
    """Keeps a verdict in place of the last one. Raises FileError."""
    target = path()
    content = {
        "format": _FORMAT, "stamp": stamp, "passed": passed, "report": report,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target, "selftest") as file:
            file.write(json.dumps(content, indent=2).encode())
    except (OSError, ArgumentError) as error:
        raise FileError(
            f"[selftest] {target}: the verdict cannot be kept ({error}); name a folder that can be "
            "written with NPU_CACHE"
        ) from error
    return target


def passed_once() -> bool:
    """Whether the file says that a self-test passed, with whatever versions: without that, nobody
    needs to ask which versions there are."""
    return _content().get("passed") is True


def _content() -> dict[str, Any]:
    """What the file holds; nothing if it is damaged or missing."""
    try:
        with path().open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        content: Any = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and content.get("format") == _FORMAT else {}


def read(stamp: dict[str, str]) -> Verdict | None:
    """The verdict for a stamp; None where there is none."""
    content = _content()
    passed, report, when = (content.get(key) for key in ("passed", "report", "time"))
    if content.get("stamp") != stamp or not isinstance(passed, bool):
        return None
    if not isinstance(report, str) or not isinstance(when, str):
        return None
    return Verdict(passed, report, when)
