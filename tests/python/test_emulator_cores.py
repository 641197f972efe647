"""Cores whose programs are Python generator functions (npu.emulator.Core): what they reach of
neighbours, ends and prologues, loops that depend on data, initial values; that core reset and a new
attach start a program afresh; how deadlocks and Ctrl-C come out, with core and line; and that no
sequence of operations does anything else than end or raise one of the package's errors.

Streams, cascades and control packets: test_emulator_ports.py. Wrong programs:
test_emulator_core_errors.py.
"""

from __future__ import annotations

import _thread
import gc
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from register_script import CORE_BUFFER, CORE_RESULT, Script, copy_stream, through_core

import npu
from npu.emulator import Array, Core

Steps = Generator[Any, Any, None]
IN, OUT = CORE_BUFFER, CORE_RESULT


def empty(device: str = "npu2", script: Script | None = None) -> Array:
    array = Array(device)
    array.configure((script or Script(device)).bytes())
    return array


def run(array: Array, script: Script | None = None, device: str = "npu2") -> None:
    array.submit((script or Script(device)).bytes())


def ints(array: Array, col: int, row: int, address: int, count: int = 1) -> list[int]:
    return np.frombuffer(array.read_memory(col, row, address, 4 * count), np.int32).tolist()


def lock_values(array: Array, col: int, row: int) -> list[int]:
    base = npu.stream.tile_address(col, row, 0x1F000)
    return [array.read_register(base + 0x10 * i) for i in range(16)]


def plus_one(core: Core) -> Steps:
    source, target = core.buffer(IN, 16, np.int32), core.buffer(OUT, 16, np.int32)
    while True:
        yield core.acquire(1)
        yield core.acquire(2)
        target[:] = source + 1
        yield core.release(0)
        yield core.release(3)


def machine(program: Callable[[Core], Any] = plus_one, device: str = "npu2") -> Array:
    array = Array(device)
    array.configure(through_core(device))
    array.attach(0, 2, program)
    return array


def copy(array: Array, device: str = "npu2") -> np.ndarray:
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    array.submit(copy_stream(device), [a, b])
    return b


@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_a_program_goes_on_from_submission_to_submission(device: str) -> None:
    array = machine(device=device)
    for _ in range(3):
        np.testing.assert_array_equal(copy(array, device), np.arange(16) + 1)


@pytest.mark.parametrize("device", ["npu1", "npu2"])
@pytest.mark.parametrize("form", ["side", "map"])
def test_locks_and_memory_of_all_neighbours(device: str, form: str) -> None:
    """The core in the middle hands a value to each neighbour, and takes one that it made there."""
    neighbours = {"south": (1, 2, 0), "west": (0, 3, 1), "north": (1, 4, 2), "own": (1, 3, 3)}

    def middle(core: Core) -> Steps:
        for side, (_, _, index) in neighbours.items():
            if form == "map":
                where, lock = 0x40000 + 0x10000 * index + 0x400, 16 * index + 5
                view = core.buffer(where, 2, np.int32, side="map")
                side = "map"
            else:
                lock, view = 5, core.buffer(0x400, 2, np.int32, side=side)
            yield core.acquire(lock, 2, side=side)
            view[1] = view[0] * 10
            yield core.release(lock + 1, 3, side=side)

    array = empty(device)
    for col, row, index in neighbours.values():
        array.write_memory(col, row, 0x400, np.array([index + 1, 0], np.int32))
    array.attach(1, 3, middle)
    script = Script(device)
    for col, row, _ in neighbours.values():
        script.lock(col, row, 5, 3)
    array.submit(script.bytes())
    for col, row, index in neighbours.values():
        assert ints(array, col, row, 0x400, 2) == [index + 1, 10 * (index + 1)]
        assert lock_values(array, col, row)[4:8] == [0, 1, 3, 0]


def test_a_fifo_between_neighbours() -> None:
    """Object FIFO of two cores with its buffers and locks in the producer's tile; depth 2."""

    def producer(core: Core) -> Steps:
        slots = core.buffer(0x800, (2, 4), np.int32)
        for i in range(9):
            yield core.acquire(0)
            slots[i % 2] = i
            yield core.release(1)

    def consumer(core: Core) -> Steps:
        slots = core.buffer(0x800, (2, 4), np.int32, side="south")
        sums = core.buffer(0, 9, np.int32)
        for i in range(9):
            yield core.acquire(1, side="south")
            sums[i] = slots[i % 2].sum()
            yield core.release(0, side="south")

    array = empty(script=Script().lock(2, 3, 0, 2))
    array.attach(2, 3, producer)
    array.attach(2, 4, consumer)
    run(array)
    assert ints(array, 2, 4, 0, 9) == [4 * i for i in range(9)]
    assert lock_values(array, 2, 3)[:2] == [2, 0]


