"""The rules of the core simulator, each with a program of a few bundles: when results become
visible, what is an error, what costs a stall, how pointers move, how a hardware loop runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from vliw_programs import RETURN, changed, memory, run

from npu.errors import DesignError, FormatError, ScheduleError
from npu.vliw import assembly
from npu.vliw.aie2 import AIE2
from npu.vliw.aie2p import AIE2P
from npu.vliw.machine import Operation
from npu.vliw.program import Program, aligned
from npu.vliw.simulator import Core

OLD, NEW = bytes([1]) * 32, bytes([2]) * 32
LINES = np.arange(64 * 8, dtype=np.uint32)  # line i of 32 bytes: 8 i ... 8 i + 7


def nops(count: int) -> str:
    return "nop\n" * count


def line(index: int) -> bytes:
    return LINES[8 * index : 8 * index + 8].tobytes()


@pytest.mark.parametrize(("wait", "expected"), [(6, NEW), (5, OLD)])
@pytest.mark.parametrize("load", ["vlda", "vldb"])
def test_a_load_takes_seven_cycles(load: str, wait: int, expected: bytes) -> None:
    content = memory(at_64=np.frombuffer(NEW, np.uint8))
    text = f"{load} wl0, [p0], #32\n{nops(wait)}vst wl0, [p1], #32"
    core, _ = run(text, content, p0=64, p1=1024, wl0=OLD)
    assert core.memory[1024:1056] == expected
    assert core.registers["p0"] == 96


def ones() -> dict[str, bytes]:
    """Tiles of ones: every product adds 8 to all lanes."""
    one = np.full(16, 0x3F80, np.uint16).tobytes()
    return {name: one for name in ("wl0", "wh0", "wl1", "wh1")}


def sums(core: Core, register: str) -> set[float]:
    return set(np.frombuffer(core.registers[register], np.float32).tolist())


@pytest.mark.parametrize(("wait", "expected"), [(5, 9.0), (4, 1.0)])
def test_a_multiplication_takes_six_cycles(wait: int, expected: float) -> None:
    start = np.ones(8, np.float32).tobytes()
    text = f"vmac.f bml0, bml0, x0, x1, r0\n{nops(wait)}vst amlh0, [p0], #32"
    core, _ = run(text, **ones(), amll0=start, amlh0=start, r0=28, p0=64)
    assert set(np.frombuffer(core.memory[64:96], np.float32).tolist()) == {expected}


@pytest.mark.parametrize(("wait", "expected"), [(3, 16.0), (2, 8.0)])
def test_accumulators_are_read_in_the_third_cycle(wait: int, expected: float) -> None:
    mac = "vmac.f bml0, bml0, x0, x1, r0\n"
    zero = bytes(32)
    core, _ = run(mac + nops(wait) + mac, **ones(), amll0=zero, amlh0=zero, r0=28)
    assert sums(core, "amll0") == {expected}


@pytest.mark.parametrize(("wait", "expected"), [(4, 10.0), (3, 8.0)])
def test_a_multiplication_follows_the_load_of_its_accumulator_by_five(
    wait: int, expected: float
) -> None:
    content = memory(at_0=np.full(8, 2, np.float32))
    text = f"vlda amll0, [p0], #32\n{nops(wait)}vmac.f bml0, bml0, x0, x1, r0"
    core, _ = run(text, content, **ones(), amll0=bytes(32), amlh0=bytes(32), r0=28, p0=0)
    assert sums(core, "amll0") == {expected}


@pytest.mark.parametrize(("wait", "expected"), [(1, 6), (0, 3)])
def test_a_scalar_product_takes_two_cycles(wait: int, expected: int) -> None:
    core, _ = run(f"mul r2, r0, r1\n{nops(wait)}mov r3, r2", r0=2, r1=3, r2=3)
    assert core.registers["r3"] == expected


def test_a_register_that_was_never_written() -> None:
    with pytest.raises(ScheduleError, match=r"bundle 0, vst wl3.*: wl3 was never written"):
        run("vst wl3, [p0], #32", p0=0)
    with pytest.raises(ScheduleError, match="amlh0 was never written"):
        run("vmac.f bml0, bml0, x0, x1, r0", **ones(), amll0=bytes(32), r0=28)


@pytest.mark.parametrize(("wait", "early"), [(6, []), (5, ["wl0"]), (0, ["wl0"])])
def test_a_register_that_is_read_early(wait: int, early: list[str]) -> None:
    """An older value is no error, but noted, unless it is read in the writer's own bundle."""
    text = f"vlda wl0, [p0], #32\n{nops(wait)}vst wl0, [p1], #32"
    _, result = run(text, p0=64, p1=1024, wl0=OLD)
    assert [read.split(": ")[1] for read in result.early] == early
    assert set(result.early.values()) <= {"bundle 0, vlda wl0, [p0], #32"}
    _, result = run("vlda wl0, [p0], #32; vst wl0, [p1], #32", p0=64, p1=0x4000, wl0=OLD)
    assert not result.early


