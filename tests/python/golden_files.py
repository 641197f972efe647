"""Where the reference files are (tests/golden/README.md says what they are)."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def golden(*parts: str) -> bytes:
    """The content of one reference file."""
    return GOLDEN.joinpath(*parts).read_bytes()
