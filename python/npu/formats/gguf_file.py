"""Reads GGUF model files: metadata, tensor table and memory-mapped tensor data.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
The reader of the `gguf` package takes ten seconds on a 262144-token vocabulary and trusts every
count in the file, so the table of contents is parsed here with bounds checks. Blocks are decoded by
the extension, which conversions do as well; the package, which takes long to import, has the types
that this lacks. Tensor data is read only on request.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu._npu import weights as core
from npu.errors import FormatError
from npu.formats.mapped_file import map_file, release
from npu.formats.metadata import Metadata, show

# Metadata value types (gguf.md, "gguf_metadata_value_type").
_SCALARS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_MAX_ARRAY_DEPTH = 4
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32

# Readable tensor types: number -> name, elements per block, bytes per block (ggml-common.h).
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
_DECODED_BY_PACKAGE = (20, 23)


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. ``shape`` is in NumPy order: GGUF's dimensions reversed."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int  # bytes from the start of the file
    size: int  # bytes; 0 when the type is not readable

    @property
    def type_name(self) -> str:
        return TENSOR_TYPES[self.type][0] if self.type in TENSOR_TYPES else _foreign(self.type)


def _foreign(number: int) -> str:
    """Name of a tensor type that this reader does not decode."""
    from gguf.constants import GGMLQuantizationType

    try:
        return GGMLQuantizationType(number).name
    except ValueError:
        return f"number {number}"


class _Cursor:
    """Reads values from a buffer and never past its end."""

    def __init__(self, data: mmap.mmap, label: str) -> None:
        self.data = data
        self.label = label
        self.position = 0
        self.end = len(data)

    def fail(self, what: str) -> FormatError:
        return FormatError(f"[gguf] {self.label}: {what}")

    def need(self, size: int, what: str) -> None:
        if size > self.end - self.position:
            raise self.fail(
                f"{what} needs {size} bytes at offset {self.position}, the file has "
                f"{self.end - self.position} left; it is truncated or corrupted"
            )

    def scalar(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        self.need(size, what)
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += size
        return value

    def string(self, what: str) -> str:
        size = self.scalar("Q", what)
        self.need(size, what)
        raw = self.data[self.position : self.position + size]
        self.position += size
        return raw.decode("utf-8", errors="replace")

    def strings(self, count: int, what: str) -> list[str]:
        """A long array of strings; the loop of a vocabulary, so with few calls per element."""
        self.need(8 * count, what)
        data, position, end = self.data, self.position, self.end
        unpack = struct.Struct("<Q").unpack_from
        values: list[str] = []
        for index in range(count):
            start = position + 8
            size = unpack(data, position)[0] if start <= end else 0
            position = start + size
            if position > end:
                raise self.fail(
                    f"{what}: element {index} of {count} runs past the end of the file; "
                    "it is truncated or corrupted"
                )
            values.append(data[start:position].decode("utf-8", errors="replace"))
        self.position = position
        return values

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind in _SCALARS:
            value = self._numbers(kind, 1, what)[0].item()
            return bool(value) if kind == _BOOL else value
        if kind == _ARRAY and depth < _MAX_ARRAY_DEPTH:
            return self._array(what, depth)
        raise self.fail(f"{what} has the unknown value type {kind}; the file is corrupted")

    def _array(self, what: str, depth: int) -> Any:
        kind = self.scalar("I", what)
        count = self.scalar("Q", what)
        if kind == _STRING:
            return self.strings(count, what)
        if kind in _SCALARS:
            values = self._numbers(kind, count, what)
            return values.astype(bool) if kind == _BOOL else values
        self.need(12 * count, what)
        return [self.value(kind, what, depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int, what: str) -> np.ndarray:
        dtype = np.dtype(_SCALARS[kind])
        self.need(dtype.itemsize * count, what)
        values = np.frombuffer(self.data, dtype, count, self.position).copy()
        self.position += dtype.itemsize * count
        return values


class GgufFile(Metadata):
    """An open GGUF file. ``metadata`` maps keys to Python values (arrays: NumPy, or list of str),
    ``tensors`` maps names to ``TensorInfo``. Raises FormatError for anything malformed."""

    reader = "gguf"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.label = os.path.basename(self.path) or self.path
        self._map = map_file(self.path, "gguf", ".gguf file")
        cursor = _Cursor(self._map, self.label)
        tensor_count, key_count = _read_header(cursor)
        self.metadata: dict[str, Any] = _read_metadata(cursor, key_count)
        self.tensors: dict[str, TensorInfo] = _read_tensor_table(
            cursor, tensor_count, self._alignment()
        )

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value <= 0 or value & (value - 1):
            raise self.fail(f"general.alignment is {value!r}, it must be a power of two")
        return value

    # --- tensors -----------------------------------------------------------------------------

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> TensorInfo:
        """The table entry of a tensor, checked against the shape the model expects."""
        info = self.tensors.get(name)
        if info is None:
            raise self.fail(f"the tensor {name} is missing")
        if shape is not None and info.shape != shape:
            raise self.fail(f"the tensor {name} has shape {info.shape}, the model needs {shape}")
        if info.type not in TENSOR_TYPES:
            known = ", ".join(entry[0] for entry in TENSOR_TYPES.values())
            raise self.fail(
                f"the tensor {name} has type {info.type_name}, which is not supported "
                f"(supported: {known})"
            )
        return info

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: info.shape for name, info in self.tensors.items()}

    def rows(self, info: TensorInfo) -> np.ndarray:
        """The stored bytes of a tensor as (rows, bytes per row) uint8, without a copy."""
        columns = info.shape[-1] if info.shape else 1
        _, block, size = TENSOR_TYPES[info.type]
        raw = np.frombuffer(self._map, np.uint8, info.size, info.offset)
        return raw.reshape(-1, columns // block * size)

    def float32(self, info: TensorInfo, rows: np.ndarray | slice | None = None) -> np.ndarray:
        """The tensor, or the given rows of a matrix, dequantised to float32."""
        raw = self.rows(info)
        if rows is None:
            return dequantize(raw, info.type).reshape(info.shape)
        return dequantize(raw[rows], info.type)

    def release(self, info: TensorInfo) -> None:
        """Lets the system drop a tensor's pages from memory; they are read again when needed."""
        release(self._map, info.offset, info.size)


