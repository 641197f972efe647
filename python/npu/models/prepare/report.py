"""What was chosen for a model's weights: stored type, block format, bytes, error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from npu.formats import blocks
from npu.models.prepare.converter import convert_rows, in_order
from npu.models.prepare.formats import exact
from npu.models.prepare.plan import Part, Segment
from npu.models.sources.interface import Source


@dataclass(frozen=True)
class WeightsRow:
    """Tensors of one kind, stored type and block format. ``nbytes`` are those of the blocks.

    ``error`` is the root of the mean squared error relative to the values of the file: 0 where the
    format holds them exactly (``sampled_rows`` is 0), else measured on ``sampled_rows`` rows.
    """

    kind: str
    stored: str
    format: str
    tensors: int
    nbytes: int
    error: float
    sampled_rows: int

    def __str__(self) -> str:
        error = f"relative RMS error {self.error:.2%} ({self.sampled_rows} rows sampled)"
        if not self.sampled_rows:
            error = "exact"
        return (
            f"{self.kind}: {self.stored} -> {self.format}, {self.tensors} "
            f"tensor{'s' * (self.tensors > 1)}, {self.nbytes / 1e6:.1f} MB, {error}"
        )


@dataclass(frozen=True)
class WeightsReport:
    """All rows, in the order of the model, and where the blocks are."""

    rows: tuple[WeightsRow, ...]
    location: str  # the model file, the entry of the cache, or "in memory"

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    def lines(self) -> list[str]:
        """A line per row and one with the total."""
        total = f"weights: {self.nbytes / 1e6:.1f} MB in blocks, {self.location}"
        return [f"weights: {row}" for row in self.rows] + [total]


def measure(source: Source, segments: Iterable[Segment]) -> tuple[WeightsRow, ...]:
    """Rows for segments. Errors are those of one row-block from the middle of every tensor."""
    listed = [(segment, part) for segment in segments for part in segment.parts]
    errors = in_order(lambda item: _squares(source, *item), listed)
    sums: dict[tuple[str, str, str], list[float]] = {}
    for (segment, part), found in zip(listed, errors, strict=True):
        row_blocks, column_blocks = blocks.grid((part.rows, segment.columns), segment.format)
        nbytes = row_blocks * column_blocks * blocks.bytes_of(segment.format)
        key = segment.kind, part.stored, segment.format
        before = sums.setdefault(key, [0.0] * 5)
        sums[key] = [a + b for a, b in zip(before, (1, nbytes, *found), strict=True)]
    return tuple(
        WeightsRow(*key, int(count), int(nbytes), (error / total) ** 0.5 if total else 0, int(rows))
        for key, (count, nbytes, error, total, rows) in sums.items()
    )


def _squares(source: Source, segment: Segment, part: Part) -> tuple[float, float, int]:
    """Sums of squares of the errors and of the values of a sample, and its rows."""
    if exact(part.stored, segment.format):
        return 0.0, 0.0, 0
    start = part.rows // 2 // blocks.ROWS * blocks.ROWS
    rows = slice(start, min(start + blocks.ROWS, part.rows))
    count = rows.stop - rows.start
    made = convert_rows(source, part.name, rows, segment.format)
    values = np.asarray(source.float32(part.name, rows), np.float64)
    found = blocks.BlockTensor(made, (count, segment.columns), segment.format).to_numpy()
    return float(np.square(found - values).sum()), float(np.square(values).sum()), count
