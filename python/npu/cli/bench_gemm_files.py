"""Files that `npu bench gemm` writes: checked before the work starts, replaced whole or not at
all.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu.cli import stamp
from npu.errors import ArgumentError

STDOUT = "-"


class Output:
    """A file, or "-" for standard output (text only). Opening it proves that it can be written."""

    def __init__(self, path: str, option: str, suffixes: Sequence[str]) -> None:
        self.name = path
        self._option = option
        self._temporary: str | None = None
        if path == STDOUT:
            return
        if Path(path).suffix.lower() not in suffixes:
            raise ArgumentError(
                f"[bench] {option} {path!r}: the name must end in {' or '.join(suffixes)}"
            )
        target = Path(path)
        if target.is_dir():
            raise ArgumentError(f"[bench] {option} {path!r} is a folder; name a file")
        try:
            self._path = target.resolve()  # a symbolic link keeps pointing to its file
            self._mode = _mode(self._path)
            handle, self._temporary = tempfile.mkstemp(
                dir=self._path.parent, prefix=f".{self._path.name}."
            )
            os.close(handle)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            reason = getattr(error, "strerror", None) or error
            raise ArgumentError(f"[bench] {option} {path!r} cannot be written: {reason}") from error

    def write(self, data: bytes) -> None:
        """Replaces the file; may be called once."""
        if self.name == STDOUT:
            sys.stdout.write(data.decode())
            return
        assert self._temporary
        try:
            with open(self._temporary, "wb") as file:
                file.write(data)
            os.chmod(self._temporary, self._mode)
            os.replace(self._temporary, self._path)
        except OSError as error:
            raise ArgumentError(
                f"[bench] {self._option} {self.name!r} could not be written: {error.strerror}"
            ) from error
        self._temporary = None

    def discard(self) -> None:
        """Removes what was prepared; the file of that name, if any, stays as it is."""
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._temporary = None


def _mode(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def opened(
    csv_path: str | None = None, json_path: str | None = None, plot_path: str | None = None
) -> Iterator[dict[str, Output]]:
    """The outputs that were asked for, by kind; those not written by the end are discarded."""
    outputs: dict[str, Output] = {}
    if csv_path == STDOUT and json_path == STDOUT:
        raise ArgumentError(
            "[bench] --csv - and --json - both write to standard output; name a file"
        )
    try:
        if plot_path is not None:
            from npu.perf import plots

            plots.check_format(plot_path)
            plots.pyplot()  # says what to install when matplotlib is missing
            outputs["plot"] = Output(plot_path, "--plot", plots.FORMATS)
        if csv_path is not None:
            outputs["csv"] = Output(csv_path, "--csv", (".csv",))
        if json_path is not None:
            outputs["json"] = Output(json_path, "--json", (".json",))
        yield outputs
    finally:
        for output in outputs.values():
            output.discard()


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows with the same keys as CSV with a header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def json_bytes(benchmark: str, document: dict[str, Any], model_paths: Sequence[str] = ()) -> bytes:
    """A document of figures with its stamp (``stamp.stamp``)."""
    return plain_json_bytes(document | {"stamp": stamp.stamp(benchmark, document, model_paths)})


def plain_json_bytes(document: Any) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()
