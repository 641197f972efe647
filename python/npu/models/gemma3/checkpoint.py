"""How Gemma 3 checkpoints of Hugging Face transformers map to GGUF: the keys of config.json, the
names of tensors, the norms. Implements what weight sources require (models/sources/family.py).

What a key means is what transformers' Gemma3TextConfig makes of it (version 5; keys of version 4
are read, too). A setting that this package does not compute is refused, never left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.metadata import ModelFile, positive, show
from npu.models.gemma3.config import read_config
from npu.models.gemma3.names import HEAD, from_checkpoint, tensor_shapes, to_checkpoint

__all__ = [
    "KEY_NAMES",
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
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}
_WINDOW = 4096
_SIZES = {  # GGUF key under "gemma3." -> key of config.json
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# The keys behind the other values of ``metadata``, for errors that are found later.
KEY_NAMES = {f"gemma3.{ours}": f"{theirs} of config.json" for ours, theirs in _SIZES.items()} | {
    "general.architecture": "model_type of config.json",
    "gemma3.attention.sliding_window": "sliding_window of config.json",
    "gemma3.attention.sliding_window_pattern": "sliding_window_pattern of config.json",
    "gemma3.attention.scale": "query_pre_attn_scalar of config.json",
    "gemma3.final_logit_softcapping": "final_logit_softcapping of config.json",
    "gemma3.rope.freq_base": "rope_theta of config.json",
    "gemma3.rope.freq_base_swa": "rope_local_base_freq of config.json",
    "gemma3.rope.scaling.type": "rope_scaling of config.json",
    "gemma3.rope.scaling.factor": "rope_scaling of config.json: factor",
}
# Settings that change the result, and the only values with which nothing changes.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False, None),
    "attn_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
    "quantization_config": (None,),
    "quantization": (None,),
    "compression_config": (None,),
    "partial_rotary_factor": (None, 1),
}
_KINDS = ("full_attention", "sliding_attention")


def from_checkpoint_values(name: str, values: np.ndarray) -> np.ndarray:
    """A tensor's float32 values as GGUF has them: norms as 1 + w, which checkpoints store as w."""
    return values + np.float32(1) if name.endswith("norm.weight") else values


def expected_shapes(file: ModelFile) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a file of this configuration may have."""
    config = read_config(file)
    return {**tensor_shapes(config), HEAD: (config.vocabulary, config.width)}


class _Settings:
    """The text model's part of a config.json."""

    def __init__(self, label: str, config: dict[str, Any]) -> None:
        self.label = label
        text = config.get("text_config", config)
        if not isinstance(text, dict):
            raise self.refuse("text_config", text, "expected an object")
        self.whole, self.text = config, text

    def get(self, key: str) -> Any:
        value = self.text.get(key)
        return _DEFAULTS.get(key) if value is None else value

    def refuse(self, key: str, value: Any, why: str) -> FormatError:
        return FormatError(f"[gemma3] {self.label}: {key} of config.json is {show(value)}; {why}")

    def positive(self, key: str, value: Any) -> float:
        if not positive(value):
            raise self.refuse(key, value, "expected a positive number")
        return float(value)


def metadata(label: str, config: dict[str, Any]) -> dict[str, Any]:
    """GGUF's keys for the settings of a config.json."""
    settings = _Settings(label, config)
    _check_neutral(settings)
    found: dict[str, Any] = {"general.architecture": "gemma3"}
    found |= {f"gemma3.{ours}": settings.get(theirs) for ours, theirs in _SIZES.items()}
    found |= _rope(settings)
    key = "query_pre_attn_scalar"
    found["gemma3.attention.scale"] = settings.positive(key, settings.get(key)) ** -0.5
    key = "final_logit_softcapping"
    if (cap := settings.get(key)) is not None:
        found[f"gemma3.{key}"] = settings.positive(key, cap)
    found |= _windows(settings)
    return {key: value for key, value in found.items() if value is not None}


def _check_neutral(settings: _Settings) -> None:
    kind = settings.text.get("model_type")
    if settings.text is not settings.whole and kind not in (None, "gemma3_text"):
        raise settings.refuse("text_config.model_type", kind, "only 'gemma3_text' can be run")
    for part in (settings.text, settings.whole):
        for key, allowed in _NEUTRAL.items():
            value = part.get(key)
            if value is None or any(value is v or value == v for v in allowed):
                continue
            usual = "absent" if allowed[0] in (None, False) else show(allowed[0])
            raise settings.refuse(key, value, f"only models where it is {usual} can be run")


