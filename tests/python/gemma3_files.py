"""Makes the GGUF files of the Gemma 3 tests: a small tokenizer, random weights, metadata.

Weights are float32 arrays whose values bfloat16 can hold, so that rounding weights to bfloat16 is
exact and a comparison sees only the arithmetic. Norms are in GGUF's form, 1 + w.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np

from npu.models.gemma3.config import Config
from npu.models.gemma3.names import tensor_shapes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True)
class Shape:
    """The sizes of a test model; defaults: several KV heads, head_dim != width / heads."""

    layers: int = 7
    width: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn_width: int = 160
    window: int = 16
    rope_factor: float = 1.0
    context: int = 256


@dataclass
class Vocabulary:
    """Pieces, scores and types as GGUF stores them."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)

    def add(self, kind: int, *pieces: str) -> None:
        for piece in pieces:
            self.pieces.append(piece)
            self.types.append(kind)
            # As in Gemma: normal pieces rank by order, the rest have score 0.
            self.scores.append(-float(len(self.pieces)) if kind == NORMAL else 0.0)


def small_vocabulary() -> Vocabulary:
    """Gemma's layout in small: special ids 0-3, turn markers, byte pieces, merges."""
    vocabulary = Vocabulary()
    vocabulary.add(CONTROL, "<pad>", "<eos>", "<bos>")
    vocabulary.add(UNKNOWN, "<unk>")
    vocabulary.add(CONTROL, "<start_of_turn>", "<end_of_turn>")
    vocabulary.add(USER_DEFINED, "\n", "\n\n", "  ", "<table>")
    vocabulary.add(BYTE, *(f"<0x{value:02X}>" for value in range(256)))
    vocabulary.add(
        NORMAL, "he", "ll", "hell", "hello", "\u2581hello", "wo", "wor", "\u2581wor", "ld"
    )
    vocabulary.add(NORMAL, "\u2581world", "us", "er", "user", "mo", "del", "de", "model", "é")
    vocabulary.add(NORMAL, "\u2581", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789+-?!.,=")
    return vocabulary


def config_of(shape: Shape, tokens: int) -> Config:
    """The configuration the loader must arrive at for ``shape``."""
    windows = tuple(None if layer % 6 == 5 else shape.window for layer in range(shape.layers))
    return Config(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        ffn_width=shape.ffn_width,
        vocabulary=tokens,
        context=shape.context,
        eps=1e-6,
        rope_base=1e6,
        rope_base_sliding=1e4,
        rope_factor=shape.rope_factor,
        attention_scale=shape.head_dim**-0.5,
        logit_softcap=None,
        windows=windows,
    )


def random_weights(shape: Shape, tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Lively random weights: projections keep the variance, norms are far from 1."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, size in tensor_shapes(config_of(shape, tokens)).items():
        if name == "token_embd.weight":
            values = random.normal(0, shape.width**-0.5, size)
        elif len(size) == 2:
            values = random.normal(0, size[1] ** -0.5, size)
        else:
            values = 1 + random.normal(0, 0.3, size)
        weights[name] = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    return weights


def metadata(shape: Shape) -> dict[str, int | float | str]:
    """The architecture keys of a file, by their full names."""
    keys: dict[str, int | float | str] = {
        "gemma3.context_length": shape.context,
        "gemma3.block_count": shape.layers,
        "gemma3.embedding_length": shape.width,
        "gemma3.feed_forward_length": shape.ffn_width,
        "gemma3.attention.head_count": shape.heads,
        "gemma3.attention.head_count_kv": shape.kv_heads,
        "gemma3.attention.key_length": shape.head_dim,
        "gemma3.attention.value_length": shape.head_dim,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.sliding_window": shape.window,
        "gemma3.rope.freq_base": 1e6,
    }
    if shape.rope_factor != 1:
        keys["gemma3.rope.scaling.type"] = "linear"
        keys["gemma3.rope.scaling.factor"] = shape.rope_factor
    return keys


def write_model(
    path: Path,
    shape: Shape | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    weights: dict[str, np.ndarray] | None = None,
    keys: dict[str, int | float | str | bool | list | None] | None = None,
    types: dict[str, gguf.GGMLQuantizationType] | None = None,
    architecture: str = "gemma3",
) -> Path:
    """Writes a model. ``keys`` overrides metadata (None removes a key), ``types`` the storage of
    tensors by name."""
    shape = shape or Shape()
    vocabulary = vocabulary or small_vocabulary()
    if weights is None:
        weights = random_weights(shape, len(vocabulary.pieces))
    writer = gguf.GGUFWriter(path, architecture)
    tokenizer = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    for key, value in {**metadata(shape), **tokenizer, **(keys or {})}.items():
        add_value(writer, key, value)
    if vocabulary.pieces:
        writer.add_token_list([piece.encode() for piece in vocabulary.pieces])
        writer.add_token_scores(vocabulary.scores)
        writer.add_token_types(vocabulary.types)
    for name, values in weights.items():
        kind = (types or {}).get(name, gguf.GGMLQuantizationType.F32)
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            writer.add_tensor(name, gguf.quants.quantize(values, kind))
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small_types(layers: int) -> dict[str, gguf.GGMLQuantizationType]:
    """Storage, for ``write_model``, of matrices that small blocks hold: both formats in q, k and
    v and in gate and up, the head in 8 bits."""
    kinds = gguf.GGMLQuantizationType
    parts = {
        "attn_q": kinds.Q4_0, "attn_k": kinds.Q4_0, "attn_v": kinds.Q8_0, "attn_output": kinds.Q4_0,
        "ffn_gate": kinds.Q4_0, "ffn_up": kinds.Q8_0, "ffn_down": kinds.Q5_0,
    }  # fmt: skip
    types = {f"blk.{i}.{part}.weight": k for i in range(layers) for part, k in parts.items()}
    return types | {"token_embd.weight": kinds.Q8_0}


def add_value(
    writer: gguf.GGUFWriter, key: str, value: int | float | str | bool | list | None
) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
