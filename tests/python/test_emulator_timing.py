"""Runs of npu.emulator.Array in simulated time: their results are those of submit, core programs
take the cycles that they name and pay for their locks with them, a LOADPDI takes the constant of
its generation, streams that rely on the speed of the array wait for it, errors name simulate, and
timelines show cores, stream ports and what waits, also across a LOADPDI.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from register_script import CORE_BUFFER, CORE_RESULT, Script, copy_stream, through_core
from test_emulator import OPS, add_one
from test_emulator_cores import machine
from test_emulator_pdi import loading
from test_emulator_ports import CORE_NORTH_OUT, CORE_PORT, CORE_SOUTH_IN

import npu
from npu.emulator import Array, Core, Report
from npu.errors import ArgumentError, EmulatorError
from npu.perf.timeline import KINDS

Steps = Generator[Any, Any, None]


def constants() -> dict[str, float]:
    return {one["name"]: one["value"] for one in npu._npu.perf.constants()}


def clock(device: str) -> float:
    return float(npu.stream.device_geometry(device)["clock_hz"])


def working(cycles: float) -> Any:
    def program(core: Core) -> Steps:
        source = core.buffer(CORE_BUFFER, 16, np.int32)
        target = core.buffer(CORE_RESULT, 16, np.int32)
        while True:
            yield core.acquire(1)
            yield core.acquire(2)
            target[:] = source + 1
            yield core.work(cycles, "add one")
            yield core.release(0)
            yield core.release(3)

    return program


def simulated(array: Array, device: str = "npu2", **options: Any) -> Report:
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    report = array.simulate(copy_stream(device), [a, b], **options)
    np.testing.assert_array_equal(b, a + 1)
    return report


def cycles_of(report: Report) -> float:
    assert report.timing is not None
    return report.timing.cycles


@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_work_takes_its_cycles_and_pays_for_the_locks(device: str) -> None:
    lock = constants()["lock_operation"]
    idle = simulated(machine(device=device), device)  # no work at all
    assert idle.timing is not None and "core (0,2)" not in idle.timing.agents
    for cycles in (0, 100, 12345.5):
        array = machine(working(cycles), device)
        report = simulated(array, device)
        assert report.timing is not None
        assert report.timing.agents["core (0,2)"] == cycles + 2 * lock
        assert report.timing.cycles == pytest.approx(cycles_of(idle) + cycles + 2 * lock)
        seconds = report.timing.dispatch_seconds + report.timing.cycles / clock(device)
        assert report.timing.seconds == pytest.approx(seconds)
        again = simulated(array, device)  # and the releases since
        assert again.timing is not None
        assert again.timing.agents["core (0,2)"] == cycles + 4 * lock


def test_runs_are_those_of_submit() -> None:
    """Reports apart from their times; timed and untimed runs may follow each other."""
    array, other = machine(working(50)), machine(working(50))
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    for timed in (True, False, True):
        b[:] = 0
        report = (
            array.simulate(copy_stream(), [a, b]) if timed else array.submit(copy_stream(), [a, b])
        )
        np.testing.assert_array_equal(b, a + 1)
        plain = other.submit(copy_stream(), [a, b])
        assert (report.timing is not None) == timed and report.trace is None
        assert report.bytes_moved == plain.bytes_moved
        assert report.operations == plain.operations


def test_earlier_submits_take_no_time() -> None:
    """Locks of untimed runs are not paid for, nor those of a timed run before them; in programs of
    either form.
    """
    functions = Array("npu2")
    functions.configure(through_core())
    functions.attach(0, 2, OPS, {"f": add_one}, {"f": 50})
    lock = constants()["lock_operation"]
    for array in (machine(working(50)), functions):
        for submits in (0, 1, 5):
            for _ in range(submits):
                array.submit(copy_stream(), [np.zeros(16, np.int32), np.zeros(16, np.int32)])
            timing = simulated(array).timing
            assert timing is not None
            assert timing.agents["core (0,2)"] == 50 + 2 * lock


def test_submits_without_work_take_no_time() -> None:
    """Locks before a core's first work are those of the runs that they are in."""

    def program(core: Core) -> Steps:
        for step in range(4):
            yield core.acquire(1)
            yield core.acquire(2)
            core.buffer(CORE_RESULT, 16, np.int32)[:] = core.buffer(CORE_BUFFER, 16, np.int32) + 1
            if step == 3:
                yield core.work(50, "add one")
            yield core.release(0)
            yield core.release(3)

    array = machine(program)
    for _ in range(3):
        array.submit(copy_stream(), [np.zeros(16, np.int32), np.zeros(16, np.int32)])
    timing = simulated(array).timing
    assert timing is not None
    assert timing.agents["core (0,2)"] == 50 + 2 * constants()["lock_operation"]


