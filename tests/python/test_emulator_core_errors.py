"""What comes out of wrong programs of cores (npu.emulator.Core): exceptions with their type, core
and traceback, operations that were not yielded, arguments that are refused where they are given.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from register_script import CORE_BUFFER, Script, copy_stream, through_core

import npu
from npu.emulator import Array, Core

Steps = Generator[Any, Any, None]


def run(program: Any, col: int = 1, row: int = 3) -> None:
    """The program alone, on an array that is not configured further."""
    array = Array("npu2")
    array.configure(Script().bytes())
    array.attach(col, row, program)
    array.submit(Script().bytes())


def machine(program: Any) -> Array:
    """Core (0,2) with the program, and routes and DMAs for an object of 16 words each way."""
    array = Array("npu2")
    array.configure(through_core())
    array.attach(0, 2, program)
    return array


def copy(array: Array) -> None:
    array.submit(copy_stream(), [np.arange(16, dtype=np.int32), np.zeros(16, np.int32)])


class Custom(Exception):
    pass


@pytest.mark.parametrize("kind", [Custom, KeyError, KeyboardInterrupt, SystemExit, MemoryError])
def test_exceptions_keep_their_type_and_traceback(kind: type[BaseException]) -> None:
    error = kind("from the program")

    def broken(core: Core) -> Steps:
        yield core.acquire(1)
        raise error

    array = machine(broken)
    with pytest.raises(kind) as caught:
        copy(array)
    assert caught.value is error
    assert "broken" in [frame.name for frame in caught.traceback]
    if hasattr(error, "add_note"):
        text = "".join(traceback.format_exception(caught.value))
        assert "in the program of core (0,2)" in text
    with pytest.raises(npu.errors.ArgumentError, match="configure it again"):
        copy(array)
    copied = np.zeros(1, np.int32)

    def works(core: Core) -> Steps:
        yield core.acquire(1)
        copied[0] = core.buffer(CORE_BUFFER, 16, np.int32)[7]
        yield core.release(3)

    array.configure(through_core())
    array.attach(0, 2, works)
    copy(array)
    assert copied[0] == 7


def _forgets(core: Core) -> Steps:
    core.release(3)
    yield core.acquire(1)


def _forgets_at_the_end(core: Core) -> Steps:
    yield core.acquire(1)
    core.release(3)


def _yields_another(core: Core) -> Steps:
    first = core.acquire(1)
    yield first
    core.release(2)
    yield first


def _yields_junk(core: Core) -> Steps:
    yield 7


def _returns_junk(core: Core) -> Any:
    return [core.acquire(1)]


def _forgets_all(core: Core) -> None:
    core.acquire(1)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_forgets, r"core \(0,2\): core.release\(3, 1\) was made but not yielded"),
        (_forgets_at_the_end, r"core.release\(3, 1\) was made but not yielded"),
        (_yields_another, r"core.release\(2, 1\) was made but not yielded"),
        (_yields_junk, r"yielded 7 at line \d+ of _yields_junk"),
        (_returns_junk, r"must be a generator function"),
        (_forgets_all, r"core.acquire\(1, 1\) was made but not yielded"),
    ],
)
def test_programs_that_are_written_wrongly(program: Any, message: str) -> None:
    with pytest.raises(npu.errors.ArgumentError, match=message):
        copy(machine(program))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: c.acquire(16),
            r"\[acquire\] core \(1,3\): lock is 16; use 0..15 \(side=\"map\"",
        ),
        (lambda c: c.acquire(64, side="map"), "lock is 64; use 0..63"),
        (lambda c: c.acquire("a"), "lock must be an integer, found 'a'"),
        (lambda c: c.acquire(1, -1), "value is -1; use 0..63"),
        (lambda c: c.release(1, 64), "value is 64; use -63..63"),
        (lambda c: c.acquire(1, side="east"), "side is 'east'.*reaches nothing of its east"),
        (lambda c: c.buffer(65536, 1, np.int32), "4 bytes at 0x10000 end beyond"),
        (lambda c: c.buffer(65532, 2, np.int32), "8 bytes at 0xfffc end beyond"),
        (lambda c: c.buffer(1024, 1, np.int32, side="map"), "0x400 is not in a core's address map"),
        (lambda c: c.buffer(0x5FFFC, 2, np.int32, side="map"), "end beyond"),
        (lambda c: c.buffer(2, 1, np.int32), "0x2 is not aligned"),
        (lambda c: c.buffer(0, -1, np.int32), "a dimension is -1"),
        (lambda c: c.buffer(0, (1 << 16, 1 << 16, 1 << 16), np.int64), "end beyond"),
        (lambda c: c.buffer(0, 1, "no such"), "is no NumPy dtype"),
        (lambda c: c.buffer(0, 1, object), "plain numbers"),
        (lambda c: c.put("a"), "expected a NumPy array of plain numbers, found <class 'str'>"),
        (lambda c: c.put(1 << 32), "the word is 4294967296"),
        (lambda c: c.put(np.zeros(3, np.int16)), "6 bytes; a stream takes multiples of 4"),
        (lambda c: c.put(np.zeros(0, np.int16)), "0 bytes; a stream takes"),
        (lambda c: c.get(0), "count is 0"),
        (lambda c: c.get(dtype=np.int16), "one word is no int16"),
        (lambda c: c.get(1, np.int64), "4 bytes are not a whole number of int64"),
        (lambda c: c.put_cascade(np.zeros(8, np.int32)), "32 bytes; the cascade takes"),
        (lambda c: c.get_cascade(0), "count is 0"),
    ],
)
def test_arguments_that_operations_refuse(call: Any, message: str) -> None:
    """Refused where the program makes them, so that the traceback names the line."""

    def program(core: Core) -> Steps:
        yield call(core)

    with pytest.raises(npu.errors.ArgumentError, match=message) as caught:
        run(program)
    assert "program" in [frame.name for frame in caught.traceback]


def test_a_buffer_of_a_missing_neighbour() -> None:
    with pytest.raises(npu.errors.ArgumentError, match="no core tile to the west"):
        run(lambda core: core.buffer(0, 1, np.int32, side="west"), 0, 2)


def test_a_lock_that_overflows_is_named() -> None:
    def program(core: Core) -> Steps:
        yield core.release(4, 60)
        yield core.release(4, 4)

    with pytest.raises(
        npu.errors.EmulatorError, match=r"core \(0,3\) releases lock 4 .* makes it 64"
    ):
        run(program, 0, 3)
