"""Writes safetensors files tensor by tensor, with checksums; only complete files appear.

The header is laid out before the data, so all shapes are declared first; the checksums, of fixed
width, are filled in at the end. Data goes to a temporary file beside the target, which takes the
target's name when it is complete and on disk.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from npu.errors import ArgumentError, FileError
from npu.formats import partial_file
from npu.formats.q4nx import checksums
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

    The metadata gets checksums of all tensors and of the header. ``sync``: the file is on disk when
    it appears; otherwise it is written back later. Errors name ``function``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensors: Sequence[Announced],
        metadata: Mapping[str, str] | None = None,
        *,
        force: bool = False,
        sync: bool = True,
        function: str = "convert",
    ) -> None:
        # Not abspath: ".." after a link is what the system makes of it.
        self.path = str(Path(path).absolute())
        self._force, self._sync, self._function = force, sync, function
        self._check_target()
        self._tensors, self._metadata = list(tensors), dict(metadata or {})
        self._sums = [0] * len(self._tensors)
        self._ends = list(itertools.accumulate(tensor.size for tensor in self._tensors))
        self._current = self._done = self._unsynced = 0
        header = self._header()
        self.size = len(header) + sum(self._ends[-1:])
        try:
            self._file: IO[bytes] = partial_file.create(self.path)
        except OSError as error:
            raise self._failure(error) from None
        try:
            self._check_space()
            self._file.write(header)
        except OSError as error:
            partial_file.discard(self._file)
            if isinstance(error, FileError):
                raise
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
            partial_file.discard(self._file)
            return
        left = sum(self._ends[-1:]) - self._done
        assert left == 0, f"{left} announced bytes were not written"
        try:
            self._file.seek(0)
            self._file.write(checksums.seal(self._header()))
            self._file.flush()
            if self._sync:
                os.fsync(self._file.fileno())
            self._check_target()
            partial_file.publish(self._file, self.path)
        except OSError as error:
            partial_file.discard(self._file)
            raise self._failure(error) from None
        except ArgumentError:
            partial_file.discard(self._file)
            raise

    def append(self, data: np.ndarray) -> None:
        """The next bytes: any C-contiguous array."""
        flat: Any = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        raw = memoryview(flat)
        assert self._done + len(raw) <= sum(self._ends[-1:]), "more bytes than announced"
        try:
            self._file.write(raw)
            self._unsynced += len(raw)
            if self._sync and self._unsynced >= _SYNC_BYTES:
                self._file.flush()
                os.fdatasync(self._file.fileno())
                self._unsynced = 0
        except OSError as error:
            raise self._failure(error) from None
        while len(raw):
            if self._done == self._ends[self._current]:
                self._current += 1  # also past tensors without bytes
                continue
            part = raw[: self._ends[self._current] - self._done]
            self._sums[self._current] = checksums.checksum(part, self._sums[self._current])
            self._done += len(part)
            raw = raw[len(part) :]

    def _header(self) -> bytes:
        names = [tensor.name for tensor in self._tensors]
        sums = checksums.entries(dict(zip(names, self._sums, strict=True)))
        return _header(self._tensors, {**self._metadata, **sums}, self._function)

    def _check_target(self) -> None:
        if os.path.isdir(self.path):
            raise self._refusal("is a folder; name the file to write")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise self._refusal("is not a regular file; name another")
        if os.path.lexists(self.path) and not self._force:
            raise self._refusal("exists; give --force to replace it")

    def _refusal(self, why: str) -> ArgumentError:
        return ArgumentError(f"[{self._function}] {self.path} {why}")

    def _check_space(self) -> None:
        disk = os.fstatvfs(self._file.fileno())
        free = disk.f_bavail * disk.f_frsize
        if disk.f_blocks and free < self.size:
            raise FileError(
                f"[{self._function}] {self.path} needs {self.size} bytes, its disk has {free} free"
            )

    def _failure(self, error: OSError) -> FileError:
        folder = os.path.dirname(self.path)
        if error.errno == errno.ENOSPC:
            return FileError(
                f"[{self._function}] the disk is full: {self.path} needs {self.size} bytes; "
                "nothing was kept"
            )
        reason = error.strerror or str(error)
        if os.path.isdir(folder) and error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM):
            return FileError(
                f"[{self._function}] cannot write {self.path}: no file can be created in {folder} "
                f"({reason}); name another folder"
            )
        return FileError(f"[{self._function}] cannot write {self.path}: {reason}")


def _header(tensors: Sequence[Announced], metadata: Mapping[str, str], function: str) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
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
            f"[{function}] the model's metadata takes {len(raw)} bytes, a safetensors header may "
            f"have {MAX_HEADER_BYTES}"
        )
    return struct.pack("<Q", len(raw)) + raw