def test_routes_after_the_push() -> None:
    """As in submit, senders wait for them; an error names the function that was called."""
    for complete in (True, False):
        for function in ("submit", "simulate"):
            array = Array("npu2")
            array.configure(Script().bytes())
            array.write_memory(0, 1, 0, np.arange(4, dtype=np.int32))
            s = Script().bd(0, 1, 0, length=4, base=0x20000).push(0, 1, "mm2s", 0, 0)
            s.write(0, 0, 0x1F004, 1 << 4).connect(0, 0, 14, 4)
            if complete:
                s.connect(0, 1, 0, 7)
            s.host_bd(0, 1, 0, length=4).push(0, 0, "s2mm", 0, 1, token=True)
            s.raw.sync(0, 0, "s2mm", 0)
            out = np.zeros(4, np.int32)
            run = getattr(array, function)
            if not complete:
                with pytest.raises(EmulatorError, match=rf"\[{function}\] memtile .* on a route"):
                    run(s.bytes(), [out])
                continue
            run(s.bytes(), [out])
            np.testing.assert_array_equal(out, np.arange(4))


def test_errors_name_simulate() -> None:
    s = Script().host_bd(0, 0, 0, length=16)
    s.raw.sync(0, 0, "s2mm", 0)
    array = machine()
    with pytest.raises(EmulatorError, match=r"^\[simulate: operation 2 SYNC\] deadlock"):
        array.simulate(s.bytes(), [np.zeros(16, np.int32)])
    with pytest.raises(ArgumentError, match=r"^\[simulate\] the array stopped on an error"):
        array.simulate(s.bytes(), [np.zeros(16, np.int32)])
    with pytest.raises(ArgumentError, match=r"^\[submit\] the array stopped on an error"):
        array.submit(s.bytes(), [np.zeros(16, np.int32)])
    pending = Script().host_bd(0, 0, 0, length=16).push(0, 0, "s2mm", 0, 0)
    with pytest.raises(EmulatorError, match=r"^\[simulate\] the stream ended while shim"):
        machine().simulate(pending.bytes(), [np.zeros(16, np.int32)])


def test_dropped_tasks_are_reported() -> None:
    """Pushed on a channel that nothing leads to: the run ends, its buffer stays as it was."""
    s = Script().host_bd(0, 0, 0, length=16).push(0, 0, "s2mm", 1, 0)
    for function in ("submit", "simulate"):
        out = np.full(16, 7, np.int32)
        report = getattr(machine(), function)(s.bytes(), [out])
        assert report.dropped == ("shim (0,0) S2MM 1",)
        assert (out == 7).all()
    assert simulated(machine()).dropped == ()


def test_constants_may_be_replaced() -> None:
    token = constants()["token"]
    slow = simulated(machine(working(50)), constants={"token": token + 1})
    difference = cycles_of(slow) - cycles_of(simulated(machine(working(50))))
    assert difference == pytest.approx(1e-6 * clock("npu2"))
    for wrong in ({"tokens": 1}, {"token": -1}, {"token": "1"}, 3):
        with pytest.raises(ArgumentError, match="constant"):
            simulated(machine(), constants=wrong)
    simulated(machine())  # as before


