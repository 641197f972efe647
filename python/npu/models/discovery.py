"""Finds model files where users and other programs keep them.

Places: the paths of ``NPU_MODELS`` (separated like PATH), the Hugging Face hub cache
(huggingface_hub's documentation, "Environment variables": ``HF_HUB_CACHE``, else ``HF_HOME``/hub,
else huggingface/hub under ``XDG_CACHE_HOME``), LM Studio's folders (its own findLMStudioHome, and
the folder of its settings.json) and Ollama's store (manifests that name blobs).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAX_DEPTH = 8  # of folders below a place
_MAX_MANIFEST = 1 << 20
_SUFFIXES = (".gguf", ".q4nx")
_CHECKPOINT = ("model.safetensors", "model.safetensors.index.json")
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the service that its installer sets up
_MODEL_LAYER = "application/vnd.ollama.image.model"


@dataclass(frozen=True)
class Found:
    """A file or folder that looks like a model. ``name``: as its place calls it."""

    place: str
    name: str
    path: Path


def find() -> list[Found]:
    """All models of this machine, once each, in the order of the places. Unreadable folders and
    files are passed over."""
    seen: set[str] = set()
    found = []
    for one in (*_named(), *_hugging_face(), *_lm_studio(), *_ollama()):
        real = os.path.realpath(one.path)
        if real not in seen:
            seen.add(real)
            found.append(one)
    return found


def places() -> list[tuple[str, Path]]:
    """Where ``find`` looks: the kind of place and its folder or file."""
    return [
        *(("NPU_MODELS", path) for path in _npu_models()),
        ("Hugging Face", hub_cache()),
        *(("LM Studio", path) for path in _lm_studio_folders()),
        *(("Ollama", path) for path in _ollama_folders()),
    ]


def missing() -> list[Path]:
    """What ``NPU_MODELS`` names and does not exist."""
    return [path for path in _npu_models() if not os.path.exists(path)]


def hub_cache() -> Path:
    """The folder of the Hugging Face hub's cache."""
    if named := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return _expanded(named)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(os.environ.get("HF_HOME") or os.path.join(base, "huggingface")) / "hub"


def _npu_models() -> list[Path]:
    return [_expanded(p) for p in os.environ.get("NPU_MODELS", "").split(os.pathsep) if p]


def _named() -> Iterator[Found]:
    for place in _npu_models():
        # A file that is named need not look like a model: a blob of Ollama does not.
        for path in [place] if place.is_file() else models_below(place):
            name = path.relative_to(place).as_posix() if path != place else path.name
            yield Found("NPU_MODELS", name, path)


def _hugging_face() -> Iterator[Found]:
    for repository in _entries(hub_cache()):
        if not repository.name.startswith("models--"):
            continue
        name = repository.name.removeprefix("models--").replace("--", "/")
        # Of several downloads of a file, that of the commit main names, else the last one.
        files: dict[str, Path] = {}
        main = _text(repository / "refs/main")
        snapshots = _entries(repository / "snapshots")
        for snapshot in sorted(
            snapshots, key=lambda s: (s.name == main, _changed(s)), reverse=True
        ):
            for path in models_below(snapshot):
                files.setdefault(path.relative_to(snapshot).as_posix(), path)
        for rest, path in files.items():
            yield Found("Hugging Face", name if rest == "." else f"{name}/{rest}", path)


def _lm_studio_folders() -> list[Path]:
    homes = [Path.home() / ".lmstudio", Path.home() / ".cache" / "lm-studio"]
    if pointed := _text(Path.home() / ".lmstudio-home-pointer"):
        homes.insert(0, Path(pointed))
    folders = [home / "models" for home in homes]
    for home in homes:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            named = json.loads((home / "settings.json").read_text("utf-8")).get("downloadsFolder")
            folders.append(Path(named))
    return list(dict.fromkeys(folders))


def _lm_studio() -> Iterator[Found]:
    for folder in _lm_studio_folders():
        for path in models_below(folder):
            yield Found("LM Studio", path.relative_to(folder).as_posix(), path)


def _ollama_folders() -> list[Path]:
    if named := os.environ.get("OLLAMA_MODELS"):
        return [_expanded(named)]
    # The user's own server, and the service that its installer sets up.
    return [Path.home() / ".ollama/models", _SERVICE]


def _ollama() -> Iterator[Found]:
    for folder in _ollama_folders():
        manifests = folder / "manifests"
        for path in _files_below(manifests):
            digest = _model_digest(path)
            if digest:
                *model, tag = path.relative_to(manifests).parts
                name = "/".join(model).removeprefix("registry.ollama.ai/").removeprefix("library/")
                yield Found("Ollama", f"{name}:{tag}", folder / "blobs" / digest.replace(":", "-"))


def _model_digest(manifest: Path) -> str | None:
    """The blob of the weights that a manifest names; None for anything else."""
    try:
        if manifest.stat().st_size > _MAX_MANIFEST:
            return None
        for layer in json.loads(manifest.read_text("utf-8"))["layers"]:
            if layer["mediaType"] == _MODEL_LAYER and "/" not in layer["digest"]:
                return str(layer["digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def models_below(place: Path) -> Iterator[Path]:
    """Model files and checkpoint folders in a folder, or the file that ``place`` is."""
    if place.is_file():
        if place.suffix.lower() in _SUFFIXES:
            yield place
        return
    for folder, folders, files in os.walk(place):
        here = Path(folder)
        if len(here.relative_to(place).parts) >= _MAX_DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "config.json" in files and any(name in files for name in _CHECKPOINT):
            yield here
        yield from (here / name for name in sorted(files) if Path(name).suffix.lower() in _SUFFIXES)


def _files_below(place: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(place):
        folders.sort()
        yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))


def _text(path: Path) -> str:
    """The first line of a small file, or nothing."""
    try:
        with path.open("rb") as file:
            return file.readline(4096).decode("utf-8").strip()
    except (OSError, ValueError):
        return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))
