"""Which xclbin runs a configuration: that of the cache which ``npu build`` fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npu.errors import MissingBuildError
from npu.hardware.build import cache
from npu.hardware.build.cache import Xclbin

__all__ = ["Finder", "Xclbin", "find"]

Finder = Callable[[Any], Xclbin]  # of a configuration; raises MissingBuildError


def find(configuration: Any) -> Xclbin:
    """The xclbin of an ``_npu.device.Configuration``. Raises MissingBuildError with the command
    that builds it."""
    generation, artefact = configuration.generation, configuration.artefact
    found = cache.find(generation, artefact)
    if found is not None:
        return found
    damaged = cache.place(generation, artefact).exists()
    raise MissingBuildError(
        f'[load] configuration "{configuration.name}" for {generation} '
        + ("is damaged in the cache" if damaged else "has not been built")
        + f" ({artefact}); build it: {cache.command(generation, configuration.name)}"
    )
