"""Published decode rates of Gemma 3 on an NPU (published_decode.csv): tokens/s by context."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

FILE = Path(__file__).with_name("published_decode.csv")
DEVICE = "npu2"  # that all of them were measured on


@functools.cache
def curves(shape: str) -> dict[str, dict[int, float]]:
    """Source -> context -> tokens per second, for a name of ``npu.perf.decode_simulation.SHAPES``;
    empty where nothing is published."""
    found: dict[str, dict[int, float]] = {}
    with FILE.open(newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            if row["shape"] == shape:
                curve = found.setdefault(row["source"], {})
                curve[int(row["context"])] = float(row["tokens_per_second"])
    return found
