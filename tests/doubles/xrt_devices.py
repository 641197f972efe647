"""The device xrt over the test double: xclbins for all configurations that this process lowers,
backends for both generations, and their registration as "double:npu1" and "double:npu2".

The double is handed to backends, so that test programs take it off ``sys.path`` and out of
``sys.modules`` again: otherwise it counts as this machine's pyxrt.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyxrt
from pyxrt_machine import write_xclbin

import npu
from npu import _npu
from npu.designs import lowering
from npu.hardware.xrt.artefacts import Xclbin
from npu.hardware.xrt.backend import XrtBackend

GENERATIONS = ("npu1", "npu2")

_lowered: dict[str, bytes] = {}  # serialised configurations by artefact
_serialise = lowering.serialise
_folder: list[Path] = []


def _kept(lowered: Any) -> bytes:
    data = _serialise(lowered)
    _lowered[_npu.device.Configuration.parse(data).artefact] = data
    return data


lowering.serialise = _kept


def find(configuration: Any, arguments: int = 16, build: int = 0) -> Xclbin:
    """The "xclbin" of a configuration that was lowered after this module was imported, with the
    programs of its overlays; ``build``: one of several, whose programs differ."""
    if not _folder:
        _folder.append(Path(tempfile.mkdtemp(prefix="npu-double-")))
        atexit.register(shutil.rmtree, _folder[0], ignore_errors=True)
    path = _folder[0] / f"{configuration.artefact}-{arguments}-{build}" / "design.xclbin"
    if not path.exists():
        path.parent.mkdir()
        write_xclbin(path, _lowered[configuration.artefact], arguments=arguments, build=build)
    overlays = [one[0] for one in configuration.as_dict()["overlays"]]
    return Xclbin(path, {"generation": configuration.generation, "overlays": overlays})


def backend(generation: str, name: str | None = None, **options: Any) -> XrtBackend:
    """A backend over the double's NPU of a generation."""
    index = GENERATIONS.index(generation)
    options = {"pyxrt": pyxrt, "find": find, "index": index, **options}
    return XrtBackend(name or f"double:{generation}", **options)


def register() -> None:
    npu.register_device("double:npu1", lambda: backend("npu1"))
    npu.register_device("double:npu2", lambda: backend("npu2"))
