"""GeGLU: gelu(gate) * up for bfloat16, tanh form.

Through one port of a column come objects of gate and objects of up in turn; the memtile splits each
among four cores, which write a chunk per pair. The number of pairs is an RTP: one configuration
serves every size.
"""

from __future__ import annotations

from .api import Design
from .lowering import forms

# Cores per column, and elements of a chunk. Chunks of 512 share a token's few thousand elements
# among more columns, each of which costs commands: npu2 then takes 24 us (simulated), not 22.
CORES, CHUNK = 4, 1024


def design(generation: str) -> Design:
    """The GeGLU design of a generation ("npu1", "npu2"). Raises DesignError."""
    out = Design("geglu", generation, object_file="geglu.o")
    out.params = {"columns": out.columns, "cores": CORES, "chunk": CHUNK}
    kernel = out.kernel("geglu")
    for col in range(out.columns):
        cores = out.cores(col, CORES)
        x = out.scatter(f"X{col}", cores, CHUNK, "bfloat16", part_depth=4)
        y = out.gather(f"Y{col}", cores, CHUNK, "bfloat16")
        for core, source, sink in zip(cores, x, y, strict=True):
            worker = out.worker(core)
            pairs = worker.rtp("pairs")
            with worker.forever():
                worker.wait_rtps()
                with worker.loop(pairs):
                    gate, up = worker.acquire(source), worker.acquire(source)
                    worker.call(kernel, gate, up, worker.acquire(sink), CHUNK)
                    worker.release(source)
                    worker.release(source)
                    worker.release(sink)
    return out


configuration, mlir = forms(design)
