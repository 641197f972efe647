"""Which matrices a model multiplies with, and of which tensors and formats they are made.

Projections that share their input are one matrix. Where the formats of its tensors agree and rows
fill row-blocks, they are one segment: one piece of memory, one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npu._npu import facts
from npu.formats import blocks
from npu.formats.q4nx.tensor import ZERO_POINT
from npu.models.prepare.formats import ZERO_POINTS, block_formats
from npu.models.sources.interface import Source

PAGE = 4096  # where a segment begins, so that devices read it in place


@dataclass(frozen=True)
class Matrix:
    """A matrix of the model: ``key`` names it, ``kind`` describes it, ``tensors`` follow one
    another in its rows."""

    key: str
    kind: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """The rows of one tensor of the file."""

    name: str
    stored: str
    rows: int


@dataclass(frozen=True)
class Segment:
    """Rows of a matrix in one format."""

    key: str
    kind: str
    format: str
    parts: tuple[Part, ...]
    columns: int

    @property
    def name(self) -> str:
        """Unique in a model: its tensors."""
        return "+".join(part.name for part in self.parts)

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.rows for part in self.parts), self.columns

    @property
    def blocks_shape(self) -> tuple[int, int, int]:
        return (*blocks.grid(self.shape, self.format), blocks.bytes_of(self.format))

    @property
    def nbytes(self) -> int:
        rows, columns, size = self.blocks_shape
        return rows * columns * size

    @property
    def room(self) -> int:
        """Bytes of memory to give it: pages, with what prompts read beyond small blocks, through
        objects of large ones."""
        slack = facts.BLOCK_BYTES - blocks.bytes_of(self.format)
        return -(-(self.nbytes + slack) // PAGE) * PAGE


def plan(source: Source, matrices: Sequence[Matrix], weights: str) -> list[Segment]:
    """The segments of all matrices of a model, in order."""
    types = {name: _stored(source, name) for matrix in matrices for name in matrix.tensors}
    formats = block_formats(types.values(), weights)
    segments: list[Segment] = []
    for matrix in matrices:
        started: list[Segment] = []
        for name in matrix.tensors:
            rows, columns = source.shapes[name]
            format = formats[types[name]]
            part = Part(name, types[name], rows)
            last = started[-1] if started else None
            if last and last.format == format and last.shape[0] % blocks.ROWS == 0:
                part_list = (*last.parts, part)
                started[-1] = Segment(matrix.key, matrix.kind, format, part_list, columns)
            else:
                started.append(Segment(matrix.key, matrix.kind, format, (part,), columns))
        segments += started
    return segments


def _stored(source: Source, name: str) -> str:
    """The stored type; of Q4NX the dialect that the array does not compute is one of its own."""
    stored = source.stored_type(name)
    found = source.q4nx(name)
    return ZERO_POINTS if found is not None and found.dialect == ZERO_POINT else stored
