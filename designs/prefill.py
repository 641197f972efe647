"""The prefill configuration: everything a prompt needs, on the array at once.

Every core does the same, a job at a time (aie_kernels/prefill_job.h): tiles of products with
weights in their blocks, norms, GeGLU, rotation, attention. Program memory holds the program of one
kind of job: they are overlays, of which streams load one before every step. As in a GEMM, stream A
of a row of the array is broadcast along it and stream B of a column down it; results of a column
leave through both of its shim channels, two cores each. Headers in stream A bound all loops, so
that streams (backend/ops/prefill) write no runtime parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from npu._npu import facts

from .api import Design
from .fifo import ObjectFifo
from .hardware import CORE_ROWS, FIRST_CORE_ROW
from .lowering import forms
from .worker import Buffer, Word

JOB: tuple[str, ...] = facts.PREFILL_JOB
B_BYTES, PIECE_BYTES = facts.PREFILL_B_BYTES, facts.PREFILL_PIECE_BYTES
MAX_BLOCKS: int = facts.PREFILL_MAX_BLOCKS
# Blocks of weights in a core: those that a job holds, and one more.
_L1_BLOCKS = MAX_BLOCKS + 1
# Objects in memtiles, whose channels of one parity share 24 BDs: 2 per object of A (or B), 4 per
# object of results.
_L2_INPUTS, _L2_PIECES = 4, 4
# Results in a core: as far as there is room, those of a product leave while the next one begins.
_L1_PIECES = {"npu1": 2, "npu2": 3}
# Bytes: npu2 has no room for what other designs get beside a third piece of results, without which
# a prompt of 32,768 tokens takes 1.5 % longer (simulated); 996 are estimated.
_LEAST_STACK = {"npu1": None, "npu2": 1280}
# Byte addresses of npu2's buffers, for the banks of products (prefill_job.h, sums_at): the store
# and behind it `work`, which together hold two halves of sums 16 KB apart, and two slices of W; in
# another bank than these A's two objects, at the end before a data section of 256 bytes.
_STORE_AT, _WORK_AT, _A_AT = 1280, 1280 + 4 * facts.PREFILL_STORE, (56064, 60672)
_RESULTS = ("C", "D")  # the ports of the lower and of the upper two cores
# Shim column and channel by which programs come: on npu2 one that has no stream A; npu1, whose
# channels are all taken, has them beside stream B of that column.
_PROGRAMS = {"npu1": (0, 1), "npu2": (1, 0)}


def design(generation: str) -> Design:
    """The prefill design of a generation ("npu1", "npu2"). Raises DesignError."""
    least = _LEAST_STACK[generation]
    out = Design("prefill", generation, object_file="prefill.o", least_stack=least)
    out.params = {
        "columns": out.columns,
        "rows": CORE_ROWS,
        "a_bytes": facts.PREFILL_A_BYTES[generation],
        "b_bytes": B_BYTES,
        "piece_bytes": PIECE_BYTES,
        "units": facts.PREFILL_UNITS[generation],
    }
    out.token_ports = True
    rows = [_row(out, row) for row in range(CORE_ROWS)]
    cores, from_shim = [], []
    for col in range(out.columns):
        (outer, b), results = _column(out, col), _drain(out, col)
        from_shim.append(outer)
        cores += [_Core(out, row, col, rows[row], b, results[row]) for row in range(CORE_ROWS)]
    for core in cores:
        core.overlays()
    col, channel = _PROGRAMS[generation]
    tiles = [core.tile for core in cores]
    beside = from_shim[col] if generation == "npu1" else None
    out.programs("programs", out.tile(col, 0), channel, tiles, beside=beside)
    return out


configuration, mlir = forms(design)


def _row(out: Design, row: int) -> ObjectFifo:
    """Stream A of a row of the array, from a column of its own."""
    col = row * (out.columns // CORE_ROWS)
    memtile = out.tile(col, 1)
    cores = [out.tile(c, FIRST_CORE_ROW + row) for c in range(out.columns)]
    elements = facts.PREFILL_A_BYTES[out.generation] // 2
    outer = out.fifo(
        f"A2_{row}", out.tile(col, 0), memtile, elements, "bfloat16", depth=_L2_INPUTS,
        port=f"A{row}", producer_channel=0, consumer_channel=0,
    )  # fmt: skip
    inner = out.fifo(
        f"A1_{row}", memtile, cores, elements, "bfloat16", depth=2,
        producer_channel=0, consumer_channel=0,
        consumer_addresses=_A_AT if out.generation == "npu2" else (),
    )  # fmt: skip
    out.forward(outer, inner)
    return inner


def _column(out: Design, col: int) -> tuple[ObjectFifo, ObjectFifo]:
    """Stream B of a column: to the memtile and from there."""
    memtile = out.tile(col, 1)
    outer = out.fifo(
        f"B2_{col}", out.tile(col, 0), memtile, B_BYTES, "uint8", depth=_L2_INPUTS,
        port=f"B{col}", producer_channel=1, consumer_channel=1,
    )  # fmt: skip
    inner = out.fifo(
        f"B1_{col}", memtile, out.cores(col), B_BYTES, "uint8", depth=_L1_BLOCKS,
        producer_channel=1, consumer_channel=1,
    )  # fmt: skip
    out.forward(outer, inner)
    return outer, inner


def _drain(out: Design, col: int) -> list[ObjectFifo]:
    """Pieces of a column's cores; neighbours are joined."""
    memtile, words = out.tile(col, 1), PIECE_BYTES // 4
    parts = [
        out.fifo(
            f"c{col}_{row}", core, memtile, words, "int32",
            depth=(_L1_PIECES[out.generation], _L2_PIECES), consumer_channel=2 + row,
        )
        for row, core in enumerate(out.cores(col))
    ]  # fmt: skip
    for channel, name in enumerate(_RESULTS):
        whole = out.fifo(
            f"{name}{col}", memtile, out.tile(col, 0), (2, words), "int32", depth=_L2_PIECES,
            producer_channel=2 + channel, consumer_channel=channel,
        )  # fmt: skip
        out.join(parts[2 * channel : 2 * channel + 2], whole)
    return parts


