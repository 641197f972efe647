"""A sequence's keys and values: which pages they are in, and what a forward pass does with them.

A pass is ``begin(count)``, K and V of every layer (``put``, or a device that writes the pages), and
``commit(tokens)``. Until then nothing is visible: a pass that fails or is interrupted leaves the
cache as it was. Rows of a page that no position uses are zero, or what a fork has there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu._npu import host as native
from npu.errors import ArgumentError
from npu.models.kv_cache import file
from npu.models.kv_cache.layout import PAGE, QUERY_GROUP, Layout, first_page, first_read
from npu.models.kv_cache.pool import Pool

# Positions that sliding layers keep beyond their window, so that a chat can go back by an answer.
SLIDING_HISTORY = 1024


@dataclass(frozen=True)
class State:
    """What a cache holds; replaced as a whole."""

    length: int
    tables: np.ndarray  # int64 (layers, pages): page by position // PAGE, -1 where none is kept

    def used(self) -> list[int]:
        return [int(page) for page in self.tables[self.tables >= 0]]


@dataclass
class _Pass:
    """A pass that has begun. ``new``: pages it allocated; ``replaced``: pages it copied."""

    state: State
    count: int
    new: list[int]
    replaced: list[int]
    layers: int = 0  # whose K and V were put


class Cache:
    """Keys and values of one sequence of tokens, made by ``Model.new_cache``.

    ``context``: positions it may hold. ``identity``: of the model and arithmetic that fill it; a
    file with another one is not loaded. Pages are given back by ``close``, as a context manager,
    or when the cache is no longer referred to.
    """

    def __init__(self, layout: Layout, pool: Pool, context: int, identity: str) -> None:
        assert pool.page_bytes == layout.page_bytes
        self.layout, self.context, self.identity = layout, context, identity
        self._pool = pool
        self._sliding = {window for window in layout.windows if window is not None}
        # One attribute, so that an interrupt finds the old or the new.
        empty = State(0, np.full((len(layout.windows), 0), -1, np.int64))
        self._now: tuple[State, _Pass | None] = empty, None
        self._tokens = np.empty(0, np.int32)

    # --- what it holds ----------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Positions that are committed."""
        return self._state.length

    @property
    def tokens(self) -> np.ndarray:
        """The ids (length,) int32 whose keys and values it holds."""
        return self._tokens[: self.length]

    @property
    def progress(self) -> float:
        """Positions that have been run, those of a pass in progress by the share of its layers."""
        running = self._pass
        if running is None:
            return self.length
        return self.length + running.count * running.layers / len(self.layout.windows)

    @property
    def nbytes(self) -> int:
        """Bytes of its pages, those it shares with forks included."""
        return len(self._state.used()) * self._pool.page_bytes

    @property
    def pool(self) -> np.ndarray:
        """The whole pool, uint8, 4096-byte aligned. ``begin`` may move it (see ``pool_moves``)."""
        return self._pool.buffer

    @property
    def pool_moves(self) -> int:
        """How often the pool has moved: an address of it is good as long as this is the same."""
        return self._pool.moves

    def lies_in(self, pool: Pool) -> bool:
        """Whether its pages are those of a pool: of the model that made the cache."""
        return self._pool is pool

    def pinned(self) -> contextlib.AbstractContextManager[None]:
        """The pool does not move meanwhile: for who writes to it while other threads run."""
        return self._pool.pinned()

    @property
    def page_bytes(self) -> int:
        return self._pool.page_bytes

    def page_table(self, layer: int) -> np.ndarray:
        """Page numbers int64 by position // 256, those of a pass in progress included; -1: dropped.

        Page p is ``pool[p * page_bytes : (p + 1) * page_bytes]``.
        """
        return self._visible.tables[layer]

    def start(self, layer: int) -> int:
        """The first position that a layer still keeps, a multiple of 256."""
        return _start(self._visible.tables[layer])

    @property
    def _state(self) -> State:
        return self._now[0]

    @property
    def _pass(self) -> _Pass | None:
        return self._now[1]

    @property
    def _visible(self) -> State:
        state, running = self._now
        return state if running is None else running.state

    # --- passes -----------------------------------------------------------------------------------

    def check_room(self, count: int) -> None:
        """Raises ArgumentError unless ``count`` more tokens fit the context."""
        if self.length + count > self.context:
            raise ArgumentError(
                f"[gemma3] {count} more tokens after {self.length} do not fit the context of "
                f"{self.context}; shorten the prompt or raise the context length"
            )

    def begin(self, count: int) -> range:
        """Starts a pass: makes the next ``count`` positions writable in all layers.

        A pass that was not committed is given up. Pages are allocated, a shared one that is
        written is copied. Raises ArgumentError where the context ends, FileError for no memory.
        """
        self.abort()
        self.check_room(count)
        old, end = self._state, self.length + count
        first, last = self.length // PAGE, -(-end // PAGE)
        # The last page has room, if it is not full; a shared one is copied.
        tail = old.tables[:, first] if self.length % PAGE else None
        copied = tail is not None and any(self._pool.references(page) > 1 for page in tail.tolist())
        begin = first if copied or tail is None else first + 1
        layers = len(old.tables)
        if begin >= last:
            self._now = old, _Pass(State(end, old.tables), count, [], [])
            return range(self.length, end)
        new = self._pool.allocate(layers * (last - begin))
        self._now = old, _Pass(old, count, new, [])  # from here on ``abort`` gives them back
        tables = np.full((layers, last), -1, np.int64)
        tables[:, :begin] = old.tables[:, :begin]
        tables[:, begin:] = np.array(new).reshape(layers, last - begin)
        replaced: list[int] = []
        if copied:
            assert tail is not None
            replaced = tail.tolist()
            for source, target in zip(replaced, tables[:, first].tolist(), strict=True):
                # The others of the new page stay zero.
                pages = self._pool.page(source), self._pool.page(target)
                self.layout.copy_rows(*pages, self.length % PAGE)
        self._now = old, _Pass(State(end, tables), count, new, replaced)
        return range(self.length, end)

    def put(self, layer: int, position: int, k: np.ndarray, v: np.ndarray) -> None:
        """Stores k, v (T, kv_heads, head_dim) float32 from ``position`` on, rounded to nearest even
        bfloat16. Raises ArgumentError outside of what ``begin`` made writable."""
        running = self._pass
        if running is None:
            raise ArgumentError("[kv_cache] no pass is in progress; call begin first")
        if position < self.length or position + len(k) > running.state.length:
            raise ArgumentError(
                f"[kv_cache] positions {position} to {position + len(k) - 1} were given, the pass "
                f"writes {self.length} to {running.state.length - 1}"
            )
        expected = (len(k), self.layout.kv_heads, self.layout.head_dim)
        if k.shape != expected or v.shape != expected:
            raise ArgumentError(
                f"[kv_cache] k and v have shapes {k.shape} and {v.shape}; give {expected}"
            )
        k, v = (np.ascontiguousarray(x, np.float32) for x in (k, v))
        with self.pinned():
            native.kv_put(
                self._pool.buffer.view(np.uint16), running.state.tables[layer], position, k, v
            )
        running.layers += 1

    def commit(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Ends a pass: its positions hold these tokens. Sliding layers give back pages that no
        query from ``SLIDING_HISTORY`` positions before the end on is read (``first_read``)."""
        state, gone = self._committed(tokens)
        self._now = state, None
        self._pool.release(gone)

    def _committed(self, tokens: Sequence[int] | np.ndarray) -> tuple[State, list[int]]:
        """What the pass ends with, and the pages that it gives back then."""
        running = self._pass
        if running is None or len(tokens) != running.count:
            raise ArgumentError(
                f"[kv_cache] {len(tokens)} tokens are committed, the pass has "
                f"{running.count if running else 'not begun'}; commit what begin announced"
            )
        self._set_tokens(self.length, tokens)
        state, dropped = running.state, list[int]()
        if any(_unneeded(state.length, w) != _unneeded(self.length, w) for w in self._sliding):
            state, dropped = self._without_old(state)
        return state, running.replaced + dropped

    def abort(self) -> None:
        """Gives up a pass that was not committed; nothing if there is none."""
        state, running = self._now
        if running is None:
            return
        self._now = state, None
        self._pool.release(running.new)
        self._clear(state, state.length, state.length + running.count)

    @contextlib.contextmanager
    def running(self, tokens: Sequence[int] | np.ndarray) -> Iterator[None]:
        """A pass over these tokens: begun here, committed when the block ends, else given up."""
        self.begin(len(tokens))
        try:
            yield
            self.commit(tokens)
        except BaseException:
            self.abort()
            raise

    # --- forks, truncation ------------------------------------------------------------------------

    def fork(self) -> Cache:
        """A cache with the same content, which shares its pages until one of the two writes."""
        self.abort()
        other = Cache(self.layout, self._pool, self.context, self.identity)
        tokens, state = self.tokens.copy(), self._state
        self._pool.share(state.used())
        other._tokens, other._now = tokens, (state, None)
        return other

    def __deepcopy__(self, memo: object) -> Cache:
        return self.fork()

    @property
    def shortest(self) -> int:
        """The least length other than 0 that ``truncate`` accepts."""
        least = 0
        for window, table in zip(self.layout.windows, self._state.tables, strict=True):
            if window is not None and (start := _start(table)):
                least = max(least, start + window - 1)
        return -(-least // QUERY_GROUP) * QUERY_GROUP

    def truncate(self, length: int) -> None:
        """Forgets positions from ``length`` on. 0 is always possible; less than ``shortest``, which
        sliding layers have forgotten, raises ArgumentError: truncate to 0 and run the tokens again.
        """
        if not 0 <= length <= self.length:
            raise ArgumentError(
                f"[kv_cache] a length of {length} was asked for, the cache holds {self.length}; "
                "it can only become shorter"
            )
        if 0 < length < self.shortest:
            raise ArgumentError(
                f"[kv_cache] a length of {length} was asked for, sliding layers have forgotten "
                f"what is needed below {self.shortest}; truncate to 0 and run the tokens again"
            )
        self.abort()
        if length == self.length:
            return
        old = self._state
        tables = old.tables[:, : -(-length // PAGE)].copy()
        gone = old.tables[:, tables.shape[1] :]
        self._now = State(length, tables), None
        self._pool.release([int(page) for page in gone[gone >= 0]])
        self._clear(self._state, length, old.length)

    def reuse(self, tokens: Sequence[int] | np.ndarray) -> int:
        """Truncates to what can stay of a prompt and returns that length, less than the prompt's.

        The longest common prefix of ``tokens`` and of what the cache holds stays, but for the last
        token of the prompt, which must be run for its logits; nothing, where sliding layers have
        forgotten what continuing there needs.
        """
        prompt = np.asarray(tokens, np.int64)
        most = min(len(prompt) - 1, self.length)
        differ = np.flatnonzero(prompt[: max(most, 0)] != self.tokens[: max(most, 0)])
        common = int(differ[0]) if differ.size else max(most, 0)
        if common < self.shortest:
            common = 0
        self.truncate(common)
        return common

    # --- files, end -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, Any] | None = None) -> None:
        """Writes the cache to a file, whole or not at all, readable by its owner only. ``notes``:
        what ``load`` shall return, JSON. Raises ArgumentError where no file can be written."""
        self.abort()
        tables = self._state.tables
        file.save(path, self.layout, self.identity, self.tokens, tables, self._pool, notes or {})

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Replaces the content by that of a file; returns its notes.

        Raises FormatError for a file that is damaged or of another model or arithmetic,
        ArgumentError for one that cannot be read or is too long for the context; then nothing has
        changed.
        """
        self.abort()
        tokens, tables, notes = file.load(
            path, self.layout, self.identity, self.context, self._pool
        )
        self.truncate(0)
        self._tokens = tokens
        self._now = State(len(tokens), tables), None
        return notes

    def close(self) -> None:
        """Gives all pages back; the cache is empty afterwards."""
        self.truncate(0)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not hasattr(self, "_now"):
            return
        state, running = self._now
        self._pool.release_later(state.used() + (running.new if running else []))

    # --- inside -----------------------------------------------------------------------------------

    def _set_tokens(self, first: int, tokens: Sequence[int] | np.ndarray) -> None:
        end = first + len(tokens)
        if end > len(self._tokens):
            longer = np.empty(max(PAGE, 2 * len(self._tokens), end), np.int32)
            longer[:first] = self._tokens[:first]
            self._tokens = longer
        self._tokens[first:end] = tokens

    def _without_old(self, state: State) -> tuple[State, list[int]]:
        """The state without pages that are of no use to sliding layers, and those pages."""
        tables, dropped = state.tables, list[int]()
        for layer, window in enumerate(self.layout.windows):
            if window is None:
                continue
            unneeded = _unneeded(state.length, window)
            old = [page for page in tables[layer, :unneeded].tolist() if page >= 0]
            if old:
                tables = tables.copy() if tables is state.tables else tables
                tables[layer, :unneeded] = -1
                dropped += old
        return State(state.length, tables), dropped

    def _clear(self, state: State, first: int, last: int) -> None:
        """Zeroes rows [first, last) as far as they are in the state's last page, if unshared."""
        last = min(last, state.tables.shape[1] * PAGE)
        if first >= last:
            return
        for table in state.tables:
            if self._pool.references(int(table[first // PAGE])) == 1:
                native.kv_clear(
                    self._pool.buffer.view(np.uint16), table, self.layout.kv_heads,
                    self.layout.head_dim, first, last,
                )  # fmt: skip


@contextlib.contextmanager
def running_together(
    caches: Sequence[Cache], tokens: Sequence[Sequence[int] | np.ndarray]
) -> Iterator[None]:
    """Passes of several caches, each over its tokens: begun here, committed when the block ends;
    if anything fails or is interrupted, all are given up."""
    before: list[tuple[State, _Pass | None]] = []
    try:
        for cache, own in zip(caches, tokens, strict=True):
            cache.check_room(len(own))
        for cache, own in zip(caches, tokens, strict=True):
            cache.begin(len(own))
        yield
        ends = [cache._committed(own) for cache, own in zip(caches, tokens, strict=True)]
        before = [cache._now for cache in caches]
        for cache, (state, _) in zip(caches, ends, strict=True):
            cache._now = state, None
    except BaseException:
        for cache, now in zip(caches, before, strict=False):  # nothing has been released
            cache._now = now
        for cache in caches:
            cache.abort()
        raise
    for cache, (_, gone) in zip(caches, ends, strict=True):
        cache._pool.release(gone)


def _unneeded(length: int, window: int) -> int:
    """The first pages of a sliding layer that neither the next query nor going back needs."""
    return first_read(length - SLIDING_HISTORY, window) // PAGE


def _start(table: np.ndarray) -> int:
    """The first position that a table has a page for; behind all of them, if it has none."""
    return PAGE * first_page(table)
