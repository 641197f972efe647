"""npu.set_threads: what is set is used, None means the environment, wrong values are refused, and
results do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import npu
from npu.errors import ArgumentError


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    npu.set_threads(None)


def test_results_do_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((70, 90), (90, 50)))
    results = []
    for count in (1, 4, 2, 1):
        npu.set_threads(count)
        assert npu.threads() == count
        results.append(npu.matmul(a, b))
    assert all((result == results[0]).all() for result in results)
    monkeypatch.setenv("NPU_THREADS", "3")
    npu.set_threads(None)
    assert npu.threads() == 3


@pytest.mark.parametrize("count", [0, -1, 257, 1.5, True, "2"])
def test_wrong_numbers_are_refused(count: Any) -> None:
    before = npu.threads()
    with pytest.raises(ArgumentError, match=r"\[set_threads\] count is .*; use a whole number"):
        npu.set_threads(count)
    assert npu.threads() == before