class _Core:
    """The programs of one core."""

    def __init__(
        self, out: Design, row: int, col: int, a: ObjectFifo, b: ObjectFifo, c: ObjectFifo
    ) -> None:
        self._out = out
        self._a, self._b, self._c = a, b, c
        self.tile = out.tile(col, FIRST_CORE_ROW + row)
        self._w = w = out.worker(self.tile)
        name = f"{col}_{row}"
        place = w.buffer(f"place_{name}", "int32", (2,), init=(row, col))
        self._place = Word(place, 0), Word(place, 1)
        store_at, work_at = (_STORE_AT, _WORK_AT) if out.generation == "npu2" else (None, None)
        sums, words = (facts.PREFILL_STORE,), (facts.PREFILL_WORK[out.generation],)
        self._store = w.buffer(f"store_{name}", "float32", sums, address=store_at)
        self._work = w.buffer(f"work_{name}", "int32", words, address=work_at)
        self._job = w.buffer(f"job_{name}", "int32", (facts.PREFILL_JOB_WORDS,))

    def overlays(self) -> None:
        """A program per kind of job, which takes as many as the first header says; of products one
        per size of weight blocks."""
        for size in ("", "small_"):
            product = functools.partial(self._product, size)
            self._overlay(f"{size}products", "begin_product", self._pass, product)
        self._overlay("norm", "begin", self._constants, self._pass, self._norm)
        self._overlay("geglu", "begin", self._pass, self._geglu)
        self._overlay("rotation", "begin", self._constants, self._pass, self._rotation)
        self._overlay("attention", "begin", self._attention)

    def _overlay(self, name: str, begin: str, *parts: Callable[[], None]) -> None:
        with self._w.overlay(name):
            self._begin(begin)
            with self._w.loop(self._word("rounds")):
                self._begin(begin)
                for part in parts:
                    part()

    def _begin(self, kernel: str) -> None:
        self._w.call(self._kernel(kernel), self._w.acquire(self._a), self._job, *self._place)
        self._w.release(self._a)

    def _pass(self) -> None:
        """Objects of A of a job that this core has no part in."""
        self._skip(self._a, "pass")

    def _constants(self) -> None:
        w = self._w
        with w.loop(self._word("constants")):
            w.call(self._kernel("constant"), w.acquire(self._a), self._store, self._job)
            w.release(self._a)

    def _product(self, size: str) -> None:
        w, store, work, job, word = self._w, self._store, self._work, self._job, self._word
        shape = word("m"), word("blocks")
        with w.loop(word("clear")):
            w.call(self._kernel("clear"), store, work, job, *shape)
        with w.loop(word("own_holds")):
            self._multiply(size)
        with w.loop(word("factors")):
            w.call(self._kernel("scale"), w.acquire(self._a), store, work, *shape)
            w.release(self._a)
        with w.loop(word("pieces")):
            w.call(self._kernel("piece"), store, w.acquire(self._c), work, job, *shape)
            w.release(self._c)

    def _multiply(self, size: str) -> None:
        """A range of columns of the held blocks of W, times A object by object."""
        w, word = self._w, self._word
        held = w.acquire_some(self._b, word("held"), MAX_BLOCKS)
        shape = word("m"), word("blocks"), word("format")
        core = self._store, self._work, self._job, *shape
        with w.loop(word("before")):
            w.call(self._kernel(f"{size}multiply"), w.acquire(self._a), *held, *core)
            w.release(self._a)
        with w.loop(word("expands")):
            w.call(self._kernel(f"{size}expand"), *held, self._work, self._job, *shape)
        # The next blocks come while the last objects are multiplied.
        w.release_some(self._b, word("held"), MAX_BLOCKS)
        with w.loop(word("behind")):
            w.call(self._kernel(f"{size}finish"), w.acquire(self._a), *core)
            w.release(self._a)

    def _norm(self) -> None:
        w, store, work, job, word = self._w, self._store, self._work, self._job, self._word
        with w.loop(word("norm_rounds")):
            with w.loop(word("first_groups")), self._turn(self._a, "a"):
                w.call(self._kernel("norm_square"), w.acquire(self._a), work, job)
                w.release(self._a)
            with w.loop(word("groups")):
                with w.loop(word("a_turns")), self._turn(self._a, "a"):
                    y, groups = w.acquire(self._a), word("groups")
                    w.call(self._kernel("norm_take"), y, work, job, groups)
                    w.release(self._a)
                with w.loop(word("b_turns")):
                    self._results("norm_piece", store, work, job)
            w.call(self._kernel("norm_tail"), work, w.acquire(self._c), job)
            w.release(self._c)

    def _geglu(self) -> None:
        w, work, job = self._w, self._work, self._job
        with w.loop(self._word("geglu_rounds")):
            with self._turn(self._a, "a"):
                w.call(self._kernel("geglu_take"), w.acquire(self._a), work, job)
                w.release(self._a)
            self._results("geglu_piece", work, job)

    def _rotation(self) -> None:
        w, store, work, job, word = self._w, self._store, self._work, self._job, self._word
        with w.loop(word("rotation_rounds")):
            with w.loop(word("first_groups")), self._turn(self._a, "a"):
                w.call(self._kernel("rotation_table"), w.acquire(self._a), store, job)
                w.release(self._a)
            with w.loop(word("b_turns")):
                sizes = word("head_dim"), word("dim")
                self._results("rotation_piece", store, work, job, *sizes)

    def _results(self, kernel: str, *operands: Buffer | Word) -> None:
        """The core's own object of B, and the results that a kernel makes of it."""
        w = self._w
        with self._turn(self._b, "b"):
            b = w.acquire(self._b)
            with w.loop(self._word("b_pieces")):
                w.call(self._kernel(kernel), b, w.acquire(self._c), *operands)
                w.release(self._c)
            w.release(self._b)

    def _attention(self) -> None:
        w, store, work, job, word = self._w, self._store, self._work, self._job, self._word
        dim = word("head_dim")
        with self._turn(self._b, "q"), w.loop(word("units")):
            w.call(self._kernel("query"), w.acquire(self._b), store, job, word("head_dim"))
            w.release(self._b)
        with w.loop(word("attends")):
            held = [w.acquire(self._b) for _ in range(facts.PREFILL_HELD)]
            queries, tiles = held[:2], held[2]  # npu2; tiles of keys and values
            w.call(self._kernel("place"), *queries, store, work, job, word("head_dim"))
            with w.loop(word("chunks")):
                with w.loop(word("a_turns")):  # halves of a chunk; a constant would be unrolled
                    a = w.acquire(self._a)
                    w.call(self._kernel("scores"), a, *queries, tiles, store, work, job, dim)
                    w.release(self._a)
                w.call(self._kernel("weigh"), work, job, dim)
                with w.loop(word("a_turns")):
                    a = w.acquire(self._a)
                    w.call(self._kernel("values"), a, tiles, store, work, job, dim)
                    w.release(self._a)
                w.call(self._kernel("add"), tiles, store, work, job, dim)
            with w.loop(word("out_pieces")):
                w.call(self._kernel("out"), store, w.acquire(self._c), work, job, word("head_dim"))
                w.release(self._c)
            for _ in held:
                w.release(self._b)

    def _turn(self, fifo: ObjectFifo, prefix: str) -> _Turn:
        return _Turn(self, fifo, prefix)

    def _skip(self, fifo: ObjectFifo, count: str) -> None:
        with self._w.loop(self._word(count)):
            self._w.acquire(fifo)
            self._w.release(fifo)

    def _kernel(self, name: str):
        return self._out.kernel(f"prefill_{name}")

    def _word(self, label: str) -> Word:
        return Word(self._job, JOB.index(label))


class _Turn:
    """A core's own objects among those of its row or column: it lets the others' pass."""

    def __init__(self, core: _Core, fifo: ObjectFifo, prefix: str) -> None:
        self._core, self._fifo, self._prefix = core, fifo, prefix

    def __enter__(self) -> None:
        self._core._skip(self._fifo, f"{self._prefix}_before")

    def __exit__(self, *_: object) -> None:
        self._core._skip(self._fifo, f"{self._prefix}_after")
