"""Typed access to a model's metadata, whichever file it comes from.

Keys are GGUF's (``gemma3.block_count``, ``tokenizer.ggml.tokens``, ...): the model and the
tokenizer read these and nothing else, so every reader of a model format provides them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from npu.errors import FormatError

_SMALLEST, _LARGEST = (float(v) for v in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


class Metadata:
    """``metadata`` maps keys to Python values (arrays: NumPy, or list of str). Raises FormatError,
    which names the file by ``label``, for a value of an unexpected kind. ``key_names`` has what
    keys are called where they come from, if that is not a file with GGUF's keys."""

    reader = "model"
    label = ""
    metadata: dict[str, Any]
    key_names: Mapping[str, str] = {}

    def fail(self, what: str) -> FormatError:
        return FormatError(f"[{self.reader}] {self.label}: {what}")

    def named(self, key: str) -> str:
        """What to call a key in an error."""
        return self.key_names.get(key, key)

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = 2**31) -> int:
        """An integer within [low, high]; ``default`` when the key is absent."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(
                f"{self.named(key)} is {show(value)}, expected an integer in [{low}, {high}]"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number that a float32 can hold; ``default`` when the key is absent."""
        value = self._get(key, default)
        if not positive(value) or not _SMALLEST <= value <= _LARGEST:
            raise self.fail(f"{self.named(key)} is {show(value)}, expected a positive number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(f"{self.named(key)} is {show(value)}, expected a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"{self.named(key)} is {show(value)}, expected true or false")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self.metadata.get(key, default)
        if value is None:
            what = self.key_names.get(key, f"the metadata key {key}")
            raise self.fail(f"{what} is missing")
        return value


class ModelFile(Metadata):
    """Metadata and the shapes of the tensors, as GGUF files and all sources have them."""

    shapes: Mapping[str, tuple[int, ...]]


def positive(value: Any) -> bool:
    """Whether an untrusted value is a positive number that a float can hold: JSON's integers may
    have any length."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return good and 0 < value <= sys.float_info.max


def show(value: Any) -> str:
    """A value of an untrusted file for an error message: short and on one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
