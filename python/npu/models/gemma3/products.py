"""What a decode step multiplies with: the matrices of a model file, their stored types, the block
formats that ``weights="auto"`` gives them, and their simulated time."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from npu.formats import blocks
from npu.models.gemma3 import names
from npu.models.gemma3.config import Config
from npu.models.gemma3.weights import HEAD, matrices
from npu.models.prepare.plan import plan
from npu.models.sources.interface import Source
from npu.perf.decode_simulation import MATRICES, DecodeLayer, DecodeShape

# Kind of weights -> parts of a layer.
_LAYER = {
    "attention": (("attn_q", "attn_k", "attn_v"), ("attn_output",)),
    "ffn": (("ffn_gate", "ffn_up"), ("ffn_down",)),
}


@dataclass(frozen=True)
class Product:
    """y = W x with W (n, k) in blocks of a format."""

    n: int
    k: int
    format: str


def weight_types(source: Source, config: Config) -> dict[str, list[str]]:
    """The stored types of the matrices per kind: attention, ffn, head."""
    found: dict[str, list[str]] = {}
    for kind, groups in _LAYER.items():
        parts = [part for group in groups for part in group]
        layers = range(config.layers)
        types = [source.stored_type(f"blk.{i}.{part}.weight") for i in layers for part in parts]
        found[kind] = sorted(set(types))
    return found | {"head": [source.stored_type(_head(source))]}


def describe_types(types: dict[str, list[str]]) -> str:
    """Kinds that are stored alike together: "Q4_0; head Q8_0"."""
    texts = {kind: ", ".join(found) for kind, found in types.items()}
    if len(set(texts.values())) == 1:
        return texts["head"]
    if texts["attention"] == texts["ffn"]:
        return f"{texts['ffn']}; head {texts['head']}"
    return "; ".join(f"{kind} {text}" for kind, text in texts.items())


def parameters(source: Source, config: Config) -> int:
    """Weights of the text model, a tied head counted once."""
    shapes = [source.shapes[name] for name in names.tensor_shapes(config) if name in source.shapes]
    return sum(functools.reduce(lambda a, b: a * b, shape, 1) for shape in shapes)


def products(source: Source, config: Config) -> list[Product]:
    """The products of one decode step, the head last."""
    segments = plan(source, matrices(source, config), "auto")
    return [Product(*segment.shape, segment.format) for segment in segments]


def _head(source: Source) -> str:
    return names.HEAD if names.HEAD in source.shapes else names.EMBEDDING


def decode_shape(name: str, source: Source, config: Config, weights: str = "auto") -> DecodeShape:
    """What the simulation of a token takes, with the block formats that ``weights`` gives. A matrix
    whose rows are in several formats counts as if all were in the widest."""
    formats: dict[str, str] = {}
    for segment in plan(source, matrices(source, config), weights):
        known = formats.get(segment.key, segment.format)
        formats[segment.key] = max(known, segment.format, key=_bytes_per_weight)
    layers = []
    for index, window in enumerate(config.windows):
        qkv, output, gate_up, down = (formats[f"{index}.{matrix}"] for matrix in MATRICES)
        layers.append(DecodeLayer(window or 0, (qkv, output, gate_up, down)))
    return DecodeShape(
        name, config.width, config.heads, config.kv_heads, config.head_dim, config.ffn_width,
        config.vocabulary, tuple(layers), formats[HEAD],
    )  # fmt: skip


def _bytes_per_weight(format: str) -> float:
    return blocks.bytes_of(format) / (blocks.ROWS * blocks.columns_of(format))
