"""Files that are replaced whole or not at all: a temporary file beside the target takes its name
when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from npu.errors import ArgumentError


@contextlib.contextmanager
def replacing(path: Path, function: str) -> Iterator[IO[bytes]]:
    """A file that replaces ``path`` when complete, or not at all; devices are written to.

    ``function`` is what errors name.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        target = path.resolve()  # through a symbolic link: its target is replaced, not the link
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(name, 0o644)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ArgumentError(f"[{function}] {path}: {error.strerror or error}") from error
