"""GPT-2 from a checkpoint folder or from a configuration, its linear layers on the NPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from text import BYTES
from transformers import GPT2Config, GPT2LMHeadModel

# 124M is the paper's model: GPT-2 small with its vocabulary filled up to a multiple of 128.
SHAPES: dict[str, dict[str, int]] = {
    "124m": {"vocab_size": 50304},
    "small": {"n_layer": 2, "n_head": 4, "n_embd": 128, "n_positions": 256, "vocab_size": BYTES},
}


def build(checkpoint: Path | None, shape: str, seed: int) -> GPT2LMHeadModel:
    """A model in float32, with random weights if there is no checkpoint."""
    torch.manual_seed(seed)
    if checkpoint is None:
        return GPT2LMHeadModel(_configuration(SHAPES[shape]))
    kind = _kind(checkpoint)
    if kind != "gpt2":
        raise SystemExit(f"[gpt2] {checkpoint} has a model of type {kind!r}; expected gpt2")
    try:
        return GPT2LMHeadModel.from_pretrained(checkpoint, dtype=torch.float32)
    except Exception as error:  # of transformers, safetensors, its checks of configurations
        raise SystemExit(f"[gpt2] {checkpoint} does not load: {error}") from None


def _configuration(sizes: dict[str, int]) -> GPT2Config:
    # Tokens that end a text are none of a byte's; dropout off as in the paper's llm.c.
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2Config(**sizes, **quiet, bos_token_id=0, eos_token_id=0)


def _kind(folder: Path) -> Any:
    try:
        return json.loads((folder / "config.json").read_text()).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise SystemExit(
            f"[gpt2] {folder} is no checkpoint folder of transformers ({error}); it has "
            "config.json and weights"
        ) from None


def generate(model: GPT2LMHeadModel, tokenizer: Any, prompt: str, tokens: int) -> str:
    """The prompt, or the end of it that the model has positions for, and its most probable
    continuation."""
    positions = model.config.n_positions
    tokens = min(tokens, positions - 1)
    ids = torch.tensor([tokenizer.encode(prompt)[tokens - positions :]])
    was = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip
    model.train(was)
    return tokenizer.decode(out[0].tolist())
