"""GGUF files as a source of weights."""

from __future__ import annotations

import numpy as np

from npu._npu import weights as core
from npu.formats.gguf_file import GgufFile
from npu.models.sources.interface import Native, Source


class GgufSource(Source):
    """A GGUF file: any readable type."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.reader, self.label, self.metadata = file.reader, file.label, file.metadata
        self.shapes = file.shapes
        self.paths = [file.path]

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self.file.tensor(name, shape)

    def stored_type(self, name: str) -> str:
        return self.file.tensor(name).type_name

    def float32(self, name: str, rows: np.ndarray | slice | None = None) -> np.ndarray:
        return self.file.float32(self.file.tensor(name), rows)

    def stored_rows(self, name: str, rows: slice) -> tuple[int, np.ndarray] | None:
        info = self.file.tensor(name)
        if not core.converts(info.type, "bf16"):
            return None
        return info.type, self.file.rows(info)[rows]

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
