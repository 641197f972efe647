"""Writes a Gemma 3 of any size with random weights to a Q4NX file, for load and speed tests.

    python examples/demo_model/random_model.py /tmp/random-1b.q4nx

The defaults are the sizes of Gemma 3 1B: 1.3 GB, in seconds. The weights keep activations at scale
1, so logits are finite; the text it generates means nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from npu.formats.metadata import ModelFile
from npu.formats.q4nx import layout
from npu.formats.q4nx.quantizer import padded_blocks
from npu.formats.q4nx.writer import Writer
from npu.models.convert import Step, describe, plan
from npu.models.gemma3 import names
from npu.models.gemma3.config import read_config
from npu.models.sources.interface import Source

CONTROL, UNKNOWN, NORMAL, BYTE = 3, 2, 1, 6  # tokenizer.ggml.token_type
CHUNK_WEIGHTS = 1 << 20


def metadata(arguments: argparse.Namespace) -> dict[str, Any]:
    """Architecture and a tokenizer of made-up pieces, under GGUF's keys."""
    head = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = head + [f"<0x{value:02X}>" for value in range(256)]
    types = [CONTROL] * 3 + [UNKNOWN] + [CONTROL] * 2 + [BYTE] * 256
    # Every prefix of a piece is a piece, as merging needs.
    letters = "\u2581abcdefghijklmnopqrstuvwxyz"
    layer = [""]
    while len(tokens) < arguments.vocabulary:
        layer = [a + b for a in layer for b in letters]
        tokens += layer[: arguments.vocabulary - len(tokens)]
    types += [NORMAL] * (len(tokens) - len(types))
    return {
        "general.architecture": "gemma3",
        "general.name": "random weights",
        "gemma3.block_count": arguments.layers,
        "gemma3.embedding_length": arguments.width,
        "gemma3.feed_forward_length": arguments.ffn,
        "gemma3.attention.head_count": arguments.heads,
        "gemma3.attention.head_count_kv": arguments.kv_heads,
        "gemma3.attention.key_length": arguments.head_dim,
        "gemma3.attention.value_length": arguments.head_dim,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.sliding_window": 512,
        "gemma3.context_length": 32768,
        "gemma3.rope.freq_base": 1e6,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": (-np.arange(len(tokens), dtype=np.float32)),
        "tokenizer.ggml.token_type": np.array(types),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
    }


def write(path: Path, arguments: argparse.Namespace) -> None:
    keys = metadata(arguments)
    model = ModelFile()
    # The layer count is checked against the number of tensors, which is not known yet.
    model.metadata = keys
    model.shapes = {str(index): () for index in range(arguments.layers)}
    model.shapes |= {names.EMBEDDING: (arguments.vocabulary, arguments.width)}
    source = Source()
    source.shapes = {}
    steps = plan(source, read_config(model))
    random = np.random.default_rng(arguments.seed)
    details = describe(keys, steps, "random_model.py")
    with Writer(path, [s.announced for s in steps], details, force=arguments.force) as writer:
        for step in steps:
            if step.announced.dtype == "I8":
                blocks(writer, step, random)
            else:
                plain(writer, step, random)


def blocks(writer: Writer, step: Step, random: np.random.Generator) -> None:
    """Uniform codes: m = -7.5 d and standard deviation d * sqrt((16^2 - 1) / 12) = K^-0.5."""
    n, k = step.tensor.shape
    scale = k**-0.5 / (255 / 12) ** 0.5
    rows = max(1, CHUNK_WEIGHTS // (k * layout.ROWS)) * layout.ROWS
    for start in range(0, n, rows):
        count = min(rows, n - start)
        codes = np.frombuffer(random.bytes(count * k), np.uint8).reshape(count, k) & 15
        plane = np.full((count, -(-k // layout.GROUP)), scale, ml_dtypes.bfloat16)
        low = (plane.astype(np.float32) * -7.5).astype(ml_dtypes.bfloat16)
        writer.append(padded_blocks(codes, plane, low))


def plain(writer: Writer, step: Step, random: np.random.Generator) -> None:
    """Norms of one, and embedding rows of standard deviation 1 (they are stored scaled)."""
    if len(step.tensor.shape) == 1:
        writer.append(np.ones(step.tensor.shape, ml_dtypes.bfloat16))
        return
    rows, width = step.tensor.shape
    some = random.normal(size=(1021, width)).astype(np.float32).astype(ml_dtypes.bfloat16)
    for start in range(0, rows, len(some)):
        # Different rows from the same numbers: shifted by one more each time.
        part = np.roll(some, start // len(some), axis=1)
        writer.append(part[: min(len(some), rows - start)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=Path)
    sizes = {
        "layers": 26,
        "width": 1152,
        "heads": 4,
        "kv-heads": 1,
        "head-dim": 256,
        "ffn": 6912,
        "vocabulary": 262144,
        "seed": 0,
    }
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="(%(default)s)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    arguments = parser.parse_args()
    write(arguments.output, arguments)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
