"""Where a Gemma 3 model's configuration, tokenizer and weights come from.

The model reads a :class:`~npu.gemma3.reader.Source`; GGUF files, Q4NX files and Hugging Face
folders each have one.
Tensors go by GGUF's names, norms are GGUF's 1 + w, metadata has GGUF's keys.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.gemma3 import huggingface, names
from npu.gemma3.config import Config, read_config
from npu.gemma3.reader import Native, Source
from npu.gguf_file import GgufFile
from npu.metadata import show
from npu.q4nx import layout
from npu.q4nx.container import Q4nxFile
from npu.q4nx.tensor import Tensor

_FLOATS = ("BF16", "F16", "F32")


class GgufSource(Source):
    """A GGUF file: any readable type, expanded to bfloat16 for projections."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.reader, self.label, self.metadata = file.reader, file.label, file.metadata
        self.shapes = file.shapes

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self.file.tensor(name, shape)

    def stored_type(self, name: str) -> str:
        return self.file.tensor(name).type_name

    def float32(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        return self.file.float32(self.file.tensor(name), rows)

    def projection(self, name: str) -> np.ndarray | Tensor:
        return self.file.bfloat16(self.file.tensor(name))

    def native(self, name: str, rows: slice) -> Native | None:
        info = self.file.tensor(name)
        if info.type_name not in ("Q4_0", "Q4_1"):
            return None
        size = 18 if info.type_name == "Q4_0" else 20
        raw = self.file.rows(info)[rows]
        blocks = raw.reshape(len(raw), -1, size)
        # Byte i of the 16 code bytes holds elements i (low nibble) and i + 16 (ggml-common.h).
        nibbles = blocks[:, :, size - 16 :]
        codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(len(raw), -1)
        halves = np.ascontiguousarray(blocks[:, :, : size - 16]).view("<f2").astype(np.float32)
        scales = halves[:, :, 0]
        # Q4_0 is d * (code - 8).
        minima = halves[:, :, 1] if size == 20 else np.float32(-8) * scales
        return codes, scales, minima

    def release(self, name: str) -> None:
        self.file.release(self.file.tensor(name))


class Q4nxSource(Source):
    """A Q4NX file. Files without our metadata need config.json and a tokenizer beside them."""

    embedding_scaled = True
    reader = "q4nx"

    def __init__(self, file: Q4nxFile) -> None:
        self.file = file
        self.label = file.label
        self._stored: dict[str, str] = {}
        for stored in file.entries:
            if name := names.from_checkpoint(stored):
                if name in self._stored:
                    raise file.fail(f"{show(stored)} and {show(self._stored[name])} are one tensor")
                self._stored[name] = stored
        self.metadata = file.model if file.own else self._beside()
        self.shapes = self._logical_shapes()

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        super().check(name, shape)
        if self.stored_type(name) not in ("Q4NX", *_FLOATS):
            raise self.fail(
                f"the tensor {self._stored[name]} has dtype {show(self.stored_type(name))}; plain "
                f"tensors are {', '.join(_FLOATS)}"
            )

    def stored_name(self, name: str) -> str:
        return self._stored.get(name) or names.to_checkpoint(name)

    def stored_type(self, name: str) -> str:
        stored = self._stored[name]
        return "Q4NX" if stored in self.file.quantised else self.file.entries[stored].dtype

    def float32(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        stored = self._stored[name]
        if stored not in self.file.quantised:
            return self.file.plain(stored, rows).astype(np.float32)
        tensor = self._tensor(name)
        if isinstance(rows, slice) and rows.start is not None:
            return tensor[rows].to_numpy(np.float32)
        values = tensor.to_numpy(np.float32)
        return values if rows is None else values[rows]

    def projection(self, name: str) -> np.ndarray | Tensor:
        stored = self._stored[name]
        if stored in self.file.quantised:
            return self._tensor(name)
        return np.asarray(self.file.plain(stored)).astype(layout.BFLOAT16, copy=False)

    def native(self, name: str, rows: slice) -> Native | None:
        if self._stored[name] not in self.file.quantised:
            return None
        codes, scales, minima = layout.unpack(self._tensor(name)[rows].to_additive().blocks)
        count, columns = len(range(*rows.indices(self.shapes[name][0]))), self.shapes[name][1]
        groups = -(-columns // layout.GROUP)
        return (
            codes[:count, :columns],
            scales[:count, :groups].astype(np.float32),
            minima[:count, :groups].astype(np.float32),
        )

    def release(self, name: str) -> None:
        self.file.release(self._stored[name])

    def _tensor(self, name: str) -> Tensor:
        shape = self.shapes[name]
        assert len(shape) == 2
        return self.file.tensor(self._stored[name], (shape[0], shape[1]))

    def _beside(self) -> dict[str, Any]:
        folder = Path(self.file.path).parent
        if not (folder / "config.json").is_file():
            raise self.file.fail(
                "has no metadata of its own (another converter wrote it) and there is no "
                f"config.json in {folder}; put the model's config.json and tokenizer beside it"
            )
        return huggingface.folder_metadata(folder)

    def _logical_shapes(self) -> dict[str, tuple[int, ...]]:
        known: dict[str, tuple[int, ...]] = dict(self.file.shapes)
        plain = set(self._stored.values()) - set(self.file.quantised)
        known |= {stored: self.file.entries[stored].shape for stored in plain}
        self.shapes = {
            name: known[stored] for name, stored in self._stored.items() if stored in known
        }
        if len(self.shapes) == len(self._stored):
            return self.shapes
        # Packed shapes do not tell N and K: the configuration does.
        config = read_config(self)
        expected = names.tensor_shapes(config)
        expected[names.HEAD] = (config.vocabulary, config.width)
        return {
            name: self.shapes.get(name) or expected[name]
            for name in self._stored
            if name in self.shapes or name in expected
        }


def check_tensors(source: Source, config: Config) -> None:
    """Raises FormatError unless every tensor is there, readable and of the right shape."""
    shapes = names.tensor_shapes(config)
    # A scaled embedding cannot serve as head, so such files have one.
    if names.HEAD in source.shapes or source.embedding_scaled:
        shapes[names.HEAD] = (config.vocabulary, config.width)
    for name, shape in shapes.items():
        source.check(name, shape)


def open_source(path: str | os.PathLike[str]) -> Source:
    """Opens a GGUF file, a Q4NX file, or a folder with a Q4NX file or a safetensors checkpoint."""
    place = Path(path)
    if place.is_dir():
        found = sorted(place.glob("*.q4nx"))
        if len(found) == 1:
            return Q4nxSource(Q4nxFile(found[0]))
        if found:
            listed = ", ".join(file.name for file in found[:5])
            raise FormatError(f"[gemma3] {place} has several Q4NX files ({listed}); name one")
        if (place / "config.json").is_file():
            return huggingface.CheckpointSource(place)
        raise FormatError(
            f"[gemma3] {place} is a folder without a .q4nx file and without config.json; give a "
            "GGUF or Q4NX file, or a folder with one Q4NX file or a safetensors checkpoint"
        )
    if place.suffix == ".q4nx" or (place.suffix != ".gguf" and _is_safetensors(place)):
        return Q4nxSource(Q4nxFile(place))
    return GgufSource(GgufFile(place))


def _is_safetensors(path: Path) -> bool:
    """Whether a regular file starts like a safetensors header: a length, then "{"."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(9)
    except OSError:
        return False
    return start[8:9] == b"{" and start[:4] != b"GGUF"
