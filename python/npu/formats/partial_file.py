"""Temporary files beside a target, which take its name when they are complete.

A partial file is named ``.NAME.xxxxxxxx.npu.partial`` and locked (flock) as long as its writer
lives. One that nobody holds is what a killed writer left: the next writer in that folder removes
it, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import secrets
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING

from npu.formats.mapped_file import HUGE_PAGE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAME = re.compile(rb"\..*\.[0-9a-f]{8}\.npu\.partial", re.DOTALL)
_MAX_NAME = 255  # bytes of a file's name, on every usual file system
_ADDED = len("..01234567.npu.partial")


def create(path: str) -> IO[bytes]:
    """A new, locked, writable file in the folder of ``path``, whose name is in ``.name``.

    Removes what killed writers left there. Raises OSError.
    """
    folder, name = os.path.split(Path(path).absolute())
    remove_leftovers(folder)
    short = os.fsdecode(os.fsencode(name)[: _MAX_NAME - _ADDED])
    while True:
        place = os.path.join(folder, f".{short}.{secrets.token_hex(4)}.npu.partial")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with contextlib.suppress(FileExistsError):
            number = os.open(place, flags, 0o666)  # less the umask
            _lock(number, wait=True)
            # Another writer may have taken it for a leftover before it was locked.
            if os.fstat(number).st_nlink:
                return _File(number, place)
            os.close(number)


class _File(io.BufferedRandom):
    """An open file whose name is its path. What is written goes to the system in whole pieces of
    2 MiB: so it keeps the file in huge pages, where it can, for those who map it."""

    def __init__(self, number: int, place: str) -> None:
        super().__init__(io.FileIO(number, "r+b"), HUGE_PAGE)
        self.place = place

    def write(self, data: ReadableBuffer) -> int:
        left = memoryview(data).cast("B")
        size = left.nbytes
        room = -self.tell() % HUGE_PAGE
        if room and size >= room:
            super().write(left[:room])
            self.flush()
            left = left[room:]
        super().write(left[: left.nbytes // HUGE_PAGE * HUGE_PAGE])
        super().write(left[left.nbytes // HUGE_PAGE * HUGE_PAGE :])
        return size

    @property
    def name(self) -> str:
        return self.place


def publish(file: IO[bytes], target: str) -> None:
    """Gives a complete file the name ``target`` and closes it; what had that name is replaced."""
    file.flush()
    os.replace(file.name, target)
    file.close()


def discard(file: IO[bytes]) -> None:
    """Removes a file that will not be complete."""
    with contextlib.suppress(OSError):
        os.unlink(file.name)  # before the lock goes
    with contextlib.suppress(OSError):
        file.close()


def remove_leftovers(folder: str) -> None:
    """Removes the partial files of a folder that no process holds; keeps what it cannot judge."""
    try:
        names = [name for name in os.listdir(os.fsencode(folder)) if _NAME.fullmatch(name)]
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            _remove_unheld(os.path.join(os.fsencode(folder), name))


def _remove_unheld(path: bytes) -> None:
    # Not through links, and without waiting for the writer of a named pipe.
    number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        held = os.fstat(number)
        if not stat.S_ISREG(held.st_mode) or not _lock(number, wait=False):
            return
        # Complete by now, its name may be another file's.
        if os.path.samestat(held, os.lstat(path)):
            os.unlink(path)
    finally:
        os.close(number)


def _lock(number: int, *, wait: bool) -> bool:
    """Whether the file is now locked by this process; false where locks do not exist, too."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
