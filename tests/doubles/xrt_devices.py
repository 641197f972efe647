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
from npu.designs import lowering
from npu.hardware.xrt.artefacts import Xclbin
from npu.hardware.xrt.backend import XrtBackend

GENERATIONS = ("npu1", "npu2")

_lowered: dict[str, bytes] = {}  # serialised configurations by artefact
_serialise = lowering.serialise
_folder: list[Path] = []


def _kept(lowered: Any) -> bytes:
    data = _serialise(lowered)
    head = dict(line.split(b" ", 1) for line in data.split(b"\n", 4)[:4])
    name, generation, source = (head[key].decode() for key in (b"name", b"generation", b"source"))
    _lowered[f"{name}-{generation}-{source[:16]}"] = data
    return data


lowering.serialise = _kept


def find(configuration: Any, arguments: int = 16) -> Xclbin:
    """The "xclbin" of a configuration that was lowered after this module was imported."""
    if not _folder:
        _folder.append(Path(tempfile.mkdtemp(prefix="npu-double-")))
        atexit.register(shutil.rmtree, _folder[0], ignore_errors=True)
    path = _folder[0] / f"{configuration.artefact}-{arguments}.xclbin"
    if not path.exists():
        write_xclbin(path, _lowered[configuration.artefact], arguments=arguments)
    # No overlays: their stand-ins are what the emulated NPU takes.
    return Xclbin(path, {"generation": configuration.generation, "overlays": []})


def backend(generation: str, name: str | None = None, **options: Any) -> XrtBackend:
    """A backend over the double's NPU of a generation."""
    index = GENERATIONS.index(generation)
    options = {"pyxrt": pyxrt, "find": find, "index": index, **options}
    return XrtBackend(name or f"double:{generation}", **options)


def register() -> None:
    npu.register_device("double:npu1", lambda: backend("npu1"))
    npu.register_device("double:npu2", lambda: backend("npu2"))