def test_slots() -> None:
    with pytest.raises(DesignError, match="line 1: slot ldb is used twice"):
        run("vldb wl0, [p0], #32; vldb wl1, [p1], #32")
    with pytest.raises(DesignError, match="slots lng and mv exclude each other"):
        run("movxm r0, #5; mov r1, #6")


def test_ports() -> None:
    """No two operations of the kernels here collide; a slower write through a load's port does."""

    def through_loads(operation: Operation) -> Operation:
        ports = (("W write a", 6),) if operation.key == "vmac.f" else operation.ports
        return dataclasses.replace(operation, ports=ports)

    text = "vlda wl3, [p0], #32\nvmac.f bml0, bml0, x0, x1, r0"
    registers = {**ones(), "amll0": bytes(32), "amlh0": bytes(32), "r0": 28, "p0": 0}
    with pytest.raises(ScheduleError, match="port 'W write a' is used twice"):
        run(text, None, changed(AIE2, through_loads), **registers)


def test_two_results_in_one_cycle() -> None:
    with pytest.raises(ScheduleError, match="wl0 gets two results in one cycle"):
        run("vlda wl0, [p0], #32; vldb wl0, [p1], #32", p0=0, p1=0x4000)
    with pytest.raises(ScheduleError, match="p0 is changed twice in one cycle"):
        run("vlda wl0, [p0], #32; paddb [p0], #32", p0=0)


@pytest.mark.parametrize(
    ("text", "addresses", "stalls"),
    [
        ("vlda wl0, [p0], #32; vldb wl1, [p1], #32", (0, 0x4000), 0),
        ("vlda wl0, [p0], #32; vldb wl1, [p1], #32", (0, 0x2000), 1),
        ("vlda wl0, [p0], #32; vst wl9, [p1], #32", (0, 0x2000), 1),  # a bundle's own store
        ("vlda wl0, [p0], #32; vst wl9, [p1], #32", (0, 0xC000), 0),
        ("vlda wl0, [p0], #32\nvldb wl1, [p1], #32", (0, 0x2000), 0),  # one after the other
    ],
)
def test_bank_conflicts(text: str, addresses: tuple[int, int], stalls: int) -> None:
    _, result = run(text, p0=addresses[0], p1=addresses[1], wl9=OLD)
    assert result.stalls == stalls
    assert result.cycles == result.bundles + stalls == len(text.splitlines()) + 6 + stalls


def test_three_accesses_of_a_bank_cost_two_stalls() -> None:
    text = "vlda wl0, [p0], #32; vldb wl1, [p1], #32; vst wl9, [p2], #32"
    assert run(text, p0=0, p1=64, p2=128, wl9=OLD)[1].stalls == 2


def test_addresses() -> None:
    for address, words in ((8, "multiple of 32"), (65536, "within 65536 bytes")):
        with pytest.raises(ScheduleError, match=words):
            run("vlda wl0, [p0], #32", p0=address)


