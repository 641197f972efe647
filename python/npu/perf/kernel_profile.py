"""Where the cycles of kernels come from in simulated time (docs/timing.md, profiles).

"published": constants, fitted on published kernels or assumed, and counts of the source.
"scheduled": schedules that `npu kernel` generates (backend/perf/kernel_schedules.inc) for every
kernel that has one, or loops that have. By default kernels that stand for published ones are as
published and this project's own as scheduled. Every result says which it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu.errors import ArgumentError

PROFILES = ("published", "scheduled")  # in the core's numbering, from 1
KEY = "kernels"  # among the constants that the core is given
_LISTED = 4  # kernels that a description names
_SCHEDULED = "scheduled"


def constant_of(function: str, kernels: Any) -> dict[str, float]:
    """What is added to a simulation's constants for ``kernels``; nothing for None, the default.
    Raises ArgumentError."""
    if kernels is None:
        return {}
    if not isinstance(kernels, str) or kernels not in PROFILES:
        known = " or ".join(f'"{name}"' for name in PROFILES)
        raise ArgumentError(
            f"[{function}] kernels is {kernels!r}; use {known}, or leave it out for the default "
            "(docs/timing.md)"
        )
    return {KEY: PROFILES.index(kernels) + 1.0}


def chosen(kernels: str | None) -> str:
    """What many results are stamped with: the profile that was asked for."""
    return kernels or "scheduled, of published designs published"


def described(constants: Mapping[str, float], sources: Mapping[str, str]) -> str:
    """What results are stamped with: "published", "scheduled", "scheduled (zero_i8: counted)".

    sources: kernels that ran -> what their cycles are: "scheduled", "scheduled in part" (some of
    their loops), "published" or "counted".
    """
    other = {name: source for name, source in sources.items() if source != _SCHEDULED}
    none = not any(source.startswith(_SCHEDULED) for source in sources.values())
    if none and constants.get(KEY) != PROFILES.index(_SCHEDULED) + 1:
        return "published"
    groups: dict[str, list[str]] = {}
    for name, source in sorted(other.items()):
        groups.setdefault(source.removeprefix(f"{_SCHEDULED} "), []).append(name)
    texts = [
        f"{', '.join(names) if len(names) <= _LISTED else f'{len(names)} kernels'}: {source}"
        for source, names in groups.items()
    ]
    if not sources:
        texts = ["none of its kernels: counted"]
    return f"scheduled ({'; '.join(texts)})" if texts else "scheduled"
