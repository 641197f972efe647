"""Runs one small product on the NPU, compares it with NumPy, prints the outcome as one JSON line.

Run as a process of its own by the probe `command`, which gives it a time limit.
"""

from __future__ import annotations

import json
import time
from typing import Any

_SIDE = 64


def product(device: Any) -> dict[str, Any]:
    """An int8 product of 64 x 64 matrices; every word of the result must be right."""
    import numpy as np

    import npu

    values = np.random.default_rng(1).integers(-128, 128, (2, _SIDE, _SIDE), dtype=np.int8)
    a, b = values
    start = time.perf_counter()
    c = npu.matmul(a, b, device=device)
    seconds = time.perf_counter() - start
    wrong = int((np.asarray(c) != a.astype(np.int32) @ b.astype(np.int32)).sum())
    if wrong:
        return {"outcome": "wrong", "wrong": wrong, "of": _SIDE * _SIDE}
    return {"outcome": "ok", "seconds": round(seconds, 6), "generation": device.generation}


def outcome() -> dict[str, Any]:
    """Of the command, or why there was none."""
    try:
        from npu.devices import open_device

        return product(open_device("xrt"))
    except Exception as error:
        kind = getattr(error, "kind", type(error).__name__)
        found = "unavailable" if kind == "unavailable" else "error"
        return {"outcome": found, "kind": kind, "message": str(error)}


if __name__ == "__main__":
    print(json.dumps(outcome()))
