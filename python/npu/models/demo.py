"""The demo model: a small Gemma 3 that comes with the package (examples/demo_model)."""

from __future__ import annotations

from pathlib import Path

FOLDER = "examples/demo_model"  # of a checkout; wheels carry the file in npu/models


def demo_model() -> str | None:
    """The path of its file; None where it is missing."""
    here = Path(__file__).resolve().parent
    for place in (here, here.parents[2] / FOLDER, Path(FOLDER)):
        if found := sorted(place.glob("*.gguf")):
            return str(found[0])
    return None
