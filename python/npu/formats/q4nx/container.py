"""Opens Q4NX files, of either header dialect, memory-mapped (docs/q4nx.md, "Container").

A Q4NX file is a safetensors file whose quantised tensors hold 5120-byte blocks. Dialect "I8" gives
their packed shape and additive minima, dialect "Q4NX" the logical shape and zero points. Files of
`npu convert` are "I8" with their logical shapes and the model's metadata in ``__metadata__``.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from npu.errors import FormatError
from npu.formats.metadata import show
from npu.formats.q4nx import checksums, layout
from npu.formats.q4nx.tensor import ADDITIVE, ZERO_POINT, Tensor
from npu.formats.safetensors_file import Entry, SafetensorsFile

VERSION = "1"
VERSION_KEY, SHAPES_KEY, SOURCE_KEY = "npu.q4nx.version", "npu.q4nx.shapes", "npu.q4nx.source"
MODEL_PREFIX = "gguf."  # before each metadata key of the model; the values are JSON
_SAMPLED_BLOCKS = 8
# Other tiles seen in published bundles, and what they are taken for.
_OTHER_TILES = {
    1280: "tiles of 1280 bytes (32 x 64 or 16 x 128 weights), as the published Gemma 3 1B",
    8704: "8-bit tiles of 8704 bytes",
}


class Q4nxFile:
    """An open file. ``entries`` are all tensors by name, ``quantised`` the names of those in
    blocks, ``shapes`` their logical (N, K) if in the file, ``model`` the model's metadata."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SafetensorsFile(path, "q4nx")
        self._file.in_huge_pages()
        self.path, self.label = self._file.path, self._file.label
        self.entries = self._file.entries
        self.header_size = self._file.header_size
        self.metadata = self._file.metadata
        self.quantised = [n for n, e in self.entries.items() if e.dtype in ("I8", "Q4NX")]
        if not self.quantised:
            raise self.fail(
                "has no Q4NX tensor; it is an ordinary safetensors file. Name the folder of a "
                "checkpoint, with its config.json, to run or to convert it"
            )
        dialects = {self.entries[name].dtype for name in self.quantised}
        if len(dialects) > 1:
            raise self.fail("mixes I8 and Q4NX tensors; one of the labels must be wrong")
        self.header_dialect = dialects.pop()
        self.dialect = ADDITIVE if self.header_dialect == "I8" else ZERO_POINT
        self.own = VERSION_KEY in self.metadata
        if self.own and self.metadata[VERSION_KEY] != VERSION:
            raise self.fail(
                f"has version {show(self.metadata[VERSION_KEY])}, this reader knows {VERSION}; "
                "update the package or convert the model again"
            )
        self.shapes = self._logical_shapes()
        self.model: dict[str, Any] = self._model_metadata()

    def fail(self, what: str) -> FormatError:
        return self._file.fail(what)

    def tensor(self, name: str, shape: tuple[int, int] | None = None) -> Tensor:
        """A quantised tensor over the mapped file. ``shape`` is needed where ``shapes`` has none.

        Looks at the first blocks: other tiles, NaN and a wrong dialect label raise FormatError.
        """
        tensor = self.tensor_unchecked(name, shape)
        if problem := self.suspicion(tensor.blocks.reshape(-1, layout.BLOCK_BYTES)):
            raise self.fail(f"the tensor {show(name)} {problem}")
        return tensor

    def tensor_unchecked(self, name: str, shape: tuple[int, int] | None = None) -> Tensor:
        """As ``tensor``, without a check of the blocks."""
        entry = self._file.entry(name)
        if entry.dtype not in ("I8", "Q4NX"):
            raise self.fail(f"the tensor {show(name)} has dtype {entry.dtype}, not Q4NX blocks")
        self._check_tiles(entry)
        known = self.shapes.get(name)
        if known and shape and known != tuple(shape):
            raise self.fail(
                f"the tensor {show(name)} has shape {known}, the model needs {tuple(shape)}"
            )
        logical = known or shape
        if logical is None:
            raise self.fail(
                f"the shape of {show(name)} is not in the file; put the model's config.json "
                "beside it"
            )
        rows, columns = layout.grid(logical)
        if rows * columns * layout.BLOCK_BYTES != entry.size:
            raise self.fail(
                f"the tensor {show(name)} of shape {tuple(logical)} needs {rows} x {columns} "
                f"blocks, the file has {entry.size / layout.BLOCK_BYTES:g}"
            )
        return Tensor.from_blocks(self._file.raw(entry), logical, dialect=self.dialect)

    def plain(self, name: str, rows: Any = None) -> np.ndarray:
        """A tensor that is not quantised, or some of its rows."""
        return self._file.array(self._file.entry(name), rows)

    def release(self, name: str) -> None:
        self._file.release(self._file.entry(name))

    @property
    def checksums(self) -> str | None:
        """The algorithm of the file's checksums; None when it has none."""
        return checksums.ALGORITHM if checksums.has_checksums(self._file) else None

    def header_problems(self) -> list[str]:
        """What the file's checksums say about its header and metadata."""
        return checksums.header_problems(self._file)

    def checksum_problems(self, name: str) -> list[str]:
        """Reads a tensor; a sentence if it does not match its checksum."""
        return checksums.tensor_problems(self._file, name)

    def gaps(self) -> list[str]:
        """A sentence if bytes belong to no tensor, which other readers reject; else empty."""
        unused = self._file.unused_bytes()
        return [f"{unused} data bytes belong to no tensor, which safetensors forbids"][: unused > 0]

    def suspicion(self, blocks: np.ndarray) -> str | None:
        """What is wrong with the first of some blocks (B, 5120), in words; None if nothing."""
        scales, second = layout.planes(blocks[None, :_SAMPLED_BLOCKS])
        d, other = scales.astype(np.float32), second.astype(np.float32)
        bad = int((~np.isfinite(d)).sum()), int((~np.isfinite(other)).sum())
        if any(bad):
            return describe_nan(bad, blocks[:_SAMPLED_BLOCKS])
        if self.own:
            return None
        used = d != 0
        # Zero points lie in [0, 15]; minima of weights around zero are in [-15 d, 0].
        zeros = (other >= 0) & (other <= 15.5) & (other > 16 * np.abs(d))
        if self.dialect == ADDITIVE and used.any() and zeros[used].mean() > 0.9:
            return "is labelled I8, but its second plane holds zero points (the Q4NX dialect)"
        if self.dialect == ZERO_POINT and used.any() and (other[used] < 0).mean() > 0.9:
            return "is labelled Q4NX, but its second plane holds minima (the I8 dialect)"
        return None

    def _check_tiles(self, entry: Entry) -> None:
        if entry.dtype == "Q4NX":
            if len(entry.shape) != 2 or 0 in entry.shape:
                raise self.fail(
                    f"the tensor {show(entry.name)} has shape {entry.shape}, expected (N, K)"
                )
            return
        tile = entry.shape[-1] if entry.shape else 0
        if tile != layout.BLOCK_BYTES or len(entry.shape) not in (2, 3) or entry.size == 0:
            what = _OTHER_TILES.get(tile, f"the shape {entry.shape}")
            raise self.fail(
                f"the tensor {show(entry.name)} has {what}; this reader knows blocks of "
                f"{layout.BLOCK_BYTES} bytes (32 x 256): convert the model from GGUF or safetensors"
            )

    def _logical_shapes(self) -> dict[str, tuple[int, int]]:
        if self.header_dialect == "Q4NX":
            return {
                name: (shape[0], shape[1])
                for name in self.quantised
                if len(shape := self.entries[name].shape) == 2
            }
        if not self.own:
            return {}
        raw = self._json(SHAPES_KEY, self.metadata.get(SHAPES_KEY, ""))
        found: dict[str, tuple[int, int]] = {}
        for name in self.quantised:
            pair = raw.get(name) if isinstance(raw, dict) else None
            good = isinstance(pair, list) and len(pair) == 2
            if not good or not all(type(v) is int and 0 < v < 1 << 32 for v in pair or ()):
                raise self.fail(f"{SHAPES_KEY} has {show(pair)} for {show(name)}, expected [N, K]")
            assert pair is not None
            found[name] = (pair[0], pair[1])
        return found

    def _model_metadata(self) -> dict[str, Any]:
        return {
            key.removeprefix(MODEL_PREFIX): self._value(key, self._json(key, text))
            for key, text in self.metadata.items()
            if key.startswith(MODEL_PREFIX)
        }

    def _value(self, key: str, value: Any) -> Any:
        """Lists as the GGUF reader gives them: of strings as they are, of numbers as arrays."""
        if not isinstance(value, list) or not value:
            return value
        kinds = {type(item) for item in value}
        if kinds == {str}:
            return value
        if kinds == {list}:
            return [self._value(key, item) for item in value]
        dtype = bool if kinds == {bool} else np.int64 if kinds == {int} else np.float64
        try:
            if kinds == {bool} or kinds <= {int, float}:
                return np.array(value, dtype)
        except OverflowError:
            pass
        raise self.fail(f"the metadata {show(key)} is a list of mixed kinds; it is corrupted")

    def _json(self, key: str, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise self.fail(f"the metadata {show(key)} is not JSON; it is corrupted") from None


def describe_nan(bad: tuple[int, int], blocks: np.ndarray) -> str:
    """Words for NaN or infinity in the planes of some blocks, with the likely cause."""
    words = f"has NaN or infinity in {bad[0]} scales and {bad[1]} minima"
    if reads_as_small_tiles(blocks):
        return (
            f"{words}, and none when read as 1280-byte tiles (32 x 64), which the published "
            "Gemma 3 1B seems to have under this label; convert the model from GGUF or safetensors"
        )
    return f"{words}; it is corrupted or not in 32 x 256 blocks"


def reads_as_small_tiles(blocks: np.ndarray) -> bool:
    """Whether the bytes give finite planes when cut into 1280-byte tiles (64 scales, 64 minima)."""
    raw = np.ascontiguousarray(blocks).reshape(-1)
    tiles = raw[: raw.size // 1280 * 1280].reshape(-1, 1280)
    values = np.ascontiguousarray(tiles[:, :256]).view(layout.BFLOAT16).astype(np.float32)
    # Codes read as bfloat16 spread over all exponents; scales and minima of weights do not.
    return bool(np.isfinite(values).all() and np.abs(values).max(initial=0) < 2.0**20)
