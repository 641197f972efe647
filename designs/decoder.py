"""The decode configuration: everything one token needs, on the array at once.

Per column, from the shim upwards: weights of one channel go through the memtile to two GEMV cores,
keys and values of the other one to a pair of attention cores (scores, values). In the last column
that place is taken by the vector core, which computes what lies between the products and
broadcasts x to all GEMV cores. Results go to memory, from where the next step reads them; the
buffers of the memtiles hold the weights that arrive meanwhile, so that reads never stop. Streams
(backend/ops/decoder) write no runtime parameters: tables in front of the data bound all loops.
There is one configuration for each size of weight blocks.
"""

from __future__ import annotations

from npu._npu import facts

from .api import Design
from .attention import score_keys, sum_values
from .fifo import ObjectFifo
from .gemv import block_bytes
from .hardware import FIRST_CORE_ROW, Tile
from .lowering import forms
from .worker import Word

RUN_BLOCKS = 5  # of a core that follow each other in memory: a DRAM read
X_BYTES, PIECE_BYTES = facts.GEMV_X_BYTES_OF_ONE, facts.GEMV_PIECE_BYTES
GEMV_WORDS: tuple[str, ...] = (
    *facts.GEMV_SETUP,
    *[""] * (facts.GEMV_SETUP_WORDS - len(facts.GEMV_SETUP)),
    *facts.GEMV_LOOPS,
)
JOB: tuple[str, ...] = facts.VECTOR_JOB
_GEMV_ROWS = (0, 1)  # cores of a column, counted from the memtile
_PAIR_ROWS = (2, 3)
_VECTOR_ROW = 2
# Buffers: runs of weights in the memtile, blocks in a core, chunks of keys and values in a core. A
# memtile has one chunk, whose keys leave while its values arrive, and one piece of results: its
# BDs and its memory are for weights.
_RUNS, _BLOCKS, _CHUNKS = {False: 9, True: 10}, 6, 2  # runs of large and of small blocks


def design(generation: str, small: bool = False) -> Design:
    """The decode design of a generation ("npu1", "npu2"). small: for weights in blocks of 4608
    bytes (formats "q4_0", "q8_0") instead of 5120. Raises DesignError."""
    name = "decoder_small" if small else "decoder"
    out = Design(name, generation, object_file=f"{name}.o")
    last = out.columns - 1
    out.params = {
        "columns": out.columns,
        "pairs": last,
        "run_blocks": RUN_BLOCKS,
        "block_bytes": block_bytes(small),
        "x_bytes": X_BYTES,
        "in_bytes": facts.VECTOR_IN_BYTES,
        "out_bytes": facts.VECTOR_OUT_BYTES,
        "part_bytes": facts.ATTENTION_PART_BYTES,
    }
    out.token_ports = True
    vector = out.tile(last, FIRST_CORE_ROW + _VECTOR_ROW)
    multipliers = [core for col in range(out.columns) for core in _rows(out, col, _GEMV_ROWS)]
    x = out.fifo(
        "x", vector, multipliers, X_BYTES // 2, "bfloat16", producer_channel=0, consumer_channel=1
    )
    for col in range(out.columns):
        weights = _weights(out, col, small)
        results = _results(out, col)
        for i, core in enumerate(_rows(out, col, _GEMV_ROWS)):
            index = col * len(_GEMV_ROWS) + i
            _gemv_worker(out, core, index, weights[i], x, results[i], small)
        if col < last:
            _pair(out, col)
    _vector(out, vector, x)
    return out


configuration, mlir = forms(design)


def _rows(out: Design, col: int, rows: tuple[int, ...]) -> list[Tile]:
    return [out.tile(col, FIRST_CORE_ROW + row) for row in rows]


def _weights(out: Design, col: int, small: bool) -> list[ObjectFifo]:
    """Runs of blocks for each of a column's GEMV cores, side by side in an object."""
    cores, memtile = _rows(out, col, _GEMV_ROWS), out.tile(col, 1)
    size = block_bytes(small)
    whole = out.fifo(
        f"W{col}", out.tile(col, 0), memtile, (len(cores), RUN_BLOCKS * size), "uint8",
        depth=_RUNS[small], producer_channel=0, consumer_channel=0,
    )  # fmt: skip
    parts = [
        out.fifo(
            f"w{col}_{core.row}", memtile, core, size, "uint8", depth=(1, _BLOCKS),
            producer_channel=1 + 2 * i, consumer_channel=0,
        )
        for i, core in enumerate(cores)
    ]  # fmt: skip
    out.split(whole, parts, objects=RUN_BLOCKS)
    return parts


def _results(out: Design, col: int) -> list[ObjectFifo]:
    """Pieces of results of a column's GEMV cores, joined in the memtile."""
    cores, memtile = _rows(out, col, _GEMV_ROWS), out.tile(col, 1)
    words = PIECE_BYTES // 4
    parts = [
        out.fifo(f"y{col}_{core.row}", core, memtile, words, "int32", consumer_channel=3 + 2 * i)
        for i, core in enumerate(cores)
    ]
    whole = out.fifo(
        f"Y{col}", memtile, out.tile(col, 0), (len(cores), words), "int32", depth=1,
        producer_channel=5, consumer_channel=0,
    )  # fmt: skip
    out.join(parts, whole)
    return parts


