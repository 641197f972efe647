"""The interface through which a model reads its weights, whatever the file format."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npu.formats.metadata import ModelFile
from npu.formats.q4nx.tensor import Tensor

# Codes (N, K), scales and minima (N, K / 32), for types whose codes Q4NX can keep.
Native = tuple[np.ndarray, np.ndarray, np.ndarray]


class Source(ModelFile):
    """Base of the readers. ``shapes`` has the logical shape of every tensor of the text model."""

    shapes: dict[str, tuple[int, ...]]
    paths: Sequence[str] = ()  # of the files that hold the weights
    folder: str = ""  # of the files, where they are a folder
    embedding_scaled = False  # whether embedding rows are stored times sqrt(width)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises FormatError unless the tensor is there, readable and of this shape."""
        if name not in self.shapes:
            raise self.fail(f"the tensor {self.stored_name(name)} is missing")
        if self.shapes[name] != shape:
            raise self.fail(
                f"the tensor {self.stored_name(name)} has shape {self.shapes[name]}, the model "
                f"needs {shape}"
            )

    def stored_name(self, name: str) -> str:
        """The file's own name of a tensor."""
        return name

    def stored_type(self, name: str) -> str:
        """The file's own name of a tensor's element type."""
        raise NotImplementedError

    def float32(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """A tensor, or rows of a matrix, as float32 in the file's own scale."""
        raise NotImplementedError

    def stored_rows(self, name: str, rows: slice) -> tuple[int, np.ndarray] | None:
        """Rows as GGUF stores them: number of the type and bytes (rows, bytes per row). None: not
        stored so, or in a type that only ``float32`` decodes."""
        return None

    def q4nx(self, name: str) -> Tensor | None:
        """A matrix over its blocks in the file, if it is stored in Q4NX."""
        return None

    def native(self, name: str, rows: slice) -> Native | None:
        """Rows as 4-bit codes with float32 scales and minima, if they are stored that way."""
        return None

    def release(self, name: str) -> None:
        """The tensor's pages of the file may leave memory."""
