"""What a probe of `npu doctor` answers: a state, what was found, and how to repair it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class State(str, enum.Enum):
    """Of one layer between a program and the NPU."""

    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"  # not checked, or the check says neither
    NOT_NEEDED = "not needed"


@dataclasses.dataclass(frozen=True)
class Fix:
    """What to do, in one or two sentences, and the commands that do it on this distribution."""

    text: str
    commands: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one probe. ``found``: a few words; ``notes``: advice that blocks nothing; ``values``: what
    was read, for programs (JSON types only)."""

    state: State
    found: str
    fix: Fix | None = None
    notes: tuple[str, ...] = ()
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def ok(found: str, *notes: str, **values: Any) -> Result:
    return Result(State.OK, found, None, notes, values)


def broken(found: str, fix: Fix, **values: Any) -> Result:
    return Result(State.BROKEN, found, fix, (), values)


def unknown(found: str, *notes: str, **values: Any) -> Result:
    return Result(State.UNKNOWN, found, None, notes, values)


def not_needed(found: str, *notes: str, **values: Any) -> Result:
    return Result(State.NOT_NEEDED, found, None, notes, values)
