"""The shape of a Gemma 3 text model, read from metadata under GGUF's keys.

Key names: gguf.md, "LLM" section, under the architecture prefix ``gemma3.``. Constants that GGUF
does not carry (layer period 6, the rope base of sliding layers) are Gemma 3's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from npu.formats.metadata import Metadata, ModelFile, show

_GLOBAL_EVERY = 6  # every sixth layer attends globally
_ROPE_BASE_GLOBAL = 1e6
_ROPE_BASE_SLIDING = 1e4
_CONTEXT_DEFAULT = 8192
# 27B is the only size whose attention scale is not 1/sqrt(head_dim), and GGUF has no key for it.
_LAYERS_27B = 62


@dataclass(frozen=True)
class Config:
    """Sizes and constants of a model; ``windows`` holds each layer's window, None for global."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    vocabulary: int
    context: int
    eps: float
    rope_base: float
    rope_base_sliding: float
    rope_factor: float
    attention_scale: float
    logit_softcap: float | None
    windows: tuple[int | None, ...]

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.width)


def read_config(file: ModelFile) -> Config:
    """The configuration in a file; FormatError when it is not a Gemma 3 text model."""
    architecture = file.text("general.architecture", "")
    if architecture != "gemma3":
        found = show(architecture) if architecture else "missing"
        raise file.fail(f"the architecture is {found}, only 'gemma3' models can be run")

    def size(name: str, default: int | None = None) -> int:
        return file.integer(f"gemma3.{name}", default, high=1 << 24)

    layers = size("block_count")
    # Counted against the table so that a corrupted count fails here and not in a long loop.
    if layers > len(file.shapes):
        raise file.fail(
            f"{file.named('gemma3.block_count')} is {layers}, the file has {len(file.shapes)} "
            "tensors of a text model"
        )
    width, heads = size("embedding_length"), size("attention.head_count")
    kv_heads = size("attention.head_count_kv", heads)
    head_dim = size("attention.key_length", max(1, width // heads))
    if heads % kv_heads:
        raise file.fail(
            f"{heads} attention heads are not a multiple of {kv_heads} KV heads "
            f"({file.named('gemma3.attention.head_count_kv')})"
        )
    if head_dim % 2:
        raise file.fail(
            f"the head dimension {head_dim} is odd, rotary embedding needs pairs "
            f"({file.named('gemma3.attention.key_length')})"
        )
    if size("attention.value_length", head_dim) != head_dim:
        raise file.fail("gemma3.attention.value_length differs from key_length")
    if _is_set(file, "gemma3.attn_logit_softcapping"):
        raise file.fail("attention logit soft-capping is Gemma 2's, a Gemma 3 model has none")
    embedding = file.shapes.get("token_embd.weight")
    if embedding is None:
        raise file.fail("the tensor of the embedding (token_embd.weight) is missing")
    if len(embedding) != 2 or embedding[1] != width or not embedding[0]:
        raise file.fail(
            f"token_embd.weight has shape {embedding}, expected (tokens, {width}), as "
            f"{file.named('gemma3.embedding_length')} says"
        )
    cap = "gemma3.final_logit_softcapping"
    return Config(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=size("feed_forward_length"),
        vocabulary=embedding[0],
        context=size("context_length", _CONTEXT_DEFAULT),
        eps=file.number("gemma3.attention.layer_norm_rms_epsilon"),
        rope_base=file.number("gemma3.rope.freq_base", _ROPE_BASE_GLOBAL),
        rope_base_sliding=file.number("gemma3.rope.freq_base_swa", _ROPE_BASE_SLIDING),
        rope_factor=_rope_factor(file),
        attention_scale=file.number(
            "gemma3.attention.scale",
            (head_dim if layers != _LAYERS_27B else width / heads) ** -0.5,
        ),
        logit_softcap=file.number(cap) if _is_set(file, cap) else None,
        windows=_windows(file, layers),
    )


def _is_set(file: Metadata, key: str) -> bool:
    """Whether a file has a key with a value other than 0, of any kind."""
    value = file.metadata.get(key)
    return value is not None and not (isinstance(value, (int, float)) and value == 0)


def _rope_factor(file: Metadata) -> float:
    kind = file.text("gemma3.rope.scaling.type", "none")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise file.fail(
            f"rope scaling {show(kind)} is not supported, Gemma 3 uses 'linear' or none"
        )
    return file.number("gemma3.rope.scaling.factor")


def _windows(file: Metadata, layers: int) -> tuple[int | None, ...]:
    """Window of each layer: every sixth is global, unless the file has its own pattern."""
    window = file.integer("gemma3.attention.sliding_window", 0, low=0)
    if window == 0:
        return (None,) * layers
    key = "gemma3.attention.sliding_window_pattern"
    pattern = file.metadata.get(key, _GLOBAL_EVERY)
    if isinstance(pattern, np.ndarray) and pattern.dtype == bool and len(pattern) == layers:
        return tuple(window if sliding else None for sliding in pattern)
    if isinstance(pattern, np.ndarray):
        raise file.fail(
            f"{file.named(key)} must hold true or false for each of the {layers} layers"
        )
    period = file.integer(key, _GLOBAL_EVERY)
    return tuple(None if (layer + 1) % period == 0 else window for layer in range(layers))
