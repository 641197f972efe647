"""Reads safetensors files: header, tensor table and memory-mapped data.

Format: https://github.com/huggingface/safetensors (README, "Format"): a u64 little-endian header
length, a JSON header, the data. The library of that name rejects dtypes it does not know, such as
Q4NX, and copies tensors; this reader checks every count, accepts any dtype and maps.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from npu.errors import FormatError
from npu.formats.mapped_file import in_huge_pages, map_file, release
from npu.formats.metadata import show

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_MAX_RANK, _MAX_SIZE = 8, 1 << 48

DTYPES: dict[str, np.dtype] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "BOOL": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies; ``offset`` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class SafetensorsFile:
    """An open file: ``metadata`` (strings) and ``entries`` by name. ``reader`` words the errors."""

    def __init__(self, path: str | os.PathLike[str], reader: str = "safetensors") -> None:
        self.path = os.fspath(path)
        self.label = os.path.basename(self.path) or self.path
        self.reader = reader
        self._map = map_file(self.path, reader, "safetensors file")
        # One array over everything: neighbouring tensors stay neighbours of one owner.
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.header_size = self._header_size()
        header = self._header()
        self.metadata = self._strings(header.pop("__metadata__", {}))
        self.entries = {name: self._entry(name, raw) for name, raw in header.items()}
        self._check_overlaps()

    def fail(self, what: str) -> FormatError:
        return FormatError(f"[{self.reader}] {self.label}: {what}")

    def entry(self, name: str) -> Entry:
        found = self.entries.get(name)
        if found is None:
            raise self.fail(f"the tensor {show(name)} is missing")
        return found

    def raw(self, entry: Entry) -> np.ndarray:
        """The stored bytes, uint8, without a copy."""
        return self._bytes[entry.offset : entry.offset + entry.size]

    def array(self, entry: Entry, rows: Any = None) -> np.ndarray:
        """A tensor of a standard dtype, or some of its rows, without a copy where possible."""
        if entry.dtype not in DTYPES:
            raise self.fail(f"the tensor {show(entry.name)} has dtype {show(entry.dtype)}")
        raw = self.raw(entry)
        dtype = DTYPES[entry.dtype]
        if entry.offset % dtype.itemsize == 0:
            values = raw.view(dtype).reshape(entry.shape)
            return values if rows is None else values[rows]
        # The format does not align: the rows in question are copied, not the tensor.
        lines = raw.reshape(*(entry.shape or (1,)), dtype.itemsize)
        part = np.array(lines if rows is None else lines[rows], order="C")
        return part.view(dtype).reshape(part.shape[:-1] if entry.shape else ())

    def header_bytes(self) -> bytes:
        """The file up to its data: length, JSON, padding."""
        return bytes(self._map[: self.header_size])

    def in_huge_pages(self) -> None:
        """Asks for them, for a file whose tensors are read again and again."""
        in_huge_pages(self._map)

    def release(self, entry: Entry) -> None:
        """Lets the system drop a tensor's pages from memory."""
        release(self._map, entry.offset, entry.size)

    def unused_bytes(self) -> int:
        """Data bytes that belong to no tensor; the format forbids them (README, "Format")."""
        used = sum(entry.size for entry in self.entries.values())
        return len(self._map) - self.header_size - used

    def _header_size(self) -> int:
        size = len(self._map)
        if size < 8:
            raise self.fail(f"has {size} bytes, too few for a safetensors header")
        (length,) = struct.unpack_from("<Q", self._map, 0)
        if self._map[:4] == b"GGUF":
            raise self.fail(
                "is a GGUF file, not a safetensors file; `npu convert` makes a Q4NX file of it"
            )
        if length > MAX_HEADER_BYTES:
            raise self.fail(
                f"claims a header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed; "
                "not a safetensors file, or corrupted"
            )
        if length > size - 8:
            raise self.fail(
                f"claims a header of {length} bytes and has {size - 8} bytes after the length; "
                "it is truncated or corrupted"
            )
        return 8 + int(length)

    def _header(self) -> dict[str, Any]:
        raw = self._map[8 : self.header_size]
        try:
            header = json.loads(raw.decode("utf-8"), object_pairs_hook=self._unique)
        except (ValueError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            reason = show(str(error)) if isinstance(error, ValueError) else "nested too deeply"
            raise self.fail(f"the header is not JSON ({reason}); it is corrupted") from None
        if not isinstance(header, dict):
            raise self.fail("the header is not a JSON object; it is corrupted")
        return header

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise self.fail(f"the header has {show(key)} twice")
            found[key] = value
        return found

    def _strings(self, value: Any) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self.fail("__metadata__ is not a map of strings")
        return value

    def _entry(self, name: str, raw: Any) -> Entry:
        what = f"the entry of {show(name)}"
        if not isinstance(raw, dict):
            raise self.fail(f"{what} is {show(raw)}, not an object")
        dtype: Any = raw.get("dtype")
        shape: Any = raw.get("shape")
        offsets: Any = raw.get("data_offsets")
        if not isinstance(dtype, str):
            raise self.fail(f"{what} has the dtype {show(dtype)}")
        if not _sizes(shape) or len(shape) > _MAX_RANK:
            raise self.fail(f"{what} has the shape {show(shape)}")
        if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self.fail(f"{what} has the data offsets {show(offsets)}")
        begin, end = (self.header_size + offset for offset in offsets)
        if end > len(self._map):
            raise self.fail(
                f"{what} needs bytes {begin} to {end}, the file has {len(self._map)}; "
                "it is truncated or corrupted"
            )
        count = 1
        for size in shape:
            count *= size
        if dtype in DTYPES and count * DTYPES[dtype].itemsize != end - begin:
            raise self.fail(
                f"{what} has {end - begin} bytes, {dtype} of shape {tuple(shape)} needs "
                f"{count * DTYPES[dtype].itemsize}"
            )
        return Entry(name, dtype, tuple(shape), begin, end - begin)

    def _check_overlaps(self) -> None:
        previous: Entry | None = None
        for entry in sorted(self.entries.values(), key=lambda e: (e.offset, e.size)):
            if previous and entry.size and entry.offset < previous.offset + previous.size:
                raise self.fail(
                    f"the tensors {show(previous.name)} and {show(entry.name)} overlap; "
                    "it is corrupted"
                )
            previous = entry


def _sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _MAX_SIZE for v in value
    )
