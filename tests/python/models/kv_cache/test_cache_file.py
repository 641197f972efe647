"""Files of KV caches: damaged, cut, foreign and hostile ones are refused and change nothing; an
interrupted or failed save leaves the old file."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npu.errors import ArgumentError, FormatError, NpuError
from npu.models.kv_cache import Cache, Layout, Pool, file

LAYOUT = Layout((None, 20), 1, 8)
POOL = Pool(LAYOUT.page_bytes, 8)
ID = "model a; device b"


def filled(count: int, identity: str = ID, layout: Layout = LAYOUT, context: int = 3000) -> Cache:
    cache = Cache(layout, Pool(layout.page_bytes, 2), context, identity)
    random = np.random.default_rng(count)
    for start in range(0, count, 200):
        part = random.integers(0, 500, min(200, count - start))
        with cache.running(part):
            for layer in range(len(layout.windows)):
                rows = random.normal(size=(2, len(part), layout.kv_heads, layout.head_dim))
                cache.put(layer, start, *rows.astype(np.float32))
    return cache


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "c.kv"
    filled(300).save(path, {"messages": ["é"]})
    return path.read_bytes()


def refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    cache = Cache(LAYOUT, POOL, 3000, ID)
    with cache.running([5, 6]):
        for layer in range(2):
            cache.put(layer, 0, *np.ones((2, 2, 1, 8), np.float32))
    used, pages = POOL.used, [cache.page_table(i).copy() for i in range(2)]
    with pytest.raises(NpuError):
        cache.load(path)
    assert POOL.used == used and cache.tokens.tolist() == [5, 6]
    assert all(np.array_equal(cache.page_table(i), pages[i]) for i in range(2))
    assert path.read_bytes() == content


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_changed_or_cut_file_never_loads(
    tmp_path: Path, good: bytes, data: st.DataObject
) -> None:
    content = bytearray(good)
    # Headers are short: half of all changes go there.
    end = data.draw(st.sampled_from([300, len(content)]))
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "move"]))
    at = data.draw(st.integers(0, end - 1))
    if kind == "flip":
        content[at] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del content[at:]
    elif kind == "longer":
        content[at:at] = data.draw(st.binary(min_size=1, max_size=5000))
    else:
        del content[at : at + data.draw(st.integers(1, 5000))]
    if bytes(content) != good:
        refused(tmp_path / "c.kv", bytes(content))


def test_the_whole_file_loads(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "c.kv"
    path.write_bytes(good)
    cache, source = Cache(LAYOUT, POOL, 3000, ID), filled(300)
    assert cache.load(path) == {"messages": ["é"]}
    assert np.array_equal(cache.tokens, source.tokens)
    for layer in range(2):
        for mine, theirs in zip(cache.page_table(layer), source.page_table(layer), strict=True):
            size = LAYOUT.page_bytes
            a, b = cache.pool[mine * size :][:size], source.pool[theirs * size :][:size]
            assert np.array_equal(a, b)
    cache.save(tmp_path / "again.kv", {"messages": ["é"]})
    assert (tmp_path / "again.kv").read_bytes() == good
    assert (tmp_path / "again.kv").stat().st_mode & 0o777 == 0o600


def test_sliding_layers_lose_nothing_they_need(tmp_path: Path) -> None:
    cache = filled(2000)
    assert cache.start(1) > 0
    cache.save(tmp_path / "c.kv")
    other = Cache(LAYOUT, POOL, 2000, ID)
    other.load(tmp_path / "c.kv")
    assert [other.start(i) for i in range(2)] == [cache.start(i) for i in range(2)]
    assert other.shortest == cache.shortest > 0


def with_header(good: bytes, **fields: object) -> bytes:
    """The file with other fields in its header and a checksum that is right."""
    import hashlib

    _, version, length = struct.unpack("<8sII", good[:16])
    header = json.loads(good[16 : 16 + length])
    text = json.dumps(header | fields).encode()
    body = struct.pack("<8sII", file.MAGIC, version, len(text)) + text + good[16 + length : -32]
    return body + hashlib.blake2b(body, digest_size=32).digest()


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": -1}, {"tokens": True}, {"tokens": 1e3}, {"tokens": 1 << 39}, {"tokens": None},
        {"tokens": 10**40}, {"tokens": 299}, {"tokens": 0}, {"first_pages": []},
        {"first_pages": None}, {"first_pages": [0]}, {"first_pages": [1, 0]},
        {"first_pages": [0, 2]}, {"first_pages": [0, -1]}, {"first_pages": [-5, 5]},
        {"first_pages": {"0": 0}}, {"identity": 5}, {"identity": None}, {"notes": None},
        {"notes": []}, {"layout": {}}, {"layout": None},
    ],
)  # fmt: skip
def test_a_header_that_lies_is_refused(
    tmp_path: Path, good: bytes, fields: dict[str, object]
) -> None:
    refused(tmp_path / "c.kv", with_header(good, **fields))


def test_hostile_files_are_refused(tmp_path: Path, good: bytes) -> None:
    for content in (
        b"", b"n", good[:8], good[:16], b"GGUF" * 100, bytes(1 << 16),
        struct.pack("<8sII", file.MAGIC, 1, 0xFFFFFFFF) + good[16:],
        struct.pack("<8sII", file.MAGIC, 2, 0) + good[16:],
        struct.pack("<8sII", file.MAGIC, 1, 1 << 20) + b"[" * (1 << 20),
    ):  # fmt: skip
        refused(tmp_path / "c.kv", content)
    huge = tmp_path / "huge.kv"  # sparse
    with open(huge, "wb") as out:
        out.write(good)
        out.truncate(1 << 40)
    cache = Cache(LAYOUT, POOL, 3000, ID)
    with pytest.raises(FormatError, match=f"it has {1 << 40} bytes, its header says {len(good)}"):
        cache.load(huge)
    os.mkfifo(tmp_path / "fifo")
    for odd in (tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(FormatError, match="not a file"):
            cache.load(odd)
    for missing in (tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(NpuError, match=r"\[kv_cache\]"):
            cache.load(missing)


def test_another_model_or_a_longer_context_is_refused(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "c.kv"
    path.write_bytes(good)
    other = Cache(LAYOUT, POOL, 3000, "model a; device c")
    with pytest.raises(FormatError, match="another model or arithmetic: device b there, device c"):
        other.load(path)
    with pytest.raises(ArgumentError, match="has 300 tokens, the context is 299"):
        Cache(LAYOUT, POOL, 299, ID).load(path)
    wider = Layout((None, 20), 2, 8)
    with pytest.raises(FormatError):
        Cache(wider, Pool(wider.page_bytes, 1), 3000, ID).load(path)


def test_a_save_that_fails_leaves_the_old_file(
    tmp_path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.kv"
    path.write_bytes(good)
    cache = filled(700)
    real, calls = Pool.page, 0

    def failing(pool: Pool, number: int) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(pool, number)

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "page", failing)
        with pytest.raises(KeyboardInterrupt):
            cache.save(path)
    assert path.read_bytes() == good and os.listdir(tmp_path) == ["c.kv"]
    for bad in (tmp_path / "no" / "c.kv", tmp_path):
        with pytest.raises(ArgumentError):
            cache.save(bad)
    with pytest.raises(ArgumentError, match="No space left"):
        cache.save("/dev/full")
