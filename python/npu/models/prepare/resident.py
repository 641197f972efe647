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
from npu.formats.mapped_file import HUGE_PAGE, owner, release_array
from npu.models.prepare.plan import PAGE, Segment

_VARIABLE = "NPU_HUGE_PAGES"
_READ_BYTES = 16 << 20  # between two reports of progress
_SMALLEST = 64 << 20  # of less, caches and TLBs hold a good part
_SAMPLES = 64  # at most 128 MiB are read from disk for them


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


def check_choice() -> None:
    """Raises ArgumentError for a value of NPU_HUGE_PAGES that means nothing."""
    chosen = os.environ.get(_VARIABLE, "")
    if chosen not in ("", "0"):
        raise ArgumentError(
            f"[load] {_VARIABLE} is {chosen!r}; use 0 to copy no weights, or leave it unset"
        )


def bring(
    segments: Sequence[Segment],
    mapped: Mapping[str, BlockTensor],
    progress: Callable[[int, int], None],
) -> dict[str, BlockTensor]:
    """The segments' mapped blocks, read from disk: a first token that met them page by page would
    wait long for it, and in silence. Blocks stay mapped, or are copied and their pages of the file
    released. ``progress(done, total)`` counts bytes."""
    lines = {segment.name: mapped[segment.name].blocks.reshape(-1) for segment in segments}
    total = sum(line.size for line in lines.values())
    copies = _room(segments) if _worth_a_copy(list(lines.values()), total) else None
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


def _worth_a_copy(lines: Sequence[np.ndarray], total: int) -> bool:
    """Whether less than half of the samples lie in huge pages, and a copy, which unlike a file's
    pages cannot be taken back, takes no more than half of what is free."""
    if os.environ.get(_VARIABLE) == "0" or total < _SMALLEST:
        return False
    if 2 * total > memory.available_bytes():
        return False
    pieces = [line[at : at + 1] for line in lines for at in range(0, line.size, HUGE_PAGE)]
    samples = pieces[:: -(-len(pieces) // _SAMPLES)]
    for sample in samples:
        sample.max()
    spans = [(sample.ctypes.data, sample.ctypes.data + 1) for sample in samples]
    resident, huge = memory.mapped_bytes(spans)
    return resident > 0 and 2 * (huge // HUGE_PAGE) < len(samples)


def _room(segments: Sequence[Segment]) -> dict[str, np.ndarray] | None:
    """Memory for copies; None where the system has none, or gives no huge pages."""
    try:
        found = one_piece(segments)
    except MemoryError:
        return None
    whole = owner(found[segments[0].name])
    span = (whole.ctypes.data, whole.ctypes.data + whole.nbytes)
    _, before = memory.mapped_bytes([span])
    whole[whole.nbytes // 2] = 0
    _, after = memory.mapped_bytes([span])
    return found if after > before else None


def _aligned(size: int) -> np.ndarray:
    """Bytes that begin on a page, as devices need to read them in place."""
    whole = np.empty(size + PAGE, np.uint8)
    skip = -whole.ctypes.data % PAGE
    return whole[skip : skip + size]
