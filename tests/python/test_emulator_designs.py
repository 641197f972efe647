"""Whole designs of the kinds that mlir-aie's hardware tests have, written anew for this emulator,
each with its result by NumPy: object FIFOs with sliding windows and conditions, two cores with a
FIFO between them, a loop bound by a runtime parameter, accumulation over a cascade. And the core of
docs/emulator.md, which does what the page says, and whose deadlock it shows.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from register_script import (
    CORE_DMA,
    CORE_SOUTH_IN,
    CORE_SOUTH_OUT,
    Script,
    copy_stream,
    read_back,
    shim_in,
    shim_out,
    through_core,
)

import npu
from npu.emulator import Array, Core

Steps = Generator[Any, Any, None]
N, ROWS = 8, 10  # words of an object, objects
IN, BETWEEN, OUT = 0x400, 0x800, 0xC00
DEVICES = ["npu1", "npu2"]
# Locks of a tile: room and objects of the FIFO from the host, of that to it, of one between cores.
IN_ROOM, IN_FULL, OUT_ROOM, OUT_FULL, BETWEEN_ROOM, BETWEEN_FULL = range(6)


def ring(script: Script, row: int, direction: str, base: int, depth: int, first_bd: int) -> None:
    """A core DMA's chain of BDs over the buffers of a FIFO, started."""
    receives = direction == "s2mm"
    room, full = (IN_ROOM, IN_FULL) if receives else (OUT_ROOM, OUT_FULL)
    locks = {"acquire_enable": True, "acquire_value": -1, "release_value": 1}
    locks |= {"acquire_id": room if receives else full, "release_id": full if receives else room}
    for i in range(depth):
        script.bd(0, row, first_bd + i, length=N, base=base // 4 + N * i, use_next=True,
                  next_bd=first_bd + (i + 1) % depth, **locks)  # fmt: skip
    script.push(0, row, direction, 0, first_bd).lock(0, row, room, depth)


def host_fifos(device: str, source_row: int, target_row: int, in_depth: int = 2) -> Array:
    """Host -> FIFO of core (0, source_row); FIFO of core (0, target_row), depth 2, -> host."""
    c = shim_out(shim_in(Script(device)))
    for row in range(2, source_row):
        c.connect(0, row, CORE_SOUTH_IN, 13)
    c.connect(0, source_row, CORE_SOUTH_IN, CORE_DMA)
    for row in range(2, target_row):
        c.connect(0, row, 15, CORE_SOUTH_OUT)
    c.connect(0, target_row, CORE_DMA, CORE_SOUTH_OUT)
    ring(c, source_row, "s2mm", IN, in_depth, 0)
    ring(c, target_row, "mm2s", OUT, 2, 4)
    array = Array(device)
    array.configure(c.bytes())
    return array


def through(array: Array, given: np.ndarray, words: int, device: str, script: Script) -> np.ndarray:
    """What comes back when the host sends `given` and asks for so many words."""
    script.host_bd(0, 0, 0, length=given.size).host_bd(0, 1, 1, length=words)
    script.push(0, 0, "mm2s", 0, 0).push(0, 0, "s2mm", 0, 1, token=True)
    script.raw.sync(0, 0, "s2mm", 0)
    out = np.zeros(words, np.int32)
    array.submit(script.bytes(), [given, out])
    return out


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, (ROWS, N), dtype=np.int32)


def inputs(core: Core, depth: int = 2) -> Any:
    return core.fifo(core.buffer(IN, (depth, N), np.int32), acquire=IN_FULL, release=IN_ROOM)