def _windows(settings: _Settings) -> dict[str, Any]:
    """Which layers attend through a window: layer_types, or every n-th one globally."""
    kinds, layers = settings.get("layer_types"), settings.get("num_hidden_layers")
    period = settings.get("sliding_window_pattern")
    key = "gemma3.attention.sliding_window_pattern"
    found: dict[str, Any] = {}
    if kinds is not None:
        good = isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
        if not good or not set(kinds) <= set(_KINDS):
            other = [kind for kind in kinds if kind not in _KINDS] if good else kinds
            raise settings.refuse("layer_types", other, f"known are {' and '.join(_KINDS)}")
        if len(kinds) != layers:
            raise settings.refuse(
                "layer_types", kinds, f"it has {len(kinds)} entries for {show(layers)} layers"
            )
        found[key] = np.array([kind == "sliding_attention" for kind in kinds], bool)
    elif period is not None:
        if type(period) is not int or period < 1:
            raise settings.refuse("sliding_window_pattern", period, "expected an integer >= 1")
        found[key] = period
    elif settings.get("_sliding_window_pattern") not in (None, 6):
        # transformers writes this key and does not read it: it reads as 6.
        value = settings.get("_sliding_window_pattern")
        raise settings.refuse("_sliding_window_pattern", value, "state layer_types instead")
    window = settings.text.get("sliding_window", _WINDOW)
    if kinds is not None and "sliding_attention" not in kinds:
        window = None
    elif type(window) is not int or window < 1:
        raise settings.refuse("sliding_window", window, "layers with a window need its size")
    found["gemma3.attention.sliding_window"] = window
    return found


def _rope(settings: _Settings) -> dict[str, Any]:
    """Bases and linear factor: rope_theta, rope_local_base_freq and rope_scaling of transformers
    4; in version 5, rope_parameters by kind of layer, which take precedence."""
    parts = settings.get("rope_parameters")
    scaling = settings.get("rope_scaling")
    for key, value in (("rope_parameters", parts), ("rope_scaling", scaling)):
        if value is not None and not isinstance(value, dict):
            raise settings.refuse(key, value, "expected an object")
    if parts and not set(parts) <= set(_KINDS):
        raise settings.refuse("rope_parameters", parts, f"expected {' and '.join(_KINDS)}")
    local = (parts or {}).get("sliding_attention") or {}
    full = (parts or {}).get("full_attention") or {}
    if not isinstance(local, dict) or not isinstance(full, dict):
        raise settings.refuse("rope_parameters", parts, "expected an object for each kind of layer")
    name = "rope_scaling" if scaling else "rope_parameters"
    _check_rope(settings, "rope_parameters", local, ("default",))
    full = {**full, **(scaling or {})}
    kind = _check_rope(settings, name, full, ("default", "linear"))
    if scaling and kind is None:
        raise settings.refuse("rope_scaling", scaling, "it has no rope_type")
    found: dict[str, Any] = {}
    bases = (
        ("freq_base", full, "full_attention", "rope_theta"),
        ("freq_base_swa", local, "sliding_attention", "rope_local_base_freq"),
    )
    for ours, part, place, old in bases:
        value, key = part.get("rope_theta"), f"rope_parameters.{place}.rope_theta"
        if value is None:
            value, key = settings.get(old), old
        if value is not None:
            found[f"gemma3.rope.{ours}"] = settings.positive(key, value)
    if kind == "linear":
        if not positive(full.get("factor")):
            raise settings.refuse(name, full, "its factor is not a positive number")
        factor = float(full["factor"])
        found |= {"gemma3.rope.scaling.type": kind, "gemma3.rope.scaling.factor": factor}
    return found


def _check_rope(
    settings: _Settings, key: str, part: dict[str, Any], known: tuple[str, ...]
) -> str | None:
    kind = part.get("rope_type", part.get("type"))
    if kind is not None and kind not in known:
        raise settings.refuse(
            key, part, f"rope scaling {show(kind)} is not supported, only {' and '.join(known)}"
        )
    if part.get("partial_rotary_factor") not in (None, 1):
        raise settings.refuse(key, part, "a partial rotary embedding is not supported")
    return kind if isinstance(kind, str) else None
