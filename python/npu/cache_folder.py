"""The folder in which files are kept between runs: prepared weights, xclbins, self-test verdicts.

``NPU_CACHE`` names it, else it is npu-xdna under ``XDG_CACHE_HOME`` or ~/.cache. ``NPU_CACHE=off``
is about weights, which are not kept then; everything else is, in the default place. The C++ library
follows the same rule (backend/devices/xrt/files.h).
"""

from __future__ import annotations

import os
from pathlib import Path

_VARIABLE = "NPU_CACHE"


def root() -> Path:
    """The folder, which may not exist; absolute."""
    if is_named():
        return expanded(os.environ[_VARIABLE])
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "npu-xdna"


def is_named() -> bool:
    """Whether the user has chosen the folder."""
    return os.environ.get(_VARIABLE, "") != "" and keeps_weights()


def keeps_weights() -> bool:
    """Whether prepared weights may be kept."""
    return os.environ.get(_VARIABLE, "").lower() != "off"


def expanded(text: str) -> Path:
    """A path as a user writes it in a variable."""
    return Path(os.path.expanduser(text)).absolute()
