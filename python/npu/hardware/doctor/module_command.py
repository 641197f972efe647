"""Prints what libnpu_xrt.so, the module through which the C++ library calls XRT, is like: one JSON
line with ``path`` (null: not there; ``named``: what NPU_XRT_MODULE says then), and ``abi`` and
``wanted`` or the ``error`` of loading it.

Run as a process of its own: it loads XRT, which may be anything.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path
from typing import Any

_ENTRY = "npu_xrt_module_get"
_ABI = re.compile(r"#define\s+NPU_XRT_MODULE_ABI\s+(\d+)")


def wanted() -> int | None:
    """The interface that this package needs, by the sources that it builds the module from."""
    import npu

    try:
        text = (Path(npu.__file__).parent / "xrt_module" / "module_abi.h").read_text()
    except OSError:
        return None
    found = _ABI.search(text)
    return int(found[1]) if found else None


def outcome() -> dict[str, Any]:
    from npu import _npu

    found = _npu.device.xrt_module()
    if found is None:
        named = os.environ.get("NPU_XRT_MODULE")
        return {"path": None, "named": named} if named else {"path": None}
    path = str(found)
    try:
        get = getattr(ctypes.CDLL(os.path.abspath(path)), _ENTRY)
    except (OSError, AttributeError) as error:
        return {"path": path, "error": str(error)}
    get.restype = ctypes.POINTER(ctypes.c_uint32)  # a table that begins with the number
    table = get()
    if not table:
        return {"path": path, "error": f"{_ENTRY} gives no table"}
    return {"path": path, "abi": table[0], "wanted": wanted()}


if __name__ == "__main__":
    print(json.dumps(outcome()))
