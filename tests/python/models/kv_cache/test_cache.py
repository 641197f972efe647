"""The KV cache against a plain model of it: dictionaries of rows by position.

Random passes (committed, given up), forks, truncations, prefix reuse, files and drops; windows
shorter and longer than a page; one pool for all caches of a test, whose pages must all come back.
"""

from __future__ import annotations

import copy
import math
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from process_mappings import mapping_flags, needs_huge_pages

from npu.errors import ArgumentError, FileError
from npu.models.kv_cache import PAGE, Cache, Layout, Pool
from npu.models.kv_cache import cache as cache_module

HISTORY = 100  # instead of 1024, so that small sequences outgrow it
WINDOWS = (None, 5, 300)
IDENTITY = "a model"
CONTEXT = 2500


@pytest.fixture(autouse=True)
def short_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SLIDING_HISTORY", HISTORY)


def oldest_kept(length: int, window: int) -> int:
    """What the first query of the 64 sees that the one at ``length`` - HISTORY belongs to."""
    query = (length - HISTORY) // 64 * 64
    return max(0, query - window + 1) // PAGE * PAGE


def layout(head_dim: int = 64) -> Layout:
    return Layout(WINDOWS, 2, head_dim)


def pool_of(layout: Layout, pages: int = 4) -> Pool:
    return Pool(layout.page_bytes, pages)


@needs_huge_pages
def test_pools_ask_for_huge_pages() -> None:
    pool = pool_of(layout(), 64)
    assert "hg" in mapping_flags(pool.buffer.ctypes.data)


def new_cache(context: int = CONTEXT) -> Cache:
    return Cache(layout(), pool_of(layout()), context, IDENTITY)


