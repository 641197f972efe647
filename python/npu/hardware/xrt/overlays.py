"""Programs that streams load into cores while they run (overlays, docs/prefill.md#programs): what
program memory is to hold, from the files that ``npu build`` makes beside an xclbin."""

from __future__ import annotations

import json
from typing import Any

from npu.errors import FileError, MissingBuildError
from npu.hardware.build import cache
from npu.hardware.xrt.artefacts import Xclbin


def image(configuration: Any, xclbin: Xclbin, name: str) -> bytes:
    """The image of an overlay. Raises MissingBuildError, with the command that builds it."""
    sizes = {one[0]: one[1] for one in configuration.as_dict()["overlays"]}
    asked = f'[overlay_image] program "{name}" of configuration "{configuration.name}"'
    again = "build the configuration again: " + cache.command(
        configuration.generation, configuration.name, force=True
    )
    built: Any = xclbin.manifest.get("overlays", sizes)
    if name not in built:
        raise MissingBuildError(f"{asked} is not part of {xclbin.path.parent}; {again}")
    try:
        found = xclbin.overlay(name)
    except FileError as error:
        reason = getattr(error.__cause__, "strerror", None) or "cannot be read"
        path = xclbin.path.with_name(f"{name}.overlay.bin")
        raise MissingBuildError(
            f"{asked} is not in its build ({path}: {reason}); {again}"
        ) from error
    if len(found) != sizes[name]:
        raise MissingBuildError(
            f"{asked} has {len(found)} bytes in {xclbin.path.parent}, streams load {sizes[name]}; "
            f"{again}"
        )
    return found


class Builds:
    """Which build of each configuration a process has images of. Streams hold them as long as their
    models live, and the array runs them with a context of the same build only."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}  # files of a build by artefact

    def note(self, function: str, configuration: Any, xclbin: Xclbin) -> None:
        """Raises MissingBuildError if an earlier one of the configuration was of another build."""
        manifest = xclbin.manifest
        files = json.dumps(manifest.get("files", dict(manifest)), sort_keys=True)
        if self._known.setdefault(configuration.artefact, files) != files:
            raise MissingBuildError(
                f'[{function}] configuration "{configuration.name}" has been built again '
                f"({xclbin.folder}) since this process has taken its programs from the build "
                "before; start the program again"
            )


def check(configuration: Any, xclbin: Xclbin) -> None:
    """All images of a configuration are there. Raises what ``image`` raises."""
    for one in configuration.as_dict()["overlays"]:
        image(configuration, xclbin, one[0])
