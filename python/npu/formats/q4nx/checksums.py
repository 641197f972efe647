"""Checksums of Q4NX files: one per tensor, and one of the header (docs/q4nx.md, "Checksums").

``npu.q4nx.checksums`` holds {"algorithm": "crc32", "tensors": {name: eight hex digits}} as JSON,
``npu.q4nx.header_checksum`` the CRC-32 of the file from its first byte to the end of the header,
taken with eight zeros in the place of this value. They are separate keys, so that no error of one
bit makes a file look like one without checksums.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from npu.formats.metadata import show
from npu.formats.safetensors_file import SafetensorsFile

TENSORS_KEY, HEADER_KEY = "npu.q4nx.checksums", "npu.q4nx.header_checksum"
ALGORITHM = "crc32"
_EMPTY = b"00000000"
_PIECE = 16 << 20  # bytes summed at a time


def checksum(data: Any, start: int = 0) -> int:
    """CRC-32 (zlib's) of bytes, continued from ``start``."""
    return zlib.crc32(data, start)


def entries(sums: Mapping[str, int]) -> dict[str, str]:
    """The metadata for the checksums of tensors, the header's still to be filled in. Its length
    does not depend on the values."""
    tensors = {name: f"{value:08x}" for name, value in sums.items()}
    document = {"algorithm": ALGORITHM, "tensors": tensors}
    return {
        HEADER_KEY: _EMPTY.decode(),
        TENSORS_KEY: json.dumps(document, separators=(",", ":"), ensure_ascii=False),
    }


def seal(header: bytes) -> bytes:
    """A header (with its length, to the data) whose own checksum is filled in."""
    place = _place(header)
    assert place is not None
    return header[:place] + b"%08x" % checksum(header) + header[place + len(_EMPTY) :]


def has_checksums(file: SafetensorsFile) -> bool:
    return TENSORS_KEY in file.metadata or HEADER_KEY in file.metadata


def header_problems(file: SafetensorsFile) -> list[str]:
    """What the checksums say about the header; empty when it is intact or has none."""
    if not has_checksums(file):
        return []
    if HEADER_KEY not in file.metadata or TENSORS_KEY not in file.metadata:
        return ["has only a part of its checksums; the header is corrupted"]
    header = file.header_bytes()
    place = _place(header)
    if place is None:
        return [f"the metadata {HEADER_KEY} is not a checksum; the header is corrupted"]
    stored = header[place : place + len(_EMPTY)]
    blank = header[:place] + _EMPTY + header[place + len(_EMPTY) :]
    if b"%08x" % checksum(blank) != stored:
        return ["the header does not match its checksum; it is corrupted"]
    sums = _stored(file)
    if isinstance(sums, str):
        return [sums]
    if set(sums) != set(file.entries):
        return [f"the metadata {TENSORS_KEY} is not about the tensors of the file"]
    return []


def tensor_problems(file: SafetensorsFile, name: str) -> list[str]:
    """Reads a whole tensor; a sentence if it does not match its checksum."""
    sums = _stored(file)
    if isinstance(sums, str) or name not in sums:
        return []  # header_problems has said so
    found, raw = 0, file.raw(file.entry(name))
    for start in range(0, raw.size, _PIECE):
        found = checksum(np.ascontiguousarray(raw[start : start + _PIECE]), found)
    if f"{found:08x}" == sums[name]:
        return []
    return [f"the tensor {show(name)} does not match its checksum; it is corrupted"]


def _stored(file: SafetensorsFile) -> dict[str, str] | str:
    """Checksums by tensor, or what is wrong with them."""
    if TENSORS_KEY not in file.metadata:
        return {}
    try:
        document = json.loads(file.metadata[TENSORS_KEY])
    except (ValueError, RecursionError):
        return f"the metadata {TENSORS_KEY} is not JSON"
    sums = document.get("tensors") if isinstance(document, dict) else None
    if not isinstance(sums, dict) or not all(isinstance(v, str) for v in sums.values()):
        return f"the metadata {TENSORS_KEY} is not a map of checksums"
    if document.get("algorithm") != ALGORITHM:
        found = show(document.get("algorithm"))
        return f"the checksums are of the kind {found}, this version knows {ALGORITHM!r}"
    return sums


def _place(header: bytes) -> int | None:
    """Where the eight digits of the header's checksum are; None unless in exactly one place."""
    found = list(re.finditer(rb'"%s":"([0-9a-f]{8})"' % re.escape(HEADER_KEY).encode(), header))
    return found[0].start(1) if len(found) == 1 else None
