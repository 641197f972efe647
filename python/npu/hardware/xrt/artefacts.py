"""Which xclbin runs a configuration: the cache that ``npu build`` fills, else a folder.

Without the builder's cache in the package, ``NPU_XCLBINS`` names a folder with files
GENERATION/ARTEFACT/design.xclbin.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu.errors import MissingBuildError

_CACHE = "npu.hardware.build.cache"


@dataclass(frozen=True)
class Xclbin:
    """A built configuration: its file, and what its builder wrote about it."""

    path: Path
    manifest: Mapping[str, Any] = field(default_factory=dict)


Finder = Callable[[Any], Xclbin]  # of a configuration; raises MissingBuildError


def find(configuration: Any) -> Xclbin:
    """The xclbin of an ``_npu.device.Configuration``. Raises MissingBuildError with the command
    that builds it."""
    generation, artefact = configuration.generation, configuration.artefact
    cache = _cache()
    if cache is None:
        folder = os.environ.get("NPU_XCLBINS", "")
        path = Path(folder, generation, artefact, "design.xclbin")
        if folder and path.is_file():
            return Xclbin(path)
        command = f"npu build --device {generation} {configuration.name}"
    else:
        found = cache.find(generation, artefact)
        if found is not None:
            manifest = found.manifest if isinstance(found.manifest, Mapping) else {}
            return Xclbin(Path(found.path), manifest)
        command = cache.command(generation, configuration.name)
    raise MissingBuildError(
        f'[load] configuration "{configuration.name}" for {generation} has not been built '
        f"({artefact} is not in the cache); build it: {command}"
    )


def _cache() -> Any:
    try:
        return importlib.import_module(_CACHE)
    except ModuleNotFoundError as error:
        if error.name in (_CACHE, _CACHE.rpartition(".")[0]):
            return None
        raise
