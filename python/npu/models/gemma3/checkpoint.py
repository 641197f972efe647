"""How Gemma 3 checkpoints of Hugging Face transformers map to GGUF: the keys of config.json, the
names of tensors, the norms. Implements what weight sources require (models/sources/family.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.metadata import ModelFile, positive, show
from npu.models.gemma3.config import read_config
from npu.models.gemma3.names import HEAD, from_checkpoint, tensor_shapes, to_checkpoint

__all__ = [
    "expected_shapes",
    "from_checkpoint",
    "from_checkpoint_values",
    "metadata",
    "to_checkpoint",
]

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


def from_checkpoint_values(name: str, values: np.ndarray) -> np.ndarray:
    """A tensor's float32 values as GGUF has them: norms as 1 + w, which checkpoints store as w."""
    return values + np.float32(1) if name.endswith("norm.weight") else values


def expected_shapes(file: ModelFile) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a file of this configuration may have."""
    config = read_config(file)
    return {**tensor_shapes(config), HEAD: (config.vocabulary, config.width)}


def metadata(label: str, config: dict[str, Any]) -> dict[str, Any]:
    """GGUF's keys for the settings of a config.json."""
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise FormatError(f"[gemma3] {label}: text_config of config.json is {show(text)}")

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
