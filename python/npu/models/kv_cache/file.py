"""KV caches in files: whole or not at all, with a checksum, for one model and arithmetic.

A file is ``MAGIC``, the version and the length of a JSON header (uint32 each), the header, the
tokens (int32), the pages of every layer in the order of their positions, and the BLAKE2b digest of
all that; everything is little-endian. The header fixes the size of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from npu.errors import ArgumentError, FormatError
from npu.formats import atomic_file
from npu.models.kv_cache.layout import PAGE, Layout, first_page, first_read
from npu.models.kv_cache.pool import Pool

MAGIC = b"npu-kv\r\n"
VERSION = 1
_FIXED = struct.Struct("<8sII")
_MAX_HEADER = 1 << 26  # it may have a conversation as long as the longest context
_DIGEST = 32
_MODE = 0o600  # it has a conversation in it
_FUNCTION = "kv_cache"


def save(
    path: str | os.PathLike[str], layout: Layout, identity: str, tokens: np.ndarray,
    tables: np.ndarray, pool: Pool, notes: Mapping[str, Any],
) -> None:  # fmt: skip
    """Writes tokens, the pages that the tables name, and JSON notes. Raises ArgumentError."""
    target = atomic_file.check_writable(os.fspath(path), _FUNCTION)
    header = {
        "identity": identity,
        "tokens": len(tokens),
        "layout": _layout_fields(layout),
        "first_pages": [first_page(table) for table in tables],
        "notes": dict(notes),
    }
    text = json.dumps(header, ensure_ascii=False).encode("utf-8", errors="surrogatepass")
    if len(text) > _MAX_HEADER:
        raise ArgumentError(f"[{_FUNCTION}] {len(text)} bytes of notes are too many for a file")
    digest = hashlib.blake2b(digest_size=_DIGEST)
    with atomic_file.replacing(target, _FUNCTION) as out:
        if stat.S_ISREG(os.fstat(out.fileno()).st_mode):
            os.fchmod(out.fileno(), _MODE)

        def write(part: bytes | memoryview) -> None:
            digest.update(part)
            out.write(part)

        write(_FIXED.pack(MAGIC, VERSION, len(text)) + text)
        write(tokens.astype("<i4").tobytes())
        for table in tables:
            for index in range(first_page(table), len(table)):
                page = pool.page(int(table[index]))
                rows = len(tokens) - index * PAGE
                write((page if rows >= PAGE else _with_rows(layout, page, rows)).data)
        out.write(digest.digest())


def load(
    path: str | os.PathLike[str], layout: Layout, identity: str, context: int, pool: Pool
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Tokens, page tables of pages that were allocated for them, and notes. Raises FormatError for
    what is no complete cache of this model, ArgumentError if it does not fit the context."""
    name = os.fspath(path)
    try:
        # Without waiting for the writer of a named pipe.
        number = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(f"[{_FUNCTION}] cannot read {Path(name)}: {reason}") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise _fail(name, "it is not a file")
    with open(number, "rb") as opened:
        try:
            return _Reader(name, opened, layout, pool).read(identity, context)
        except OSError as error:
            raise _fail(name, f"it cannot be read: {error.strerror or error}") from None