def test_neighbours_that_a_core_does_not_reach() -> None:
    def memtile(core: Core) -> Steps:
        yield core.acquire(3, side="south")

    def outside(core: Core) -> Steps:
        yield core.release(40, side="map")

    for row, program, message in [
        (2, memtile, r"core \(0,2\) acquires lock 3 of its southern neighbour"),
        (5, outside, r"core \(0,5\) releases lock 8 of its northern neighbour"),
    ]:
        array = empty()
        array.attach(0, row, program)
        with pytest.raises(npu.errors.EmulatorError, match=message) as caught:
            run(array)
        assert caught.value.kind == "lock"
        assert f" of {program.__name__} (test_emulator_cores.py)" in str(caught.value)


def test_a_prologue_runs_once_and_a_program_may_end() -> None:
    """The tile's initial values, a prologue over them, a loop as long as the data say, the end."""

    def program(core: Core) -> Steps:
        table, log = core.buffer(0x100, 8, np.int32), core.buffer(0x200, 8, np.int32)
        count = core.buffer(0x300, 1, np.int32)
        table += 1  # prologue
        while True:
            yield core.acquire(0)
            length = 0
            while table[length] > 0:
                log[length] += table[length]
                length += 1
            count[0] += length
            if core.parameter(0x304):
                return

    array = empty()
    array.write_memory(0, 2, 0x100, np.array([4, 6, 8, -1, 9], np.int32))
    array.attach(0, 2, program)
    run(array, Script().lock(0, 2, 0, 1))
    assert ints(array, 0, 2, 0x200, 4) == [5, 7, 9, 0] and ints(array, 0, 2, 0x300) == [3]
    assert ints(array, 0, 2, 0x100, 5) == [5, 7, 9, 0, 10]
    status = npu.stream.tile_address(0, 2, 0x32004)
    assert array.read_register(status) == 1 | 1 << 9  # enabled, waits for a lock of its own
    run(array, Script().write(0, 2, 0x304, 1).lock(0, 2, 0, 2))
    assert ints(array, 0, 2, 0x300) == [6] and lock_values(array, 0, 2)[0] == 1
    assert array.read_register(status) == 1 | 1 << 20  # done
    run(array)
    assert ints(array, 0, 2, 0x300) == [6]  # a submission does not restart it


def test_a_function_without_yields_is_a_core_that_ends() -> None:
    array = empty()
    array.attach(0, 2, lambda core: core.buffer(0, 4, np.int16).fill(3))
    run(array)
    assert array.read_memory(0, 2, 0, 10) == b"\3\0" * 4 + b"\0\0"


@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_registers_over_the_processor_bus(device: str) -> None:
    """Lock values of the core's own tile, as mlir-aie's test of the bus reads them."""

    def program(core: Core) -> Steps:
        yield core.acquire(0)
        values = core.buffer(0, 4, np.int32)
        values[:] = [core.register(0x1F080 + 0x10 * i) for i in range(4)]

    script = Script(device)
    for i in range(4):
        script.lock(0, 2, 8 + i, 42 + i)
    array = empty(device, script)
    array.attach(0, 2, program)
    run(array, Script(device).write(0, 2, 0x32038, 1).lock(0, 2, 0, 1), device)
    assert ints(array, 0, 2, 0, 4) == [42, 43, 44, 45]
    array = empty(device, script)
    array.attach(0, 2, program)
    message = r"\[register\] core \(0,2\) reads 0x1f080 over its processor bus, which is not"
    with pytest.raises(npu.errors.EmulatorError, match=message):
        run(array, Script(device).lock(0, 2, 0, 1), device)


def test_acquire_equal_and_values() -> None:
    def program(core: Core) -> Steps:
        yield core.acquire_equal(0, 3)
        yield core.acquire(1, 2)
        yield core.release(2, 7)
        yield core.release(2, -3)
        yield core.acquire_equal(3, 0)

    array = empty(script=Script().lock(0, 2, 0, 2).lock(0, 2, 1, 5))
    array.attach(0, 2, program)
    run(array)
    assert lock_values(array, 0, 2)[:4] == [2, 5, 0, 0]  # 2 is not 3
    run(array, Script().lock(0, 2, 0, 3))
    assert lock_values(array, 0, 2)[:4] == [0, 3, 4, 0]


