"""Q4NX files as a source of weights: blocks stay in the mapped file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npu.formats.metadata import show
from npu.formats.q4nx import layout
from npu.formats.q4nx.container import Q4nxFile
from npu.formats.q4nx.tensor import Tensor
from npu.models.sources import huggingface
from npu.models.sources.family import family_of
from npu.models.sources.interface import Native, Source

_FLOATS = ("BF16", "F16", "F32")


class Q4nxSource(Source):
    """A Q4NX file. Files without our metadata need config.json and a tokenizer beside them."""

    embedding_scaled = True
    reader = "q4nx"

    def __init__(self, file: Q4nxFile) -> None:
        self.file = file
        self.label, self.paths = file.label, [file.path]
        self.metadata = file.model if file.own else self._beside()
        self.family = family_of(self)
        if not file.own:
            self.key_names = huggingface.folder_key_names(self.family)
        self._stored: dict[str, str] = {}
        for stored in file.entries:
            if name := self.family.from_checkpoint(stored):
                if name in self._stored:
                    raise file.fail(f"{show(stored)} and {show(self._stored[name])} are one tensor")
                self._stored[name] = stored
        self.shapes = self._logical_shapes()

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        super().check(name, shape)
        if self.stored_type(name) not in ("Q4NX", *_FLOATS):
            raise self.fail(
                f"the tensor {self._stored[name]} has dtype {show(self.stored_type(name))}; plain "
                f"tensors are {', '.join(_FLOATS)}"
            )

    def stored_name(self, name: str) -> str:
        return self._stored.get(name) or self.family.to_checkpoint(name)

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

    def q4nx(self, name: str) -> Tensor | None:
        return self._tensor(name) if self._stored[name] in self.file.quantised else None

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
        expected = self.family.expected_shapes(self)
        return {
            name: self.shapes.get(name) or expected[name]
            for name in self._stored
            if name in self.shapes or name in expected
        }
