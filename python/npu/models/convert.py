"""Gemma 3 models to Q4NX files, tensor by tensor: what `npu convert` does.

The output has the public converter's names and layout (docs/q4nx.md): projections and the head in
blocks of the additive dialect, the embedding as bfloat16 times sqrt(width), norms as bfloat16
1 + w. Memory holds a few chunks of rows at a time, never a whole tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npu.errors import ArgumentError
from npu.formats.q4nx import layout
from npu.formats.q4nx.container import MODEL_PREFIX, SHAPES_KEY, SOURCE_KEY, VERSION, VERSION_KEY
from npu.formats.q4nx.writer import Announced, Writer
from npu.models.convert_tensor import Conversion, blocks, embedding, norm, parts
from npu.models.gemma3 import names
from npu.models.gemma3.checks import check
from npu.models.gemma3.config import Config
from npu.models.sources import Q4nxSource, open_source
from npu.models.sources.huggingface import CHECKPOINT_FILES
from npu.models.sources.interface import Source

DEFAULT_NAME = "model.q4nx"
# Keys about the storage types of a GGUF file, which no longer hold.
_DROPPED = ("general.file_type", "general.quantization_version", "general.alignment")
# Neighbours share their input: in this order q, k, v and gate, up are one Tensor without a copy.
_PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Step:
    """One tensor of the output: its place in the file and where its values come from."""

    announced: Announced
    tensor: Conversion


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Writes a Q4NX file from a GGUF file, a safetensors folder or a Q4NX file; returns its path.

    ``target`` is a file, or a folder that gets a ``model.q4nx``. The file appears when it is
    complete; an existing one is replaced only with ``force``. ``progress(done, total, name)``
    counts bytes written.
    """
    for what, given in (("input", source), ("output", target)):
        if not os.fspath(given):  # Path("") would be the current folder
            raise ArgumentError(f"[convert] the name of the {what} is empty; give a path")
    path = Path(target)
    # os.path, not Path: a name that is too long is no error before something is opened.
    path = path / DEFAULT_NAME if os.path.isdir(path) else path
    if os.path.exists(path) and os.path.exists(source) and os.path.samefile(source, path):
        raise ArgumentError(f"[convert] {path} is the input; name another file to write")
    opened = open_source(source)
    if (
        isinstance(opened, Q4nxSource)
        and os.path.isdir(source)
        and any(os.path.isfile(os.path.join(source, name)) for name in CHECKPOINT_FILES)
    ):
        raise ArgumentError(
            f"[convert] {os.fspath(source)} has a safetensors checkpoint and {opened.label}; name "
            "the file to convert that, or move it away to convert the checkpoint"
        )
    config, tokenizer = check(opened)
    tokenizer.check_template()
    steps = plan(opened, config)
    label = os.path.basename(os.path.abspath(source))
    metadata = describe(opened.metadata, steps, label)
    with Writer(path, [step.announced for step in steps], metadata, force=force) as writer:
        done, total = 0, sum(step.announced.size for step in steps)
        for step in steps:
            for part in parts(opened, step.tensor):
                writer.append(part)
                done += part.nbytes
                if progress:
                    progress(done, total, step.announced.name)
    return path


def plan(source: Source, config: Config) -> list[Step]:
    """The tensors of the output in file order: blocks, embedding, norms."""
    shapes = names.tensor_shapes(config)
    steps = []
    for index in range(config.layers):
        for part in _PROJECTIONS:
            name = f"blk.{index}.{part}.weight"
            steps.append(_blocks_step(name, name, shapes[name]))
    # A source whose embedding is stored scaled has a head (check_tensors).
    head = names.HEAD if names.HEAD in source.shapes else names.EMBEDDING
    steps.append(_blocks_step(names.HEAD, head, shapes[names.EMBEDDING]))
    for name, shape in sorted(shapes.items(), key=lambda item: -len(item[1])):
        if name == names.EMBEDDING or len(shape) == 1:
            announced = Announced(names.to_checkpoint(name), "BF16", shape)
            convert = embedding if name == names.EMBEDDING else norm
            steps.append(Step(announced, Conversion(name, shape, convert)))
    return steps


def describe(model: dict[str, Any], steps: list[Step], source: str) -> dict[str, str]:
    """The ``__metadata__`` of a file: version, logical shapes, and the model's own metadata."""
    blocks = {s.announced.name: list(s.tensor.shape) for s in steps if s.announced.dtype == "I8"}
    found = {
        VERSION_KEY: VERSION,
        SOURCE_KEY: source,
        SHAPES_KEY: json.dumps(blocks, separators=(",", ":")),
    }
    for key, value in model.items():
        if key not in _DROPPED:
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            found[MODEL_PREFIX + key] = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    return found


def _blocks_step(name: str, source_name: str, shape: tuple[int, ...]) -> Step:
    rows, columns = layout.grid((shape[0], shape[1]))
    packed = (rows * columns, layout.BLOCK_BYTES)
    return Step(
        Announced(names.to_checkpoint(name), "I8", packed), Conversion(source_name, shape, blocks)
    )
