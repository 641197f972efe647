"""Shared fixtures: where the reference shelf with the golden programs is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helper modules beside the tests

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("NPU_SHARED", REPOSITORY.parent / "shared"))


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of reference programs written by the public compiler."""
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip(f"no reference programs at {folder} (set NPU_SHARED)")
    return folder