def test_sub_generators_and_deadlock_reports_name_the_line() -> None:
    def fetch(core: Core) -> Steps:
        yield core.acquire(7, 2, side="north")  # the line that waits

    def program(core: Core) -> Steps:
        yield core.acquire(0)
        yield from fetch(core)

    line = fetch.__code__.co_firstlineno + 1
    array = empty(script=Script().lock(0, 2, 0, 1))
    array.attach(0, 2, program)
    script = Script()
    script.raw.sync(0, 0, "s2mm", 0)
    expected = (
        rf"core \(0,2\) waits for lock 7 of core \(0,3\) to be >= 2 \(it is 0\), at line {line} of "
        r"fetch \(test_emulator_cores\.py\)"
    )
    with pytest.raises(npu.errors.DeadlockError, match=expected):
        run(array, script)


def test_a_neighbour_that_may_release_a_lock_is_no_cause() -> None:
    """The likely cause is a lock that nobody releases: not one that a neighbour's program may."""

    def waits(core: Core) -> Steps:
        yield core.acquire(0)

    def other(core: Core) -> Steps:
        yield core.acquire(1, side="own")
        yield core.release(0, side="south")

    # (0,3) and (0,2) reach the locks that the other waits for; (0,4) is too far away.
    for row, cause in [
        (3, "likely cause: no task that issues this token is pending"),
        (4, r"waits for lock 0 of core \(0,2\), which no core program and no BD releases"),
    ]:
        array = empty()
        array.attach(0, 2, waits)
        array.attach(0, row, other)
        script = Script()
        script.raw.sync(0, 0, "s2mm", 0)
        with pytest.raises(npu.errors.DeadlockError, match=cause) as caught:
            run(array, script)
        assert "core (0,2) waits for lock 0 of core (0,2) to be >= 1" in str(caught.value)


def test_core_reset_and_a_new_attach_start_afresh() -> None:
    starts: list[str] = []
    ends: list[str] = []

    def program(core: Core) -> Steps:
        starts.append(repr(core))
        try:
            yield core.acquire(0)
            core.buffer(0, 1, np.int32)[0] += 1
            yield core.acquire(1)
        finally:
            ends.append(repr(core))

    array = empty(script=Script().lock(0, 2, 0, 1))
    array.attach(0, 2, program)
    run(array)
    assert ints(array, 0, 2, 0) == [1] and not ends
    run(array, Script().write(0, 2, 0x32000, 2))
    assert array.read_register(npu.stream.tile_address(0, 2, 0x32004)) == 0
    run(array, Script().lock(0, 2, 0, 5))
    assert ints(array, 0, 2, 0) == [1]  # held in reset
    run(array, Script().write(0, 2, 0x32000, 1))
    assert ints(array, 0, 2, 0) == [2] and len(starts) == 2 and len(ends) == 1
    array.attach(0, 2, program)
    run(array)
    assert ints(array, 0, 2, 0) == [3] and len(starts) == 3
    array.configure(Script().bytes())
    run(array)
    assert len(starts) == 3  # configure detaches


def test_programs_are_released() -> None:
    class Function:
        def __call__(self, core: Core) -> Steps:
            core.buffer(0, 1, np.int32)[0] = 1
            yield core.acquire(0)

    for end in ("configure", "attach", "delete", "cycle"):
        function = Function()
        alive = weakref.ref(function)
        array = empty()
        array.attach(0, 2, function)
        run(array)
        if end == "cycle":
            function.array = array  # type: ignore[attr-defined]
        del function
        assert alive() is not None
        if end == "configure":
            array.configure(Script().bytes())
        elif end == "attach":
            array.attach(0, 2, [], {})
        del array
        gc.collect()
        assert alive() is None


def test_views_outlive_the_array() -> None:
    views: list[np.ndarray] = []
    array = empty()
    array.attach(0, 2, lambda core: views.append(core.buffer(8, 4, np.int32)))
    run(array)
    del array
    gc.collect()
    views[0][:] = 5
    assert views[0].sum() == 20


def test_an_array_is_not_reentrant() -> None:
    def program(core: Core) -> Steps:
        for call in (
            lambda: array.submit(Script().bytes()),
            lambda: array.configure(Script().bytes()),
            lambda: array.attach(0, 3, program),
        ):
            with pytest.raises(npu.errors.ArgumentError, match="executing a stream"):
                call()
        yield core.release(0)

    array = empty()
    array.attach(0, 2, program)
    run(array)
    assert lock_values(array, 0, 2)[0] == 1


def _spins(core: Core) -> Steps:
    while True:
        pass
    yield


def _yields_for_ever(core: Core) -> Steps:
    while True:
        yield core.release(0)
        yield core.acquire(0)


