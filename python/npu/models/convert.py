"""Gemma 3 models to Q4NX files, tensor by tensor: what `npu convert` does.

The output has the public converter's names and layout (docs/q4nx.md): projections and the head in
blocks of the additive dialect, the embedding as bfloat16 times sqrt(width), norms as bfloat16
1 + w. Memory holds a few chunks of rows at a time, never a whole tensor.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npu.errors import ArgumentError, FormatError
from npu.formats.q4nx import layout
from npu.formats.q4nx.container import MODEL_PREFIX, SHAPES_KEY, SOURCE_KEY, VERSION, VERSION_KEY
from npu.formats.q4nx.quantizer import padded_blocks, quantize_rows
from npu.formats.q4nx.tensor import Tensor
from npu.formats.q4nx.writer import Announced, Writer
from npu.models.gemma3 import names
from npu.models.gemma3.config import Config, read_config
from npu.models.gemma3.weights import check_tensors
from npu.models.sources import Q4nxSource, open_source
from npu.models.sources.huggingface import CHECKPOINT_FILES
from npu.models.sources.interface import Source

DEFAULT_NAME = "model.q4nx"
_CHUNK_WEIGHTS = 1 << 18  # float32 temporaries of a chunk stay in a core's cache
_RELEASE_EVERY = 32  # chunks, after which the source's pages may leave memory
_MOST_THREADS = 4
# Keys about the storage types of a GGUF file, which no longer hold.
_DROPPED = ("general.file_type", "general.quantization_version", "general.alignment")
# Neighbours share their input: in this order q, k, v and gate, up are one Tensor without a copy.
_PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Step:
    """One tensor of the output: its place in the file and where its values come from."""

    announced: Announced
    name: str  # in the source
    shape: tuple[int, ...]
    convert: Callable[[Source, Step, slice], np.ndarray]


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
    path = path / DEFAULT_NAME if path.is_dir() else path
    if path.exists() and os.path.exists(source) and os.path.samefile(source, path):
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
    config = read_config(opened)
    check_tensors(opened, config)
    if "tokenizer.ggml.tokens" not in opened.metadata:
        raise opened.fail(
            "no tokenizer was found; put tokenizer.model or tokenizer.json into the folder"
        )
    steps = plan(opened, config)
    label = os.path.basename(os.path.abspath(source))
    metadata = describe(opened.metadata, steps, label)
    with Writer(path, [step.announced for step in steps], metadata, force=force) as writer:
        done, total = 0, sum(step.announced.size for step in steps)
        for step in steps:
            for part in _parts(opened, step):
                writer.append(part)
                done += part.nbytes
                if progress:
                    progress(done, total, step.announced.name)
    return path


def tensor_of(source: Source, name: str) -> Tensor:
    """A matrix of a model as a Q4NX Tensor in memory, converted as ``npu convert`` does."""
    shape = source.shapes[name]
    step = _blocks_step(name, name, shape)
    blocks = np.empty((step.announced.size // layout.BLOCK_BYTES, layout.BLOCK_BYTES), np.uint8)
    done, raw = 0, blocks.reshape(-1)
    for part in _parts(source, step):
        raw[done : done + part.size] = part.reshape(-1)
        done += part.size
    return Tensor.from_blocks(blocks, shape)


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
            convert = _embedding if name == names.EMBEDDING else _norm
            steps.append(Step(announced, name, shape, convert))
    return steps


def describe(model: dict[str, Any], steps: list[Step], source: str) -> dict[str, str]:
    """The ``__metadata__`` of a file: version, logical shapes, and the model's own metadata."""
    blocks = {s.announced.name: list(s.shape) for s in steps if s.announced.dtype == "I8"}
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
    return Step(Announced(names.to_checkpoint(name), "I8", packed), source_name, shape, _blocks)


def _parts(source: Source, step: Step) -> Iterator[np.ndarray]:
    """A tensor's bytes in order, converted by several threads a few chunks ahead."""
    width = step.shape[1] if len(step.shape) == 2 else 1
    rows = max(1, _CHUNK_WEIGHTS // (width * layout.ROWS)) * layout.ROWS
    starts = range(0, step.shape[0], rows)
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)), len(starts))
    ahead: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for count, start in enumerate(starts):
                end = min(start + rows, step.shape[0])
                ahead.append(pool.submit(step.convert, source, step, slice(start, end)))
                if len(ahead) > threads:
                    yield ahead.popleft().result()
                if count % _RELEASE_EVERY == _RELEASE_EVERY - 1:
                    source.release(step.name)
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
    source.release(step.name)


def _blocks(source: Source, step: Step, rows: slice) -> np.ndarray:
    native = source.native(step.name, rows)
    if native is None:
        try:
            return quantize_rows(source.float32(step.name, rows))
        except ArgumentError as error:
            reason = str(error).removeprefix("[q4nx.quantize] ")
            raise _refusal(source, step, f"from row {rows.start} on: {reason}") from None
    codes, scales, minima = native
    if not (np.isfinite(scales).all() and np.isfinite(minima).all()):
        raise _refusal(source, step, f"NaN or infinity from row {rows.start} on")
    return padded_blocks(codes, scales.astype(layout.BFLOAT16), minima.astype(layout.BFLOAT16))


def _embedding(source: Source, step: Step, rows: slice) -> np.ndarray:
    scale = 1.0 if source.embedding_scaled else math.sqrt(step.shape[1])
    return _plain(source, step, source.float32(step.name, rows) * np.float32(scale))


def _norm(source: Source, step: Step, rows: slice) -> np.ndarray:
    return _plain(source, step, source.float32(step.name)[rows])


def _plain(source: Source, step: Step, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(layout.BFLOAT16)
    if not np.isfinite(rounded.astype(np.float32)).all():
        raise _refusal(source, step, "NaN or infinity")
    return rounded


def _refusal(source: Source, step: Step, what: str) -> FormatError:
    return source.fail(f"the tensor {source.stored_name(step.name)} cannot be converted: {what}")