@pytest.mark.parametrize(
    ("access", "read", "after"),
    [
        ("vlda wl0, [p0], #-64", 2, 0),
        ("vldb wl0, [p0, #64]", 4, 64),
        ("vlda wl0, [p0], m1", 2, 160),
        ("vlda wl0, [p0, dj2]", 1, 64),
    ],
)
def test_address_modes(access: str, read: int, after: int) -> None:
    registers = {"p0": 64, "m1": 96, "dj2": (1 << 20) - 32}
    core, _ = run(access, memory(at_0=LINES), **registers)
    assert core.registers["wl0"] == line(read)
    assert core.registers["p0"] == after


def test_a_walk_in_two_dimensions() -> None:
    """dn steps of dj, then one of m, and again."""
    registers = {"p0": 0, "m3": 256, "dn3": 2, "dj3": 32, "dc3": 0}
    text = "\n".join(f"vldb.2d wl{i}, [p0], d3" for i in range(7))
    core, _ = run(text, memory(at_0=LINES), **registers)
    assert [core.registers[f"wl{i}"] for i in range(7)] == [
        line(i) for i in (0, 1, 2, 10, 11, 12, 20)
    ]
    assert core.registers["dc3"] == 1


def test_pointers_and_additions() -> None:
    core, _ = run(
        "padds [p0], #-32\npaddb [p0], m0\nadd r1, r0, #-3\nmov p1, p0", p0=64, m0=8, r0=1
    )
    assert (core.registers["p0"], core.registers["p1"]) == (40, 40)
    assert core.registers["r1"] == (1 << 32) - 2


def test_a_copy_reads_the_pointer_before_the_access_moves_it() -> None:
    core, _ = run("vlda wl0, [p0], #32; mov p1, p0", p0=64)
    assert (core.registers["p0"], core.registers["p1"]) == (96, 64)


def test_stores_of_a_cycle_come_after_its_loads() -> None:
    core, result = run("vlda wl0, [p0], #32; vst wl9, [p1], #32", p0=0, p1=0, wl9=NEW)
    assert core.registers["wl0"] == bytes(32) and core.memory[:32] == NEW
    assert result.stalls == 1


def loop(before: str, body: str, count: int = 3, end: str = ".end") -> Program:
    """A loop over ``body``, aligned as it must be, with ``before`` between its set-up and it."""
    lines = body.splitlines()
    text = f"movxm ls, #.start\nmovxm le, #{end}\nmovxm lc, #{count}\n{before}"
    text += "\n.start:\n" + "\n".join(lines[:-1]) + f"\n.end:\n{lines[-1]}\n{RETURN}"
    program = assembly.read(text, AIE2)
    first, last = program.labels[".start"], program.labels[".end"]
    return aligned(Program("loop", AIE2, program.bundles, program.labels, ((first, last),)))


FULL = "nopa; nopb; nops; nopx; nopm; nopv\n"
COUNT = "add r0, r0, #1\nnop\nadd r1, r1, #2"


def test_a_loop_runs_its_count_without_cost() -> None:
    core = Core(memory(), {"r0": 0, "r1": 0})
    result = core.run(loop(FULL * 4, COUNT, 5))
    assert (core.registers["r0"], core.registers["r1"]) == (5, 10)
    assert result.cycles == 3 + 4 + 5 * 3 + 6


def test_loop_set_up_distance() -> None:
    with pytest.raises(ScheduleError, match=r"lc is set 48 bytes before its start, at least 64"):
        Core(memory(), {"r0": 0, "r1": 0}).run(loop(FULL * 3, COUNT))


