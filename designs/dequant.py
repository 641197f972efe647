"""The dequantisation engine: blocks in, row-major bfloat16 out (arXiv 2602.06063, 3.1.1).

Every shim tile has two lanes, a channel in and a channel out each. A lane reads the blocks of two
neighbouring row-blocks alternately; the memtile partitions them between its two cores, each of
which expands a block to a tile of 32 rows, and joins the tiles to 64 rows that go to memory in runs
of a block's columns: 512 bytes of Q4NX. Every format of blocks has a configuration.
The cores know no sizes: whatever block arrives is expanded, so there are no runtime parameters and
one configuration serves every matrix. Everything is double-buffered.
"""

from __future__ import annotations

from npu._npu import facts
from npu.errors import DesignError

from .api import Design
from .lowering import forms

BLOCK_ROWS = facts.BLOCK_ROWS
FORMATS = tuple(facts.BLOCK_COLUMNS)  # in the order of their numbers
LANES = 2  # per column: what a shim tile's channels allow
CORES = 2  # per lane


def design(generation: str, format: str = FORMATS[0]) -> Design:
    """The dequantisation design of a generation ("npu1", "npu2") for blocks of a format ("q4nx",
    "q8", "bf16", "q4_0", "q8_0"). Raises DesignError."""
    if format not in FORMATS:
        raise DesignError(f"[dequant] format is {format!r}; use {', '.join(map(repr, FORMATS))}")
    out = Design(f"dequant_{format}", generation, object_file=f"dequant_{format}.o")
    out.params = {
        "columns": out.columns,
        "lanes": LANES,
        "lane_cores": CORES,
        "block_bytes": facts.BYTES_OF_BLOCK[format],
        "format": FORMATS.index(format),
    }
    for col in range(out.columns):
        for lane in range(LANES):
            _lane(out, col, lane, format)
    return out


configuration, mlir = forms(design)


def _lane(out: Design, col: int, lane: int, format: str) -> None:
    """Shim channel, memtile, two cores and back."""
    cores = out.cores(col, CORES, CORES * lane)
    size = facts.BYTES_OF_BLOCK[format]
    blocks = out.scatter(f"W{col}_{lane}", cores, size, "uint8", channel=lane)
    tile = BLOCK_ROWS, facts.BLOCK_COLUMNS[format]
    tiles = out.gather(f"Y{col}_{lane}", cores, tile, "bfloat16", channel=lane)
    kernel = out.kernel(f"dequant_{format}")
    for core, source, sink in zip(cores, blocks, tiles, strict=True):
        worker = out.worker(core)
        with worker.forever():
            worker.call(kernel, worker.acquire(source), worker.acquire(sink))
            worker.release(source)
            worker.release(sink)
