"""Builds many configurations at a time; what is done is skipped, what fails does not stop the rest.

Everything heavy is a process of its own, so that threads are enough here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from npu.errors import NpuError
from npu.hardware.build.one import Settings, build, prepare
from npu.hardware.build.process import Stopped
from npu.hardware.build.targets import Target

_LOOK = 0.5  # s between looks at what the user wants


@dataclass(frozen=True)
class Outcome:
    """What became of a target. ``state``: "built", "kept" (it was there) or "failed"."""

    target: Target
    state: str
    seconds: float
    artefact: str = ""
    path: Path | None = None
    error: str = ""


def build_all(
    targets: Sequence[Target], settings: Settings, jobs: int,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:  # fmt: skip
    """Builds targets, ``jobs`` at a time, and reports each when it is done. An interrupt ends the
    tools that run and is raised again; what was built stays."""
    outcomes: list[Outcome] = []
    pool = ThreadPoolExecutor(max(1, min(jobs, len(targets))), "npu-build")
    try:
        pending: set[Future[Outcome]] = {pool.submit(_one, t, settings) for t in targets}
        while pending:
            done, pending = wait(pending, _LOOK, FIRST_COMPLETED)
            for each in done:
                outcomes.append(each.result())
                report(outcomes[-1])
    except BaseException:
        settings.limits.stop.set()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return outcomes


def _one(target: Target, settings: Settings) -> Outcome:
    begin = time.monotonic()

    def outcome(
        state: str, artefact: str = "", path: Path | None = None, error: str = ""
    ) -> Outcome:
        return Outcome(target, state, time.monotonic() - begin, artefact, path, error)

    if settings.limits.stop.is_set():
        return outcome("failed", error="interrupted")
    artefact = ""
    try:
        prepared = prepare(target)
        artefact = prepared.artefact
        entry, made = build(prepared, settings)
    except NpuError as error:
        return outcome("failed", artefact, error=str(error))
    except Stopped:
        return outcome("failed", artefact, error="interrupted")
    return outcome("built" if made else "kept", artefact, entry.path)
