"""The test double of pyxrt, as new for every test, which must break none of its rules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "doubles"))
import xrt_devices

sys.path.pop()
sys.modules.pop("pyxrt", None)  # the double is not this machine's


@pytest.fixture(autouse=True)
def machine() -> Iterator[Any]:
    """The machine behind the double, both generations in it, no reloads."""
    gc.collect()
    found = xrt_devices.pyxrt.machine
    found.reset(seed=None)
    yield found
    gc.collect()
    assert not found.violations
    found.reset()
