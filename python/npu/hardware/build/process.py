"""Runs a tool of the build: its output goes to a log, its time is limited, and it ends with us.

Each tool is the head of a process group of its own, so that what it started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu.errors import BuildError

_POLL = 0.05  # s between looks at a tool and at the request to stop
_GRACE = 3.0  # s that a tool has to end by itself
_SHOWN = 300  # characters of a tool's output in an error
_PROBE_BYTES = 1 << 20  # of what a tool says about itself


class Stopped(Exception):
    """The user has interrupted the build."""


@dataclass(frozen=True)
class Limits:
    """What every tool of a build obeys. ``stop``: set when the build is to end."""

    seconds: float
    stop: threading.Event


def run(
    command: Sequence[str | Path], folder: Path, log: Path, limits: Limits,
    environment: Mapping[str, str] | None = None,
) -> float:  # fmt: skip
    """Runs a tool in ``folder`` and returns the seconds it took. ``log`` gets the command line and
    all output. Raises BuildError if it cannot start, fails or takes too long, and Stopped."""
    name = Path(command[0]).name
    begin = time.monotonic()
    with log.open("wb") as output:
        output.write((" ".join(map(str, command)) + "\n").encode(errors="surrogateescape"))
        output.flush()
        try:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **(environment or {})},
            )  # fmt: skip
        except OSError as error:
            raise BuildError(f"[build] {command[0]} does not start: {error.strerror}") from error
    try:
        code = _wait(process, name, begin, log, limits)
    finally:
        _end(process)
    if code:
        how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        if -code == signal.SIGKILL:
            how += ", as Linux does where memory runs out (-j 1 builds one at a time)"
        raise BuildError(f"[build] {name} {how}: {_last_words(log)}; its output is in {log}")
    return time.monotonic() - begin


def probe(command: Sequence[str | Path], seconds: float = 60.0) -> str | None:
    """What a tool prints, standard error included; None if it does not run."""
    done = attempt(command, seconds)
    return done and done[1]


def attempt(command: Sequence[str | Path], seconds: float = 60.0) -> tuple[int, str] | None:
    """A tool's exit code and what it prints, standard error included; None if it does not run."""
    try:
        done = subprocess.run(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=seconds, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.returncode, done.stdout[:_PROBE_BYTES].decode(errors="replace")


def _wait(
    process: subprocess.Popen[bytes], name: str, begin: float, log: Path, limits: Limits
) -> int:
    while (code := process.poll()) is None:
        if time.monotonic() - begin > limits.seconds:
            raise BuildError(
                f"[build] {name} was stopped after {limits.seconds:g} s; its output is in {log}; "
                "allow more with --timeout"
            )
        if limits.stop.wait(_POLL):
            raise Stopped
    return code


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a tool that still runs, and what it has started."""
    if process.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):  # nobody is left
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            if number == signal.SIGKILL or not _group_lives(process.pid):
                return


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _last_words(log: Path) -> str:
    """The first line of a tool's output that speaks of an error, else its last."""
    with contextlib.suppress(OSError):
        with log.open("rb") as file:
            text = file.read(_PROBE_BYTES).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines()[1:] if line.strip()]
        at = next((i for i, line in enumerate(lines) if "error" in line.lower()), len(lines) - 1)
        spoken = lines[at : at + 1]
        while spoken and spoken[-1].endswith(":") and at + len(spoken) < len(lines):
            spoken.append(lines[at + len(spoken)])  # CMake gives the reason on the next line
        if spoken:
            return " ".join(spoken)[:_SHOWN]
    return "it said nothing"
