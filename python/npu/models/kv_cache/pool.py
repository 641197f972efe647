"""The memory of a model's KV caches: pages of equal size in one buffer, counted by reference.

The buffer is anonymous memory, 4096-byte aligned, in huge pages where the system has them: it costs
what has been touched, 2 MiB at a time there, and a page is zero until it is written. Pages that
nobody refers to are given back to the system, which takes them when a huge page is free. When it is
full, a buffer of twice the size takes its place: pages are known by number, and who keeps an
address compares ``moves``.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from npu.errors import FileError
from npu.formats.mapped_file import in_huge_pages

_SYSTEM_PAGE = mmap.PAGESIZE
# Bytes behind the last page: prompts read keys in objects that may be 512 larger than these
# (PrefillArray::behind_pool()). A page of the system, as buffers are whole ones.
_BEHIND = 4096


class Pool:
    """Pages of ``page_bytes`` each; ``first_pages`` before the buffer moves for the first time.
    ``buffer``: the pages, and behind the last one some bytes that streams may read."""

    def __init__(self, page_bytes: int, first_pages: int) -> None:
        self.page_bytes = page_bytes
        self.moves = 0  # how often the buffer took another place
        self._map, self.buffer = self._mapped(max(1, first_pages))
        self._references = [0] * max(1, first_pages)
        self._free = list(range(len(self._references)))[::-1]
        self._lock = threading.RLock()
        # What finalizers gave back: they may run at any point, also within ``allocate``.
        self._dropped: deque[list[int]] = deque()

    @property
    def pages(self) -> int:
        """Pages that the buffer has room for."""
        return len(self._references)

    @property
    def used(self) -> int:
        """Pages that a cache refers to."""
        with self._lock:
            self._collect()
            return self.pages - len(self._free)

    def references(self, page: int) -> int:
        """How many caches refer to a page."""
        if self._dropped:
            with self._lock:
                self._collect()
        return self._references[page]

    def page(self, number: int) -> np.ndarray:
        """The bytes of a page, until the buffer moves."""
        return self.buffer[number * self.page_bytes : (number + 1) * self.page_bytes]

    def allocate(self, count: int) -> list[int]:
        """Zeroed pages with one reference each; all or none. Raises FileError for no memory."""
        with self._lock:
            self._collect()
            if count > len(self._free):
                self._grow(self.pages + count - len(self._free))
            found = self._free[len(self._free) - count :][::-1]
            del self._free[len(self._free) - count :]
            for page in found:
                self._references[page] = 1
            return found

    def share(self, pages: Iterable[int]) -> None:
        """Another reference to each of these pages, which have one."""
        with self._lock:
            for page in pages:
                assert self._references[page] > 0
                self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One reference less; pages without any are given back, zeroed."""
        with self._lock:
            for page in pages:
                assert self._references[page] > 0
                self._references[page] -= 1
                if not self._references[page]:
                    self._zero(page)
                    self._free.append(page)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """The buffer stays where it is meanwhile: rows that another thread's growth would miss are
        written inside."""
        with self._lock:
            yield

    def release_later(self, pages: list[int]) -> None:
        """``release`` for finalizers: the next call of another method does it."""
        self._dropped.append(pages)

    def _collect(self) -> None:
        while self._dropped:
            self.release(self._dropped.popleft())

    def _zero(self, page: int) -> None:
        begin = page * self.page_bytes
        if begin % _SYSTEM_PAGE or self.page_bytes % _SYSTEM_PAGE:
            self.page(page)[:] = 0
        else:  # private anonymous memory reads as zero after this
            self._map.madvise(mmap.MADV_DONTNEED, begin, self.page_bytes)

    def _grow(self, least: int) -> None:
        old = self.pages
        new = max(2 * old, least)
        memory, buffer = self._mapped(new)
        for page in range(old):
            if self._references[page]:
                part = slice(page * self.page_bytes, (page + 1) * self.page_bytes)
                buffer[part] = self.buffer[part]
        # Views of the old buffer keep its memory until they go.
        self._map, self.buffer = memory, buffer
        self.moves += 1
        self._references += [0] * (new - old)
        self._free[:0] = list(range(old, new))[::-1]

    def _mapped(self, pages: int) -> tuple[mmap.mmap, np.ndarray]:
        try:
            memory = mmap.mmap(
                -1, pages * self.page_bytes + _BEHIND, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, ValueError, OverflowError) as error:
            raise FileError(
                f"[kv_cache] no memory for {pages} pages of {self.page_bytes} bytes ({error}); "
                "use a shorter context"
            ) from None
        in_huge_pages(memory)
        return memory, np.frombuffer(memory, np.uint8)
