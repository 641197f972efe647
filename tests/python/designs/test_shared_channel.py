"""A shim channel that a FIFO and programs share: switch registers and ports against values derived
here, every packet's way through npu1's prefill, what a design refuses, the MLIR."""

from __future__ import annotations

import re

import pytest
from designs_reference import MASTERS, SLAVES, Registers, read_configuration, run_txn, tile_kind

from npu._npu import device
from npu.designs import prefill
from npu.designs.api import Design
from npu.designs.lowering import lower, print_mlir, serialise
from npu.errors import DesignError

FIFO, PROGRAMS = 1, 2  # packet ids
WIRES = {"N": ((0, 1), "S"), "S": ((0, -1), "N"), "E": ((1, 0), "W"), "W": ((-1, 0), "E")}


def shared(*, programs: bool = True) -> Design:
    """Words by shim channel 1 to two cores, which add nothing; programs come beside them."""
    design = Design("shared", "npu1", token_ports=True)
    shim, memtile, cores = design.tile(0, 0), design.tile(0, 1), design.cores(0, 2)
    outer = design.fifo("words", shim, memtile, 16, port="B0", producer_channel=1)
    inner = design.fifo("spread", memtile, cores, 16)
    design.forward(outer, inner)
    for core in cores:
        worker = design.worker(core)
        with worker.overlay("only"):
            worker.acquire(inner)
            worker.release(inner)
    if programs:
        design.programs("programs", shim, 1, cores, beside=outer)
    return design


def test_ports_state_their_packets() -> None:
    data = serialise(lower(shared()))
    text = data.split(b"\ntxn ")[0].decode().splitlines()
    assert "port B0 0 mm2s 1 1" in text and "port programs 0 mm2s 1 2" in text
    assert "resource 0 0 mm2s_channels 1 2" in text  # one channel
    ports = device.parse_configuration(data)["ports"]
    assert ports == [("B0", 0, "mm2s", 1, FIFO), ("programs", 0, "mm2s", 1, PROGRAMS)]


def test_switches_have_a_slot_and_masters_for_each_id() -> None:
    """Offsets and fields as docs/reference/hardware.md 3.1 and 3.2 number them; every slot takes
    its id alone (mask 31) to the arbiter of that number, msel 0."""
    tiles = run_txn(read_configuration(serialise(lower(shared()))).txn).tiles
    packet, slots = 0xC0000000, {FIFO: 0x011F0101, PROGRAMS: 0x021F0102}
    to_fifo, to_programs = packet | 1 << 3 | 1, packet | 1 << 3 | 2
    shim, memtile, low, high = (tiles[0, row] for row in range(4))
    # Shim: slave South 7 (number 9), masters North 0 and 1 (12, 13).
    assert shim[0x3F100 + 4 * 9] == packet
    assert [shim.get(0x3F200 + 16 * 9 + 4 * s) for s in range(4)] == [None, *slots.values(), None]
    assert (shim[0x3F000 + 4 * 12], shim[0x3F000 + 4 * 13]) == (to_fifo, to_programs)
    # Tokens keep slave and arbiter of their own: TileControl, 5.
    assert (shim[0x3F008], shim[0x3F100], shim[0x3F200]) == (0xC0000045, packet, 0x0F1F0135)
    # Memtile: slaves South 0 and 1 (7, 8); DMA 0, which drops the header (bit 7), and North 1 (12).
    assert (memtile[0xB0100 + 4 * 7], memtile[0xB0100 + 4 * 8]) == (packet, packet)
    assert memtile[0xB0200 + 16 * 7 + 4 * FIFO] == slots[FIFO]
    assert memtile[0xB0200 + 16 * 8 + 4 * PROGRAMS] == slots[PROGRAMS]
    assert memtile[0xB0000] == to_fifo | 1 << 7
    assert memtile[0xB0000 + 4 * 12] == to_programs
    # Cores: slave South 1 (6); TileControl (3) keeps the header; the lower one sends on by North 1.
    for core in (low, high):
        assert core[0x3F100 + 4 * 6] == packet
        assert core[0x3F200 + 16 * 6 + 4 * PROGRAMS] == slots[PROGRAMS]
        assert core[0x3F000 + 4 * 3] == to_programs
    assert low[0x3F000 + 4 * 14] == to_programs and 0x3F000 + 4 * 14 not in high