def outputs(core: Core) -> Any:
    return core.fifo(core.buffer(OUT, (2, N), np.int32), acquire=OUT_ROOM, release=OUT_FULL)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sliding_window_with_conditions(device: str) -> None:
    """Row i is x[i - 1] + x[i]; the first uses x[0] twice, the last one gives both rows back."""

    def core_program(core: Core) -> Steps:
        source, target = inputs(core), outputs(core)
        for i in range(ROWS):
            (result,) = yield from target.acquire()
            if i == 0:
                (first,) = yield from source.acquire(1)
                result[:] = first + first
            else:
                before, after = yield from source.acquire(2)
                result[:] = before + after
                yield from source.release(2 if i == ROWS - 1 else 1)
            yield from target.release()

    array = host_fifos(device, 2, 2)
    array.attach(0, 2, core_program)
    x = rows(1)
    out = through(array, x, x.size, device, Script(device))
    expected = np.vstack([2 * x[0], x[:-1] + x[1:]])
    np.testing.assert_array_equal(out.reshape(ROWS, N), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_two_cores_with_a_fifo_of_three_between_them(device: str) -> None:
    """Prologue, steady state and epilogue of a window of two; the FIFO lies in the first tile."""

    def copies(core: Core) -> Steps:
        source = inputs(core)
        target = core.fifo(
            core.buffer(BETWEEN, (3, N), np.int32), acquire=BETWEEN_ROOM, release=BETWEEN_FULL
        )
        for _ in range(ROWS):
            (result,) = yield from target.acquire()
            (given,) = yield from source.acquire()
            result[:] = given
            yield from source.release()
            yield from target.release()

    def adds(core: Core) -> Steps:
        source = core.fifo(
            core.buffer(BETWEEN, (3, N), np.int32, side="south"),
            acquire=BETWEEN_FULL,
            release=BETWEEN_ROOM,
            side="south",
        )
        target = outputs(core)
        (result,) = yield from target.acquire()
        (first,) = yield from source.acquire()
        result[:] = first + first
        yield from target.release()
        for i in range(1, ROWS):
            (result,) = yield from target.acquire()
            before, after = yield from source.acquire(2)
            result[:] = before + after
            yield from source.release(2 if i == ROWS - 1 else 1)
            yield from target.release()

    array = host_fifos(device, 2, 3)
    array.attach(0, 2, copies)
    array.attach(0, 3, adds)
    x = rows(2)
    script = Script(device).lock(0, 2, BETWEEN_ROOM, 3)
    out = through(array, x, x.size, device, script)
    np.testing.assert_array_equal(out.reshape(ROWS, N), np.vstack([2 * x[0], x[:-1] + x[1:]]))


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_that_a_runtime_parameter_ends(device: str) -> None:
    """Each result sums as many objects as a table of parameters says, read while it runs: after the
    first object, which comes after the stream has written the table."""
    counts = [1, 4, 2, 3]

    def sums(core: Core) -> Steps:
        source, target = inputs(core), outputs(core)
        index = 0
        while True:
            (result,) = yield from target.acquire()
            result[:] = 0
            taken = 0
            while taken == 0 or taken < core.parameter(0x2000 + 4 * index):
                (given,) = yield from source.acquire()
                result[:] += given
                yield from source.release()
                taken += 1
            yield from target.release()
            index += 1

    array = host_fifos(device, 2, 2)
    array.attach(0, 2, sums)
    script = Script(device)
    script.raw.block_write(npu.stream.tile_address(0, 2, 0x2000), np.array([*counts, 1], np.uint32))
    x = rows(3)
    out = through(array, x, len(counts) * N, device, script)
    starts = np.cumsum([0, *counts[:-1]])
    expected = [x[a : a + n].sum(0) for a, n in zip(starts, counts, strict=True)]
    np.testing.assert_array_equal(out.reshape(-1, N), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_partial_products_over_a_cascade(device: str) -> None:
    """Three cores of a column keep a third of a matrix each and pass sums southwards."""
    k, matrix = 6, np.arange(6 * 16, dtype=np.int32).reshape(6, 16)
    vectors = rows(4)[:, :k]

    def part(index: int) -> Any:
        def program(core: Core) -> Steps:
            weights = core.buffer(0, (2, 16), np.int32)
            source = inputs(core) if core.row == 2 else None
            for _ in range(ROWS):
                total = np.zeros(16, np.int32)
                if source is not None:  # the vector is passed on by hand, northwards
                    (given,) = yield from source.acquire()
                    vector = given.copy()
                    yield from source.release()
                else:
                    yield core.acquire(8, side="south")
                    vector = core.buffer(0x3000, N, np.int32, side="south").copy()
                    yield core.release(9, side="south")
                if core.row < 4:
                    yield core.acquire(9)
                    core.buffer(0x3000, N, np.int32)[:] = vector
                    yield core.release(8)
                    total += yield core.get_cascade()
                total += vector[2 * index : 2 * index + 2] @ weights
                if core.row == 2:
                    yield core.put(total)
                else:
                    yield core.put_cascade(total)

        return program

    c = shim_out(shim_in(Script(device))).connect(0, 2, CORE_SOUTH_IN, CORE_DMA)
    c.connect(0, 2, 0, CORE_SOUTH_OUT)
    ring(c, 2, "s2mm", IN, 2, 0)
    c.lock(0, 2, 9, 1).lock(0, 3, 9, 1)
    array = Array(device)
    array.configure(c.bytes())
    for index in range(3):
        array.write_memory(0, 2 + index, 0, matrix[2 * index : 2 * index + 2])
        array.attach(0, 2 + index, part(index))
    given = np.zeros((ROWS, N), np.int32)
    given[:, :k] = vectors
    out = through(array, given, 16 * ROWS, device, Script(device))
    np.testing.assert_array_equal(out.reshape(ROWS, 16), vectors @ matrix)


def test_fifos_that_are_used_wrongly() -> None:
    def releases(core: Core) -> Steps:
        fifo = inputs(core)
        yield from fifo.acquire(1)
        yield from fifo.release(2)

    def acquires(core: Core) -> Steps:
        yield from inputs(core).acquire(3)

    def is_empty(core: Core) -> Steps:
        yield from core.fifo([], acquire=0, release=1).acquire()

    for program, message in [
        (releases, r"\[fifo.release\] core \(0,2\): 2 objects are to be released, 1 are held"),
        (acquires, r"\[fifo.acquire\] core \(0,2\): count is 3; use 1..2"),
        (is_empty, "at least one buffer"),
    ]:
        array = host_fifos("npu2", 2, 2)
        array.attach(0, 2, program)
        with pytest.raises(npu.errors.ArgumentError, match=message):
            through(array, rows(0), N, "npu2", Script())


def test_the_core_of_the_page() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/emulator.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (code,) = (block for block in blocks if "array.attach(0, 2, add_one)" in block)
    array = Array("npu2")
    array.configure(through_core(source=0x400, target=0x800))
    exec(compile(code, "design.py", "exec"), {"np": np, "array": array})
    x, y = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    array.submit(copy_stream(), [x, y])
    np.testing.assert_array_equal(y, x + 1)
    with pytest.raises(npu.errors.DeadlockError) as caught:  # the host sends nothing
        array.submit(read_back(Script(), 16).bytes(), [y])
    assert " ".join(str(caught.value).split()) in " ".join(text.split())
