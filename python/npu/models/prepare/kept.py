"""Prepared weights in a cache file: found again by model file and choice, and mapped.

An entry is a safetensors file of blocks, each tensor on a page, with what the array reads beyond
small ones (``Segment.room``). Its name has a key over the model's files (path, size, time, some
bytes), the ``weights`` choice and the version below; an entry that is not exactly what the plan
asks for is made again. Folder and limits: ``folder.py``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npu.errors import FormatError
from npu.formats import blocks
from npu.formats.blocks import BlockTensor
from npu.formats.q4nx.writer import Announced, Writer
from npu.formats.safetensors_file import SafetensorsFile
from npu.models.prepare import folder, unsynced
from npu.models.prepare.plan import PAGE, Segment
from npu.models.prepare.report import WeightsRow
from npu.models.sources.interface import Source

VERSION = "2"  # of the entries: raise it when blocks or conversions change
VERSION_KEY, KEY_KEY, ROWS_KEY = "npu.weights.version", "npu.weights.key", "npu.weights.report"
_FORMATS_KEY = "npu.weights.formats"
_HEAD_BYTES, _SAMPLES = 1 << 20, 64  # of a model file that the key covers


@dataclass(frozen=True)
class Entry:
    """An entry that was checked. ``tensors`` are mapped; ``rows`` report on them."""

    path: Path
    tensors: dict[str, BlockTensor]
    rows: tuple[WeightsRow, ...]


class KeptWeights:
    """The place of one model's prepared weights in the cache; see ``of``."""

    def __init__(self, path: Path, model: str, state: str, key: str) -> None:
        self.path = path
        self._model, self._state, self._key = model, state, key

    @staticmethod
    def of(source: Source, weights: str, size: int) -> KeptWeights | None:
        """None where nothing is kept: the cache is off, or ``size`` bytes are too few."""
        place = folder.of_size(size)
        if place is None or not source.paths:
            return None
        model = os.path.realpath(source.paths[0] if len(source.paths) == 1 else source.folder)
        state = _state(source.paths)
        key = hashlib.blake2b(
            f"{model}\n{state}\n{weights}".encode(errors="surrogateescape"),
            digest_size=16,
        ).hexdigest()
        stem = Path(model).stem.encode(errors="replace").decode(errors="replace")[:80] or "model"
        name = f"{stem}.{weights}.{key[:16]}{folder.SUFFIX}"
        return KeptWeights(place / name, model, state, key)

    def find(self, segments: Sequence[Segment]) -> Entry | None:
        """The entry, if it is complete and exactly what the segments need."""
        try:
            if not self.path.is_file() or not unsynced.intact(self.path):
                return None
            file = SafetensorsFile(self.path, "cache")
            file.in_huge_pages()
            entry = self._checked(file, segments)
        except (FormatError, OSError, ValueError, TypeError, KeyError):
            return None
        if entry:
            with contextlib.suppress(OSError):
                os.utime(self.path)  # the least recently used entry is removed first
            unsynced.sync_later(self.path)
        return entry

    def _checked(self, file: SafetensorsFile, segments: Sequence[Segment]) -> Entry | None:
        formats = {segment.name: segment.format for segment in segments}
        wanted = {VERSION_KEY: VERSION, KEY_KEY: self._key, _FORMATS_KEY: json.dumps(formats)}
        if any(file.metadata.get(key) != value for key, value in wanted.items()):
            return None
        shapes = {tensor.name: tensor.shape for tensor in _announced(segments)}
        if {name: found.shape for name, found in file.entries.items()} != shapes:
            return None
        if file.unused_bytes():
            return None
        tensors = {}
        for segment in segments:
            found = file.entries[segment.name]
            if found.dtype != "U8" or found.offset % PAGE:
                return None
            raw = file.raw(found).reshape(segment.blocks_shape)
            tensors[segment.name] = BlockTensor(raw, segment.shape, segment.format)
        rows = tuple(_row(**fields) for fields in json.loads(file.metadata[ROWS_KEY]))
        return Entry(self.path, tensors, rows)

    @contextlib.contextmanager
    def writing(self, segments: Sequence[Segment], rows: Sequence[WeightsRow]) -> Iterator[_Blocks]:
        """Writes the entry; it appears when the block ends. Raises FileError, ArgumentError and
        OSError where it cannot be kept."""
        announced = _announced(segments)
        size = sum(tensor.size for tensor in announced)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder.make_room(self.path, size, self._model, self._state)
        formats = {segment.name: segment.format for segment in segments}
        metadata = {
            VERSION_KEY: VERSION,
            KEY_KEY: self._key,
            folder.MODEL_KEY: self._model,
            folder.STATE_KEY: self._state,
            _FORMATS_KEY: json.dumps(formats),
            ROWS_KEY: json.dumps([dataclasses.asdict(row) for row in rows]),
        }
        unsynced.begin(self.path)
        try:
            with Writer(self.path, announced, metadata, force=True, sync=False) as writer:
                yield _Blocks(writer)
        except BaseException:
            unsynced.end(self.path)
            raise


class _Blocks:
    """Appends the chunks of segments in order, and what fills pages between them."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._left = 0

    def append(self, segment: Segment, part: np.ndarray) -> None:
        self._left = self._left or segment.nbytes
        self._left -= part.nbytes
        self._writer.append(part)
        if not self._left:
            self._writer.append(np.zeros(segment.room - segment.nbytes, np.uint8))


def _announced(segments: Sequence[Segment]) -> list[Announced]:
    found = []
    for segment in segments:
        found.append(Announced(segment.name, "U8", segment.blocks_shape))
        if fill := segment.room - segment.nbytes:
            found.append(Announced(f"{segment.name}.fill", "U8", (fill,)))
    return found


def _row(
    kind: str, stored: str, format: str, tensors: int, nbytes: int, error: float, sampled_rows: int
) -> WeightsRow:
    """A row of the report, of a file that anything may have been done to."""
    if format not in blocks.FORMATS or not all(isinstance(text, str) for text in (kind, stored)):
        raise ValueError
    return WeightsRow(
        kind, stored, format, int(tensors), int(nbytes), float(error), int(sampled_rows)
    )


def _state(paths: Sequence[str]) -> str:
    """What tells a changed model file, or version, from the one that was prepared."""
    digest = hashlib.blake2b(VERSION.encode(), digest_size=16)
    for path in map(os.path.realpath, paths):
        status = os.stat(path)
        digest.update(
            f"{os.path.basename(path)}\n{status.st_size}\n{status.st_mtime_ns}\n".encode()
        )
        with open(path, "rb") as file:
            digest.update(file.read(_HEAD_BYTES))
            for sample in range(_SAMPLES):
                file.seek(status.st_size * sample // _SAMPLES)
                digest.update(file.read(256))
    return digest.hexdigest()
