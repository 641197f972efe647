"""The dequantisation engine: Q4NX blocks in, row-major bfloat16 out (arXiv 2602.06063, 3.1.1).

Every shim tile has two lanes, a channel in and a channel out each. A lane reads the blocks of two
neighbouring row-blocks alternately; the memtile partitions them between its two cores, each of
which expands a block to a (32, 256) tile, and joins the tiles to 64 rows that go to memory in runs
of 512 bytes.
The cores know no sizes: whatever block arrives is expanded, so there are no runtime parameters and
one configuration serves every matrix. Everything is double-buffered.
"""

from __future__ import annotations

from npu._npu import facts

from .api import Design
from .lowering import forms

BLOCK_ROWS, BLOCK_COLUMNS = facts.Q4NX_ROWS, facts.Q4NX_COLUMNS
BLOCK_BYTES = facts.Q4NX_BLOCK_BYTES
LANES = 2  # per column: what a shim tile's channels allow
CORES = 2  # per lane


def design(generation: str) -> Design:
    """The dequantisation design of a generation ("npu1", "npu2"). Raises DesignError."""
    out = Design("dequant_q4nx", generation, object_file="dequant_q4nx.o")
    out.params = {
        "columns": out.columns,
        "lanes": LANES,
        "lane_cores": CORES,
        "block_bytes": BLOCK_BYTES,
    }
    for col in range(out.columns):
        for lane in range(LANES):
            _lane(out, col, lane)
    return out


configuration, mlir = forms(design)


def _lane(out: Design, col: int, lane: int) -> None:
    """Shim channel, memtile, two cores and back."""
    cores = out.cores(col, CORES, CORES * lane)
    blocks = out.scatter(f"W{col}_{lane}", cores, BLOCK_BYTES, "uint8", channel=lane)
    tile = BLOCK_ROWS, BLOCK_COLUMNS
    tiles = out.gather(f"Y{col}_{lane}", cores, tile, "bfloat16", channel=lane)
    kernel = out.kernel("dequant_q4nx")
    for core, source, sink in zip(cores, blocks, tiles, strict=True):
        worker = out.worker(core)
        with worker.forever():
            worker.call(kernel, worker.acquire(source), worker.acquire(sink))
            worker.release(source)
            worker.release(sink)
