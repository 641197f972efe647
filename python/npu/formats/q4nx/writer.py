"""Writes safetensors files in one pass, tensor by tensor; only complete files appear.

The header is fixed before the data, so all shapes are declared first. Data goes to a temporary
file beside the target, which takes the target's name when it is complete and on disk.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

import numpy as np

from npu.errors import ArgumentError, FileError
from npu.formats.safetensors_file import DTYPES, MAX_HEADER_BYTES

_PAGE = 4096  # data starts on a page, so that blocks of a mapped file are aligned
_SYNC_BYTES = 64 << 20  # written-back in steps, so that dirty pages stay few


@dataclass(frozen=True)
class Announced:
    """A tensor that will be written: safetensors dtype and stored shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class Writer:
    """Use as a context manager; call ``append`` with the bytes of all tensors in order.

    ``sync``: the file is on disk when it appears; otherwise it is written back later.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensors: Sequence[Announced],
        metadata: Mapping[str, str] | None = None,
        *,
        force: bool = False,
        sync: bool = True,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._force, self._sync = force, sync
        self._check_target()
        header = _header(tensors, metadata or {})
        self.size = len(header) + sum(tensor.size for tensor in tensors)
        self._left = self.size - len(header)
        self._unsynced = 0
        self._check_space()
        self._file: IO[bytes] = self._open()
        try:
            self._file.write(header)
        except OSError as error:
            self._discard()
            raise self._failure(error) from None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._discard()
            return
        assert self._left == 0, f"{self._left} announced bytes were not written"
        try:
            self._file.flush()
            if self._sync:
                os.fsync(self._file.fileno())
            self._file.close()
            self._check_target()
            os.replace(self._file.name, self.path)
        except OSError as error:
            self._discard()
            if isinstance(error, FileError):
                raise
            raise self._failure(error) from None
        except ArgumentError:
            self._discard()
            raise

    def append(self, data: np.ndarray) -> None:
        """The next bytes: any C-contiguous array."""
        raw: Any = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        assert raw.size <= self._left, "more bytes than announced"
        try:
            self._file.write(memoryview(raw))
            self._unsynced += raw.size
            if self._sync and self._unsynced >= _SYNC_BYTES:
                self._file.flush()
                os.fdatasync(self._file.fileno())
                self._unsynced = 0
        except OSError as error:
            raise self._failure(error) from None
        self._left -= raw.size

    def _check_target(self) -> None:
        if os.path.isdir(self.path):
            raise ArgumentError(f"[convert] {self.path} is a folder; name the file to write")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise ArgumentError(f"[convert] {self.path} is not a regular file; name another")
        if os.path.lexists(self.path) and not self._force:
            raise ArgumentError(f"[convert] {self.path} exists; give --force to replace it")

    def _check_space(self) -> None:
        try:
            free = shutil.disk_usage(os.path.dirname(self.path)).free
        except OSError as error:
            raise self._failure(error) from None
        if free < self.size:
            raise FileError(
                f"[convert] {self.path} needs {self.size} bytes, its disk has {free} free"
            )

    def _open(self) -> IO[bytes]:
        folder, name = os.path.split(self.path)
        try:
            number, path = tempfile.mkstemp(".partial", f".{name}.", folder)
            os.close(number)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(path, 0o666 & ~mask)  # mkstemp's files are private
            return open(path, "wb")
        except OSError as error:
            raise self._failure(error) from None

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._file.name)

    def _failure(self, error: OSError) -> FileError:
        if error.errno == errno.ENOSPC:
            return FileError(
                f"[convert] the disk is full: {self.path} needs {self.size} bytes; nothing was kept"
            )
        return FileError(f"[convert] cannot write {self.path}: {error.strerror or error}")


def _header(tensors: Sequence[Announced], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for tensor in tensors:
        assert tensor.name not in header
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size],
        }
        offset += tensor.size
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    raw += b" " * (-(8 + len(raw)) % _PAGE)
    if len(raw) > MAX_HEADER_BYTES:
        raise ArgumentError(
            f"[convert] the model's metadata takes {len(raw)} bytes, a safetensors header may have "
            f"{MAX_HEADER_BYTES}"
        )
    return struct.pack("<Q", len(raw)) + raw
