"""Repeated products on emulated devices are replays (docs/architecture.md). Asserts that their
results are those of NumPy's integers, whatever was multiplied between, that npu.stats() counts
them, and that NPU_REPLAY=0 leaves every run at register level."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import npu

SIZES = ((64, 64, 64), (300, 200, 500), (130, 520, 70))
ROUNDS = 9


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
def test_repeated_products_are_replays(fresh_devices: Callable[[], None], generation: str) -> None:
    counted = products(f"emu:{generation}")
    assert counted.submissions >= len(SIZES) * ROUNDS
    assert counted.replays >= counted.submissions // 3
    assert counted.replay_bytes > 0


def test_no_replays_where_they_are_switched_off(
    fresh_devices: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_REPLAY", "0")  # read when a device is opened
    counted = products("emu:npu2+replay", arithmetic="silicon")
    assert counted.replays == 0
    assert counted.replay_bytes == 0


def test_the_mode_that_compares_replays_with_runs(fresh_devices: Callable[[], None]) -> None:
    counted = products("emu:npu2+replay")
    assert counted.replays >= counted.submissions - 1
