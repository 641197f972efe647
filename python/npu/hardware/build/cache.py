"""The xclbins of this machine: one folder per configuration, made by `npu build`, used by devices.

    ROOT/npu2/NAME-npu2-0123456789abcdef/design.xclbin, sample.bin, NAME.overlay.bin, manifest.json

An entry's folder is the artefact that a configuration names (Configuration::artefact): design and
kernels. It appears whole or not at all. ``NPU_XCLBINS`` names ROOT; else it is ``xclbins`` in the
folder that ``NPU_CACHE`` names, or in npu-xdna in the user's cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu.errors import ArgumentError, FileError, NpuError
from npu.hardware.build.process import Stopped

FORMAT = 1  # of the manifest
DESIGN, MANIFEST = "design.xclbin", "manifest.json"
GENERATIONS = ("npu1", "npu2")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_PARTIAL = ".partial"
_MAX_MANIFEST = 16 << 20
_POLL = 0.2  # s between looks at a lock that another process holds


@dataclass(frozen=True)
class Xclbin:
    """An entry: ``path`` of its xclbin and what its manifest says."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return self.path.parent

    def overlay(self, name: str) -> bytes:
        """The image of an overlay's program memory. Raises FileError."""
        path = self.folder / f"{name}.overlay.bin"
        try:
            return path.read_bytes()
        except OSError as error:
            raise FileError(f"[xclbin] {path}: {error.strerror}; build it again") from error


def root() -> Path:
    """The folder of all entries."""
    if named := os.environ.get("NPU_XCLBINS"):
        return Path(os.path.expanduser(named)).absolute()
    cache = os.environ.get("NPU_CACHE", "")
    if cache and cache.lower() != "off":  # off: weights are not kept
        return Path(os.path.expanduser(cache)).absolute() / "xclbins"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base).absolute() / "npu-xdna" / "xclbins"


def find(generation: str, artefact: str) -> Xclbin | None:
    """The entry of a configuration's artefact; None where there is none, or a damaged one.

    Raises ArgumentError for a generation or artefact that cannot be one.
    """
    return _read(place(generation, artefact))


def place(generation: str, artefact: str) -> Path:
    """The folder of an entry, which may not exist. Raises ArgumentError."""
    if generation not in GENERATIONS or not _NAME.fullmatch(artefact):
        raise ArgumentError(
            f"[xclbin] {generation!r}, {artefact!r} is no generation and artefact; take them from "
            "a configuration"
        )
    return root() / generation / artefact


def entries() -> list[Xclbin]:
    """All complete entries, by generation and artefact."""
    found = []
    for generation in GENERATIONS:
        with contextlib.suppress(OSError):
            for folder in sorted((root() / generation).iterdir()):
                if _NAME.fullmatch(folder.name) and (entry := _read(folder)):
                    found.append(entry)
    return found


def command(generation: str, configuration_name: str) -> str:
    """The command line that builds a configuration of this name, for messages."""
    from npu.hardware.build.targets import name_for

    return f"npu build --device {generation} {name_for(generation, configuration_name)}"


def _read(folder: Path) -> Xclbin | None:
    """The entry in a folder if its manifest is one and all its files have their sizes."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MAX_MANIFEST:
            return None
        manifest = json.loads(path.read_text("utf-8"))
        right = (
            manifest["format"] == FORMAT
            and manifest["artefact"] == folder.name
            and manifest["generation"] == folder.parent.name
            and isinstance(manifest["tools"], dict)
            and isinstance(manifest["kernels"], str)
            and DESIGN in manifest["files"]
            and all(
                os.sep not in name and (folder / name).stat().st_size == about["bytes"]
                for name, about in manifest["files"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Xclbin(folder / DESIGN, manifest) if right else None


@contextlib.contextmanager
def locked(folder: Path, stop: threading.Event) -> Iterator[None]:
    """Only one process at a time makes an entry; others wait. Raises FileError and Stopped."""
    with _writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(
            folder.parent / f".{folder.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
    try:
        while not _lock(number):
            if stop.wait(_POLL):
                raise Stopped
        yield
    finally:
        os.close(number)


@contextlib.contextmanager
def partial(folder: Path) -> Iterator[Path]:
    """A new folder beside that of an entry, removed when the block ends; for who has ``locked`` it.
    What a killed process left of the same entry is removed. Raises FileError."""
    made = folder.parent / f".{folder.name}{_PARTIAL}"
    with _writing(folder.parent):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def publish(made: Path, folder: Path) -> None:
    """Gives a complete folder its name; the entry of that name is replaced. For who has ``locked``
    it. Raises FileError."""
    old = folder.parent / f".{folder.name}.old"
    with _writing(folder):
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _writing(place: Path) -> Iterator[None]:
    try:
        yield
    except NpuError:
        raise
    except OSError as error:
        raise FileError(
            f"[build] {place}: {error.strerror or error}; name another folder for xclbins in "
            "NPU_XCLBINS"
        ) from error


writing = _writing


def _lock(number: int) -> bool:
    """Whether this process holds it now; as if where locks do not exist."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
