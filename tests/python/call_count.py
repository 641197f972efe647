"""Counts the calls that a piece of Python makes: a cost that does not depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def count_calls(function: Callable[[], Result]) -> tuple[int, Result]:
    """How many Python and C functions ``function`` calls, and what it returns."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return count, result
