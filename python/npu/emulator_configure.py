"""What Array.configure and Array.add_pdi take besides a TXN stream: CDOs, PDIs and xclbins.

Their commands become the register writes of a stream. Program memory is stored, not executed:
cores run the programs of ``attach``, and only cores that the configuration leaves enabled.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import Any

from npu import stream
from npu.errors import ArgumentError, FormatError
from npu.formats.xclbin import is_image, read, tiles, writes

_MAX_BYTES = 256 << 20  # of a file; AMD's largest xclbins have some 10 MB
_STREAM_VERSIONS = (b"\x00\x01", b"\x01\x00")  # of TXN headers: major, minor
Cores = frozenset[tuple[int, int]]


def configuration_bytes(function: str, config: Any) -> tuple[bytes, str]:
    """The bytes of a configuration given as bytes, an array of words or a path, and its name.
    ``function`` is what errors name."""
    if isinstance(config, (str, os.PathLike)):
        return _read(function, os.fspath(config)), os.path.basename(os.fspath(config))
    try:
        return memoryview(config).tobytes(), function
    except (TypeError, ValueError):
        raise ArgumentError(
            f"[{function}] the configuration must be bytes, an array of words or the path of a "
            f"file, found {type(config)}"
        ) from None


def _read(function: str, path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ArgumentError(f"[{function}] {path} is not a regular file")
        if os.path.getsize(path) > _MAX_BYTES:
            raise ArgumentError(f"[{function}] {path} has more than {_MAX_BYTES} bytes")
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(f"[{function}] {path}: {reason}") from None


def configuration_stream(
    config: Any, device: str, pdi: int | None, *, function: str = "configure", which: str = "pdi"
) -> tuple[bytes, Cores | None]:
    """The TXN stream of a configuration, and the cores that may run (None: all).

    A stream is passed on as it is; then ``pdi`` must be None. Configurations that enable no core
    were compiled without programs (or are streams): every core may run. ``which`` is the caller's
    name for ``pdi``.
    """
    data, label = configuration_bytes(function, config)
    if not is_image(data):
        if pdi is not None:
            raise ArgumentError(
                f"[{function}] {which} = {pdi} was given with a stream, which has no PDIs"
            )
        if data[:2] not in _STREAM_VERSIONS:
            what = "these bytes are" if label == function else f"{label} is"
            why = f"its first bytes are {data[:8].hex(' ')}" if data else "nothing is there"
            raise FormatError(
                f"[{function}] {what} no configuration: {why}; give a TXN stream, CDO, PDI or "
                "xclbin"
            )
        return data, None
    columns = stream.device_geometry(device)["columns"]
    image = read(data, label)
    partition = image.partition
    if partition and partition.column_width > columns:
        raise FormatError(
            f"[{label}] is for {partition.column_width} columns, {device} has {columns}"
        )
    found = image.configurations(_index(image.count, label, pdi, (function, which)))
    if not found:
        raise FormatError(f"[{label}] holds no CDO that configures the array")
    txn = writes.to_stream(((one.name, one.cdo) for one in found), device, columns)
    enabled = frozenset(place for place, runs in tiles.cores(txn).items() if runs)
    return txn, enabled or None


def _index(count: int, label: str, pdi: int | None, names: tuple[str, str]) -> int:
    function, which = names
    if count == 0:
        raise FormatError(f"[{label}] has no PDI: it configures no NPU")
    if pdi is None:
        if count > 1:
            raise ArgumentError(
                f"[{function}] {label} has {count} PDIs; name one of them by {which}, "
                f"0..{count - 1}"
            )
        return 0
    if isinstance(pdi, bool) or not isinstance(pdi, int) or not 0 <= pdi < count:
        raise ArgumentError(f"[{function}] {which} = {pdi!r}; {label} has PDIs 0..{count - 1}")
    return pdi


def check_enabled(enabled: Collection[tuple[int, int]] | None, col: int, row: int) -> None:
    """Raises ArgumentError for a core that the configuration leaves disabled."""
    if enabled is None or (col, row) in enabled:
        return
    names = " ".join(f"({c},{r})" for c, r in sorted(enabled))
    raise ArgumentError(
        f"[attach] the configuration leaves core ({col},{row}) disabled, so that its program would "
        f"never run; enabled are {names}"
    )
