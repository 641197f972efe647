"""The demo model's architecture: a small Gemma 3 in transformers, and the GGUF name of each tensor.

Small, but with everything that makes a Gemma 3: five sliding layers to one global layer, each kind
with its own RoPE base, grouped queries, Q and K norms, four norms per layer, a tied and scaled
embedding.
"""

from __future__ import annotations

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

HIDDEN = 160
FEED_FORWARD = 480
LAYERS = 6  # one period of the sliding/global pattern
PATTERN = 6
HEADS = 4
KV_HEADS = 1
HEAD_DIM = 32
WINDOW = 32  # shorter than a chat of two turns, so that it matters
CONTEXT = 2048
ROPE_GLOBAL = 1e6
ROPE_LOCAL = 1e4
EPSILON = 1e-6


def config(
    vocabulary_size: int,
    *,
    hidden: int = HIDDEN,
    feed_forward: int = FEED_FORWARD,
    layers: int = LAYERS,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    head_dim: int = HEAD_DIM,
    window: int = WINDOW,
    context: int = CONTEXT,
    rope_global: float = ROPE_GLOBAL,
    rope_local: float = ROPE_LOCAL,
    epsilon: float = EPSILON,
) -> Gemma3TextConfig:
    """The transformers configuration; by default the demo model's own sizes."""
    return Gemma3TextConfig(
        vocab_size=vocabulary_size,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        query_pre_attn_scalar=head_dim,  # GGUF has no key for it: readers use 1/sqrt(head_dim)
        sliding_window=window,
        layer_types=[
            "full_attention" if (i + 1) % PATTERN == 0 else "sliding_attention"
            for i in range(layers)
        ],
        max_position_embeddings=context,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": rope_global},
            "sliding_attention": {"rope_type": "default", "rope_theta": rope_local},
        },
        rms_norm_eps=epsilon,
        tie_word_embeddings=True,
    )


def build(settings: Gemma3TextConfig) -> Gemma3ForCausalLM:
    """A float32 model with random weights."""
    return Gemma3ForCausalLM(settings).float()


_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tensor_names(layers: int) -> dict[str, str]:
    """GGUF tensor name -> transformers parameter name, for every stored tensor."""
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    for i in range(layers):
        for theirs, ours in _LAYER_NAMES.items():
            names[f"blk.{i}.{ours}.weight"] = f"model.layers.{i}.{theirs}.weight"
    return names


def round_to_bfloat16(model: Gemma3ForCausalLM) -> None:
    """Round the matrices in place, as the file stores them; norms stay float32."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(parameter.bfloat16().float())