def test_functions_of_a_list_of_operations_take_cycles() -> None:
    def machine_of(cycles: dict[str, float] | None) -> Array:
        array = Array("npu2")
        array.configure(through_core())
        array.attach(0, 2, OPS, {"f": add_one}, cycles)
        return array

    lock = constants()["lock_operation"]
    report = simulated(machine_of({"f": 700, "other": 3}), trace=True)
    assert report.timing is not None and report.trace is not None
    assert report.timing.agents["core (0,2)"] == 700 + 2 * lock
    assert report.kernel_calls == 1
    assert report.trace.kernels == ["f"]
    for without in (None, {"other": 3}):
        with pytest.raises(EmulatorError, match=r"core \(0,2\) calls .* cost is not known"):
            simulated(machine_of(without))
    for wrong in (-1, "fast", float("nan"), 1e16):
        with pytest.raises(ArgumentError, match=r"cycles\['f'\] is"):
            machine_of({"f": wrong})  # type: ignore[dict-item]


def test_loads_of_configurations() -> None:
    """Skipped ones take no time; cores of all configurations count as one."""
    loads = {}
    for pdis in ((1,), (1, 1), (1, 2), (2, 1)):
        for milliseconds in (2.0, 5.0):
            array = Array("npu2")
            array.configure(Script().bytes())
            for pdi, cycles in ((1, 1000), (2, 7000)):
                array.add_pdi(
                    pdi, through_core(), lambda c=cycles, a=array: a.attach(0, 2, working(c))
                )
            a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
            report = array.simulate(
                loading(*pdis), [a, b], constants={"load_npu2": milliseconds}, trace=True
            )
            np.testing.assert_array_equal(b, a + 1)
            assert report.timing is not None and report.trace is not None
            loads[pdis, milliseconds] = report.timing.cycles
            worked = 8000 if len(set(pdis)) == 2 else 1000 * len(pdis)
            lock = constants()["lock_operation"]
            operations = 4 if len(set(pdis)) == 2 else 2 + 4 * (len(pdis) - 1)
            assert report.timing.agents["core (0,2)"] == worked + operations * lock
            (track,) = (t for t in report.trace.tracks if t.name == "core (0,2)")
            assert track.cycles["kernel"] == worked + operations * lock
    per_ms = clock("npu2") * 1e-3
    for pdis, count in (((1,), 1), ((1, 1), 1), ((1, 2), 2), ((2, 1), 2)):
        difference = loads[pdis, 5.0] - loads[pdis, 2.0]
        assert difference == pytest.approx(3 * count * per_ms)


def test_a_load_waits_until_the_array_is_at_rest() -> None:
    array = machine(working(1e6))
    array.add_pdi(1, through_core())
    s = Script().host_bd(0, 0, 0, length=16).push(0, 0, "mm2s", 0, 0)
    s.raw.load_pdi(1, 0, 0)
    report = array.simulate(s.bytes(), [np.arange(16, dtype=np.int32)], constants={"load_npu2": 1})
    assert cycles_of(report) > 1e6 + 1e-3 * clock("npu2")
    assert array.read_memory(0, 2, CORE_RESULT, 8) == np.array([1, 2], np.int32).tobytes()


def test_streams_that_rely_on_the_speed_of_the_array() -> None:
    """BD 0 is written anew while its task runs: the operation waits until it has ended."""
    s = Script().host_bd(0, 0, 0, length=8).push(0, 0, "mm2s", 0, 0)
    s.host_bd(0, 0, 0, 32, length=8).push(0, 0, "mm2s", 0, 0)
    s.host_bd(0, 1, 1, length=16).push(0, 0, "s2mm", 0, 1, token=True)
    s.raw.sync(0, 0, "s2mm", 0)
    a, b = np.arange(16, dtype=np.int32), np.zeros(16, np.int32)
    report = machine(working(10)).simulate(s.bytes(), [a, b])
    np.testing.assert_array_equal(b, a + 1)
    assert report.unwaited == 1
    never = Script().host_bd(0, 0, 0, length=32).push(0, 0, "mm2s", 0, 0)
    never.bd(0, 0, 0, length=8)
    with pytest.raises(EmulatorError, match="rewrites BD 0 of shim"):
        machine(lambda core: None).simulate(never.bytes(), [np.zeros(32, np.int32)])