def dequantize(raw: np.ndarray, kind: int) -> np.ndarray:
    """Stored rows (uint8, C-contiguous last axis) of a tensor type to float32."""
    raw = np.ascontiguousarray(raw)
    _, block, size = TENSOR_TYPES[kind]
    width = raw.shape[-1] // size * block
    values = np.empty((*raw.shape[:-1], width), np.float32)
    if raw.size == 0:
        return values
    if kind not in _DECODED_BY_PACKAGE:
        core.dequantize_rows(raw.reshape(-1, raw.shape[-1]), kind, values.reshape(-1, width))
        return values
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize as blocks_to_float32

    with np.errstate(over="ignore", invalid="ignore"):
        return blocks_to_float32(raw, GGMLQuantizationType(kind))


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """Checks magic and version; returns the numbers of tensors and of metadata keys."""
    magic = cursor.data[:4]
    if magic != b"GGUF":
        raise cursor.fail(f"not a GGUF file: it starts with {magic!r} instead of b'GGUF'")
    cursor.position = 4
    version = cursor.scalar("I", "the version")
    if version and version & 0xFFFF == 0:
        raise cursor.fail("a big-endian GGUF file; convert it to little-endian first")
    if version not in (2, 3):
        raise cursor.fail(f"GGUF version {version}, supported are 2 and 3; convert the model again")
    tensors = cursor.scalar("Q", "the tensor count")
    keys = cursor.scalar("Q", "the metadata count")
    left = cursor.end - cursor.position
    # A key takes at least 13 bytes, a table entry of a tensor at least 24.
    if keys * 13 + tensors * 24 > left:
        raise cursor.fail(
            f"claims {keys} metadata keys and {tensors} tensors in {left} bytes; "
            "it is truncated or corrupted"
        )
    return tensors, keys


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"metadata key {index}")
        kind = cursor.scalar("I", f"the type of {show(key)}")
        if key in metadata:
            raise cursor.fail(f"the metadata key {show(key)} occurs twice")
        metadata[key] = cursor.value(kind, f"the metadata key {show(key)}")
    return metadata


def _read_tensor_table(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    entries: list[tuple[str, tuple[int, ...], int, int]] = []
    for index in range(count):
        name = cursor.string(f"the name of tensor {index}")
        rank = cursor.scalar("I", f"the rank of {show(name)}")
        if rank > _MAX_DIMENSIONS:
            raise cursor.fail(
                f"the tensor {show(name)} has {rank} dimensions, at most {_MAX_DIMENSIONS} exist"
            )
        dims = [cursor.scalar("Q", f"a dimension of {show(name)}") for _ in range(rank)]
        kind = cursor.scalar("I", f"the type of {show(name)}")
        offset = cursor.scalar("Q", f"the offset of {show(name)}")
        entries.append((name, tuple(reversed(dims)), kind, offset))
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise cursor.fail(f"the tensor {show(name)} occurs twice")
        if offset % alignment:
            raise cursor.fail(
                f"the tensor {show(name)} is at offset {offset}, "
                f"not a multiple of the alignment {alignment}"
            )
        size = _tensor_bytes(cursor, name, shape, kind)
        if base + offset + size > cursor.end:
            raise cursor.fail(
                f"the tensor {show(name)} needs bytes {base + offset} to {base + offset + size}, "
                f"the file has {cursor.end}; it is truncated or corrupted"
            )
        tensors[name] = TensorInfo(name, shape, kind, base + offset, size)
    return tensors


def _tensor_bytes(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int) -> int:
    if kind not in TENSOR_TYPES:
        return 0
    type_name, block, size = TENSOR_TYPES[kind]
    columns = shape[-1] if shape else 1
    if columns % block:
        raise cursor.fail(
            f"the tensor {show(name)} has rows of {columns} elements, "
            f"not a multiple of the {type_name} block of {block}"
        )
    total = 1
    for dim in shape:
        total *= dim
    if total == 0:
        raise cursor.fail(f"the tensor {show(name)} has shape {shape}, without elements")
    return total // block * size
