"""Helpers of the Q4NX model tests: GGUF files of a type, HF checkpoints, dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gemma3_files import Shape, random_weights, small_vocabulary, write_model

from npu.formats.q4nx.container import Q4nxFile
from npu.models.gemma3 import names
from npu.models.sources import Q4nxSource

# Sizes that K-quants can store (rows of 256) and others of 4-bit types (rows of 32).
K_SHAPE = Shape(layers=2, width=256, heads=4, kv_heads=2, head_dim=64, ffn_width=256, window=16)


def gguf_model(
    path: Path, kind: gguf.GGMLQuantizationType, shape: Shape = K_SHAPE, **options: Any
) -> tuple[Path, dict[str, np.ndarray]]:
    """A file whose matrices have one type, and the weights that were stored."""
    weights = random_weights(shape, len(small_vocabulary().pieces))
    types = {name: kind for name, values in weights.items() if values.ndim == 2}
    return write_model(path, shape, weights=weights, types=types, **options), weights


def opened(path: Path) -> Q4nxSource:
    return Q4nxSource(Q4nxFile(path))


def dequantised(path: Path) -> dict[str, np.ndarray]:
    """The float32 weights a Q4NX file stands for, by GGUF name, the embedding unscaled."""
    source = Q4nxSource(Q4nxFile(path))
    found = {}
    for name, shape in source.shapes.items():
        values = source.float32(name)
        if name == names.EMBEDDING:
            values = values / np.float32(shape[1] ** 0.5)
        found[name] = values
    return found


def save_checkpoint(
    folder: Path, shape: Shape, weights: dict[str, np.ndarray], *, shards: str = "1GB"
) -> Path:
    """``save_pretrained`` of transformers' model with these weights, in bfloat16."""
    reference = pytest.importorskip("gemma3_reference", exc_type=ImportError)
    model = reference.hf_model(shape, weights).to(reference.torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=shards)
    return folder


def save_tokenizer_json(folder: Path) -> Any:
    """tokenizer.json of the small vocabulary by the `tokenizers` library; returns that tokenizer.

    Merges are all pairs of pieces whose union is a piece, best score first, as SentencePiece does.
    """
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = small_vocabulary()
    ids: dict[str, int] = {}
    for index, piece in enumerate(vocabulary.pieces):
        ids.setdefault(piece, index)
    merges = []
    for piece, kind in zip(vocabulary.pieces, vocabulary.types, strict=True):
        if kind == 1:
            merges += [
                (ids[piece], piece[:cut], piece[cut:])
                for cut in range(1, len(piece))
                if piece[:cut] in ids and piece[cut:] in ids
            ]
    model = tokenizers.models.BPE(
        vocab=ids,
        merges=[(a, b) for _, a, b in sorted(merges)],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback()]
    )
    special = [p for p, k in zip(vocabulary.pieces, vocabulary.types, strict=True) if k == 3]
    plain = [p for p, k in zip(vocabulary.pieces, vocabulary.types, strict=True) if k == 4]
    tokenizer.add_special_tokens([tokenizers.AddedToken(p, normalized=False) for p in special])
    tokenizer.add_tokens([tokenizers.AddedToken(p, normalized=False) for p in plain])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": "{{ bos_token }}X"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def bf16(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)
