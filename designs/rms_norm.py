"""RMSNorm: rows of bfloat16, scaled by the inverse root of their mean square and by weights, with a
residual added or not.

Four rows at a time go through a column: the memtile splits them among its cores in chunks of 128
elements, each core keeps its row and sums the squares, then the weights pass, broadcast to the
column, and the cores write the scaled chunks, which the memtile joins. Chunks of a residual follow
those of their rows through the same port. Rows and chunks are RTPs: one configuration serves every
size.
"""

from __future__ import annotations

from .api import Design
from .kernel import kernel
from .lowering import forms

CORES = 4  # per column, a row each
# Elements of a chunk and of the longest row, words of the state: aie_kernels/rms_norm.cc.
CHUNK, MAX_WIDTH, STATE_WORDS = kernel("rms_square", "npu2").sizes()


def design(generation: str) -> Design:
    """The RMSNorm design of a generation ("npu1", "npu2"). Raises DesignError."""
    out = Design("rms_norm", generation, object_file="rms_norm.o")
    out.params = {"columns": out.columns, "cores": CORES, "chunk": CHUNK, "max_width": MAX_WIDTH}
    for col in range(out.columns):
        _column(out, col)
    return out


configuration, mlir = forms(design)


def _column(out: Design, col: int) -> None:
    cores = out.cores(col, CORES)
    x = out.scatter(f"X{col}", cores, CHUNK, "bfloat16")
    weight = out.fifo(f"W{col}", out.tile(col, 0), cores, CHUNK, "float32")
    y = out.gather(f"Y{col}", cores, CHUNK, "bfloat16")
    begin, square, scale, scale_add = map(
        out.kernel, ("rms_begin", "rms_square", "rms_scale", "rms_scale_add")
    )
    for core, source, sink in zip(cores, x, y, strict=True):
        worker = out.worker(core)
        count, chunks, width, epsilon = map(worker.rtp, ("rows", "chunks", "width", "epsilon"))
        plain, added = map(worker.rtp, ("plain", "residual"))  # 1 and 0 or 0 and 1
        row = worker.buffer(f"row_{col}_{core.row}", "bfloat16", (MAX_WIDTH,))
        state = worker.buffer(f"state_{col}_{core.row}", "int32", (STATE_WORDS,))
        with worker.forever():
            worker.wait_rtps()
            with worker.loop(count):
                worker.call(begin, state)
                with worker.loop(chunks):
                    worker.call(square, worker.acquire(source), row, state)
                    worker.release(source)
                with worker.loop(chunks):
                    chunk, result = worker.acquire(weight), worker.acquire(sink)
                    with worker.loop(plain):
                        worker.call(scale, row, chunk, result, state, width, epsilon)
                    with worker.loop(added):
                        addend = worker.acquire(source)
                        worker.call(scale_add, row, chunk, addend, result, state, width, epsilon)
                        worker.release(source)
                    worker.release(weight)
                    worker.release(sink)  # after every read of an RTP