def rows_for(tokens: np.ndarray, first: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """K and V (T, 2, 64) that tell token, position, layer, head and element apart."""
    t = tokens.astype(float)[:, None, None] + 1
    position = np.arange(first, first + len(tokens))[:, None, None]
    head, element = np.arange(2)[:, None], np.arange(64)
    k = np.sin(t * 1.7 + position * 0.31 + layer * 2.3 + head * 5.1 + element * 0.77) + 1.5
    return k.astype(np.float32), (-3 * k**2).astype(np.float32)


def put_all(cache: Cache, tokens: np.ndarray) -> None:
    for layer in range(len(WINDOWS)):
        cache.put(layer, cache.length, *rows_for(tokens, cache.length, layer))


def append(cache: Cache, tokens: np.ndarray) -> None:
    with cache.running(tokens):
        put_all(cache, tokens)


def stored(cache: Cache, layer: int, position: int) -> np.ndarray:
    """K and V (2, kv_heads, head_dim) of a position, addressed as the layout is written down."""
    d, heads = cache.layout.head_dim, cache.layout.kv_heads
    chunk = 4096 // d
    page = int(cache.page_table(layer)[position // 256])
    assert page >= 0
    inside = position % 256
    elements = cache.pool.view(ml_dtypes.bfloat16)
    found = np.empty((2, heads, d), np.float32)
    for which in range(2):
        for head in range(heads):
            chunks = head * (256 // chunk) + inside // chunk
            at = page * cache.page_bytes // 2 + ((chunks * 2 + which) * chunk + inside % chunk) * d
            found[which, head] = elements[at : at + d]
    return found


def check(cache: Cache, tokens: np.ndarray) -> None:
    """The cache holds exactly these tokens' rows, as far back as each layer must."""
    assert cache.length == len(tokens) and np.array_equal(cache.tokens, tokens)
    for layer, window in enumerate(WINDOWS):
        needed = 0 if window is None else max(0, len(tokens) // 64 * 64 - window + 1)
        assert cache.start(layer) <= needed
        assert len(cache.page_table(layer)) == -(-len(tokens) // PAGE)
        for position in sample(cache.start(layer), len(tokens)):
            k, v = rows_for(tokens[position : position + 1], position, layer)
            expected = np.concatenate([k, v]).astype(ml_dtypes.bfloat16).astype(np.float32)
            assert np.array_equal(stored(cache, layer, position), expected), (layer, position)


def sample(first: int, last: int) -> list[int]:
    """Positions at the ends, at borders of chunks and pages, and some between."""
    every = {first, last - 1, last - 2, *range(first, last, 37)}
    for border in range(first // 64 * 64, last + 64, 64):
        every |= {border - 1, border}
    return sorted(position for position in every if first <= position < last)


@settings(max_examples=40, stateful_step_count=25, deadline=None)
class Machine(RuleBasedStateMachine):
    """Caches of one pool beside the tokens they must hold."""

    caches: Bundle[int] = Bundle("caches")

    def __init__(self) -> None:
        super().__init__()
        self.layout = layout()
        self.pool = pool_of(self.layout)
        self.held: dict[int, tuple[Cache, np.ndarray]] = {}
        self.reached: dict[int, int] = {}  # the longest that a cache was, since it was empty
        self.serial = 0
        self.random = np.random.default_rng(0)

    def keep(self, cache: Cache, tokens: np.ndarray, reached: int = 0) -> int:
        self.serial += 1
        self.held[self.serial] = cache, tokens
        self.reached[self.serial] = reached
        return self.serial

    def hold(self, name: int, cache: Cache, tokens: np.ndarray) -> None:
        self.held[name] = cache, tokens
        self.reached[name] = max(self.reached[name], len(tokens)) if len(tokens) > 0 else 0

    def some(self, count: int) -> np.ndarray:
        return self.random.integers(0, 1000, count)

    @rule(target=caches)
    def create(self) -> int:
        return self.keep(Cache(self.layout, self.pool, CONTEXT, IDENTITY), np.empty(0, np.int64))

    @rule(name=caches, count=st.sampled_from([0, 1, 2, 63, 64, 65, 255, 256, 257, 600, 1100]))
    def commit(self, name: int, count: int) -> None:
        cache, tokens = self.held[name]
        if len(tokens) + count > CONTEXT:
            with pytest.raises(ArgumentError, match="do not fit the context"):
                cache.begin(count)
            return
        new = self.some(count)
        append(cache, new)
        length = len(tokens) + count
        for layer, window in enumerate(WINDOWS):
            if window is not None and count >= PAGE:  # nothing older than it must be is kept
                expected = oldest_kept(length, window)
                assert cache.start(layer) >= expected
        self.hold(name, cache, np.concatenate([tokens, new]))

    @rule(name=caches, count=st.integers(1, 300), layers=st.integers(0, 3), forget=st.booleans())
    def give_up(self, name: int, count: int, layers: int, forget: bool) -> None:
        cache, tokens = self.held[name]
        if len(tokens) + count > CONTEXT:
            return
        tables = [cache.page_table(layer).copy() for layer in range(len(WINDOWS))]
        used = self.pool.used
        cache.begin(count)
        for layer in range(layers):
            cache.put(layer, cache.length, *rows_for(self.some(count), cache.length, layer))
        if not forget:
            cache.abort()
            assert self.pool.used == used
            for layer, table in enumerate(tables):
                assert np.array_equal(cache.page_table(layer), table)
        else:
            cache.truncate(cache.length)  # anything but put and commit gives it up

    @rule(target=caches, name=caches, deep=st.booleans())
    def fork(self, name: int, deep: bool) -> int:
        cache, tokens = self.held[name]
        used = self.pool.used
        other = copy.deepcopy(cache) if deep else cache.fork()
        assert self.pool.used == used
        return self.keep(other, tokens, self.reached[name])

    @rule(name=caches, share=st.floats(0, 1))
    def truncate(self, name: int, share: float) -> None:
        cache, tokens = self.held[name]
        length = round(share * len(tokens))
        if 0 < length < cache.shortest:
            with pytest.raises(ArgumentError, match="sliding layers have forgotten"):
                cache.truncate(length)
            assert length < self.reached[name] - HISTORY
            return
        cache.truncate(length)
        self.hold(name, cache, tokens[:length])

    @rule(name=caches, share=st.floats(0, 1), more=st.integers(0, 3))
    def reuse(self, name: int, share: float, more: int) -> None:
        cache, tokens = self.held[name]
        common = round(share * len(tokens))
        prompt = np.concatenate([tokens[:common], self.some(more) + 1000])
        kept = cache.reuse(prompt)
        assert kept in (0, min(common, max(0, len(prompt) - 1)))
        if kept == 0 and common > 1:
            assert common - 1 < self.reached[name] - HISTORY
        self.hold(name, cache, tokens[:kept])

    @rule(name=consumes(caches), close=st.booleans())
    def drop(self, name: int, close: bool) -> None:
        cache, _ = self.held.pop(name)
        if close:
            cache.close()

    @invariant()
    def everything_is_there(self) -> None:
        pages: set[int] = set()
        for cache, tokens in self.held.values():
            check(cache, tokens)
            pages |= {int(p) for layer in range(3) for p in cache.page_table(layer) if p >= 0}
        assert self.pool.used == len(pages)

    def teardown(self) -> None:
        self.held.clear()
        assert self.pool.used == 0


TestMachine = Machine.TestCase
TestMachine.pytestmark = [pytest.mark.usefixtures("short_history")]


@pytest.mark.parametrize("head_dim", [64, 128, 256, 32, 8, 40])
def test_layout_of_every_head_size(head_dim: int) -> None:
    """Chunks of 4096 elements where the head size is a power of two of 16 or more."""
    shape = Layout((None,), 3, head_dim)
    if head_dim in (64, 128, 256):
        assert shape.chunk == 4096 // head_dim
    assert PAGE % shape.chunk == 0 and shape.page_bytes == 3 * 256 * 2 * head_dim * 2
    cache = Cache(shape, Pool(shape.page_bytes, 1), 1000, IDENTITY)
    k, v = np.random.default_rng(head_dim).normal(size=(2, 300, 3, head_dim)).astype(np.float32)
    with cache.running([1] * 300):
        cache.put(0, 0, k, v)
    for position in range(300):
        page = int(cache.page_table(0)[position // PAGE])
        view = shape.page_view(cache.pool[page * cache.page_bytes :][: cache.page_bytes])
        inside = position % PAGE
        rows = view[:, inside // shape.chunk, :, inside % shape.chunk].view(ml_dtypes.bfloat16)
        expected = np.stack([k[position], v[position]], 1).astype(ml_dtypes.bfloat16)
        assert np.array_equal(rows.view(np.uint16), expected.view(np.uint16))


def test_rounding_to_bfloat16_is_to_nearest_even() -> None:
    """Every bit pattern class: ties, carries, denormals, infinities and NaN, as ml_dtypes does."""
    random = np.random.default_rng(5)
    bits = random.integers(0, 1 << 32, 1 << 14, dtype=np.uint32)
    bits[:512] = bits[:512] & 0xFFFF0000 | 0x8000  # ties
    special = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FFFFFFF, 0x7F800001, 1, 0xFFFF]
    bits[-len(special) :] = special
    values = bits.view(np.float32).reshape(-1, 2, 64)
    shape = Layout((None,), 2, 64)
    cache = Cache(shape, Pool(shape.page_bytes, 1), 1000, IDENTITY)
    with cache.running([1] * len(values)):
        cache.put(0, 0, values, values)
    found = np.concatenate([stored(cache, 0, p)[0] for p in range(len(values))]).ravel()
    with np.errstate(invalid="ignore"):
        expected = values.ravel().astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    good = ~np.isnan(expected)
    assert np.array_equal(found[good].view(np.uint32), expected[good].view(np.uint32))


def test_rows_that_no_position_uses_are_zero() -> None:
    """What the array reads beyond the last position of a chunk has no weight, and must be finite
    all the same: after passes given up, truncations, copies of shared pages."""
    cache = new_cache()
    append(cache, np.arange(300))
    cache.begin(100)
    for layer in range(3):
        cache.put(layer, 300, *np.full((2, 100, 2, 64), np.nan, np.float32))
    cache.abort()
    assert_zero_behind(cache)
    append(cache, np.arange(100))
    cache.truncate(270)
    assert_zero_behind(cache)
    other = cache.fork()
    append(cache, np.arange(40))
    append(other, np.arange(3))
    assert_zero_behind(cache)
    assert_zero_behind(other)
    cache.truncate(0)
    append(cache, np.arange(1))
    assert_zero_behind(cache)


def assert_zero_behind(cache: Cache) -> None:
    last = cache.length % PAGE
    for layer in range(3):
        page = int(cache.page_table(layer)[-1])
        view = cache.layout.page_view(cache.pool[page * cache.page_bytes :][: cache.page_bytes])
        rows = view.transpose(1, 3, 0, 2, 4).reshape(PAGE, -1)
        assert not rows[last:].any() and rows[:last].any(axis=1).all()


def test_a_pool_that_grows_keeps_everything_and_says_that_it_moved() -> None:
    shape = layout()
    pool = pool_of(shape, 1)
    first = Cache(shape, pool, CONTEXT, IDENTITY)
    append(first, np.arange(10))
    moves, address = first.pool_moves, first.pool.ctypes.data
    assert address % 4096 == 0
    second = Cache(shape, pool, CONTEXT, IDENTITY)
    append(second, np.arange(2000) % 1000)
    assert first.pool_moves > moves and first.pool.ctypes.data != address
    assert first.pool.ctypes.data % 4096 == 0
    check(first, np.arange(10))
    check(second, np.arange(2000) % 1000)


def test_the_pool_does_not_move_while_somebody_writes_to_it() -> None:
    """Growth copies pages: what is written to the old buffer meanwhile would be lost."""
    shape = layout()
    pool = pool_of(shape, 1)
    first, second = (Cache(shape, pool, CONTEXT, IDENTITY) for _ in range(2))
    append(first, np.arange(10))
    grower = threading.Thread(target=append, args=(second, np.arange(2000) % 1000))
    with first.pinned():
        moves = first.pool_moves
        grower.start()
        grower.join(0.2)
        assert grower.is_alive() and first.pool_moves == moves
    grower.join()
    assert first.pool_moves > moves
    check(first, np.arange(10))


def test_no_memory_is_an_error_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache()
    append(cache, np.arange(250))
    used = cache._pool.used

    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr("npu.models.kv_cache.pool.mmap.mmap", refused)
        with pytest.raises(FileError, match="no memory"):
            cache.begin(1000)
    check(cache, np.arange(250))
    assert cache._pool.used == used
    append(cache, np.arange(1000))


def test_an_interrupted_block_leaves_the_cache_as_it_was() -> None:
    cache = new_cache()
    append(cache, np.arange(260))
    other = cache.fork()
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), cache.running(np.arange(300)):
            put_all(cache, np.arange(300))
            raise error
        check(cache, np.arange(260))
        check(other, np.arange(260))
        assert cache._pool.used == 6


def test_misuse_is_refused() -> None:
    cache = new_cache(context=400)
    row = np.zeros((1, 2, 64), np.float32)
    with pytest.raises(ArgumentError, match="no pass is in progress"):
        cache.put(0, 0, row, row)
    with pytest.raises(ArgumentError, match="not begun"):
        cache.commit([1])
    assert cache.begin(2) == range(2)
    with pytest.raises(ArgumentError, match="the pass writes 0 to 1"):
        cache.put(0, 2, row, row)
    with pytest.raises(ArgumentError, match="have shapes"):
        cache.put(0, 0, row[:, :1], row[:, :1])
    with pytest.raises(ArgumentError, match="1 tokens are committed, the pass has 2"):
        cache.commit([1])
    cache.commit([1, 2])
    for length in (-1, 3):
        with pytest.raises(ArgumentError, match="can only become shorter"):
            cache.truncate(length)
    with pytest.raises(ArgumentError, match=r"399 more tokens after 2 do not fit.* 400"):
        cache.begin(399)


def test_pages_come_back() -> None:
    shape = layout()
    pool = pool_of(shape)
    with Cache(shape, pool, CONTEXT, IDENTITY) as cache:
        append(cache, np.arange(1000))
        other = cache.fork()
        append(other, np.arange(10))
        assert cache.nbytes > 0
    assert cache.length == 0 and cache.nbytes == 0
    other.begin(300)
    del other  # in the middle of a pass
    assert pool.used == 0
    page = pool.allocate(1)[0]
    assert not pool.page(page).any()


def test_a_cache_in_a_file_is_the_same(tmp_path: Path) -> None:
    for count in (0, 1, 256, 700):
        cache, path = new_cache(), tmp_path / f"{count}.kv"
        tokens = np.arange(count) % 999
        append(cache, tokens)
        cache.save(path)
        other = new_cache()
        append(other, np.arange(5))
        other.load(path)
        check(other, tokens)
        append(other, np.arange(30))
        check(other, np.concatenate([tokens, np.arange(30)]))


@pytest.mark.parametrize("length", [1, 70, 255, 256, 257, 300])
def test_forks_do_not_see_what_the_other_writes(length: int) -> None:
    base = np.arange(length)
    cache = new_cache()
    append(cache, base)
    other = cache.fork()
    append(cache, np.arange(20) + 300)
    append(other, np.arange(30) + 600)
    check(cache, np.concatenate([base, np.arange(20) + 300]))
    check(other, np.concatenate([base, np.arange(30) + 600]))
    # Only what differs was copied: the last page, if it was not full.
    shared = set(cache.page_table(0).tolist()) & set(other.page_table(0).tolist())
    assert len(shared) == length // PAGE
    cache.close()
    check(other, np.concatenate([base, np.arange(30) + 600]))
    append(other, np.arange(5))
    check(other, np.concatenate([base, np.arange(30) + 600, np.arange(5)]))


@pytest.mark.parametrize("window", [1, 5, 256, 300])
def test_sliding_layers_keep_exactly_their_window_and_history(window: int) -> None:
    """The page that the query at ``length``, HISTORY positions back, may be read least of stays as
    long as the first query of its group of 64 sees it."""
    shape = Layout((None, window), 1, 64)
    cache = Cache(shape, Pool(shape.page_bytes, 1), CONTEXT, IDENTITY)
    row = np.ones((1, 1, 64), np.float32)
    for length in range(1, 700):
        with cache.running([length]):
            for layer in range(2):
                cache.put(layer, length - 1, row, row)
        assert cache.start(1) == oldest_kept(length, window)
        assert cache.start(0) == 0
        expected = math.ceil((cache.start(1) + window - 1) / 64) * 64 if cache.start(1) else 0
        assert cache.shortest == expected <= max(0, length - HISTORY)
    for back in range(cache.length, cache.shortest - 1, -1):
        cache.truncate(back)
    with pytest.raises(ArgumentError, match="sliding layers have forgotten"):
        cache.truncate(cache.shortest - 1)
    assert cache.reuse([1, 2, 3]) == 0
