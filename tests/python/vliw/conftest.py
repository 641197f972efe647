"""What tests of generated schedules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from npu.vliw import generate


@pytest.fixture
def no_known_states() -> Iterator[None]:
    """Steady states are searched anew, and those that are found are for this test alone: it changes
    the scheduler, or wants to see that what is found is the same."""
    generate._steady.cache_clear()
    yield
    generate._steady.cache_clear()
