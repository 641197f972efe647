"""A model file, and what Hugging Face's model in float32 makes of a text with its weights: what
tests of decoding, of prompts and of batches compare with. Skips them where torch is missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from gemma3_files import Shape


@dataclasses.dataclass
class Case:
    """``expected``: logits (tokens, vocabulary)."""

    shape: Shape
    path: Path
    tokens: list[int]
    expected: np.ndarray


def case_of(shape: Shape, path: Path, weights: dict[str, np.ndarray], tokens: list[int]) -> Case:
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    logits = reference.hf_logits(reference.hf_model(shape, weights), tokens)
    return Case(shape, path, tokens, logits)
