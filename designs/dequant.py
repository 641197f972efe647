"""The dequantisation engine: Q4NX blocks in, row-major bfloat16 out (arXiv 2602.06063, 3.1.1).

Every shim tile has two lanes, a channel in and a channel out each. A lane reads the blocks of two
neighbouring row-blocks alternately; the memtile partitions them between its two cores, each of
which expands a block to a (32, 256) tile, and joins the tiles to 64 rows that go to memory in runs
of 512 bytes.
The cores know no sizes: whatever block arrives is expanded, so there are no runtime parameters and
one configuration serves every matrix. Everything is double-buffered.
"""

from __future__ import annotations

from functools import cache

from npu._npu import facts
from npu.errors import DesignError

from .api import Design
from .hardware import FIRST_CORE_ROW, Tile, device_columns
from .lowering import configuration as lower_to_bytes
from .lowering import mlir as lower_to_mlir

BLOCK_ROWS, BLOCK_COLUMNS = facts.Q4NX_ROWS, facts.Q4NX_COLUMNS
BLOCK_BYTES = facts.Q4NX_BLOCK_BYTES
LANES = 2  # per column: what a shim tile's channels allow
CORES = 2  # per lane


def design(generation: str) -> Design:
    """The dequantisation design of a generation ("npu1", "npu2"). Raises DesignError."""
    if generation not in ("npu1", "npu2"):
        raise DesignError(f'[dequant] generation is {generation!r}; use "npu1" or "npu2"')
    columns = device_columns(generation)
    out = Design("dequant_q4nx", generation, object_file="dequant_q4nx.o")
    out.params = {
        "columns": columns,
        "lanes": LANES,
        "lane_cores": CORES,
        "block_bytes": BLOCK_BYTES,
    }
    for col in range(columns):
        for lane in range(LANES):
            _lane(out, col, lane)
    return out


@cache
def configuration(generation: str) -> bytes:
    """The serialised configuration (runtime/configuration.h) of a generation, see `design`."""
    return lower_to_bytes(design(generation))


def mlir(generation: str) -> str:
    """The AIE-dialect MLIR of the design, see `design`."""
    return lower_to_mlir(design(generation))


def _lane(out: Design, col: int, lane: int) -> None:
    """Shim channel, memtile, two cores and back."""
    shim, memtile = out.tile(col, 0), out.tile(col, 1)
    cores = [Tile(col, FIRST_CORE_ROW + CORES * lane + i) for i in range(CORES)]
    name = f"{col}_{lane}"
    blocks = out.fifo(
        f"w2_{name}", shim, memtile, CORES * BLOCK_BYTES, "uint8",
        port=f"W{name}", producer_channel=lane,
    )  # fmt: skip
    block = [
        out.fifo(f"w1_{col}_{core.row}", memtile, core, BLOCK_BYTES, "uint8") for core in cores
    ]
    out.split(blocks, block)
    tile = [
        out.fifo(
            f"y1_{col}_{core.row}", core, memtile, (BLOCK_ROWS, BLOCK_COLUMNS), "bfloat16"
        )
        for core in cores
    ]  # fmt: skip
    tiles = out.fifo(
        f"y2_{name}", memtile, shim, (CORES * BLOCK_ROWS, BLOCK_COLUMNS), "bfloat16",
        port=f"Y{name}", consumer_channel=lane,
    )  # fmt: skip
    out.join(tile, tiles)
    kernel = out.kernel("dequant_q4nx")
    for core, source, sink in zip(cores, block, tile, strict=True):
        worker = out.worker(core)
        with worker.forever():
            worker.call(kernel, worker.acquire(source), worker.acquire(sink))
            worker.release(source)
            worker.release(sink)
