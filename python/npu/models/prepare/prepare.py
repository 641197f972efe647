"""The blocks of a model's matrices: in place, from the cache, or converted now."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npu.errors import ArgumentError, FileError
from npu.formats.blocks import BlockTensor
from npu.formats.q4nx.tensor import concatenate
from npu.models.prepare import report
from npu.models.prepare.converter import convert
from npu.models.prepare.kept import Entry, KeptWeights
from npu.models.prepare.plan import Segment
from npu.models.prepare.report import WeightsReport
from npu.models.prepare.resident import bring, check_choice, one_piece
from npu.models.sources.interface import Source

Progress = Callable[[int, int], None]
Note = Callable[[str], None]


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
    check_choice()
    note = note or (lambda _: None)
    progress = progress or _silent
    mapped = {s.name: tensor for s in segments if (tensor := _in_place(source, s)) is not None}
    missing = [segment for segment in segments if segment.name not in mapped]
    others = _Others({}, {}, (), source.label)
    bringing = progress
    if missing:
        kept = KeptWeights.of(source, weights, _size(missing)) if cache else None
        if kept is not None and (entry := kept.find(missing)):
            note(f"weights: prepared before, {entry.path}")
            others = _Others.of(entry)
        else:
            bringing = _silent  # after what conversion reports
            others = _converted(kept, source, missing, progress, note)
    mapped |= others.mapped
    brought = bring([s for s in segments if s.name in mapped], mapped, bringing)
    if any(brought[name] is not tensor for name, tensor in mapped.items()):
        note("weights: copied to huge pages of memory, as the file lies in small ones")
    total = _size(segments)
    progress(total, total)
    rows = report.measure(source, [s for s in segments if s not in missing]) + others.rows
    found = others.in_memory | brought
    by_key: dict[str, list[BlockTensor]] = {}
    for segment in segments:
        by_key.setdefault(segment.key, []).append(found[segment.name])
    return Prepared(by_key, WeightsReport(rows, others.location))


@dataclass(frozen=True)
class _Others:
    """What the file does not have as it is: in the cache's file, or in memory."""

    mapped: dict[str, BlockTensor]
    in_memory: dict[str, BlockTensor]
    rows: tuple[report.WeightsRow, ...]
    location: str

    @classmethod
    def of(cls, entry: Entry) -> _Others:
        return cls(entry.tensors, {}, entry.rows, str(entry.path))


def _size(segments: Sequence[Segment]) -> int:
    return sum(segment.nbytes for segment in segments)


def _silent(done: int, total: int) -> None:
    pass


def _in_place(source: Source, segment: Segment) -> BlockTensor | None:
    """Q4NX blocks of the file where they lie, if its tensors follow one another there."""
    if segment.format != "q4nx" or any(part.stored != "Q4NX" for part in segment.parts):
        return None
    tensors = [tensor for part in segment.parts if (tensor := source.q4nx(part.name)) is not None]
    ends = [tensor.blocks.ctypes.data + tensor.nbytes for tensor in tensors]
    if ends[:-1] != [tensor.blocks.ctypes.data for tensor in tensors[1:]]:
        return None
    return BlockTensor(concatenate(tensors).blocks, segment.shape, "q4nx")


def _converted(
    kept: KeptWeights | None,
    source: Source,
    segments: list[Segment],
    progress: Progress,
    note: Note,
) -> _Others:
    """Made now, and kept where that works."""
    if kept is not None and (entry := _kept_now(kept, source, segments, progress, note)):
        return _Others.of(entry)
    rows = report.measure(source, segments)
    return _Others({}, _in_memory(source, segments, progress), rows, "in memory")


def _kept_now(
    kept: KeptWeights, source: Source, segments: list[Segment], progress: Progress, note: Note
) -> Entry | None:
    """A new entry of the cache. None: it cannot be kept."""
    size = _size(segments)
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
    size = _size(segments)
    found: dict[str, BlockTensor] = {}
    filled: dict[str, int] = {}
    done = 0
    memory = one_piece(segments)
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
