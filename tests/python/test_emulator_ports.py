"""What cores and tiles send and take themselves: core stream ports (circuits, broadcasts, packets,
missing routes), cascades (directions, depth, width), and control packets that set locks and read
registers back while a core runs, as programs of mlir-aie do.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from register_script import (
    CORE_CONTROL,
    CORE_DMA,
    CORE_EAST_OUT,
    CORE_NORTH_OUT,
    CORE_PORT,
    CORE_SOUTH_IN,
    CORE_SOUTH_OUT,
    CORE_WEST_IN,
    Script,
    read_back,
    shim_in,
    shim_out,
)

import npu
from npu.emulator import Array, Core

Steps = Generator[Any, Any, None]
CASCADE = 0x36060
FROM_WEST, TO_EAST = 1, 2
DEVICES = ["npu1", "npu2"]


def configured(script: Script, device: str = "npu2") -> Array:
    array = Array(device)
    array.configure(script.bytes())
    return array


def ints(array: Array, col: int, row: int, address: int, count: int) -> list[int]:
    return np.frombuffer(array.read_memory(col, row, address, 4 * count), np.int32).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_words_from_host_to_core_to_core_to_host(device: str) -> None:
    """Shim -> stream port of (0,2) -> stream port of (0,3) -> shim.

    The number of words is in the stream: a loop that depends on data.
    """
    c = shim_out(shim_in(Script(device)))
    c.connect(0, 2, CORE_SOUTH_IN, CORE_PORT).connect(0, 2, CORE_PORT, CORE_NORTH_OUT)
    c.connect(0, 3, CORE_SOUTH_IN, CORE_PORT).connect(0, 3, CORE_PORT, CORE_SOUTH_OUT)
    c.connect(0, 2, 15, CORE_SOUTH_OUT)  # north 0 -> south 0
    array = configured(c, device)

    def doubles(core: Core) -> Steps:
        count = yield core.get()
        for _ in range(count):
            value = yield core.get()
            yield core.put(2 * int(value))
        yield core.put(-1)

    def adds(core: Core) -> Steps:
        while (value := (yield core.get())) >= 0:
            yield core.put(np.array([value, value + 1], np.int32))

    array.attach(0, 2, doubles)
    array.attach(0, 3, adds)
    script = Script(device).host_bd(0, 0, 0, length=6).push(0, 0, "mm2s", 0, 0)
    given, out = np.array([5, 10, 20, 30, 40, 50], np.int32), np.zeros(10, np.int32)
    report = array.submit(read_back(script, 10, argument=1).bytes(), [given, out])
    assert out.tolist() == [20, 21, 40, 41, 60, 61, 80, 81, 100, 101]
    assert report.bytes_moved["core_read"] == report.bytes_moved["core_write"] == 0  # no core DMA
    assert report.bytes_moved["shim_read"] == 24 and report.bytes_moved["shim_write"] == 40


def test_a_broadcast_to_a_stream_port_and_a_dma() -> None:
    """Both take all words; the core's pace, some words at a time, holds the DMA back."""
    c = Script().connect(0, 2, CORE_PORT, CORE_NORTH_OUT).connect(0, 2, CORE_PORT, CORE_EAST_OUT)
    c.connect(0, 3, CORE_SOUTH_IN, CORE_DMA).connect(1, 2, CORE_WEST_IN, CORE_PORT)
    c.bd(0, 3, 0, length=12, base=0).push(0, 3, "s2mm", 0, 0)
    array = configured(c)
    taken: list[list[int]] = []

    def sends(core: Core) -> Steps:
        yield core.put(np.arange(12, dtype=np.int32))

    def takes(core: Core) -> Steps:
        for count in (1, 4, 7):
            words = yield core.get(count)
            taken.append(words.tolist())

    array.attach(0, 2, sends)
    array.attach(1, 2, takes)
    array.submit(Script().bytes())
    assert taken == [[0], [1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]]
    assert ints(array, 0, 3, 0, 12) == list(range(12))


