"""Attention: pairs of cores that stream keys and values (arXiv 2602.06063, FlowQKV and FlowKV).

Two pairs per column. A shim channel per pair carries objects [part of K | part of V], which the
memtile splits between the pair's cores: the first scores keys and sends weights to the second,
which sums values with them and sends the results to its own shim channel. What a job is, its first
objects say (aie_kernels/attention.h): sizes, masks and lengths are streams of one configuration.
"""

from __future__ import annotations

from npu._npu import facts

from .api import Design
from .fifo import ObjectFifo
from .hardware import Tile
from .lowering import forms
from .worker import Buffer, Word

PAIRS = 2  # per column, two cores each
PART_BYTES, OUT_BYTES = facts.ATTENTION_PART_BYTES, facts.ATTENTION_OUT_BYTES
RECORD, RECORD_WORDS = facts.ATTENTION_RECORD, facts.ATTENTION_RECORD_WORDS
TABLE_BYTES = facts.ATTENTION_TABLE_BYTES  # the records at the start of a header
QUERIES = facts.ATTENTION_ROWS * facts.ATTENTION_MAX_DIM  # elements of a block of queries


def design(generation: str) -> Design:
    """The attention design of a generation ("npu1", "npu2"). Raises DesignError."""
    out = Design("attention", generation, object_file="attention.o")
    out.params = {
        "columns": out.columns,
        "pairs": PAIRS,
        "part_bytes": PART_BYTES,
        "out_bytes": OUT_BYTES,
        "rows": facts.ATTENTION_ROWS,
    }
    out.token_ports = True
    for col in range(out.columns):
        for pair in range(PAIRS):
            _pair(out, col, pair)
    return out


configuration, mlir = forms(design)


def _pair(out: Design, col: int, pair: int) -> None:
    first, second = out.cores(col, 2, 2 * pair)
    keys, values = out.scatter(
        f"KV{col}_{pair}", [first, second], PART_BYTES // 2, "bfloat16", channel=pair,
        part_channel=0,
    )  # fmt: skip
    scores = out.fifo(
        f"scores{col}_{pair}", first, second, facts.ATTENTION_SCORE_BYTES // 4, "float32"
    )
    results = out.fifo(
        f"y{col}_{pair}", second, out.tile(col, 0), OUT_BYTES // 4, "int32",
        port=f"Y{col}_{pair}", consumer_channel=pair,
    )  # fmt: skip
    score_keys(out, first, keys, scores)
    sum_values(out, second, values, scores, results)


def score_keys(
    out: Design, core: Tile, keys: ObjectFifo, scores: ObjectFifo, index: int = 0
) -> None:
    """The worker of a scoring core, which takes record `index` of a header's table."""
    worker = out.worker(core)
    name = f"{core.col}_{core.row}"
    words = worker.buffer(f"record_{name}", "int32", (RECORD_WORDS,))
    state = worker.buffer(f"state_{name}", "int32", (facts.ATTENTION_SCORES_STATE,))
    q = worker.buffer(f"q_{name}", "bfloat16", (QUERIES,))
    begin, more, pack, score = (
        out.kernel(f"attention_{name}") for name in ("begin", "more", "pack", "scores")
    )
    sizes = word(words, "rows"), word(words, "head_dim")
    with worker.forever():
        worker.call(begin, worker.acquire(keys), q, words, state, index)
        worker.release(keys)
        with worker.loop(word(words, "objects")):
            worker.call(more, worker.acquire(keys), q, words, state)
            worker.release(keys)
        worker.call(pack, q, words, state, *sizes)
        with worker.loop(word(words, "chunks")):
            chunk, weights = worker.acquire(keys), worker.acquire(scores)
            worker.call(score, chunk, q, weights, words, state, *sizes)
            worker.release(keys)
            worker.release(scores)


def sum_values(
    out: Design,
    core: Tile,
    values: ObjectFifo,
    scores: ObjectFifo,
    results: ObjectFifo,
    index: int = 0,
) -> None:
    """The worker of the other core of a pair."""
    worker = out.worker(core)
    name = f"{core.col}_{core.row}"
    words = worker.buffer(f"record_{name}", "int32", (RECORD_WORDS,))
    state = worker.buffer(f"state_{name}", "int32", (facts.ATTENTION_VALUES_STATE,))
    y = worker.buffer(f"sums_{name}", "float32", (QUERIES,))
    begin, add, send = map(out.kernel, ("values_begin", "values_chunk", "values_out"))
    with worker.forever():
        worker.call(begin, worker.acquire(values), y, words, state, index)
        worker.release(values)
        with worker.loop(word(words, "objects")):
            worker.acquire(values)
            worker.release(values)
        with worker.loop(word(words, "chunks")):
            chunk, weights = worker.acquire(values), worker.acquire(scores)
            worker.call(
                add, chunk, weights, y, words, state, word(words, "rows"), word(words, "head_dim")
            )
            worker.release(values)
            worker.release(scores)
        with worker.loop(word(words, "out_objects")):
            worker.call(send, y, worker.acquire(results), words, state, word(words, "output"))
            worker.release(results)


def word(words: Buffer, label: str) -> Word:
    """A word of a record."""
    return Word(words, RECORD.index(label))
