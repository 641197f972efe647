"""Read-only memory maps of model files, with one clear error for what cannot be mapped."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from typing import Any

import numpy as np

from npu.errors import FormatError

HUGE_PAGE = 2 << 20  # bytes


def map_file(path: str, reader: str, wanted: str) -> mmap.mmap:
    """Maps a regular, non-empty file. ``reader`` and ``wanted`` (".gguf file") word the errors."""
    label = os.path.basename(path) or path
    try:
        # Before opening: the open of a named pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FormatError(
                f"[{reader}] {path} is not a regular file; give the path of a {wanted}"
            )
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise FormatError(f"[{reader}] {label}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FormatError(f"[{reader}] cannot open {path}: {reason}") from None


def in_huge_pages(mapped: mmap.mmap) -> None:
    """Asks for pages of 2 MiB where the system has them: weights that are read from end to end with
    every token, or rows of a cache that lie far from each other, need fewer entries of the CPU's
    translation tables then."""
    with contextlib.suppress(OSError, AttributeError):  # a kernel, or a system, without them
        mapped.madvise(mmap.MADV_HUGEPAGE)


def owner(array: np.ndarray) -> Any:
    """The object whose memory an array views: a memoryview, of a mapped file for example, or an
    array that has its own."""
    base: Any = array
    while (below := getattr(base, "base", None)) is not None:
        base = below
    return base


def release_array(array: np.ndarray) -> None:
    """``release`` of a contiguous array over a mapped file."""
    mapped = owner(array).obj
    assert isinstance(mapped, mmap.mmap)
    begin = np.frombuffer(mapped, np.uint8).ctypes.data
    release(mapped, array.ctypes.data - begin, array.nbytes)


def release(mapped: mmap.mmap, offset: int, size: int) -> None:
    """Drops the whole pages of a range from this process; they are read again when needed."""
    begin = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)
