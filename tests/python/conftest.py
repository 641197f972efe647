"""Set-up of the whole run: helper modules beside the tests, SIGINT, no cache of weights."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests

# A shell's background job starts with SIGINT ignored, and processes that tests interrupt would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Idle threads of torch sleep instead of spinning on cores that the emulated NPU computes on.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Loading a model writes nothing outside the tests' own folders; tests of the cache name one.
os.environ["NPU_CACHE"] = "off"

# A module for XRT that somebody has built is not taken for an NPU of this machine.
os.environ.setdefault("NPU_XRT_MODULE", "/nowhere/libnpu_xrt.so")


@pytest.fixture(autouse=True, scope="module")
def few_objects_to_collect() -> None:
    """Collections look through what a file's own tests have made: modules and what earlier files
    keep (schedules of vector loops) are millions of objects, a second each time. Cycles among those
    that are given up later stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else the extension reports objects that nobody has collected


@pytest.fixture
def fresh_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Devices that have run nothing, again with every call: a process has one per name and options
    for all its tests."""

    def forget() -> None:
        monkeypatch.setattr(importlib.import_module("npu.devices"), "_open_devices", {})

    forget()
    return forget


@pytest.fixture
def no_replays(fresh_devices: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated devices that run every submission at register level, and get as many as an NPU."""
    monkeypatch.setenv("NPU_REPLAY", "0")  # read when a device is opened
