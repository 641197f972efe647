"""Repeated calls on emulated devices are replays (docs/architecture.md). Asserts that results of
products and of GEMV are those of NumPy's integers, and those of attention the same as at register
level, whatever was computed between; that npu.stats() counts replays, and that NPU_REPLAY=0 leaves
every run at register level."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from q4nx_blocks import random_integers, random_weights

import npu

SIZES = ((64, 64, 64), (300, 200, 500), (130, 520, 70))
ROUNDS = 9


@pytest.fixture(autouse=True)
def replays(fresh_devices: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are opened with replays, also where the tests run with NPU_REPLAY=0."""
    monkeypatch.delenv("NPU_REPLAY", raising=False)


def products(name: str, **options: str) -> npu.Stats:
    """Multiplies other numbers of the same sizes again and again; what that counted."""
    rng = np.random.default_rng(7)
    before = npu.stats()
    with npu.device(name, **options):
        for _ in range(ROUNDS):
            for m, k, n in SIZES:
                a = rng.integers(-128, 128, (m, k)).astype(np.int8)
                b = rng.integers(-128, 128, (k, n)).astype(np.int8)
                assert np.array_equal(npu.matmul(a, b), a.astype(np.int64) @ b)
        return npu.stats() - before


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_repeated_products_are_replays(generation: str) -> None:
    counted = products(f"emu:{generation}")
    assert counted.submissions >= len(SIZES) * ROUNDS
    assert counted.replays >= counted.submissions // 3
    assert counted.replay_bytes > 0


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_repeated_gemv_is_replays(generation: str) -> None:
    rng = np.random.default_rng(3)
    weights = [
        (n, k, *random_weights(n, k, rng, exact=True)[:2]) for n, k in ((96, 512), (64, 300))
    ]
    before = npu.stats()
    with npu.device(f"emu:{generation}"):
        for turn in range(24):
            for n, k, blocks, w in weights:
                # Five vectors are two passes, the second of another setup.
                x = random_integers(1 if turn % 4 else 5, k, rng)
                y = npu.gemv((blocks, (n, k)), x, out_dtype=np.float32)
                assert np.array_equal(y, x.astype(np.float64) @ w.T)
    counted = npu.stats() - before
    assert counted.replays >= counted.submissions // 3


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_repeated_attention_is_replays(fresh_devices: Callable[[], None], generation: str) -> None:
    def attend(seed: int, keys: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        q, k, v = (rng.standard_normal((n, h, 64)) for n, h in ((3, 4), (keys, 2), (keys, 2)))
        return npu.attention(*(x.astype(np.float32) for x in (q, k, v)))

    with npu.device(f"emu:{generation}"):
        cases = [(seed, keys) for seed in range(4) for keys in (40, 150)]
        first = [attend(*case) for case in cases[:2]]  # at register level
        before = npu.stats()
        for _ in range(4):
            results = [attend(*case) for case in cases]
            assert all(np.array_equal(*pair) for pair in zip(results, first, strict=False))
        counted = npu.stats() - before
    assert counted.replays >= counted.submissions // 2


def test_no_replays_where_they_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_REPLAY", "0")  # read when a device is opened
    counted = products("emu:npu2+replay", arithmetic="silicon")
    assert counted.replays == 0
    assert counted.replay_bytes == 0


def test_the_mode_that_compares_replays_with_runs() -> None:
    counted = products("emu:npu2+replay")
    assert counted.replays >= counted.submissions - 1
