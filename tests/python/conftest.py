"""Shared fixtures: where the reference shelf with the golden programs is."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests

# A shell's background job starts with SIGINT ignored, and processes that tests interrupt would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("NPU_SHARED", REPOSITORY.parent / "shared"))


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference programs written by the public compiler."""
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip(f"no reference programs at {folder} (set NPU_SHARED)")
    return folder
