"""RMSNorm: rows of bfloat16, scaled by the inverse root of their mean square and by weights.

Four rows at a time go through a column: the memtile splits them among its cores in chunks of 128
elements, each core keeps its row and sums the squares, then the weights pass, broadcast to the
column, and the cores write the scaled chunks, which the memtile joins. Rows and chunks are RTPs:
one configuration serves every size.
"""

from __future__ import annotations

from functools import cache

from npu.errors import DesignError

from .api import Design
from .hardware import FIRST_CORE_ROW, Tile, device_columns
from .lowering import configuration as lower_to_bytes
from .lowering import mlir as lower_to_mlir

CORES = 4  # per column, a row each
CHUNK, MAX_WIDTH = 128, 16384  # elements; aie_kernels/rms_norm.cc checks them
STATE_WORDS = 64


def design(generation: str) -> Design:
    """The RMSNorm design of a generation ("npu1", "npu2"). Raises DesignError."""
    if generation not in ("npu1", "npu2"):
        raise DesignError(f'[rms_norm] generation is {generation!r}; use "npu1" or "npu2"')
    out = Design("rms_norm", generation, object_file="rms_norm.o")
    columns = device_columns(generation)
    out.params = {"columns": columns, "cores": CORES, "chunk": CHUNK, "max_width": MAX_WIDTH}
    for col in range(columns):
        _column(out, col)
    return out


@cache
def configuration(generation: str) -> bytes:
    """The serialised configuration (runtime/configuration.h) of a generation, see `design`."""
    return lower_to_bytes(design(generation))


def mlir(generation: str) -> str:
    """The AIE-dialect MLIR of the design, see `design`."""
    return lower_to_mlir(design(generation))


def _column(out: Design, col: int) -> None:
    shim, memtile = out.tile(col, 0), out.tile(col, 1)
    cores = [Tile(col, FIRST_CORE_ROW + i) for i in range(CORES)]
    rows = out.fifo(f"x2_{col}", shim, memtile, (CORES, CHUNK), "bfloat16", port=f"X{col}")
    x = [out.fifo(f"x1_{col}_{i}", memtile, c, CHUNK, "bfloat16") for i, c in enumerate(cores)]
    out.split(rows, x)
    weight = out.fifo(f"w_{col}", shim, cores, CHUNK, "float32", port=f"W{col}")
    y = [out.fifo(f"y1_{col}_{i}", c, memtile, CHUNK, "bfloat16") for i, c in enumerate(cores)]
    results = out.fifo(f"y2_{col}", memtile, shim, (CORES, CHUNK), "bfloat16", port=f"Y{col}")
    out.join(y, results)
    begin, square, scale = map(out.kernel, ("rms_begin", "rms_square", "rms_scale"))
    for core, source, sink in zip(cores, x, y, strict=True):
        worker = out.worker(core)
        count, chunks, width, epsilon = map(worker.rtp, ("rows", "chunks", "width", "epsilon"))
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
                    worker.call(scale, row, chunk, result, state, width, epsilon)
                    worker.release(weight)
                    worker.release(sink)