@pytest.mark.parametrize("program", [_spins, _yields_for_ever])
def test_ctrl_c(program: Any) -> None:
    array = empty()
    array.attach(0, 2, program)
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(array)
    timer.join()


def test_both_forms_side_by_side() -> None:
    """A worker program and a generator pass a value on; a worker's memory seen by its neighbour."""

    def neighbour(core: Core) -> Steps:
        yield core.acquire(9, side="south")
        core.buffer(0, 16, np.int32)[:] = core.buffer(OUT, 16, np.int32, side="south") * 2

    def f(source: memoryview, target: memoryview) -> None:
        np.frombuffer(target, np.int32, 16)[:] = np.frombuffer(source, np.int32, 16) + 1

    ops = [
        ["acquire_ge", 1, 1],
        ["acquire_ge", 2, 1],
        ["call", "f", [{"buffer": IN}, {"buffer": OUT}]],
        ["release", 0, 1],
        ["release", 9, 1],
        ["release", 3, 1],
    ]
    array = Array("npu2")
    array.configure(through_core())
    array.attach(0, 2, ops, {"f": f})
    array.attach(0, 3, neighbour)
    np.testing.assert_array_equal(copy(array), np.arange(16) + 1)
    assert ints(array, 0, 3, 0, 16) == [2 * (i + 1) for i in range(16)]


def test_write_memory_checks_its_arguments() -> None:
    array = empty("npu1")
    array.write_memory(0, 1, 524284, b"\1\2\3\4")
    assert array.read_memory(0, 1, 524284, 4) == b"\1\2\3\4"
    with pytest.raises(npu.errors.EmulatorError, match=r"\[write_memory\] bytes .* it has 524288"):
        array.write_memory(0, 1, 524284, bytes(8))
    with pytest.raises(npu.errors.ArgumentError, match="expected bytes or a NumPy array"):
        array.write_memory(0, 1, 0, 12)
    with pytest.raises(npu.errors.ArgumentError, match="offset must be an integer"):
        array.write_memory(0, 1, "a", b"1234")


def test_attach_refuses_what_is_no_program() -> None:
    array = empty()
    with pytest.raises(npu.errors.ArgumentError, match="expected a generator function"):
        array.attach(0, 2, 7)  # type: ignore[arg-type]
    with pytest.raises(npu.errors.ArgumentError, match="has no core"):
        array.attach(0, 1, plus_one)
    with pytest.raises(npu.errors.ArgumentError, match="configure the array before"):
        Array("npu2").attach(0, 2, plus_one)


OPERATIONS = st.one_of(
    st.tuples(
        st.sampled_from(["acquire", "acquire_equal", "release"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(["own", "south", "north", "west"]),
    ),
    st.tuples(st.just("put"), st.integers(0, 5)),
    st.tuples(st.just("get"), st.integers(1, 3)),
    st.tuples(st.just("put_cascade"), st.integers(1, 3)),
    st.tuples(st.just("get_cascade"), st.integers(1, 3)),
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(programs=st.lists(st.lists(OPERATIONS, max_size=12), min_size=4, max_size=4), seed=st.data())
def test_any_programs_end(programs: list[list[Any]], seed: st.DataObject) -> None:
    """Twice the same, whatever four neighbours do: an end, a deadlock or another typed error."""
    script = Script()
    for col, row in ((0, 2), (0, 3), (1, 2), (1, 3)):
        for lock in range(4):
            script.lock(col, row, lock, seed.draw(st.integers(0, 2)))
        script.write(col, row, 0x36060, seed.draw(st.integers(0, 3)))
        script.connect(col, row, 0, seed.draw(st.sampled_from([5, 9, 13, 19])))
        script.connect(col, row, seed.draw(st.sampled_from([5, 11, 15, 19])), 0)

    def program(operations: list[Any]) -> Callable[[Core], Steps]:
        def steps(core: Core) -> Steps:
            for name, *rest in operations:
                if name in ("put", "get", "get_cascade"):
                    yield getattr(core, name)(*rest)
                elif name == "put_cascade":
                    yield core.put_cascade(np.zeros((rest[0], 16), np.int32))
                else:
                    yield getattr(core, name)(*rest[:2], side=rest[2])

        return steps

    def outcome() -> Any:
        array = empty(script=script)
        for index, operations in enumerate(programs):
            array.attach(index // 2, 2 + index % 2, program(operations))
        stream = Script()
        stream.raw.sync(0, 0, "s2mm", 0)
        try:
            run(array, stream)
        except npu.errors.NpuError as error:
            assert str(error).startswith("[")
            return str(error)
        return [lock_values(array, col, 2 + row) for col in (0, 1) for row in (0, 1)]

    assert outcome() == outcome()
