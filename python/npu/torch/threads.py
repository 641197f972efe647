"""torch's threads while a product is emulated: idle threads of OpenMP spin for milliseconds, for
torch's next operation, on cores that the emulated NPU computes on.

They end before a product, and torch starts new ones (0.1 ms). With OMP_WAIT_POLICY=passive, which
OpenMP reads when torch is loaded, they sleep instead and stay.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable

_RUNTIME = re.compile(r"/\S*/lib(?:gomp|iomp5|omp)\b[^/\s]*\.so[^/\s]*$")
_SOFT = 1  # omp_pause_soft: what threads have set is kept


def sleep_if_idle() -> None:
    """Before torch is loaded: its threads sleep when they are idle, unless the user has chosen."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def end_idle() -> None:
    """Ends the idle threads of the calling thread's OpenMP."""
    pause = _pause()
    if pause:
        pause(_SOFT)


@functools.cache
def _pause() -> Callable[[int], int] | None:
    """omp_pause_resource_all (OpenMP 5.0) of the runtime that torch has loaded; None: not needed or
    not there."""
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive":
        return None
    with open("/proc/self/maps") as maps:
        found = {match[0] for line in maps if (match := _RUNTIME.search(line))}
    for path in sorted(found):
        pause: Callable[[int], int] | None = getattr(
            ctypes.CDLL(path), "omp_pause_resource_all", None
        )
        if pause:
            return pause
    return None
