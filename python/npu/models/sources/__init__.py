"""Where a model's configuration, tokenizer and weights come from.

A model reads a ``Source`` (interface.py); GGUF files, Q4NX files and Hugging
Face folders each have one. Tensors have GGUF's names, norms are GGUF's 1 + w, metadata has GGUF's
keys.
"""

from __future__ import annotations

import os
from pathlib import Path

from npu.errors import FormatError
from npu.formats.gguf_file import GgufFile
from npu.formats.q4nx.container import Q4nxFile
from npu.models.sources.gguf import GgufSource
from npu.models.sources.huggingface import CheckpointSource
from npu.models.sources.interface import Source
from npu.models.sources.q4nx import Q4nxSource

__all__ = ["CheckpointSource", "GgufSource", "Q4nxSource", "Source", "open_source"]


def open_source(path: str | os.PathLike[str]) -> Source:
    """Opens a GGUF file, a Q4NX file, or a folder with a Q4NX file or a safetensors checkpoint.

    Files are opened by what they contain, whatever they are called.
    """
    place = Path(path)
    if os.path.isdir(place):  # false for a name that is too long; opening it says so
        found = sorted(place.glob("*.q4nx"))
        if len(found) == 1:
            return open_source(found[0])
        if found:
            listed = ", ".join(file.name for file in found[:5])
            raise FormatError(f"[gemma3] {place} has several Q4NX files ({listed}); name one")
        if (place / "config.json").is_file():
            return CheckpointSource(place)
        raise FormatError(
            f"[gemma3] {place} is a folder without a .q4nx file and without config.json; give a "
            "GGUF or Q4NX file, or a folder with one Q4NX file or a safetensors checkpoint"
        )
    start = _start(place)
    if start[:4] == b"GGUF":
        return GgufSource(GgufFile(place))
    if start[8:9] == b"{" or place.suffix in (".q4nx", ".safetensors"):
        return Q4nxSource(Q4nxFile(place))
    return GgufSource(GgufFile(place))


def _start(path: Path) -> bytes:
    """What tells formats apart: GGUF's magic, or a header's length and "{" of safetensors."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(9)
    except OSError:
        return b""
