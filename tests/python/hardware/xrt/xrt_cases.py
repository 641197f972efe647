"""A small operation on a handle: RMSNorm of rows, and what it gives on the emulated NPU."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import xrt_devices

from npu import _npu
from npu.ops.registry import operation

BF16 = np.dtype(ml_dtypes.bfloat16)
WIDTH = 1152


class Norm:
    """RMSNorm opened on a backend over the double, or on any handle."""

    def __init__(self, target: Any, generation: str = "npu2") -> None:
        known = hasattr(target, "load") and not hasattr(target, "pool")
        self.handle = target if known else _npu.device.open_python(target)
        chosen = operation("rms_norm")
        self.config = chosen.configuration(generation)
        self.operation = chosen.open(self.handle, self.config)

    def __call__(self, rows: int = 64, seed: int = 0) -> bytes:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((rows, WIDTH)).astype(BF16)
        weight, y = rng.standard_normal(WIDTH).astype(np.float32), np.zeros((rows, WIDTH), BF16)
        arrays = [array.reshape(-1).view(np.uint8) for array in (x, weight, y)]
        self.operation.run({"rows": rows, "width": WIDTH}, arrays)
        return y.tobytes()


@functools.cache
def expected(generation: str = "npu2", rows: int = 64, seed: int = 0) -> bytes:
    return Norm(_npu.device.open(f"emu:{generation}", "fast"), generation)(rows, seed)


class Submitted:
    """A stream of RMSNorm by hand: prepared, with arguments, on a backend."""

    def __init__(self, backend: Any, generation: str = "npu2", rows: int = 64) -> None:
        self.backend = backend
        known = hasattr(backend, "load") and not hasattr(backend, "pool")
        self.handle = backend if known else _npu.device.open_python(backend)
        chosen = operation("rms_norm")
        data = chosen.configuration(generation)
        (submission,) = chosen.submissions(data, {"rows": rows, "width": WIDTH})
        self.words = submission.stream
        self.configuration = _npu.device.Configuration.parse(data)
        self.handle.load(self.configuration)
        self.stream = self.handle.prepare(submission.stream)
        self.arguments = []
        for one in submission.arguments:
            buffer = self.handle.allocate(one["bytes"])
            buffer.array[:] = 0
            buffer.sync_to_device(0, one["bytes"])
            access = "write" if one["written"] else "read"
            self.arguments.append((buffer, 0, one["bytes"], access))

    def start(self) -> Any:
        return self.handle.submit(self.stream, self.arguments)

    def run(self) -> Any:
        return self.start().finish()


def backend(generation: str = "npu2", name: str | None = None, **options: Any) -> Any:
    return xrt_devices.backend(generation, name, **options)
