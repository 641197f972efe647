"""How many threads of this machine the package uses: the emulator's, attention's and packing's."""

from __future__ import annotations

from npu._npu import host
from npu.errors import ArgumentError


def threads() -> int:
    """The number of threads: as set, else ``NPU_THREADS``, else the usable CPUs."""
    return int(host.threads())


def set_threads(count: int | None) -> None:
    """Uses ``count`` threads, 1 to 256, from the next operation on; None: as the environment says.

    Results do not depend on it. Raises ArgumentError.
    """
    if count is None:
        host.set_threads(0)
        return
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 256:
        raise ArgumentError(f"[set_threads] count is {count!r}; use a whole number from 1 to 256")
    host.set_threads(count)
