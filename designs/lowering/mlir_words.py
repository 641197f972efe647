"""Memtile buffers in 32-bit words, where mlir-aie refuses a pattern of smaller elements.

aie.dma_bd may have no size above 512 (AIEDialect.cpp, DMABDOp::verify, whose message says 1023): in
elements of its buffer, whatever the register counts, which are words. Memtiles only store, so the
type of their buffers is free; those of cores are what kernels take.
"""

from __future__ import annotations

import dataclasses

from npu.errors import DesignError

from .dims import Access, DimList
from .lowered import Channel, Descriptor, Lowered, Memory

MOST = 512  # of a size of aie.dma_bd
_WORD = 4  # bytes


def in_words(lowered: Lowered) -> Lowered:
    """The design, with int32 buffers for those of memtiles that have a larger size in a pattern.

    Raises DesignError for a size that stays too large."""
    wide = {
        id(d.memory)
        for channel in lowered.channels
        for d in channel.descriptors
        if d.memory.tile.kind == "mem" and _is_wide(d.access.dims)
    }
    memories = {
        tile: [_memory(m) if id(m) in wide else m for m in found]
        for tile, found in lowered.memories.items()
    }
    channels = [_channel(channel, wide) for channel in lowered.channels]
    for channel in channels:
        _check(lowered, channel)
    return dataclasses.replace(lowered, memories=memories, channels=channels)


def _is_wide(dims: DimList) -> bool:
    return any(size > MOST for size, _ in dims)


def _channel(channel: Channel, wide: set[int]) -> Channel:
    found = [_descriptor(d) if id(d.memory) in wide else d for d in channel.descriptors]
    return dataclasses.replace(channel, descriptors=found)


def _memory(memory: Memory) -> Memory:
    return dataclasses.replace(memory, dtype="int32", shape=(memory.bytes // _WORD,))


def _descriptor(d: Descriptor) -> Descriptor:
    """Of the same bytes in the same order; lower_dims has left runs of whole words only."""
    unit = _WORD // d.element_bytes
    *outer, (size, stride) = d.access.dims or ((1, 1),)
    if unit > 1:
        size, outer = size // unit, [(n, step // unit) for n, step in outer]
    dims = (*outer, (size, stride)) if d.access.dims else ()
    access = Access(dims, d.access.step, d.access.wrap)
    return dataclasses.replace(d, memory=_memory(d.memory), element_bytes=_WORD, access=access)


def _check(lowered: Lowered, channel: Channel) -> None:
    for d in channel.descriptors:
        if _is_wide(d.access.dims):
            size = max(size for size, _ in d.access.dims)
            raise DesignError(
                f'[mlir {lowered.name}] {channel.tile}: a pattern of fifo "{channel.fifo}" has a '
                f"size of {size} elements, mlir-aie takes at most {MOST}; split the dimension in "
                "two, this design can only be simulated"
            )
