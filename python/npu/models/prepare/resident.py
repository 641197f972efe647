"""Blocks of weights in memory, in huge pages where the system gives them.

A token reads every block, and through pages of 2 MiB memory is read faster. A mapped file has them
if the file system does and nothing has read or written the file in small pieces before
(``in_huge_pages`` in npu/formats/mapped_file.py). Where it has small ones, blocks are copied.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npu import memory
from npu.errors import ArgumentError
from npu.formats.blocks import BlockTensor
from npu.formats.mapped_file import release_array
from npu.models.prepare.plan import PAGE, Segment

_VARIABLE = "NPU_HUGE_PAGES"
_HUGE_PAGE = 2 << 20
_READ_BYTES = 16 << 20  # between two reports of progress
_SMALLEST = 64 << 20  # caches and translation tables hold a good part of less
_SAMPLES = 64


def one_piece(segments: Sequence[Segment]) -> dict[str, np.ndarray]:
    """Memory for the blocks of all segments, each on a page: a stream reaches few pieces of
    memory, and reads some blocks beyond a matrix. NumPy asks for huge pages."""
    slack = 4 * PAGE
    whole = _aligned(sum(segment.room for segment in segments) + 2 * slack)
    whole[:slack] = whole[-slack:] = 0
    found, at = {}, slack
    for segment in segments:
        found[segment.name] = whole[at : at + segment.nbytes]
        at += segment.room
    return found


def bring(
    segments: Sequence[Segment],
    mapped: Mapping[str, BlockTensor],
    progress: Callable[[int, int], None],
) -> dict[str, BlockTensor]:
    """The segments' mapped blocks, read from disk: a first token that met them page by page would
    wait long for it, and in silence. They stay where they lie or are copied; of what is copied the
    file's pages leave this process. ``progress(done, total)`` counts bytes. Raises ArgumentError.
    """
    lines = {segment.name: mapped[segment.name].blocks.reshape(-1) for segment in segments}
    total = sum(line.size for line in lines.values())
    copies = one_piece(segments) if _copied(list(lines.values()), total) else None
    done = 0
    for name, line in lines.items():
        for first in range(0, line.size, _READ_BYTES):
            part = line[first : first + _READ_BYTES]
            if copies is None:
                part[:: mmap.PAGESIZE].max()
            else:
                copies[name][first : first + part.size] = part
                release_array(part)
            done += part.size
            progress(done, total)
    if copies is None:
        return dict(mapped)
    return {
        segment.name: BlockTensor(
            copies[segment.name].reshape(segment.blocks_shape), segment.shape, segment.format
        )
        for segment in segments
    }


def _copied(lines: Sequence[np.ndarray], total: int) -> bool:
    """Whether a copy is worth its memory, which unlike a file's pages cannot be taken back: of the
    pages met by samples less than half are huge, and it takes no more than half of what is free."""
    chosen = os.environ.get(_VARIABLE, "")
    if chosen not in ("", "0"):
        raise ArgumentError(f"[load] {_VARIABLE} is {chosen!r}; use 0, or leave it unset")
    if chosen == "0" or total < _SMALLEST or 2 * total > memory.available_bytes():
        return False
    pieces = [line[at : at + 1] for line in lines for at in range(0, line.size, _HUGE_PAGE)]
    for piece in pieces[:: max(1, len(pieces) // _SAMPLES)]:
        piece.max()
    spans = [(line.ctypes.data, line.ctypes.data + line.size) for line in lines]
    resident, huge = memory.mapped_bytes(spans)
    return 2 * huge < resident


def _aligned(size: int) -> np.ndarray:
    """Bytes that begin on a page, as devices need to read them in place."""
    whole = np.empty(size + PAGE, np.uint8)
    skip = -whole.ctypes.data % PAGE
    return whole[skip : skip + size]
