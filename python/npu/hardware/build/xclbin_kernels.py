"""How many arguments the kernels of an xclbin declare: XRT crashes on a buffer beyond them.

An xclbin is an AXLF container (XRT, xclbin.h): a table of sections, of which EMBEDDED_METADATA is
XML with each kernel and its arguments (XRT, xclbinutil).
"""

from __future__ import annotations

import struct
import xml.etree.ElementTree as xml
from pathlib import Path

from npu.errors import FormatError

_MAGIC = b"xclbin2\0"
_LENGTH, _COUNT, _SECTIONS = 304, 448, 456  # offsets: m_length, m_numSections, m_sections
_SECTION = struct.Struct("<I16s4xQQ")
_METADATA = 2
_MAX_BYTES, _MAX_XML = 512 << 20, 16 << 20


def kernel_arguments(path: Path) -> dict[str, int]:
    """The number of arguments of each kernel by name. Raises FormatError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FormatError(f"[xclbin] {path} has more than {_MAX_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise FormatError(f"[xclbin] {path}: {error.strerror}") from error
    try:
        return _arguments(section(data, _METADATA))
    except FormatError as error:
        raise FormatError(f"[xclbin] {path}: {error}; build it again") from None


def section(data: bytes, kind: int) -> bytes:
    """The bytes of the first section of a kind. Raises FormatError."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _SECTIONS:
        raise FormatError("it is no xclbin")
    if struct.unpack_from("<Q", data, _LENGTH)[0] != len(data):
        raise FormatError("it is cut off, or longer than it says")
    (count,) = struct.unpack_from("<I", data, _COUNT)
    for number in range(count):
        at = _SECTIONS + number * _SECTION.size
        if at + _SECTION.size > len(data):
            raise FormatError("its section table is cut off")
        found, _, offset, size = _SECTION.unpack_from(data, at)
        if found == kind:
            if offset + size > len(data):
                raise FormatError("a section lies outside of it")
            return data[offset : offset + size]
    raise FormatError(f"it has no section of kind {kind}")


def _arguments(text: bytes) -> dict[str, int]:
    if len(text) > _MAX_XML or b"<!" in text:  # nothing to expand is wanted
        raise FormatError("its metadata is no plain XML")
    try:
        root = xml.fromstring(text.rstrip(b"\0"))
    except (xml.ParseError, ValueError, LookupError) as error:
        raise FormatError(f"its metadata does not parse ({error})") from None
    return {one.get("name", ""): len(one.findall("arg")) for one in root.iter("kernel")}
