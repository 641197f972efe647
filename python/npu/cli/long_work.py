"""Progress of long work on stderr: a bar on a terminal, else a line every few seconds.

A thread asks how far the work is, so that nothing is silent while one step takes long.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

# Seconds until the first sign of life and between two of them. Nothing may be silent for 10 s.
_BAR_DELAY, _BAR_EVERY = 0.5, 0.5
_LINE_EVERY = 5.0

# How much is done and how much there is, in the unit of the work.
Position = Callable[[], tuple[float, float]]


@contextlib.contextmanager
def shown(
    what: str, unit: str, position: Position, *, quiet: bool = False, delay: float | None = None
) -> Iterator[None]:
    """Shows ``position`` while the block runs; nothing if quiet, nor for work that is done sooner
    than after ``delay`` seconds (on a terminal; default: half a second)."""
    if quiet:
        yield
        return
    done = threading.Event()

    def follow() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
            if not sys.stderr.isatty():
                _lines(what, unit, position, done)
            elif not done.wait(_BAR_DELAY if delay is None else delay):
                _bar(what, unit, position, done)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def counted(
    what: str, unit: str, total: int | None = None, done: int = 0, *, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """``shown`` at once for work in steps: gives a function to call with the number of steps just
    done, by any thread. ``total`` None: nobody knows."""
    at = [done]
    lock = threading.Lock()

    def advance(steps: int) -> None:
        with lock:
            at[0] += steps

    with shown(what, unit, lambda: (at[0], total or 0), quiet=quiet, delay=0.0):
        yield advance


def _bar(what: str, unit: str, position: Position, done: threading.Event) -> None:
    from tqdm import tqdm

    with tqdm(desc=what, unit=f" {unit}", leave=False) as bar:
        while True:
            at, total = (int(value) for value in position())
            bar.n, bar.total = at, total or None
            bar.refresh()
            if done.wait(_BAR_EVERY):
                return


def _lines(what: str, unit: str, position: Position, done: threading.Event) -> None:
    begin = time.monotonic()
    while not done.wait(_LINE_EVERY):
        at, total = (int(value) for value in position())
        seconds = time.monotonic() - begin
        of = f" of {total}" if total else ""
        print(f"{what}: {at}{of} {unit}, {seconds:.0f} s", file=sys.stderr, flush=True)
