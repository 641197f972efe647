"""Gemma 3 checkpoints of Hugging Face transformers: a folder with config.json, a tokenizer and
safetensors files, presented with GGUF's names, keys and conventions.

Norms are stored as w and applied as 1 + w, so 1 is added here, in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.json_file import read_json
from npu.formats.metadata import positive, show
from npu.formats.q4nx import layout
from npu.formats.q4nx.tensor import Tensor
from npu.formats.safetensors_file import SafetensorsFile
from npu.models import hf_tokenizer
from npu.models.gemma3 import names
from npu.models.sources.interface import Source

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
CHECKPOINT_FILES = (_INDEX, _WHOLE)  # either makes a folder a checkpoint
# What transformers' Gemma3TextConfig takes for keys that a config.json leaves out.
_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "vocab_size": 262208,
}
_SIZES = {  # GGUF key under "gemma3." -> key of config.json
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "context_length": "max_position_embeddings",
}


class CheckpointSource(Source):
    """The text model of a checkpoint folder, one file or sharded with an index."""

    reader = "safetensors"

    def __init__(self, folder: Path) -> None:
        self.label = folder.name or str(folder)
        self.metadata = folder_metadata(folder)
        self._files: dict[str, SafetensorsFile] = {}  # by tensor name
        self._stored: dict[str, str] = {}
        for path in _weight_files(folder):
            file = SafetensorsFile(path)
            for stored in file.entries:
                name = names.from_checkpoint(stored)
                if name is None:
                    continue
                if name in self._stored:
                    raise self.fail(f"{show(stored)} and {show(self._stored[name])} are one tensor")
                self._stored[name], self._files[name] = stored, file
        self.shapes = {
            name: file.entry(self._stored[name]).shape for name, file in self._files.items()
        }

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        super().check(name, shape)
        if self.stored_type(name) not in ("BF16", "F16", "F32", "F64"):
            raise self.fail(
                f"the tensor {self._stored[name]} has dtype {show(self.stored_type(name))}; only "
                "unquantised checkpoints (BF16, F16, F32) can be read"
            )

    def stored_name(self, name: str) -> str:
        return self._stored.get(name) or names.to_checkpoint(name)

    def stored_type(self, name: str) -> str:
        return self._files[name].entry(self._stored[name]).dtype

    def float32(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        file = self._files[name]
        with np.errstate(over="ignore"):
            values = file.array(file.entry(self._stored[name]), rows).astype(np.float32)
        return values + np.float32(1) if name.endswith("norm.weight") else values

    def projection(self, name: str) -> np.ndarray | Tensor:
        file = self._files[name]
        return file.array(file.entry(self._stored[name])).astype(layout.BFLOAT16, copy=False)

    def release(self, name: str) -> None:
        self._files[name].release(self._files[name].entry(self._stored[name]))


def folder_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a folder's config.json and tokenizer files, under GGUF's keys."""
    config = read_json(folder / "config.json")
    return {**_architecture(folder.name, config), **hf_tokenizer.metadata(folder)}


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


def _architecture(label: str, config: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config", config)
    kind = config.get("model_type")
    if kind not in ("gemma3", "gemma3_text") or not isinstance(text, dict):
        raise FormatError(
            f"[gemma3] {label}: config.json has the model type {show(kind)}, only Gemma 3 models "
            "('gemma3', 'gemma3_text') can be read"
        )

    def get(key: str) -> Any:
        value = text.get(key)
        return _DEFAULTS.get(key) if value is None else value

    if get("hidden_activation") != "gelu_pytorch_tanh" or get("attention_bias"):
        raise FormatError(f"[gemma3] {label}: config.json has another activation or biases")
    found: dict[str, Any] = {"general.architecture": "gemma3"}
    found |= {f"gemma3.{ours}": get(theirs) for ours, theirs in _SIZES.items()}
    found["gemma3.attention.layer_norm_rms_epsilon"] = get("rms_norm_eps")
    found["gemma3.attention.sliding_window"] = get("sliding_window")
    found |= _rope(label, text)
    if get("query_pre_attn_scalar") != get("head_dim"):
        found["gemma3.attention.scale"] = _number(label, get("query_pre_attn_scalar")) ** -0.5
    for theirs, ours in (("attn", "attn_logit_softcapping"), ("final", "final_logit_softcapping")):
        if get(f"{theirs}_logit_softcapping"):
            found[f"gemma3.{ours}"] = get(f"{theirs}_logit_softcapping")
    kinds, period = get("layer_types"), get("sliding_window_pattern")
    if isinstance(kinds, list):
        found["gemma3.attention.sliding_window_pattern"] = np.array(
            [kind == "sliding_attention" for kind in kinds], bool
        )
    elif period is not None:
        found["gemma3.attention.sliding_window_pattern"] = period
    return {key: value for key, value in found.items() if value is not None}


def _rope(label: str, text: dict[str, Any]) -> dict[str, Any]:
    """Bases and linear factor, from the keys of transformers 4 or 5."""
    parts = text.get("rope_parameters")
    if isinstance(parts, dict) and "full_attention" in parts:
        full, sliding = parts["full_attention"], parts.get("sliding_attention", {})
        if not isinstance(full, dict) or not isinstance(sliding, dict):
            raise FormatError(f"[gemma3] {label}: rope_parameters of config.json are malformed")
        base, local, scaling = full.get("rope_theta"), sliding.get("rope_theta"), full
    else:
        base, local = text.get("rope_theta"), text.get("rope_local_base_freq")
        scaling = text.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise FormatError(f"[gemma3] {label}: rope_scaling of config.json is {show(scaling)}")
    found: dict[str, Any] = {"gemma3.rope.freq_base": base, "gemma3.rope.freq_base_swa": local}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in (None, "default"):
        found["gemma3.rope.scaling.type"] = kind
        found["gemma3.rope.scaling.factor"] = scaling.get("factor")
    return found


def _number(label: str, value: Any) -> float:
    if not positive(value):
        raise FormatError(f"[gemma3] {label}: query_pre_attn_scalar is {show(value)}")
    return float(value)