def test_loop_alignment() -> None:
    program = loop(FULL * 4, COUNT)
    plain = assembly.read(
        "movxm ls, #.start\nmovxm le, #.end\nmovxm lc, #3\n" + FULL * 4 + "nop\n.start:\n"
        "add r0, r0, #1\n.end:\n" + FULL + RETURN, AIE2,
    )  # fmt: skip
    with pytest.raises(ScheduleError, match=r"is no multiple of 16"):
        Core(memory(), {"r0": 0}).run(plain)
    last = program.loops[0][1]
    bundles = list(program.bundles)
    bundles[last] = assembly.read("add r1, r1, #2", AIE2).bundles[0]
    short = Program("short", AIE2, tuple(bundles), program.labels, program.loops)
    with pytest.raises(ScheduleError, match="its last bundle has 4 bytes, not 16"):
        Core(memory(), {"r0": 0, "r1": 0}).run(short)


def test_misplaced_loop_end() -> None:
    with pytest.raises(ScheduleError, match="the loop end, byte 7, is no bundle's address"):
        run("movxm ls, #0\nmovxm le, #7\nmovxm lc, #3\n" + FULL * 5)
    with pytest.raises(ScheduleError, match="is no bundle before it"):
        text = "movxm ls, #.late\nmovxm le, #.end\nmovxm lc, #2\n" + FULL * 4
        run(f"{text}nop\n.end:\n{FULL}{FULL}.late:\n{FULL}")
    with pytest.raises(ScheduleError, match=r"there is no label \.gone"):
        run("movxm ls, #.gone")


def test_the_return_has_five_delay_slots() -> None:
    core, result = run("mov r0, #1")
    assert result.bundles == 7
    program = assembly.read("ret lr\n" + "add r0, r0, #1\n" * 9, AIE2)
    core = Core(memory(), {"r0": 0})
    core.run(program)
    assert core.registers["r0"] == 5


def test_a_program_without_an_end() -> None:
    with pytest.raises(ScheduleError, match="runs past its last bundle"):
        Core(memory(), {}).run(assembly.read("nop\nret lr\nnop", AIE2))


def test_program_memory() -> None:
    text = FULL * 1024 + RETURN
    with pytest.raises(ScheduleError, match="program memory has 16384"):
        Core(memory(), {}).run(assembly.read(text, AIE2))


def test_configurations_that_are_not_simulated() -> None:
    with pytest.raises(ScheduleError, match="configuration 29"):
        run("vmac.f bml0, bml0, x0, x1, r0", **ones(), amll0=bytes(32), amlh0=bytes(32), r0=29)


def test_the_second_generation() -> None:
    """Loads of 64 bytes into vectors and accumulators, moves between them, stores."""
    content = memory(at_64=LINES[:16])
    text = f"vldb x1, [p0], #64\n{nops(6)}vmov bmlh2, x1\nnop\nvst bmlh2, [p1], #64"
    core, _ = run(text, content, AIE2P, p0=64, p1=0x8000)
    assert core.memory[0x8000:0x8040] == LINES[:16].tobytes()


# Load files of the second generation.

BLOCKS = np.arange(256, dtype=np.uint8)
POP = "vlda.pop.576 ex{}, [p0, lf0, r24]"
FILL = "vlda.fill.512 [p0, lf0, r24]"


def through_file(text: str, **registers: int) -> Core:
    start = {"p0": 64, "r24": 0} | registers
    return run(text, memory(at_64=np.tile(BLOCKS, 4)), AIE2P, **start)[0]


def test_a_pop_takes_the_next_72_bytes() -> None:
    core = through_file("\n".join([FILL, *(POP.format(i) for i in range(8))]))
    taken = np.tile(BLOCKS, 4)[: 8 * 72].reshape(8, 8, 9)
    for i, blocks in enumerate(taken):
        assert core.value(f"e{i}") == blocks[:, 0].tobytes()
        assert core.value(f"x{i}") == blocks[:, 1:].tobytes()
    assert (core.registers["p0"], core.registers["r24"]) == (64 + 8 * 72, 0)