def _gemv_worker(
    out: Design, core: Tile, index: int, w: ObjectFifo, x: ObjectFifo, y: ObjectFifo, small: bool
) -> None:
    """Take the setup, keep x or stream it, multiply row-block after row-block, send pieces."""
    worker = out.worker(core)
    name = f"{core.col}_{core.row}"
    words = worker.buffer(f"setup_{name}", "int32", (facts.GEMV_LONG_SETUP_WORDS,))
    state = worker.buffer(f"state_{name}", "int32", (facts.GEMV_SETUP_WORDS,))
    sums = worker.buffer(f"sums_{name}", "float32", (facts.BLOCK_ROWS,))
    work = worker.buffer(f"work_{name}", "float32", (facts.GEMV_WORK_OF_ONE,))
    kept = worker.buffer(f"kept_{name}", "bfloat16", (facts.GEMV_KEPT_ELEMENTS,))
    results = worker.buffer(f"results_{name}", "int32", (facts.GEMV_Y_BYTES // 4,))
    setup, keep, piece = map(out.kernel, ("gemv_long_setup", "gemv_keep", "gemv_piece"))
    prefix = "gemv_small" if small else "gemv"
    block_kernel, kept_kernel = out.kernel(f"{prefix}_one"), out.kernel(f"{prefix}_kept")

    def word(label: str) -> Word:
        return Word(words, GEMV_WORDS.index(label))

    def send(pieces: Word) -> None:
        with worker.loop(pieces):
            worker.call(piece, results, worker.acquire(y), state)
            worker.release(y)

    def skip(blocks: Word) -> None:
        with worker.loop(blocks):
            worker.acquire(w)
            worker.release(w)

    def stream(blocks: Word) -> None:
        vectors = worker.acquire(x)
        with worker.loop(blocks):
            worker.call(
                block_kernel, worker.acquire(w), vectors, sums, results, words, state,
                work, word("format"),
            )  # fmt: skip
            worker.release(w)
        worker.release(x)

    with worker.forever():
        worker.call(setup, worker.acquire(x), words, state, sums, index)
        worker.release(x)
        with worker.loop(word("kept")):
            worker.call(keep, worker.acquire(x), kept, state, word("keep"))
            worker.release(x)
        skip(word("before"))
        with worker.loop(word("rounds")):
            with worker.loop(word("blocks")):
                worker.call(
                    kept_kernel, worker.acquire(w), kept, sums, results, words, state,
                    work, word("format"),
                )  # fmt: skip
                worker.release(w)
            send(word("pieces"))
        with worker.loop(word("streamed")):
            with worker.loop(word("x_objects")):
                stream(word("x_blocks"))
            stream(word("x_last"))
            send(word("pieces"))
        send(word("last"))
        skip(word("after"))
        with worker.loop(word("idle")):
            worker.acquire(x)
            worker.release(x)


def _pair(out: Design, col: int) -> None:
    """Keys and values of a channel, split between the core of scores and the core of values."""
    scores, values = _rows(out, col, _PAIR_ROWS)
    shim, memtile = out.tile(col, 0), out.tile(col, 1)
    part = facts.ATTENTION_PART_BYTES // 2
    whole = out.fifo(
        f"KV{col}", shim, memtile, (2, part), "bfloat16", depth=1,
        producer_channel=1, consumer_channel=2,
    )  # fmt: skip
    k, v = (
        out.fifo(
            f"{letter}{col}", memtile, core, part, "bfloat16", depth=(1, _CHUNKS),
            producer_channel=2 * i, consumer_channel=0,
        )
        for i, (letter, core) in enumerate((("k", scores), ("v", values)))
    )  # fmt: skip
    out.split(whole, [k, v])
    f = out.fifo(
        f"f{col}", scores, values, facts.ATTENTION_SCORE_BYTES // 4, "float32", depth=(2, 2)
    )
    o = out.fifo(
        f"O{col}", values, shim, facts.ATTENTION_OUT_BYTES // 4, "int32", depth=2,
        consumer_channel=1,
    )  # fmt: skip
    score_keys(out, scores, k, f, col)
    sum_values(out, values, v, f, o, col)


def _vector(out: Design, core: Tile, x: ObjectFifo) -> None:
    """The vector core: a job after the other, from its input to x and to memory."""
    shim = out.tile(core.col, 0)
    words = facts.VECTOR_IN_BYTES // 4
    source = out.fifo("X", shim, core, words, "int32", depth=(1, 2), producer_channel=1)
    sink = out.fifo(
        "H", core, shim, facts.VECTOR_OUT_BYTES // 4, "int32", producer_channel=1,
        consumer_channel=1,
    )  # fmt: skip
    worker = out.worker(core)
    job = worker.buffer("job", "int32", (facts.VECTOR_JOB_WORDS,))
    state = worker.buffer("vector_state", "int32", (facts.VECTOR_STATE_WORDS,))
    store = worker.buffer("store", "int32", (facts.VECTOR_STORE_BYTES // 4,))
    names = ("begin", "table", "input", "x", "out")
    begin, table, step, send_x, send = (out.kernel(f"vector_{name}") for name in names)

    def word(label: str) -> Word:
        return Word(job, JOB.index(label))

    with worker.forever():
        worker.call(begin, worker.acquire(source), job, state)
        worker.release(source)
        with worker.loop(word("tables")):
            to = worker.acquire(x)
            with worker.loop(word("table_parts")):
                worker.call(table, worker.acquire(source), to, state)
                worker.release(source)
            worker.release(x)
        with worker.loop(word("inputs")):
            numbers = map(word, ("kind", "width", "rows", "parts"))
            left = Word(state, facts.VECTOR_LEFT)
            worker.call(step, worker.acquire(source), store, job, state, left, *numbers)
            worker.release(source)
        with worker.loop(word("x_objects")):
            worker.call(send_x, store, worker.acquire(x), job, state)
            worker.release(x)
        with worker.loop(word("out")):
            worker.call(send, store, worker.acquire(sink), job, state)
            worker.release(sink)
