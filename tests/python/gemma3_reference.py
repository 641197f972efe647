"""The reference of the Gemma 3 tests: Hugging Face transformers' model with the same weights.

Float32 and eager attention. ``rounded`` makes every nn.Linear round its input to bfloat16, and
attention its keys and values, which is the arithmetic of the device and of the KV cache: bfloat16
operands, float32 accumulation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gemma3_files import Shape

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
modeling_gemma3 = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")

# GGUF name within a block -> module of Hugging Face's layer.
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


def hf_model(shape: Shape, weights: dict[str, np.ndarray]) -> Any:
    """Gemma3ForCausalLM holding ``weights`` (GGUF names; norms as 1 + w)."""
    full: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
    if shape.rope_factor != 1:
        full = {"rope_type": "linear", "rope_theta": 1e6, "factor": shape.rope_factor}
    options: dict[str, Any] = {}
    if int(transformers.__version__.split(".")[0]) >= 5:
        sliding = {"rope_type": "default", "rope_theta": 1e4}
        options["rope_parameters"] = {"full_attention": full, "sliding_attention": sliding}
    else:
        options = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
        if shape.rope_factor != 1:
            options["rope_scaling"] = {"rope_type": "linear", "factor": shape.rope_factor}
    config = transformers.Gemma3TextConfig(
        vocab_size=weights["token_embd.weight"].shape[0],
        hidden_size=shape.width,
        intermediate_size=shape.ffn_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        query_pre_attn_scalar=shape.head_dim,
        sliding_window=shape.window,
        max_position_embeddings=shape.context,
        attn_implementation="eager",
        **options,
    )
    model = transformers.Gemma3ForCausalLM(config).float().eval()
    state = {}
    for name, values in weights.items():
        target = _hf_name(name)
        values = values - 1 if target.endswith("norm.weight") else values
        state[target] = torch.from_numpy(values.copy())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    model.tie_weights()
    return model


def _hf_name(name: str) -> str:
    if name.startswith("blk."):
        _, index, part, _ = name.split(".")
        return f"model.layers.{index}.{_LAYER[part]}.weight"
    return {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }[name]


def hf_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """Logits (T, vocabulary) of one prefill."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


@contextlib.contextmanager
def rounded(model: Any) -> Iterator[None]:
    """Every projection of ``model`` sees its input rounded to bfloat16, attention k and v."""
    eager = modeling_gemma3.eager_attention_forward

    def round_cached(module: Any, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
        return eager(module, q, k.bfloat16().float(), v.bfloat16().float(), *rest, **options)

    def round_input(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (arguments[0].bfloat16().float(), *arguments[1:])

    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    handles = [module.register_forward_pre_hook(round_input) for module in linears]
    modeling_gemma3.eager_attention_forward = round_cached
    try:
        yield
    finally:
        modeling_gemma3.eager_attention_forward = eager
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def rounded_everywhere(model: Any) -> Iterator[None]:
    """The arithmetic of a token on the array: inputs and results of projections are bfloat16 (the
    logits float32), queries, keys and values too, and attention's weights before they are used."""
    eager = modeling_gemma3.eager_attention_forward

    def bf16(x: Any) -> Any:
        return x.bfloat16().float()

    def attention(
        module: Any, q: Any, k: Any, v: Any, mask: Any, *_: Any, scaling: float, **__: Any
    ) -> Any:
        group = q.shape[1] // k.shape[1]
        k, v = (bf16(x).repeat_interleave(group, dim=1) for x in (k, v))
        scores = bf16(q) @ k.transpose(2, 3) * scaling
        if mask is not None:
            scores = scores + mask[:, :, :, : k.shape[2]]
        scores = scores / math.log(2)  # maxima are rounded up to powers of two
        weights = bf16(torch.exp2(scores - scores.amax(-1, keepdim=True).ceil()))
        mixed = weights @ v / weights.sum(-1, keepdim=True)
        return mixed.transpose(1, 2).contiguous(), weights

    def round_input(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return (bf16(arguments[0]), *arguments[1:])

    def round_result(module: Any, arguments: Any, result: Any) -> Any:
        return result if module is model.lm_head else bf16(result)

    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    handles = [module.register_forward_pre_hook(round_input) for module in linears]
    handles += [module.register_forward_hook(round_result) for module in linears]
    modeling_gemma3.eager_attention_forward = attention
    try:
        yield
    finally:
        modeling_gemma3.eager_attention_forward = eager
        for handle in handles:
            handle.remove()
