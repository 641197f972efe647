"""One tensor of a source as what a Q4NX file holds: blocks of the additive dialect, bfloat16 times
sqrt(width), or bfloat16. Several threads convert chunks of rows, never a whole tensor.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from npu.errors import ArgumentError, FormatError
from npu.formats.q4nx import layout
from npu.formats.q4nx.quantizer import padded_blocks, quantize_rows
from npu.formats.q4nx.tensor import Tensor
from npu.models.sources.interface import Source

_CHUNK_WEIGHTS = 1 << 18  # float32 temporaries of a chunk stay in a core's cache
_RELEASE_EVERY = 32  # chunks, after which the source's pages may leave memory
_MAX_THREADS = 4


@dataclass(frozen=True)
class Conversion:
    """A tensor of a source and what is made of its rows."""

    name: str  # in the source
    shape: tuple[int, ...]
    convert: Callable[[Source, Conversion, slice], np.ndarray]


def tensor_of(source: Source, name: str) -> Tensor:
    """A matrix of a model as a Q4NX Tensor in memory, converted as ``npu convert`` does."""
    rows, columns = source.shapes[name]
    shape = rows, columns
    found = np.empty((math.prod(layout.grid(shape)), layout.BLOCK_BYTES), np.uint8)
    done, raw = 0, found.reshape(-1)
    for part in parts(source, Conversion(name, shape, blocks)):
        raw[done : done + part.size] = part.reshape(-1)
        done += part.size
    return Tensor.from_blocks(found, shape)


def parts(source: Source, tensor: Conversion) -> Iterator[np.ndarray]:
    """A tensor's bytes in order, converted by several threads a few chunks ahead."""
    width = tensor.shape[1] if len(tensor.shape) == 2 else 1
    rows = max(1, _CHUNK_WEIGHTS // (width * layout.ROWS)) * layout.ROWS
    starts = range(0, tensor.shape[0], rows)
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)), len(starts))
    ahead: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for count, start in enumerate(starts):
                end = min(start + rows, tensor.shape[0])
                ahead.append(pool.submit(tensor.convert, source, tensor, slice(start, end)))
                if len(ahead) > threads:
                    yield ahead.popleft().result()
                if count % _RELEASE_EVERY == _RELEASE_EVERY - 1:
                    source.release(tensor.name)
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
    source.release(tensor.name)


def blocks(source: Source, tensor: Conversion, rows: slice) -> np.ndarray:
    """Blocks; codes are kept where the source has 4-bit ones with a scale per 32 columns."""
    native = source.native(tensor.name, rows)
    if native is None:
        try:
            return quantize_rows(source.float32(tensor.name, rows))
        except ArgumentError as error:
            reason = str(error).removeprefix("[q4nx.quantize] ")
            raise _refusal(source, tensor, f"from row {rows.start} on: {reason}") from None
    codes, scales, minima = native
    if not (np.isfinite(scales).all() and np.isfinite(minima).all()):
        raise _refusal(source, tensor, f"NaN or infinity from row {rows.start} on")
    return padded_blocks(codes, scales.astype(layout.BFLOAT16), minima.astype(layout.BFLOAT16))


def embedding(source: Source, tensor: Conversion, rows: slice) -> np.ndarray:
    """bfloat16 times sqrt(width)."""
    scale = 1.0 if source.embedding_scaled else math.sqrt(tensor.shape[1])
    return _plain(source, tensor, source.float32(tensor.name, rows) * np.float32(scale))


def norm(source: Source, tensor: Conversion, rows: slice) -> np.ndarray:
    """bfloat16."""
    return _plain(source, tensor, source.float32(tensor.name)[rows])


def _plain(source: Source, tensor: Conversion, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(layout.BFLOAT16)
    if not np.isfinite(rounded.astype(np.float32)).all():
        raise _refusal(source, tensor, "NaN or infinity")
    return rounded


def _refusal(source: Source, tensor: Conversion, what: str) -> FormatError:
    return source.fail(f"the tensor {source.stored_name(tensor.name)} cannot be converted: {what}")
