"""Checkpoints of Hugging Face transformers as a source of weights: a folder with config.json, a
tokenizer and safetensors files, presented with GGUF's names, keys and conventions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.json_file import read_json
from npu.formats.metadata import show
from npu.formats.safetensors_file import SafetensorsFile
from npu.models import hf_tokenizer, sampling_settings
from npu.models.sources.family import Family, config_metadata, family_of
from npu.models.sources.interface import Source

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"  # GGUF's names

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
CHECKPOINT_FILES = (_INDEX, _WHOLE)  # either makes a folder a checkpoint


class CheckpointSource(Source):
    """The text model of a checkpoint folder, one file or sharded with an index."""

    reader = "safetensors"

    def __init__(self, folder: Path) -> None:
        self.label, self.folder = folder.name or str(folder), str(folder)
        self.metadata = folder_metadata(folder)
        self.family = family_of(self)
        self.key_names = folder_key_names(self.family)
        self._files: dict[str, SafetensorsFile] = {}  # by tensor name
        self._stored: dict[str, str] = {}
        others: list[str] = []
        for path in _weight_files(folder):
            file = SafetensorsFile(path)
            self.paths = [*self.paths, file.path]
            for stored in file.entries:
                name = self.family.from_checkpoint(stored)
                if name is None:
                    others.append(stored)
                    continue
                if name in self._stored:
                    raise self.fail(f"{show(stored)} and {show(self._stored[name])} are one tensor")
                self._stored[name], self._files[name] = stored, file
        if not self._stored:
            raise self.fail(
                f"none of its {len(others)} tensors is of a text model that can be run"
                + (f" (the first is {show(others[0])})" if others else "")
            )
        self.shapes = {
            name: file.entry(self._stored[name]).shape for name, file in self._files.items()
        }

        _check_config(self, read_json(folder / "config.json"))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        super().check(name, shape)
        if self.stored_type(name) not in ("BF16", "F16", "F32", "F64"):
            raise self.fail(
                f"the tensor {self._stored[name]} has dtype {show(self.stored_type(name))}; only "
                "unquantised checkpoints (BF16, F16, F32) can be read"
            )

    def stored_name(self, name: str) -> str:
        return self._stored.get(name) or self.family.to_checkpoint(name)

    def stored_type(self, name: str) -> str:
        return self._files[name].entry(self._stored[name]).dtype

    def float32(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        file = self._files[name]
        with np.errstate(over="ignore"):
            values = file.array(file.entry(self._stored[name]), rows).astype(np.float32)
        return self.family.from_checkpoint_values(name, values)

    def release(self, name: str) -> None:
        self._files[name].release(self._files[name].entry(self._stored[name]))


def folder_key_names(family: Family) -> dict[str, str]:
    """What GGUF's keys are called in the files of a folder."""
    return {**family.KEY_NAMES, **hf_tokenizer.KEY_NAMES, **sampling_settings.KEY_NAMES}


def folder_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a folder's config.json and tokenizer files, under GGUF's keys."""
    config = read_json(folder / "config.json")
    found = {**config_metadata(folder.name, config), **hf_tokenizer.metadata(folder)}
    if (settings := folder / "generation_config.json").is_file():
        found |= sampling_settings.from_generation_config(folder.name, read_json(settings))
    return found


def _check_config(source: CheckpointSource, config: dict[str, Any]) -> None:
    """What config.json says about the tensors."""
    text = config.get("text_config", config)
    tied = [part.get("tie_word_embeddings") for part in (config, text)]
    if any(value is False for value in tied) and _HEAD not in source.shapes:
        raise source.fail(
            "tie_word_embeddings of config.json is false, but the checkpoint has no "
            f"{source.stored_name(_HEAD)}"
        )
    rows = source.shapes.get(_EMBEDDING, (0,))[0]
    if text.get("vocab_size") not in (None, rows):
        raise source.fail(
            f"vocab_size of config.json is {show(text['vocab_size'])}, the tensor "
            f"{source.stored_name(_EMBEDDING)} has {rows} rows"
        )


def _weight_files(folder: Path) -> list[Path]:
    if not (folder / _INDEX).is_file():
        return [folder / _WHOLE]
    index = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(v, str) for v in index.values()):
        raise FormatError(f"[gemma3] {folder / _INDEX} has no weight_map of file names")
    files = sorted(set(index.values()))
    if any(Path(file).name != file for file in files):
        raise FormatError(f"[gemma3] {folder / _INDEX} names files outside its folder")
    return [folder / file for file in files]
