"""What a submission costs on the host besides XRT and the driver: ``python submission_cost.py``.

A GEMM's stream is submitted over and over to the device xrt on the test double in its null mode, in
which runs end at once. The double's own calls, start() and wait(), are timed apart and taken off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "doubles"))
import xrt_devices

from npu import _npu
from npu.ops.registry import operation

sys.path.pop()
pyxrt = xrt_devices.pyxrt

LIMIT = 30.0  # microseconds


def _best(call: Callable[[], Any], repeats: int = 500, rounds: int = 20) -> float:
    """Microseconds of this thread's CPU time of a call: of the fastest round, so that other
    programs count little."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(repeats):
            call()
        best = min(best, (time.thread_time() - start) / repeats)
    return best * 1e6


def measure() -> tuple[float, float]:
    """(microseconds of a submission, of the double in it)."""
    backend = xrt_devices.backend("npu2")
    handle = _npu.device.open_python(backend)
    gemm = operation("gemm")
    data = gemm.configuration("npu2")
    (submission,) = gemm.submissions(data, {"m": 512, "k": 512, "n": 512})
    handle.load(_npu.device.Configuration.parse(data))
    stream = handle.prepare(submission.stream)
    arguments = [
        (handle.allocate(one["bytes"]), 0, one["bytes"], "write" if one["written"] else "read")
        if one["bytes"]
        else None
        for one in submission.arguments
    ]
    pyxrt.machine.null = True
    try:
        handle.submit(stream, arguments).finish()
        total = _best(lambda: handle.submit(stream, arguments).finish())
        (context,) = backend.contexts.all()
        runs = [context.idle[0].run]
        double = _best(lambda: (runs[0].start(), runs[0].wait(5)))
        runs.clear()  # the backend closes what it has in its order
    finally:
        pyxrt.machine.null = False
        backend.close()
    return total, double


if __name__ == "__main__":
    total, double = measure()
    print(
        f"a submission: {total - double:.1f} us of ours, {double:.1f} us of the test double "
        f"(limit of ours: {LIMIT:g} us)"
    )
