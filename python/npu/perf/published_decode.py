"""Published figures of Gemma 3 on an NPU by context: tokens/s (published_decode.csv) and times to
first token (published_prefill.csv)."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

DEVICE = "npu2"  # that all of them were measured on

Curves = dict[str, dict[int, float]]


def curves(shape: str) -> Curves:
    """Source -> context -> tokens per second, for a name of ``npu.perf.decode_simulation.SHAPES``;
    empty where nothing is published."""
    return _read("published_decode.csv", "context", "tokens_per_second").get(shape, {})


def prompts(shape: str) -> Curves:
    """Source -> tokens of a prompt -> seconds to the first token."""
    return _read("published_prefill.csv", "tokens", "seconds").get(shape, {})


@functools.cache
def _read(name: str, at: str, value: str) -> dict[str, Curves]:
    found: dict[str, Curves] = {}
    with Path(__file__).with_name(name).open(newline="") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            curve = found.setdefault(row["shape"], {}).setdefault(row["source"], {})
            curve[int(row[at])] = float(row[value])
    return found