def test_types_of_words() -> None:
    array = configured(Script().connect(0, 2, CORE_PORT, CORE_PORT))  # the switch's own loop
    seen: list[Any] = []

    def program(core: Core) -> Steps:
        # A core cannot send to itself: its put would wait for its get.
        yield core.put(1)

    array.attach(0, 2, program)
    script = Script()
    script.raw.sync(0, 0, "s2mm", 0)
    with pytest.raises(
        npu.errors.DeadlockError, match="sends words of its stream port: it waits for"
    ):
        array.submit(script.bytes())
    c = Script().connect(0, 2, CORE_PORT, CORE_NORTH_OUT).connect(0, 3, CORE_SOUTH_IN, CORE_PORT)
    array.configure(c.bytes())

    def sends(core: Core) -> Steps:
        yield core.put(np.array([1.5, -2], ml_dtypes.bfloat16))
        yield core.put(np.float32(0.25))
        yield core.put(-1)
        yield core.put(0xFFFFFFFE)
        yield core.put(np.arange(8, dtype=np.int8))

    def takes(core: Core) -> Steps:
        seen.append((yield core.get(1, ml_dtypes.bfloat16)).tolist())
        seen.append((yield core.get(dtype=np.float32)))
        seen.append((yield core.get(dtype=np.uint32)))
        seen.append((yield core.get()))
        seen.append((yield core.get(2, np.int8)).tolist())

    array.attach(0, 2, sends)
    array.attach(0, 3, takes)
    array.submit(Script().bytes())
    assert seen == [[1.5, -2], 0.25, 0xFFFFFFFF, -2, list(range(8))]


def test_routes_that_are_missing() -> None:
    def sends(core: Core) -> Steps:
        yield core.put(1)

    def takes(core: Core) -> Steps:
        yield core.get()

    for script, program, message in [
        (Script(), sends, r"core \(0,2\) stream output sends on a route that ends in core \(0,2\)"),
        (
            Script().connect(0, 2, CORE_PORT, CORE_NORTH_OUT),
            sends,
            r"stream output sends on a route that ends in core \(0,3\), where slave port South 0",
        ),
        (
            Script(),
            takes,
            r"core \(0,2\) takes words .* master port Core 0 of its switch is not ena",
        ),
    ]:
        array = configured(script)
        array.attach(0, 2, program)
        with pytest.raises(npu.errors.EmulatorError, match=message) as caught:
            array.submit(Script().bytes())
        assert caught.value.kind == "no_consumer"


def test_deadlocks_at_stream_ports_name_both_ends() -> None:
    c = shim_in(Script()).connect(0, 2, CORE_SOUTH_IN, CORE_PORT)

    def takes(core: Core) -> Steps:
        yield core.get(3)
        yield core.acquire(0)

    for length, message in [
        (2, r"core \(0,2\) waits for words at its stream port: it .*moved 2 of 3 words\), at line"),
        (4, r"shim \(0,0\) MM2S 0 waits for core \(0,2\) stream input to take 1 more words"),
    ]:
        array = configured(c)
        array.attach(0, 2, takes)
        script = Script().host_bd(0, 0, 0, length=length).push(0, 0, "mm2s", 0, 0, token=True)
        script.raw.sync(0, 0, "mm2s", 0)
        script.raw.sync(0, 0, "mm2s", 0)
        with pytest.raises(npu.errors.DeadlockError, match=message):
            array.submit(script.bytes(), [np.zeros(8, np.int32)])


def packet_port(
    script: Script, col: int, row: int, slave: int, packet: int, arbiter: int
) -> Script:
    """A slave port whose packets with this id go to masters of (arbiter, msel 0)."""
    script.write(col, row, 0x3F100 + 4 * slave, 3 << 30)
    slot = packet << 24 | 0x1F << 16 | 1 << 8 | arbiter
    return script.write(col, row, 0x3F200 + 0x10 * slave, slot)


def packet_master(
    script: Script, col: int, row: int, master: int, arbiter: int, drop: bool = False
) -> Script:
    return script.write(col, row, 0x3F000 + 4 * master, 3 << 30 | drop << 7 | 1 << 3 | arbiter)


def header(packet: int) -> int:
    return packet | (0 if packet.bit_count() % 2 else 1 << 31)