def packets(registers: Registers, number: int) -> tuple[set, set]:
    """Follows the packets of an id from shim (0,0) South 7: who gets them with and who without
    their header, as (tile, master)."""
    ends: dict[bool, set] = {True: set(), False: set()}

    def follow(tile: tuple[int, int], slave: str) -> None:
        kind = tile_kind(tile)
        base = 0xB0000 if kind == "mem" else 0x3F000
        port = SLAVES[kind].index(slave)
        assert registers.get(tile, base + 0x100 + 4 * port) == 0xC0000000
        slots = [registers.get(tile, base + 0x200 + 16 * port + 4 * s) for s in range(4)]
        found = [
            s for s in slots
            if s >> 8 & 1 and (s >> 24 ^ number) & s >> 16 & 0x1F == 0
        ]  # fmt: skip
        assert len(found) == 1, (tile, slave, slots)
        arbiter, msel = found[0] & 7, found[0] >> 4 & 3
        values = [(m, registers.get(tile, base + 4 * i)) for i, m in enumerate(MASTERS[kind])]
        taking = [
            (m, v) for m, v in values
            if v >> 30 == 3 and v & 7 == arbiter and v >> 3 + msel & 1
        ]  # fmt: skip
        assert taking, (tile, slave)
        for master, value in taking:
            if master[0] in WIRES:
                assert not value >> 7 & 1  # what is dropped here cannot be matched further on
                (dc, dr), entry = WIRES[master[0]]
                if kind == "mem":
                    assert slave[1:] == master[1:]
                follow((tile[0] + dc, tile[1] + dr), entry + master[1:])
            else:
                end = tile, master
                assert end not in ends[True] | ends[False]
                ends[not value >> 7 & 1].add(end)

    follow((0, 0), "S7")
    return ends[True], ends[False]


def test_prefill_sends_programs_to_all_cores_of_npu1_and_data_to_the_memtile() -> None:
    registers = run_txn(read_configuration(prefill.configuration("npu1")).txn)
    cores = {((col, row), "ctrl0") for col in range(4) for row in range(2, 6)}
    assert packets(registers, PROGRAMS) == (cores, set())
    assert packets(registers, FIFO) == (set(), {((0, 1), "dma1")})
    with pytest.raises(AssertionError):
        packets(registers, 3)


def test_no_other_channel_sends_packets() -> None:
    for generation, ids in (("npu1", {"B0": FIFO, "programs": PROGRAMS}), ("npu2", {})):
        assert read_configuration(prefill.configuration(generation)).packets == ids


def test_a_design_refuses_what_cannot_share() -> None:
    design = shared(programs=False)
    shim, cores, (words, spread) = design.tile(0, 0), design.cores(0, 2), design.fifos
    with pytest.raises(DesignError, match='"words" does not begin at MM2S channel 0 of shim'):
        design.programs("a", shim, 0, cores, beside=words)
    with pytest.raises(DesignError, match=r"channel 1 of shim tile \(1, 0\)"):
        design.programs("b", design.tile(1, 0), 1, cores, beside=words)
    with pytest.raises(DesignError, match='"spread" does not begin'):
        design.programs("c", shim, 1, cores, beside=spread)
    with pytest.raises(DesignError, match='"words" does not begin'):
        design.programs("d", shim, 1, cores, beside=shared().fifos[0])
    design.programs("programs", shim, 1, cores, beside=words)
    with pytest.raises(DesignError, match='fifo "words" has others beside it'):
        design.programs("more", shim, 1, cores, beside=words)
    floating = design.fifo("floating", design.tile(1, 0), design.cores(1, 1)[0], 16)
    with pytest.raises(DesignError, match='"floating" does not begin'):  # the lowering chooses
        design.programs("e", design.tile(1, 0), 0, cores, beside=floating)
    alone = shared(programs=False)
    alone.programs("programs", shim, 1, cores)
    with pytest.raises(DesignError, match='asked for by "words" and for programs; give them a'):
        lower(alone)


def test_mlir_has_a_packet_flow_for_each_id() -> None:
    text = print_mlir(lower(shared()))
    flows = re.findall(r"aie\.packet_flow\((\d+)\) \{\n(.*?)\n    \}(.*?)\n", text, re.S)
    found = {int(number): (body.split("\n"), keep) for number, body, keep in flows}
    assert [line.strip() for line in found[FIFO][0]] == [
        "aie.packet_source<%shim_noc_tile_0_0, DMA : 1>",
        "aie.packet_dest<%mem_tile_0_1, DMA : 0>",
    ]
    assert [line.strip() for line in found[PROGRAMS][0]] == [
        "aie.packet_source<%shim_noc_tile_0_0, DMA : 1>",
        "aie.packet_dest<%tile_0_2, TileControl : 0>",
        "aie.packet_dest<%tile_0_3, TileControl : 0>",
    ]
    assert found[FIFO][1] == "" and "keep_pkt_header = true" in found[PROGRAMS][1]
    assert "aie.flow(%shim_noc_tile_0_0" not in text
    # A channel's tokens get their id once, though two ports are that channel.
    assert text.count("aiex.npu.maskwrite32") == 1
