"""FusedDQP: y = W x, weights dequantised and multiplied in registers (arXiv 2602.06063).

Weights stay 4-bit, 8-bit or bfloat16 in DRAM, in blocks; the setup names their format, so one
configuration serves all formats with blocks of a size. Every shim channel streams the blocks of its
cores: one core per channel reads its row-blocks in one linear run, several cores per channel get
blocks from the memtile round-robin. x (up to eight vectors) is broadcast to all cores by channel 1
of the last column, once per row-block; its first object is a table of loop counts, so a stream
writes no runtime parameters. The results of a column are joined in its memtile.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu._npu import facts
from npu.errors import DesignError

from .api import Design
from .fifo import ObjectFifo
from .hardware import FIRST_CORE_ROW, Tile, device_columns
from .lowering import forms
from .worker import Object, Word

BLOCK_ROWS = facts.BLOCK_ROWS
COLUMNS: dict[str, int] = dict(facts.BLOCK_COLUMNS)  # of a block, by format, in the formats' order
MAX_BATCH = facts.GEMV_BATCH
X_BYTES = facts.GEMV_X_BYTES  # an object of x: bfloat16 lines of a block, (blocks, batch, columns)
Y_BYTES = facts.GEMV_Y_BYTES  # of y: (row-blocks, batch, 32) bfloat16 or float32, or top-k lists
# Words of a core's record in the setup object (aie_kernels/gemv_setup.h), and how many it takes.
SETUP, SETUP_WORDS = facts.GEMV_SETUP, facts.GEMV_SETUP_WORDS
STATE = facts.GEMV_STATE  # of a core's state
PRECONFIGURED_BLOCKS = 6  # of weights, in a BD of the configuration, on channels with one core
_DEPTH_DIRECT, _DEPTH_SPLIT, _DEPTH_MEMTILE = 6, 4, {2: 4, 4: 2}


def block_bytes(small: bool) -> int:
    """Of a block of weights of either size."""
    return facts.SMALL_BLOCK_BYTES if small else facts.BLOCK_BYTES


@dataclass(frozen=True)
class Options:
    """Everything that distinguishes one GEMV configuration from another, checked."""

    generation: str
    cores: int
    channels: int  # shim MM2S channels per column
    small: bool = False  # blocks of weights

    @property
    def block_bytes(self) -> int:
        return block_bytes(self.small)

    @property
    def columns(self) -> int:
        return device_columns(self.generation)

    @property
    def rows(self) -> int:
        """Cores per column; with two channels the last column has half."""
        return self.cores // self.columns

    def groups(self, col: int) -> list[list[Tile]]:
        """The cores that each weight channel of a column feeds, equally many everywhere."""
        cores = [Tile(col, FIRST_CORE_ROW + row) for row in range(self.rows)]
        if self.channels == 1:
            return [cores]
        half = self.rows // 2
        return [cores[:half], cores[half:]][: 1 if col == self.columns - 1 else 2]  # x takes one


def options(
    generation: str,
    cores: int | None = None,
    channels: int = 2,
    small: bool = False,
) -> Options:
    """The checked options; see `design`."""
    if generation not in ("npu1", "npu2"):
        raise DesignError(f'[gemv] generation is {generation!r}; use "npu1" or "npu2"')
    columns = device_columns(generation)
    if channels not in (1, 2):
        raise DesignError(f"[gemv] channels is {channels!r}; a shim tile has 1 or 2 to read with")
    chosen = 16 if cores is None else cores
    allowed = [columns * n for n in ((2, 4) if channels == 2 else (1, 2, 4))]
    if chosen not in allowed:
        raise DesignError(
            f"[gemv] cores is {chosen!r}; with {channels} channel(s) per column {generation} can "
            f"use {', '.join(map(str, allowed))}"
        )
    return Options(generation, chosen, channels, small)


def design(
    generation: str,
    cores: int | None = None,
    channels: int = 2,
    small: bool = False,
) -> Design:
    """The GEMV design of a generation ("npu1", "npu2").

    cores: 16 (default), on npu2 also 8 or 32, on npu1 also 4 or 8; channels: shim channels per
    column that carry weights, 2 (default) or 1. The last column's second channel carries x, so with
    two channels the cores of that channel stay idle; small: for weights in blocks of 4608 bytes
    (formats "q4_0", "q8_0") instead of 5120. Raises DesignError.
    """
    o = options(generation, cores, channels, small)
    name = "gemv_small" if o.small else "gemv"
    out = Design(f"{name}_{o.cores}c{o.channels}", o.generation, object_file=f"{name}.o")
    out.params = {
        "columns": o.columns,
        "rows": o.rows,
        "channels": o.channels,
        "block_bytes": o.block_bytes,
        "x_bytes": X_BYTES,
        "y_bytes": Y_BYTES,
        "setup_words": SETUP_WORDS,
        "preconfigured_blocks": PRECONFIGURED_BLOCKS if o.rows == o.channels else 0,
    }
    all_cores = [core for c in range(o.columns) for group in o.groups(c) for core in group]
    x = out.fifo(
        "x", out.tile(o.columns - 1, 0), all_cores, X_BYTES // 2, "bfloat16",
        port="X", producer_channel=1, consumer_channel=1,
    )  # fmt: skip
    out.token_ports = True
    out.shim_bd(out.tile(o.columns - 1, 0), facts.GEMV_X_BD, 2 * X_BYTES)
    for col in range(o.columns):
        groups = o.groups(col)
        weights: list[ObjectFifo] = []
        for channel, group in enumerate(groups):
            weights += _feed(out, o, col, channel, group)
        results = _drain(out, o, col)
        members = [core for group in groups for core in group]
        for core, w, y in zip(members, weights, results, strict=True):
            index = col * o.rows + core.row - FIRST_CORE_ROW
            _worker(out, o, core, index, w, x, y)
    return out


configuration, mlir = forms(design)


def _feed(out: Design, o: Options, col: int, channel: int, group: list[Tile]) -> list[ObjectFifo]:
    """The blocks of one shim channel: straight to its core, or round-robin to several by L2."""
    shim, port = out.tile(col, 0), f"W{col}_{channel}"
    if len(group) == 1:
        out.shim_bd(shim, facts.GEMV_WEIGHT_BD + channel, PRECONFIGURED_BLOCKS * o.block_bytes)
        return [
            out.fifo(
                f"w1_{col}_{group[0].row}", shim, group[0], o.block_bytes, "uint8",
                depth=_DEPTH_DIRECT, port=port, producer_channel=channel, consumer_channel=0,
            )
        ]  # fmt: skip
    return out.scatter(
        port, group, o.block_bytes, "uint8", depth=_DEPTH_MEMTILE[len(group)],
        part_depth=_DEPTH_SPLIT, channel=channel, part_channel=0,
    )  # fmt: skip


def _drain(out: Design, o: Options, col: int) -> list[ObjectFifo]:
    """The results of a column's cores; several are joined in L2."""
    shim = out.tile(col, 0)
    words, cores = Y_BYTES // 4, [core for group in o.groups(col) for core in group]
    out.shim_bd(shim, facts.GEMV_Y_BD, len(cores) * Y_BYTES)
    if len(cores) == 1:
        return [
            out.fifo(
                f"y1_{col}_{cores[0].row}", cores[0], shim, words, "int32", port=f"Y{col}",
                consumer_channel=0,
            )
        ]  # fmt: skip
    return out.gather(f"Y{col}", cores, words, "int32", depth=1, part_depth=(2, 1), channel=0)


