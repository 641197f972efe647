"""What weight sources require of a model family: how keys, names and values of its checkpoints map
to GGUF's. A family's module ``checkpoint`` provides it; a new family is a line of the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

import numpy as np

from npu.errors import FormatError
from npu.formats.metadata import Metadata, ModelFile, show

# model_type of a config.json -> general.architecture of GGUF, and its module
_MODEL_TYPES = {"gemma3": "gemma3", "gemma3_text": "gemma3"}
_FAMILIES = {"gemma3": "npu.models.gemma3.checkpoint"}


class Family(Protocol):
    KEY_NAMES: Mapping[str, str]  # what GGUF's keys are called in a config.json, for errors

    def metadata(self, label: str, config: dict[str, Any]) -> dict[str, Any]:
        """GGUF's keys for the settings of a config.json."""

    def from_checkpoint(self, name: str) -> str | None:
        """GGUF's name of a checkpoint tensor; None for what is not part of the text model."""

    def to_checkpoint(self, name: str) -> str:
        """The checkpoint's name of a GGUF tensor name."""

    def from_checkpoint_values(self, name: str, values: np.ndarray) -> np.ndarray:
        """A tensor's float32 values as GGUF has them, from those of a checkpoint."""

    def expected_shapes(self, file: ModelFile) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that a file of this configuration may have."""


def family_of(file: Metadata) -> Family:
    """The family of the architecture that a file's metadata names."""
    architecture = file.text("general.architecture", "")
    if architecture not in _FAMILIES:
        known = " and ".join(repr(name) for name in _FAMILIES)
        found = show(architecture) if architecture else "missing"
        raise file.fail(f"the architecture is {found}, only {known} models can be run")
    return cast(Family, importlib.import_module(_FAMILIES[architecture]))


def config_metadata(label: str, config: dict[str, Any]) -> dict[str, Any]:
    """GGUF's keys for the settings of a folder's config.json, whose family it names."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _MODEL_TYPES:
        raise FormatError(
            f"[models] {label}: config.json has the model type {show(kind)}, only Gemma 3 models "
            f"({', '.join(map(repr, _MODEL_TYPES))}) can be read"
        )
    module = importlib.import_module(_FAMILIES[_MODEL_TYPES[kind]])
    return cast(Family, module).metadata(label, config)
