"""Prepared weights in the folder of the cache (npu/cache_folder.py): what may stay there.

``NPU_CACHE_LIMIT``: GB that all entries may take, default 50.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu import cache_folder
from npu.errors import ArgumentError, FileError
from npu.models.prepare import unsynced

SUFFIX = ".blocks.safetensors"
MODEL_KEY, STATE_KEY = "npu.weights.model", "npu.weights.state"
_DEFAULT_LIMIT = 50.0  # GB
# Smaller models are prepared faster than a file is found; a folder that is named keeps them too.
_SMALLEST = 32 << 20
_MAX_HEADER = 1 << 24


def of_size(size: int) -> Path | None:
    """The folder for an entry of ``size`` bytes; None where it is not kept."""
    if not cache_folder.keeps_weights():
        return None
    return cache_folder.root() if cache_folder.is_named() or size >= _SMALLEST else None


def limit_bytes() -> int:
    """What all entries may take. Raises ArgumentError."""
    text = os.environ.get("NPU_CACHE_LIMIT", "")
    try:
        value = float(text) if text else _DEFAULT_LIMIT
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ArgumentError(f"[cache] NPU_CACHE_LIMIT is {text!r}; give GB, 50 for example")
    return int(value * 1e9)


@dataclass(frozen=True)
class Stored:
    """An entry of the folder; ``model`` and ``state`` are empty where they cannot be read."""

    path: Path
    size: int
    used: float
    model: str
    state: str


def make_room(path: Path, size: int, model: str, state: str) -> None:
    """Before an entry of ``size`` bytes is written to ``path``: removes entries of earlier states
    of its model, of models that are gone, and beyond the limit those used least recently. Raises
    FileError if the entry alone is beyond the limit."""
    limit = limit_bytes()
    if size > limit:
        raise FileError(f"{size / 1e9:.3g} GB are more than NPU_CACHE_LIMIT, {limit / 1e9:g} GB")
    left = []
    for entry in sorted(_entries(path.parent), key=lambda entry: entry.used):
        changed = entry.model == model and entry.state != state
        if entry.path == path or changed or not os.path.exists(entry.model):
            remove(entry.path)
        else:
            left.append(entry)
    total = size + sum(entry.size for entry in left)
    for entry in left:
        if total <= limit:
            break
        remove(entry.path)
        total -= entry.size


def remove(path: Path) -> None:
    """Removes an entry; who has it mapped keeps it."""
    with contextlib.suppress(OSError):
        path.unlink()
    unsynced.end(path)


def _entries(place: Path) -> Iterator[Stored]:
    for path in place.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            model, state = _origin(path)
            yield Stored(path, status.st_size, status.st_mtime, model, state)


def _origin(path: Path) -> tuple[str, str]:
    """Which model, in which state, an entry was made of; empty if its header is not readable."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER:
                return "", ""
            metadata = json.loads(file.read(length)).get("__metadata__", {})
        return str(metadata[MODEL_KEY]), str(metadata[STATE_KEY])
    except (struct.error, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return "", ""
