"""Entries of the cache are used before they are on disk.

Waiting for a slow disk would take longer than preparing. Until the kernel has written an entry, a
file beside it names the boot that wrote it: after a crash the boot is another one and the entry is
not trusted. A background thread writes it back piece by piece, so that a process can end meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PIECE = 8 << 20  # bytes that the end of the process may wait for
_WRITE_AND_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER
_started: set[Path] = set()


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".unsynced")


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def begin(path: Path) -> None:
    """Before an entry appears. Raises OSError."""
    _started.discard(path)
    _marker(path).write_text(_boot())


def end(path: Path) -> None:
    """The entry is on disk, or gone."""
    with contextlib.suppress(OSError):
        _marker(path).unlink()


def intact(path: Path) -> bool:
    """Whether an entry is what was written: on disk, or written since the system started."""
    try:
        return _marker(path).read_text() == _boot()
    except FileNotFoundError:
        return True


def sync_later(path: Path) -> None:
    """Brings an entry to disk in the background, if it is not there."""
    if path in _started or not _marker(path).exists():
        return
    _started.add(path)
    threading.Thread(target=_sync, args=(path,), daemon=True, name="npu-cache-sync").start()


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(number).st_size
            library = ctypes.CDLL(None)
            for offset in range(0, size, _PIECE):
                library.sync_file_range(
                    number, ctypes.c_int64(offset), ctypes.c_int64(_PIECE), _WRITE_AND_WAIT
                )
            os.fsync(number)
            written = os.fstat(number)
        finally:
            os.close(number)
        if os.path.samestat(written, path.stat()):  # else another process has replaced it
            end(path)
