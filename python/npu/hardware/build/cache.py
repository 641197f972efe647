"""The xclbins of this machine: one folder per configuration, made by `npu build`, used by devices.

    ROOT/npu2/NAME-npu2-0123456789abcdef/design.xclbin, sample.bin, NAME.overlay.bin, manifest.json

An entry's folder is the artefact that a configuration names (Configuration::artefact): design and
kernels. It appears whole or not at all. ``NPU_XCLBINS`` names ROOT; else it is ``xclbins`` in the
folder of the cache (npu/cache_folder.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu import cache_folder
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
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.path.parent

    def overlay(self, name: str) -> bytes:
        """The image of an overlay's program memory. Raises FileError."""
        path = self.folder / f"{name}.overlay.bin"
        try:
            return path.read_bytes()
        except OSError as error:
            raise FileError(
                f"[xclbin] {path}: {error.strerror}; build it again: {self.again}"
            ) from error

    @property
    def again(self) -> str:
        """The command that makes it again, for messages."""
        generation = str(self.manifest.get("generation", self.folder.parent.name))
        return command(generation, str(self.manifest.get("key", "")), force=True)

    def is_intact(self) -> bool:
        """Whether its files are, to the bit, those that the manifest was written for."""
        try:
            return all(
                sha256(self.folder / name) == about["sha256"]
                for name, about in self.manifest["files"].items()
            )
        except OSError:
            return False


def sha256(path: Path) -> str:
    """The hash of a file, as manifests have it. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def root() -> Path:
    """The folder of all entries."""
    if named := os.environ.get("NPU_XCLBINS"):
        return cache_folder.expanded(named)
    return cache_folder.root() / "xclbins"


def find(generation: str, artefact: str) -> Xclbin | None:
    """The entry of a configuration's artefact; None where there is none, or a damaged one: a wrong
    program can hang the NPU, so that every file is compared with its hash.

    Raises ArgumentError for a generation or artefact that cannot be one.
    """
    return _intact(place(generation, artefact))


def place(generation: str, artefact: str) -> Path:
    """The folder of an entry, which may not exist. Raises ArgumentError."""
    if generation not in GENERATIONS or not _NAME.fullmatch(artefact):
        raise ArgumentError(
            f"[xclbin] {generation!r}, {artefact!r} is no generation and artefact; take them from "
            "a configuration"
        )
    return root() / generation / artefact


def examined() -> tuple[list[Xclbin], list[Path]]:
    """All complete entries, by generation and artefact; the folders of those that are not complete,
    or not as they were written. Reads every file."""
    complete: list[Xclbin] = []
    others: list[Path] = []
    for folder in _folders():
        if entry := _intact(folder):
            complete.append(entry)
        elif _is_damaged(folder):
            others.append(folder)
    return complete, others


def entries() -> list[Xclbin]:
    return examined()[0]


def damaged() -> list[Path]:
    return examined()[1]


def remove_damaged(generation: str, stop: threading.Event) -> tuple[int, list[str]]:
    """Removes damaged entries of a generation, those of other versions of the package among them,
    which no build would replace: how many, and what says why others are still there. Nothing else
    in the folder is touched. Raises Stopped."""
    count, left = 0, []
    for folder in _folders():
        if folder.parent.name != generation or not _is_damaged(folder):
            continue
        try:
            with locked(folder, stop):
                if _is_damaged(folder):  # no other process has mended it
                    _remove(folder)
                    count += 1
        except (FileError, OSError) as error:
            left.append(f"{folder} is damaged and cannot be removed: {error}")
    return count, left


def _remove(folder: Path) -> None:
    """Raises OSError."""
    if folder.is_symlink():
        folder.unlink()
        return
    old = _old(folder)  # what half a removal leaves has no entry's name
    if old.exists():
        shutil.rmtree(old)
    folder.rename(old)
    shutil.rmtree(old)


def _is_damaged(folder: Path) -> bool:
    """Whether a folder with an entry's name is one of this package and FORMAT that cannot be used.
    What has no manifest, or one of another FORMAT, is somebody else's."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size <= _MAX_MANIFEST:
            manifest = json.loads(path.read_bytes())
            if isinstance(manifest, dict) and manifest.get("format", FORMAT) != FORMAT:
                return False
    except OSError:
        return False
    except (ValueError, RecursionError):
        return True
    return not _intact(folder)


def _folders() -> Iterator[Path]:
    """Those with the names of entries (Configuration::artefact); what else lies there is passed."""
    for generation in GENERATIONS:
        name = re.compile(rf".+-{generation}-[0-9a-f]{{16}}")
        with contextlib.suppress(OSError):
            for folder in sorted((root() / generation).iterdir()):
                if _NAME.fullmatch(folder.name) and name.fullmatch(folder.name) and folder.is_dir():
                    yield folder


def command(generation: str, *names: str, force: bool = False) -> str:
    """The command line that builds configurations by name or key, for messages; ``force``: though
    they are there. Without one that the package has: a plain build, which removes what is damaged.
    """
    from npu.hardware.build.targets import words_for

    words = ["npu", "build", "--device", generation, *(["--force"] if force else [])]
    known = generation in GENERATIONS  # an entry elsewhere may say nothing
    return " ".join(words + (words_for(generation, names) if known else []))


def command_for(generation: str, artefacts: Sequence[str]) -> str:
    """``command`` of damaged entries, by the names of their folders."""
    return command(generation, *(name.rpartition(f"-{generation}-")[0] for name in artefacts))


def _intact(folder: Path) -> Xclbin | None:
    entry = _read(folder)
    return entry if entry and entry.is_intact() else None


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
            and isinstance(manifest["key"], str)
            and DESIGN in manifest["files"]
            and all(
                os.sep not in name
                and isinstance(about["sha256"], str)
                and (folder / name).stat().st_size == about["bytes"]
                for name, about in manifest["files"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Xclbin(folder / DESIGN, manifest) if right else None


@contextlib.contextmanager
def locked(folder: Path, stop: threading.Event) -> Iterator[None]:
    """Only one process at a time makes an entry; others wait. Raises FileError and Stopped."""
    with writing(folder.parent):
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
    with writing(folder.parent):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def publish(made: Path, folder: Path) -> None:
    """Gives a complete folder its name; the entry of that name is replaced. For who has ``locked``
    it. Raises FileError."""
    old = _old(folder)
    with writing(folder):
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _old(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Errors of files as FileError."""
    try:
        yield
    except NpuError:
        raise
    except OSError as error:
        raise FileError(
            f"[build] {place}: {error.strerror or error}; name another folder for xclbins in "
            "NPU_XCLBINS"
        ) from error


def _lock(number: int) -> bool:
    """Whether this process holds it now; as if where locks do not exist."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
