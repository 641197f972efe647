"""Tensor names of Gemma 3 models: GGUF's, which the package uses, and those of checkpoints.

Hugging Face checkpoints and Q4NX files share names; multimodal checkpoints prefix them.
"""

from __future__ import annotations

import re

from npu.models.gemma3.config import Config
from npu.models.sources.interface import Source

EMBEDDING, HEAD, OUTPUT_NORM = "token_embd.weight", "output.weight", "output_norm.weight"

# Part of a layer: GGUF's name -> Hugging Face's.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_WHOLE = {
    EMBEDDING: "model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    OUTPUT_NORM: "model.norm.weight",
}
_FROM_LAYER = {theirs: ours for ours, theirs in _LAYER.items()}
_FROM_WHOLE = {theirs: ours for ours, theirs in _WHOLE.items()}
# What multimodal checkpoints put before the names of the text model, by version of transformers.
_PREFIX = re.compile(
    r"^(?:language_model\.model\.|model\.language_model\.|language_model\.(?=lm_head))"
)
# Checkpoints of the text model without a head (Gemma3TextModel) have no prefix.
_BARE = ("layers.", "embed_tokens.", "norm.")


def to_checkpoint(name: str) -> str:
    """The checkpoint's name of a GGUF tensor name."""
    if name in _WHOLE:
        return _WHOLE[name]
    _, index, part, suffix = name.split(".")
    return f"model.layers.{index}.{_LAYER[part]}.{suffix}"


def from_checkpoint(name: str) -> str | None:
    """GGUF's name of a checkpoint tensor; None for what is not part of the text model."""
    found = _PREFIX.match(name)
    if found:
        rest = name[found.end() :]
        name = rest if rest.startswith("lm_head") else f"model.{rest}"
    elif name.startswith(_BARE):
        name = f"model.{name}"
    if name in _FROM_WHOLE:
        return _FROM_WHOLE[name]
    layer = re.fullmatch(r"model\.layers\.(\d{1,6})\.(.+)\.weight", name)
    if layer is None or layer[2] not in _FROM_LAYER:
        return None
    return f"blk.{int(layer[1])}.{_FROM_LAYER[layer[2]]}.weight"


def tensor_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a model of this configuration has (the head apart)."""
    d, ff, hd = config.width, config.ffn_width, config.head_dim
    q, kv = config.heads * hd, config.kv_heads * hd
    layer = {
        "attn_norm": (d,),
        "attn_q": (q, d),
        "attn_k": (kv, d),
        "attn_v": (kv, d),
        "attn_q_norm": (hd,),
        "attn_k_norm": (hd,),
        "attn_output": (d, q),
        "post_attention_norm": (d,),
        "ffn_norm": (d,),
        "ffn_gate": (ff, d),
        "ffn_up": (ff, d),
        "ffn_down": (d, ff),
        "post_ffw_norm": (d,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocabulary, d),
        OUTPUT_NORM: (d,),
    }
    for index in range(config.layers):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def check_tensors(source: Source, config: Config) -> None:
    """Raises FormatError unless every tensor is there, readable and of the right shape."""
    shapes = tensor_shapes(config)
    # A scaled embedding cannot serve as head, so such files have one.
    if HEAD in source.shapes or source.embedding_scaled:
        shapes[HEAD] = (config.vocabulary, config.width)
    for name, shape in shapes.items():
        source.check(name, shape)
    for name in source.shapes:
        if name.startswith(f"blk.{config.layers}."):
            raise source.fail(
                f"the tensor {source.stored_name(name)} is of a layer beyond the {config.layers} "
                f"that {source.named('gemma3.block_count')} says"
            )
