"""Progress of long work on stderr: a bar on a terminal, else a line every few seconds.

A thread asks how far work is (``shown``, ``counted``), so that nothing is silent while one step
takes long; work in short steps tells it (``reported``).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# Seconds until the first sign of life and between two of them. Nothing may be silent for 10 s.
_BAR_DELAY, _BAR_EVERY = 0.5, 0.5
_LINE_EVERY = 5.0
_COLUMNS, _ROWS = 79, 24  # of a terminal that does not know its size

# How much is done and how much there is, in the unit of the work.
Position = Callable[[], tuple[float, float]]
Report = Callable[..., None]  # done, total[, what is being worked on]


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


@contextlib.contextmanager
def reported(what: str, *, unit: str = "B", quiet: bool = False) -> Iterator[Report]:
    """For work that reports itself: gives a function to call with what is done, what there is, and
    what is being worked on. Work that takes less than a few seconds prints no line."""
    if quiet:
        yield lambda done, total, name="": None
    elif sys.stderr.isatty():
        with _reporting_bar(what, unit) as report:
            yield report
    else:
        yield _reporting_lines(what)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """For printing while a bar may be shown."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        yield
        return
    with tqdm.tqdm.external_write_mode():
        yield


def _bar(what: str, unit: str, position: Position, done: threading.Event) -> None:
    from tqdm import tqdm

    with tqdm(desc=what, unit=f" {unit}", leave=False, **_size()) as bar:
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


@contextlib.contextmanager
def _reporting_bar(what: str, unit: str) -> Iterator[Report]:
    from tqdm import tqdm

    scale: dict[str, Any] = {"unit": unit, "unit_scale": True, **_size()}
    with tqdm(desc=what, leave=False, delay=0.5, **scale) as bar:

        def report(done: int, total: int, name: str = "") -> None:
            bar.total = total
            bar.set_postfix_str(_short(name), refresh=False)
            bar.update(done - bar.n)

        yield report


def _reporting_lines(what: str) -> Report:
    printed = time.monotonic()

    def report(done: int, total: int, name: str = "") -> None:
        nonlocal printed
        if time.monotonic() - printed >= _LINE_EVERY:
            printed = time.monotonic()
            share = done / total if total else 1.0
            of = f", {_short(name)}" if name else ""
            with contextlib.suppress(OSError):  # the work does not depend on who reads stderr
                print(f"{what}: {share:.0%}{of}", file=sys.stderr, flush=True)

    return report


def _size() -> dict[str, int]:
    """tqdm's options where the terminal says that it is 0 x 0, and tqdm would show nothing."""
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return {}
    return {} if all(size) else {"ncols": _COLUMNS, "nrows": _ROWS}


def _short(name: str) -> str:
    plain = name.removesuffix(".weight")
    return plain if plain.isprintable() else repr(plain)
