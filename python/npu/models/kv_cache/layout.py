"""The layout of KV pages.

A page holds 256 positions of one layer in bfloat16, as (kv_heads, chunks, {K, V}, positions of a
chunk, head_dim). A chunk is 4096 elements of K and 4096 of V (8 KiB each; 16 positions of 256
elements), what an attention core takes at a time; a head's chunks follow one another, so that one
transfer reads all of a page's. ``backend/host/kv_pages.h`` is the same in C++.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npu._npu import host as native

PAGE: int = native.kv_page_positions  # positions of a page
# Attention may read for a query what the first one of its group of positions sees.
QUERY_GROUP: int = native.kv_query_group


def first_read(query: int, window: int) -> int:
    """The first position that attention may read for a query: where the group begins that has the
    first key which the first query of its group sees."""
    return int(native.kv_first_read(query, window))


@dataclass(frozen=True)
class Layout:
    """What a model's caches look like. ``windows``: of each layer, None where all is seen."""

    windows: tuple[int | None, ...]
    kv_heads: int
    head_dim: int

    @property
    def chunk(self) -> int:
        """Positions of a chunk."""
        return int(native.kv_chunk(self.head_dim))

    @property
    def page_bytes(self) -> int:
        return PAGE * self.kv_heads * 2 * self.head_dim * 2

    def page_view(self, page: np.ndarray) -> np.ndarray:
        """A page's bytes as uint16 (kv_heads, chunks, 2, positions of a chunk, head_dim)."""
        shape = (self.kv_heads, PAGE // self.chunk, 2, self.chunk, self.head_dim)
        return page.view(np.uint16).reshape(shape)

    def copy_rows(self, source: np.ndarray, target: np.ndarray, rows: int) -> None:
        """The first rows of a page; the others of ``target`` stay as they are."""
        old, new = self.page_view(source), self.page_view(target)
        full, rest = divmod(rows, self.chunk)
        new[:, :full] = old[:, :full]
        if rest:
            new[:, full, :, :rest] = old[:, full, :, :rest]


def first_page(table: np.ndarray) -> int:
    """The index of the first page that a table has; behind all of them, if it has none."""
    kept = np.flatnonzero(table >= 0)
    return int(kept[0]) if kept.size else len(table)