def events(report: Report, track: str, kind: str) -> list[tuple[float, float]]:
    trace = report.trace
    assert trace is not None
    index = [t.name for t in trace.tracks].index(track)
    chosen = (trace.events["track"] == index) & (trace.events["kind"] == KINDS.index(kind))
    return [(float(e["start"]), float(e["end"])) for e in trace.events[chosen]]


def test_the_timeline_of_a_core(tmp_path: Path) -> None:
    report = simulated(machine(working(500)), trace=True)
    assert report.trace is not None
    assert report.trace.kernels == ["add one"]
    ((start, end),) = events(report, "core (0,2)", "kernel")
    assert end - start == 500 + 2 * constants()["lock_operation"]
    first, second = events(report, "core (0,2)", "wait lock")  # for data, and for more of them
    assert (first[0], first[1], second[0]) == (0, start, end)
    report.trace.save(tmp_path / "t.json")
    names = {e.get("name") for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"]}
    assert {"add one", "wait: lock 1", "start of BD 0"} <= names


@pytest.mark.parametrize("device", ["npu1", "npu2"])
def test_stream_ports_and_cascades(device: str) -> None:
    """Words leave a port at the rate of a stream, cascades pass a value per cycle."""
    c = Script(device)
    c.connect(0, 2, CORE_PORT, CORE_NORTH_OUT).connect(0, 3, CORE_SOUTH_IN, CORE_PORT)
    c.write(0, 3, 0x36060, 0).write(0, 2, 0x36060, 0)  # cascade southwards
    array = Array(device)
    array.configure(c.bytes())
    got: list[Any] = []

    def lower(core: Core) -> Steps:
        yield core.put(np.arange(4000, dtype=np.int32))
        got.append((yield core.get_cascade(8)))
        yield core.work(0, "cascade")

    def upper(core: Core) -> Steps:
        words = yield core.get(4000)
        yield core.work(100, "sum")
        yield core.put_cascade(np.full(128, words.sum(), np.int32))

    array.attach(0, 2, lower)
    array.attach(0, 3, upper)
    report = array.simulate(Script(device).bytes(), trace=True)
    assert (got[0] == np.arange(4000).sum()).all()
    ((start, end),) = events(report, "core (0,2) stream output", "send")
    rate = constants()[f"stream_{device}"]
    assert (start, end) == (0, pytest.approx(16000 / rate))
    assert events(report, "core (0,3) stream input", "receive") == [(start, end)]
    assert events(report, "core (0,3)", "kernel") == [(end, end + 100)]
    assert events(report, "core (0,2)", "kernel") == [(end + 100, end + 108)]


def test_work_that_is_refused() -> None:
    wrong: Any
    for wrong in (-1, float("nan"), float("inf"), "1 us", None):

        def program(core: Core, wrong: Any = wrong) -> Steps:
            yield core.work(wrong)

        with pytest.raises(ArgumentError, match=r"\[work\] core \(0,2\): cycles"):
            machine(program).submit(Script().bytes())

    def nameless(core: Core) -> Steps:
        yield core.work(1, "")

    with pytest.raises(ArgumentError, match="name is ''"):
        machine(nameless).submit(Script().bytes())


def test_a_reset_in_the_middle_of_work_is_refused() -> None:
    array = machine(lambda core: iter_work(core))
    s = Script().write(0, 2, 0x32000, 2)
    with pytest.raises(EmulatorError, match="in the middle of a transfer or kernel call"):
        array.simulate(s.bytes())
    array = machine(lambda core: iter_work(core))
    array.submit(s.bytes())


def iter_work(core: Core) -> Steps:
    yield core.work(1e6)


def test_nothing_comes_in_between() -> None:
    array = machine(working(1))
    seen: list[str] = []

    def intrudes(core: Core) -> Steps:
        for call in (array.submit, array.simulate, array.configure):
            with pytest.raises(ArgumentError, match="while the array is executing"):
                call(Script().bytes())
            seen.append(call.__name__)
        yield core.work(1)

    array.attach(0, 2, intrudes)
    array.simulate(Script().bytes())
    assert seen == ["submit", "simulate", "configure"]