def _worker(
    out: Design, o: Options, core: Tile, index: int, w: ObjectFifo, x: ObjectFifo, y: ObjectFifo
) -> None:
    """One core: take the setup, then multiply row-block after row-block."""
    setup = out.kernel("gemv_setup")
    gemv = out.kernel("gemv_small_block" if o.small else "gemv_block")
    worker = out.worker(core)
    name = f"{core.col}_{core.row}"
    words = worker.buffer(f"setup_{name}", "int32", (SETUP_WORDS,))
    state = worker.buffer(f"state_{name}", "int32", (SETUP_WORDS,))
    sums = worker.buffer(f"sums_{name}", "float32", (MAX_BATCH, BLOCK_ROWS))
    work = worker.buffer(f"work_{name}", "float32", (facts.GEMV_WORK,))

    def word(label: str) -> Word:
        return Word(words, SETUP.index(label))

    def take(blocks: Word, vectors: Object, results: Object) -> None:
        with worker.loop(blocks):
            worker.call(
                gemv, worker.acquire(w), vectors, sums, results, words, state, work,
                word("batch"), word("format"),
            )  # fmt: skip
            worker.release(w)

    with worker.forever():
        worker.call(setup, worker.acquire(x), words, state, sums, index)
        worker.release(x)
        with worker.loop(word("resident")):
            vectors = worker.acquire(x)
            with worker.loop(word("resident_objects")):
                results = worker.acquire(y)
                take(word("resident_blocks"), vectors, results)
                worker.release(y)
            worker.release(x)
        with worker.loop(word("y_objects")):
            results = worker.acquire(y)
            objects, blocks = (Word(state, STATE.index(name)) for name in ("Objects", "Blocks"))
            with worker.loop(word("row_blocks")), worker.loop(objects):
                take(blocks, worker.acquire(x), results)
                worker.release(x)
            worker.release(y)
        with worker.loop(word("idle")):
            worker.acquire(x)
            worker.release(x)
