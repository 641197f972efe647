"""Reads the JSON files of a model folder."""

import json
from pathlib import Path
from typing import Any

from npu.errors import FormatError
from npu.formats.metadata import show

_MAX_JSON_BYTES = 512 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a model folder; FormatError when it is anything else."""
    try:
        if not path.is_file():
            raise FormatError(f"[gemma3] {path} is missing or not a regular file")
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise FormatError(f"[gemma3] {path} is larger than any configuration")
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"[gemma3] {path} cannot be read as JSON: {show(str(error))}") from None
    if not isinstance(value, dict):
        raise FormatError(f"[gemma3] {path} is not a JSON object")
    return value
