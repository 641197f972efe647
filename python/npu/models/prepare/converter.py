"""Rows of a source to weight blocks: several threads convert chunks of rows a little ahead of what
is taken, so that memory holds a few chunks, never a whole tensor."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from npu._npu import weights as core
from npu.errors import ArgumentError
from npu.formats import blocks
from npu.formats.gguf_file import dequantize
from npu.formats.q4nx import layout
from npu.formats.q4nx.quantizer import quantize_rows
from npu.formats.q4nx.tensor import Tensor
from npu.models.prepare.plan import Part, Segment
from npu.models.sources.interface import Source

_CHUNK_WEIGHTS = 1 << 19
_RELEASE_EVERY = 32  # chunks of a tensor, after which its pages of the source may leave memory
_MAX_THREADS = 8
_F32 = 0  # GGUF's number of the type

Item = TypeVar("Item")
Result = TypeVar("Result")


def convert(source: Source, segments: Iterable[Segment]) -> Iterator[tuple[Segment, np.ndarray]]:
    """The blocks (row-blocks, column-blocks, bytes) of all segments, chunk by chunk in order.

    Raises FormatError that names the tensor for a NaN or infinity, before its blocks are given.
    """

    def made(chunk: _Chunk) -> tuple[Segment, np.ndarray]:
        segment, part, rows, last = chunk
        found = convert_rows(source, part.name, rows, segment.format)
        if last:
            source.release(part.name)
        return segment, found

    return in_order(made, _chunks(segments))


_Chunk = tuple[Segment, Part, slice, bool]


def _chunks(segments: Iterable[Segment]) -> Iterator[_Chunk]:
    """Chunks of rows; the flag asks for the tensor's pages to be released after it."""
    for segment in segments:
        step = max(1, _CHUNK_WEIGHTS // (segment.columns * blocks.ROWS)) * blocks.ROWS
        for part in segment.parts:
            for count, start in enumerate(range(0, part.rows, step)):
                end = min(start + step, part.rows)
                often = count % _RELEASE_EVERY == _RELEASE_EVERY - 1
                yield segment, part, slice(start, end), end == part.rows or often


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``map`` on a few threads that are at most a few items ahead."""
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    ahead: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                if len(ahead) > 2 * threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def convert_rows(source: Source, name: str, rows: slice, format: str) -> np.ndarray:
    """Blocks of some rows of a tensor, from a multiple of 32 on. Raises FormatError for NaN."""
    count, columns = len(range(*rows.indices(source.shapes[name][0]))), source.shapes[name][1]
    stored = source.stored_rows(name, rows)
    tensor = source.q4nx(name)
    if tensor is not None and format == "q4nx":
        return _additive(source, name, rows, tensor)
    if stored is None:
        values = np.ascontiguousarray(source.float32(name, rows))
        stored = _F32, values.view(np.uint8).reshape(count, 4 * columns)
    kind, raw = np.int32(stored[0]).item(), np.ascontiguousarray(stored[1])
    if format == "q4nx" and not core.converts(kind, format):
        return _fitted(source, name, rows, kind, raw)
    shape = *blocks.grid((count, columns), format), blocks.bytes_of(format)
    out = np.empty(shape, np.uint8)
    bad = core.convert_rows(raw, kind, columns, format, out.reshape(-1))
    if bad >= 0:
        raise _refusal(source, name, f"NaN or infinity in row {rows.start + bad}")
    return out


def _fitted(source: Source, name: str, rows: slice, kind: int, raw: np.ndarray) -> np.ndarray:
    """Q4NX blocks of least squared error."""
    try:
        return quantize_rows(dequantize(raw, kind))
    except ArgumentError as error:
        reason = str(error).removeprefix("[q4nx.quantize] ")
        raise _refusal(source, name, f"from row {rows.start} on: {reason}") from None


def _additive(source: Source, name: str, rows: slice, tensor: Tensor) -> np.ndarray:
    """Q4NX blocks with minima; zero points become minima, rounded to bfloat16."""
    found = tensor[rows].to_additive().blocks
    for plane in layout.planes(found):
        finite = np.isfinite(plane.astype(np.float32)).all(axis=(1, 2, 3))
        if not finite.all():
            row = rows.start + blocks.ROWS * int(finite.argmin())
            raise _refusal(source, name, f"NaN or infinity in the row-block from row {row} on")
    return found


def _refusal(source: Source, name: str, what: str) -> Exception:
    return source.fail(f"the tensor {source.stored_name(name)} cannot be converted: {what}")
