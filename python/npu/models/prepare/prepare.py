"""The blocks of a model's matrices: in place, from the cache, or converted now."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from npu.errors import ArgumentError, FileError
from npu.formats.blocks import BlockTensor
from npu.formats.q4nx.tensor import concatenate
from npu.models.prepare import report
from npu.models.prepare.converter import convert
from npu.models.prepare.kept import Entry, KeptWeights
from npu.models.prepare.plan import PAGE, Segment
from npu.models.prepare.report import WeightsReport
from npu.models.sources.interface import Source

Progress = Callable[[int, int], None]
Note = Callable[[str], None]
_READ_BYTES = 16 << 20  # between two reports of progress


@dataclass(frozen=True)
class Prepared:
    """``blocks`` of every matrix by its key: one BlockTensor per segment."""

    blocks: dict[str, list[BlockTensor]]
    report: WeightsReport


def prepare(
    source: Source,
    segments: Sequence[Segment],
    weights: str,
    *,
    cache: bool = True,
    progress: Progress | None = None,
    note: Note | None = None,
) -> Prepared:
    """Blocks for the segments of a plan. ``progress(done, total)`` counts bytes of blocks;
    ``note`` takes sentences about where they are kept. Raises FormatError, ArgumentError."""
    note = note or (lambda _: None)
    progress = progress or (lambda done, total: None)
    found = {s.name: tensor for s in segments if (tensor := _in_place(source, s)) is not None}
    missing = [segment for segment in segments if segment.name not in found]
    rows: tuple[report.WeightsRow, ...] = ()
    location = source.label
    if missing:
        entry = _cached(source, missing, weights, progress, note) if cache else None
        if entry is not None:
            made, rows, location = entry.tensors, entry.rows, str(entry.path)
        else:
            rows = report.measure(source, missing)
            made, location = _in_memory(source, missing, progress), "in memory"
        found |= made
    else:
        _read_in(list(found.values()), progress)
    total = sum(segment.nbytes for segment in segments)
    progress(total, total)
    rows = report.measure(source, [s for s in segments if s not in missing]) + rows
    by_key: dict[str, list[BlockTensor]] = {}
    for segment in segments:
        by_key.setdefault(segment.key, []).append(found[segment.name])
    return Prepared(by_key, WeightsReport(rows, location))


def _read_in(tensors: Sequence[BlockTensor], progress: Progress) -> None:
    """Brings mapped blocks to memory: a first token that met them page by page would wait long for
    a disk, and in silence."""
    done, total = 0, sum(tensor.nbytes for tensor in tensors)
    for tensor in tensors:
        raw = tensor.blocks.reshape(-1)
        for first in range(0, raw.size, _READ_BYTES):
            part = raw[first : first + _READ_BYTES]
            part[:: mmap.PAGESIZE].max()
            done += part.size
            progress(done, total)


def _in_place(source: Source, segment: Segment) -> BlockTensor | None:
    """Q4NX blocks of the file where they lie, if its tensors follow one another there."""
    if segment.format != "q4nx" or any(part.stored != "Q4NX" for part in segment.parts):
        return None
    tensors = [tensor for part in segment.parts if (tensor := source.q4nx(part.name)) is not None]
    ends = [tensor.blocks.ctypes.data + tensor.nbytes for tensor in tensors]
    if ends[:-1] != [tensor.blocks.ctypes.data for tensor in tensors[1:]]:
        return None
    return BlockTensor(concatenate(tensors).blocks, segment.shape, "q4nx")


def _cached(
    source: Source, segments: list[Segment], weights: str, progress: Progress, note: Note
) -> Entry | None:
    """An entry of the cache, made now if there is none. None: it cannot be kept."""
    kept = KeptWeights.of(source, weights, sum(segment.nbytes for segment in segments))
    if kept is None:
        return None
    if entry := kept.find(segments):
        note(f"weights: prepared before, {entry.path}")
        _read_in(list(entry.tensors.values()), progress)
        return entry
    size = sum(segment.nbytes for segment in segments)
    note(f"weights: preparing {size / 1e6:.0f} MB of blocks, kept in {kept.path}")
    try:
        with kept.writing(segments, report.measure(source, segments)) as writer:
            done = 0
            for segment, part in convert(source, segments):
                writer.append(segment, part)
                done += part.nbytes
                progress(done, size)
        entry = kept.find(segments)
        problem = "it cannot be read back"
    except (FileError, ArgumentError, OSError) as error:
        entry, problem = None, _sentence(error)
    if entry is None:
        note(f"weights: prepared in memory, not kept: {problem}")
    return entry


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return re.sub(r"^\[\w+\] ", "", str(error))


def _in_memory(
    source: Source, segments: list[Segment], progress: Progress
) -> dict[str, BlockTensor]:
    size = sum(segment.nbytes for segment in segments)
    found: dict[str, BlockTensor] = {}
    filled: dict[str, int] = {}
    done = 0
    memory = _one_piece(segments)
    for segment, part in convert(source, segments):
        if segment.name not in found:
            blocks = memory[segment.name].reshape(segment.blocks_shape)
            found[segment.name] = BlockTensor(blocks, segment.shape, segment.format)
            filled[segment.name] = 0
        begin = filled[segment.name]
        found[segment.name].blocks[begin : begin + len(part)] = part
        filled[segment.name] += len(part)
        done += part.nbytes
        progress(done, size)
    assert all(filled[s.name] == s.blocks_shape[0] for s in segments)
    return found


def _one_piece(segments: Sequence[Segment]) -> dict[str, np.ndarray]:
    """Memory for the blocks of all segments, each on a page: a stream reaches few pieces of
    memory, and reads some blocks beyond a matrix."""
    slack = 4 * PAGE
    memory = _aligned(sum(segment.room for segment in segments) + 2 * slack)
    memory[:slack] = memory[-slack:] = 0
    found, at = {}, slack
    for segment in segments:
        found[segment.name] = memory[at : at + segment.nbytes]
        at += segment.room
    return found


def _aligned(size: int) -> np.ndarray:
    """Bytes that begin on a page, as devices need to read them in place."""
    memory = np.empty(size + PAGE, np.uint8)
    skip = -memory.ctypes.data % PAGE
    return memory[skip : skip + size]