@pytest.mark.parametrize(
    ("text", "registers", "words"),
    [
        (POP.format(0), {}, "lf0 would hold -8 bytes"),
        ("\n".join([FILL] + [POP.format(1)] * 9), {}, "lf0 would hold -8 bytes"),
        ("\n".join([FILL] * 3), {}, "lf0 would hold 192 bytes"),
        (FILL, {"r24": 64}, "r24 says 64 bytes, lf0 holds 0"),
        (FILL, {"p0": 65536}, "must be a multiple of 64"),
        (f"{FILL}\n{POP.format(0)}\nvlda x3, [p1], #64", {"p1": 0}, "'write lda' is used twice"),
    ],
)
def test_rules_of_load_files(text: str, registers: dict[str, int], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        through_file(text, **registers)


@pytest.mark.parametrize("first", range(8))
def test_a_pop_from_any_tile_moves_on_and_leaves_the_file_empty(first: int) -> None:
    """A fill takes the rest of a line: from tile 7 on that is enough for one pop."""
    content = np.tile(BLOCKS, 4)[: 72 * 14].reshape(-1, 72)
    leave = "vlda.pop.576 ex1, [p0, lf0, r24, m0]\n"
    core = through_file(f"{FILL}\n{leave}{nops(1)}", p0=64 + 72 * first, m0=144)
    assert core.value("x1") == content[first].reshape(8, 9)[:, 1:].tobytes()
    assert (core.registers["p0"], core.registers["r24"]) == (64 + 72 * first + 144, 0)


def test_a_line_that_is_used_up() -> None:
    """Tiles 7 and 8 lie in two lines of eight: the second pop needs a fill."""
    with pytest.raises(ScheduleError, match="lf0 would hold -8 bytes"):
        through_file("\n".join([FILL, POP.format(0), POP.format(1)]), p0=64 + 72 * 7)


def test_a_load_of_an_accumulator_may_follow_a_pop() -> None:
    core = through_file(f"{FILL}\n{POP.format(0)}\nvlda bmll3, [p1], #64", p1=64)
    assert core.registers["bmll3"] == BLOCKS.tobytes()[:64]


def test_the_other_unit_may_load_after_a_pop() -> None:
    core = through_file(f"{FILL}\n{POP.format(0)}\nvldb x3, [p1], #64", p1=0)
    assert core.value("x3") == bytes(64)
    with pytest.raises(FormatError, match="no form of"):
        through_file("vlda.pop.576 ex0, [p0, lf1, r24]")


def blocks_of_ones() -> dict[str, bytes]:
    """Tiles of ones: every product adds 8 to all lanes."""
    tile = {"x": np.full(64, 64, np.int8).tobytes(), "e": bytes([127]) * 8}
    found = {f"{part}{i}": tile[part] for part in tile for i in (0, 1)}
    return found | {f"bm{part}0": bytes(64) for part in ("ll", "lh", "hl", "hh")}


@pytest.mark.parametrize(("wait", "expected"), [(2, 16.0), (1, 8.0)])
def test_accumulators_are_read_in_the_fourth_cycle(wait: int, expected: float) -> None:
    mac = "vmac.f dm0, dm0, ex0, ex1, r0\n"
    core, _ = run(mac + nops(wait) + mac, None, AIE2P, **blocks_of_ones(), r0=780)
    assert {v for part in ("ll", "hh") for v in sums(core, f"bm{part}0")} == {expected}
    with pytest.raises(ScheduleError, match="configuration 28; only 780"):
        run(mac, None, AIE2P, **blocks_of_ones(), r0=28)


@pytest.mark.parametrize(("wait", "expected"), [(7, 8.0), (6, 0.0)])
def test_a_pop_takes_eight_cycles(wait: int, expected: float) -> None:
    block = np.frombuffer((bytes([127]) + bytes([64]) * 8) * 8 + bytes(56), np.uint8)
    registers = blocks_of_ones() | {"x0": bytes(64)}
    text = f"{FILL}\n{POP.format(0)}\n{nops(wait)}vmac.f dm0, dm0, ex0, ex1, r0"
    core, _ = run(text, memory(at_64=block), AIE2P, **registers, r0=780, p0=64, r24=0)
    assert sums(core, "bmll0") == {expected}


# Conversions and shuffles of npu2.

SUMS = {f"bm{part}0": bytes(64) for part in ("ll", "lh", "hl", "hh")}
MODES = {"crsat": 1, "crrnd": 12, "crupsmode": 0, "crsrsmode": 0, "s0": 4}
BYTES = np.arange(-32, 32, dtype=np.int8)


@pytest.mark.parametrize(("wait", "shift"), [(8, 4), (7, None)])
def test_a_load_with_ups_takes_nine_cycles(wait: int, shift: int | None) -> None:
    text = f"vlda.ups.4x dm0, s0, upssign1, [p0], #64\n{nops(wait)}vst bmll0, [p1], #64\n{nops(2)}"
    core, _ = run(text, memory(at_0=BYTES), AIE2P, **SUMS, **MODES, p0=0, p1=1024)
    found = np.frombuffer(core.memory[1024:1088], np.int32)
    expected = np.zeros(16) if shift is None else BYTES[:16].astype(np.int32) << shift
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        np.frombuffer(core.registers["bmhh0"], np.int32), BYTES[48:].astype(np.int32) << 4
    )