@pytest.mark.parametrize("drop", [False, True])
def test_packets_of_a_core(drop: bool) -> None:
    """Their first word is the header; the last one carries TLAST, or the arbiter stays taken."""
    c = packet_port(Script(), 0, 2, CORE_PORT, 5, 0)
    packet_master(c, 0, 2, CORE_NORTH_OUT, 0)
    packet_port(c, 0, 3, CORE_SOUTH_IN, 5, 1)
    packet_master(c, 0, 3, CORE_PORT, 1, drop)
    array = configured(c)
    taken: list[list[int]] = []

    def sends(core: Core) -> Steps:
        for first in (10, 20):
            yield core.put(header(5))
            yield core.put(np.array([first, first + 1], np.int32))
            yield core.put(first + 2, last=True)

    def takes(core: Core) -> Steps:
        for _ in range(2):
            words = yield core.get(3 if drop else 4, np.uint32)
            taken.append(words.tolist())

    array.attach(0, 2, sends)
    array.attach(0, 3, takes)
    array.submit(Script().bytes())
    heads = [] if drop else [header(5)]
    assert taken == [[*heads, 10, 11, 12], [*heads, 20, 21, 22]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_cascade_of_three_cores(device: str) -> None:
    """(0,3) -> (1,3) to the east, (1,3) -> (1,2) to the south; partial sums, 512 bits a value."""
    c = shim_out(Script(device), col=1).connect(1, 2, CORE_PORT, CORE_SOUTH_OUT)
    c.write(0, 3, CASCADE, TO_EAST).write(1, 3, CASCADE, FROM_WEST)
    array = configured(c, device)

    def first(core: Core) -> Steps:
        for i in range(12):
            yield core.put_cascade(np.full(16, i, np.float32))

    def middle(core: Core) -> Steps:
        for _ in range(6):
            values = yield core.get_cascade(2, np.float32)  # two at a time: 1024 bits
            assert values.shape == (32,) and values.dtype == np.float32
            yield core.put_cascade(values + 0.5)

    def last(core: Core) -> Steps:
        for _ in range(12):
            value = yield core.get_cascade(dtype=np.float32)
            yield core.put(value[15])

    for (col, row), program in {(0, 3): first, (1, 3): middle, (1, 2): last}.items():
        array.attach(col, row, program)
    out = np.zeros(12, np.float32)
    array.submit(read_back(Script(device), 12, col=1).bytes(), [out])
    assert out.tolist() == [i + 0.5 for i in range(12)]


def test_a_cascade_holds_four_values() -> None:
    array = configured(Script())
    sent: list[int] = []

    def sends(core: Core) -> Steps:
        for i in range(6):
            yield core.put_cascade(np.full(16, i, np.int32))
            sent.append(i)

    def takes(core: Core) -> Steps:
        yield core.acquire(0)
        yield core.get_cascade()
        yield core.acquire(0)
        yield core.get_cascade(6)

    array.attach(0, 3, sends)
    array.attach(0, 2, takes)
    array.submit(Script().bytes())
    assert sent == [0, 1, 2, 3]
    status = [npu.stream.tile_address(0, row, 0x32004) for row in (2, 3)]
    assert [array.read_register(at) for at in status] == [1 | 1 << 9, 1 | 1 << 15]
    array.submit(Script().lock(0, 2, 0, 1).bytes())
    assert sent == [0, 1, 2, 3, 4]
    script = Script().lock(0, 2, 0, 1)
    script.raw.sync(0, 0, "s2mm", 0)
    with pytest.raises(
        npu.errors.DeadlockError, match=r"waits for 1 more values of 512 bits of its"
    ):
        array.submit(script.bytes())
    assert sent == list(range(6))


@pytest.mark.parametrize(
    ("col", "row", "controls", "message"),
    [
        (0, 2, {}, r"core \(0,2\) writes its cascade to the south .*, where there is no core"),
        (7, 3, {(7, 3): TO_EAST}, r"to the east .*= 0x2\), where there is no core"),
        (0, 3, {(0, 3): TO_EAST}, r"where core \(1,3\) takes its cascade from the north"),
        (0, 3, {(0, 2): FROM_WEST}, r"where core \(0,2\) takes its cascade from the west"),
    ],
)
def test_cascades_that_lead_nowhere(
    col: int, row: int, controls: dict[tuple[int, int], int], message: str
) -> None:
    script = Script()
    for (c, r), value in controls.items():
        script.write(c, r, CASCADE, value)

    def sends(core: Core) -> Steps:
        yield core.put_cascade(np.zeros(16, np.int32))

    array = configured(script)
    array.attach(col, row, sends)
    with pytest.raises(npu.errors.EmulatorError, match=message) as caught:
        array.submit(Script().bytes())
    assert caught.value.kind == "no_consumer"
    assert f"line {sends.__code__.co_firstlineno + 1} of sends" in str(caught.value)


@pytest.mark.parametrize(
    ("col", "row", "controls", "message"),
    [
        (0, 5, {}, r"core \(0,5\) reads its cascade from the north .*, where there is no core"),
        (0, 3, {(0, 3): FROM_WEST}, r"from the west .*= 0x1\), where there is no core"),
        (1, 3, {(1, 3): FROM_WEST}, r"where core \(0,3\) writes its cascade to the south"),
        (1, 3, {(1, 4): TO_EAST}, r"where core \(1,4\) writes its cascade to the east"),
    ],
)
def test_cascades_that_come_from_nowhere(
    col: int, row: int, controls: dict[tuple[int, int], int], message: str
) -> None:
    script = Script()
    for (c, r), value in controls.items():
        script.write(c, r, CASCADE, value)

    def takes(core: Core) -> Steps:
        yield core.get_cascade()

    array = configured(script)
    array.attach(col, row, takes)
    with pytest.raises(npu.errors.EmulatorError, match=message):
        array.submit(Script().bytes())


def control_word(offset: int, count: int, operation: int, response: int = 0) -> int:
    word = response << 24 | operation << 22 | (count - 1) << 20 | offset
    return word | (0 if word.bit_count() % 2 else 1 << 31)


@pytest.mark.parametrize("device", DEVICES)
def test_a_core_is_started_and_read_by_control_packets(device: str) -> None:
    """The host sets locks by control packets (id 1), one per transfer; the core then adds in four
    passes and sends a result by its DMA (id 3); reads of its memory are answered by packets (id 2).
    """
    c = shim_out(shim_in(Script(device)))
    # Packets of (0,2): TileControl (id 2) and DMA 0 (id 3) share South 0, and the shim's S2MM 0
    # takes them in the order in which the stream asks for them.
    packet_port(c, 0, 2, CORE_SOUTH_IN, 1, 0)
    packet_master(c, 0, 2, CORE_CONTROL, 0)
    packet_port(c, 0, 2, CORE_CONTROL, 2, 1)
    packet_port(c, 0, 2, CORE_DMA, 3, 1)
    packet_master(c, 0, 2, CORE_SOUTH_OUT, 1, drop=True)
    bd = {"length": 8, "base": 0x420 // 4, "packet_enable": True, "packet_id": 3}
    bd |= {"acquire_enable": True, "acquire_id": 4, "acquire_value": -1}
    c.bd(0, 2, 0, **bd).push(0, 2, "mm2s", 0, 0)
    array = configured(c, device)

    def core(core: Core) -> Steps:
        data = core.buffer(0x400, 8, np.int32)
        result, other = core.buffer(0x420, 8, np.int32), core.buffer(0x440, 8, np.int32)
        data[:] = np.arange(8) + 3
        other[:] = 1
        for lock in (0, 0, 2, 2):
            yield core.acquire(lock)
            data += 1
        result[:] = data
        other[:] = data + 1
        yield core.release(4)

    array.attach(0, 2, core)
    sent = [control_word(0x1F000, 1, 0), 2, control_word(0x1F020, 1, 0), 2]
    sent += [control_word(0x440, 4, 1, response=2), control_word(0x450, 4, 1, response=2)]
    out, answer = np.zeros(8, np.int32), np.zeros(8, np.int32)
    s = Script(device)

    def send(first: int, length: int) -> None:
        s.host_bd(0, 0, 0, 4 * first, length=length, packet_enable=True, packet_id=1)
        s.push(0, 0, "mm2s", 0, 0, token=True).raw.sync(0, 0, "mm2s", 0)

    send(0, 2)
    send(2, 2)
    read_back(s, 8, argument=1)
    s.host_bd(0, 1, 2, length=8).push(0, 0, "s2mm", 0, 1, token=True)
    send(4, 1)
    send(5, 1)
    s.raw.sync(0, 0, "s2mm", 0)
    array.submit(s.bytes(), [np.array(sent, np.uint32), out, answer])
    assert out.tolist() == [7 + i for i in range(8)]
    assert answer.tolist() == [8 + i for i in range(8)]


def test_an_answer_that_nobody_takes_is_named() -> None:
    c = packet_port(shim_in(Script()), 0, 2, CORE_SOUTH_IN, 1, 0)
    packet_master(c, 0, 2, CORE_CONTROL, 0)
    words = np.array([control_word(0x400, 1, 1, response=2)], np.uint32)
    s = Script().host_bd(0, 0, 0, length=1, packet_enable=True, packet_id=1)
    s.push(0, 0, "mm2s", 0, 0, token=True).raw.sync(0, 0, "mm2s", 0)
    with pytest.raises(
        npu.errors.EmulatorError, match=r"core \(0,2\) TileControl sends .* slave port"
    ) as e:
        configured(c).submit(s.bytes(), [words])
    assert e.value.kind == "no_consumer"
    packet_port(c, 0, 2, CORE_CONTROL, 2, 1)
    packet_master(c, 0, 2, CORE_NORTH_OUT, 1, drop=True)
    c.connect(0, 3, CORE_SOUTH_IN, CORE_DMA)
    s.raw.sync(0, 0, "s2mm", 0)
    with pytest.raises(
        npu.errors.DeadlockError, match=r"core \(0,2\) TileControl waits for core \(0,3\)"
    ):
        configured(c).submit(s.bytes(), [words])
