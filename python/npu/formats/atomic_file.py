"""Files that are replaced whole or not at all: a temporary file beside the target takes its name
when it is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from npu.errors import ArgumentError
from npu.formats import partial_file


def check_writable(path: str | Path, function: str) -> Path:
    """The path, or an error when no file can be written there."""
    problem, target = None, Path()
    try:
        target = Path(path)
        folder = target.resolve().parent
        if target.is_dir():
            problem = "is a folder; name a file in it"
        elif not folder.is_dir():
            problem = f"has no folder to be in ({folder}); create it first"
        elif not os.access(target if target.exists() else folder, os.W_OK):
            problem = "is not writable; name another file"
    except (OSError, TypeError, ValueError) as error:  # too long, not a path, a null byte
        problem = f"is not a usable path ({getattr(error, 'strerror', None) or error})"
    if problem:
        shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:200]}..."
        raise ArgumentError(f"[{function}] {shown} {problem}")
    return target


@contextlib.contextmanager
def replacing(path: Path, function: str) -> Iterator[IO[bytes]]:
    """A file that replaces ``path`` when complete, or not at all; devices are written to.

    ``function`` is what errors name.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as device:
                yield device
            return
        target = path.resolve()  # through a symbolic link: its target is replaced, not the link
        file = partial_file.create(str(target))
        try:
            yield file
            partial_file.publish(file, str(target))
        except BaseException:
            partial_file.discard(file)
            raise
    except OSError as error:
        raise ArgumentError(f"[{function}] {path}: {error.strerror or error}") from error