@pytest.mark.parametrize(("late", "shift"), [(5, 5), (6, 4)])
def test_the_shift_of_a_load_is_read_in_its_seventh_cycle(late: int, shift: int) -> None:
    text = f"vlda.ups.4x dm0, s0, upssign1, [p0], #64\n{nops(late - 1)}mov s0, r0\n{nops(9)}"
    core, _ = run(text, memory(at_0=BYTES), AIE2P, **SUMS, **MODES, r0=5, p0=0)
    found = np.frombuffer(core.registers["bmll0"], np.int32)
    np.testing.assert_array_equal(found, BYTES[:16].astype(np.int32) << shift)


@pytest.mark.parametrize(("wait", "value"), [(1, 0), (2, 2)])
def test_a_store_with_srs_reaches_memory_in_its_seventh_cycle(wait: int, value: int) -> None:
    """A load accesses memory in its fifth: two cycles later it sees what was there before."""
    sums = {part: np.full(16, 24, np.int32).tobytes() for part in SUMS}
    text = f"vst.srs.4x dm0, s0, srssign1, [p0], #64\n{nops(wait)}vldb x0, [p1], #64\n{nops(8)}"
    core, _ = run(text, memory(), AIE2P, **sums, **MODES, p0=64, p1=64)
    assert set(core.value("x0")) == {value}  # 24 / 16 = 1.5, to even


def test_a_mode_that_is_not_simulated() -> None:
    text = "vst.srs.4x dm0, s0, srssign1, [p0], #64"
    with pytest.raises(ScheduleError, match="crsrsmode is 2; only 0 and 1, lanes of 32"):
        run(text, memory(), AIE2P, **SUMS, **(MODES | {"crsrsmode": 2}), p0=64)
    with pytest.raises(ScheduleError, match="crrnd was never written"):
        run(text, memory(), AIE2P, **SUMS, p0=64, s0=0, crsat=0, crsrsmode=0)


def test_bytes_are_transposed() -> None:
    core, _ = run("vshuffle x1, x0, x0, r0\n" + nops(2), None, AIE2P, x0=bytes(range(64)), r0=35)
    expected = np.arange(64, dtype=np.uint8).reshape(8, 8).T.tobytes()
    assert core.value("x1") == expected
    with pytest.raises(ScheduleError, match="mode 39 of vshuffle is not"):
        run("vshuffle x1, x0, x0, r0\n" + nops(2), None, AIE2P, x0=bytes(64), r0=39)


def test_accumulators_have_one_write_port() -> None:
    """A load with UPS and a plain load two cycles later both write in its ninth."""
    text = "vlda.ups.4x dm0, s0, upssign1, [p0], #64\nnop\nvlda bmll1, [p0], #64\n" + nops(9)
    with pytest.raises(ScheduleError, match="port 'DM write m' is used twice"):
        run(text, memory(), AIE2P, **SUMS, **MODES, p0=0)
