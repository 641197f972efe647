"""Progress of long commands on stderr: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_EVERY = 5.0  # seconds between lines

Report = Callable[[int, int, str], None]  # done, total, what is being worked on


@contextlib.contextmanager
def progress(what: str, *, unit: str = "B", quiet: bool = False) -> Iterator[Report]:
    """A callback that shows how much of ``what`` is done. Work that takes less than a few seconds
    prints no line."""
    if quiet:
        yield lambda done, total, name: None
    elif sys.stderr.isatty():
        with _bar(what, unit) as report:
            yield report
    else:
        yield _lines(what)


@contextlib.contextmanager
def _bar(what: str, unit: str) -> Iterator[Report]:
    from tqdm import tqdm

    with tqdm(desc=what, unit=unit, unit_scale=True, leave=False, delay=0.5) as bar:

        def report(done: int, total: int, name: str) -> None:
            bar.total = total
            bar.set_postfix_str(_short(name), refresh=False)
            bar.update(done - bar.n)

        yield report


def _lines(what: str) -> Report:
    printed = time.monotonic()

    def report(done: int, total: int, name: str) -> None:
        nonlocal printed
        if time.monotonic() - printed >= _EVERY:
            printed = time.monotonic()
            share = done / total if total else 1.0
            print(f"{what}: {share:.0%}, {_short(name)}", file=sys.stderr, flush=True)

    return report


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """For printing while a bar may be shown."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        yield
        return
    with tqdm.tqdm.external_write_mode():
        yield


def _short(name: str) -> str:
    plain = name.removesuffix(".weight")
    return plain if plain.isprintable() else repr(plain)