class _Reader:
    """A file while it is read and checked."""

    def __init__(self, name: str, opened: BinaryIO, layout: Layout, pool: Pool) -> None:
        self.name, self.file, self.layout, self.pool = name, opened, layout, pool
        self.digest = hashlib.blake2b(digest_size=_DIGEST)
        self.size = os.fstat(opened.fileno()).st_size

    def read(self, identity: str, context: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        header, begin = self._header()
        if header["identity"] != identity:
            raise _fail(
                self.name, f"it is of another model or arithmetic: {_differing(header, identity)}"
            )
        count, first_pages = self._counts(header)
        if count > context:
            raise ArgumentError(
                f"[{_FUNCTION}] {self.name} has {count} tokens, the context is {context}; raise "
                "the context length"
            )
        last = -(-count // PAGE)
        pages = sum(last - first for first in first_pages)
        size = begin + 4 * count + pages * self.layout.page_bytes + _DIGEST
        if self.size != size:
            raise _fail(self.name, f"it has {self.size} bytes, its header says {size}")
        tokens = np.frombuffer(self._bytes(4 * count), "<i4").astype(np.int32)
        notes = header.get("notes")
        if not isinstance(notes, dict):
            raise _fail(self.name, "it is damaged (its header)")
        return tokens, self._pages(first_pages, last), notes

    def _header(self) -> tuple[dict[str, Any], int]:
        fixed = self.file.read(_FIXED.size)
        if len(fixed) < _FIXED.size or not fixed.startswith(MAGIC):
            raise _fail(self.name, "it is not a file of a KV cache")
        _, version, length = _FIXED.unpack(fixed)
        if version != VERSION:
            raise _fail(self.name, f"it has version {version}, this program reads {VERSION}")
        if length > _MAX_HEADER:
            raise _fail(self.name, "it is damaged (the length of its header)")
        self.digest.update(fixed)
        text = self._bytes(length)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or not isinstance(header.get("identity"), str):
            raise _fail(self.name, "it is damaged (its header)")
        return header, _FIXED.size + length

    def _counts(self, header: dict[str, Any]) -> tuple[int, list[int]]:
        """Tokens, and each layer's first page. Raises FormatError."""
        count: Any = header.get("tokens")
        first = header.get("first_pages")
        windows = self.layout.windows
        good = header.get("layout") == _layout_fields(self.layout)
        good = good and _is_count(count, 1 << 40)
        if not good or not isinstance(first, list) or len(first) != len(windows):
            raise _fail(self.name, "it is damaged (its header)")
        for page, window in zip(first, windows, strict=True):
            needed = 0 if window is None else first_read(count, window)
            if not _is_count(page, needed // PAGE):
                raise _fail(self.name, "it is damaged (its header)")
        return count, first

    def _pages(self, first_pages: list[int], last: int) -> np.ndarray:
        tables = np.full((len(first_pages), last), -1, np.int64)
        pages = self.pool.allocate(sum(last - first for first in first_pages))
        try:
            rest = iter(pages)
            for layer, first in enumerate(first_pages):
                for index in range(first, last):
                    page = next(rest)
                    tables[layer, index] = page
                    content = self.pool.page(page).data
                    if self.file.readinto(content) != len(content):  # type: ignore[attr-defined]
                        raise _fail(self.name, "it became shorter while it was read")
                    self.digest.update(content)
                    del content
            if self.file.read(_DIGEST) != self.digest.digest():
                raise _fail(self.name, "it is damaged (its checksum is wrong)")
        except BaseException:
            self.pool.release(pages)
            raise
        return tables

    def _bytes(self, count: int) -> bytes:
        found = self.file.read(count)
        if len(found) != count:
            raise _fail(self.name, "it is shorter than its header says")
        self.digest.update(found)
        return found


def _layout_fields(layout: Layout) -> dict[str, int]:
    return {
        "page": PAGE,
        "chunk": layout.chunk,
        "kv_heads": layout.kv_heads,
        "head_dim": layout.head_dim,
        "layers": len(layout.windows),
    }


def _with_rows(layout: Layout, page: np.ndarray, rows: int) -> np.ndarray:
    """A page with zeros behind its first rows, whatever a fork has there."""
    whole = np.zeros_like(page)
    layout.copy_rows(page, whole, rows)
    return whole


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _differing(header: dict[str, Any], identity: str) -> str:
    """The parts of the two identities that are not alike."""
    theirs, ours = header["identity"].split("; "), identity.split("; ")
    parts = [
        f"{old[:80]} there, {new} here"
        for old, new in zip(theirs, ours, strict=False)
        if old != new
    ]
    return ", ".join(parts) or "its identity has another form"


def _fail(name: str, problem: str) -> FormatError:
    return FormatError(f"[{_FUNCTION}] {name}: {problem}; it was not loaded")
