"""Our lowering against programs that mlir-aie lowered (tests/golden): the same design written
with our API gives the same BDs, locks, channel starts and streams.

Buffer addresses and ids follow the same rules as mlir-aie's, so BD words are compared exactly.
"""

from __future__ import annotations

import json

import pytest
from designs_reference import (
    Registers,
    chains,
    lock_values,
    read_configuration,
    run_txn,
    streams,
)
from golden_files import golden

from npu.designs import gemm
from npu.designs.api import Design
from npu.designs.lowering import configuration

REORDER = [(6, 8), (8, 192), (4, 48), (8, 1)]


def relay(generation: str) -> Design:
    """Two shim -> memtile -> shim relays, the first one reordering."""
    d = Design("relay", generation)
    for col, dims in ((0, REORDER), (1, [])):
        shim, mem = d.tile(col, 0), d.tile(col, 1)
        source = d.fifo(f"in{col}", shim, mem, 1536)
        sink = d.fifo(f"out{col}", mem, shim, 1536, to_stream=dims)
        d.forward(source, sink)
    return d


def gemm_2x2() -> Design:
    """The int16 GEMM of 2 x 2 cores with constant loop bounds, tile 16 x 32 x 32."""
    d = Design("gemm_i16", "npu1", room_over=True)  # with the stack of the golden program
    zero = d.kernel("zero", [("int32", (16, 32))])
    mac = d.kernel("mac", [("int16", (16, 32)), ("int16", (32, 32)), ("int32", (16, 32))])
    a_dims = [(4, 128), (8, 4), (4, 32), (4, 1)]
    b_dims = [(8, 128), (8, 4), (4, 32), (4, 1)]
    c_dims = [(4, 128), (4, 4), (8, 16), (4, 1)]
    a, b, c = [], [], {}
    for row in range(2):
        outer = d.fifo(f"A2_{row}", d.tile(row, 0), d.tile(row, 1), 512, "int16")
        cores = [d.tile(0, row + 2), d.tile(1, row + 2)]
        a.append(d.fifo(f"A1_{row}", d.tile(row, 1), cores, (16, 32), "int16", to_stream=a_dims))
        d.forward(outer, a[-1])
    for col in range(2):
        outer = d.fifo(f"B2_{col}", d.tile(col, 0), d.tile(col, 1), 1024, "int16")
        cores = [d.tile(col, 2), d.tile(col, 3)]
        b.append(d.fifo(f"B1_{col}", d.tile(col, 1), cores, (32, 32), "int16", to_stream=b_dims))
        d.forward(outer, b[-1])
        for row in range(2):
            c[col, row] = d.fifo(
                f"C1_{col}_{row}", cores[row], d.tile(col, 1), (16, 32), "int32", depth=1
            )
        whole = d.fifo(f"C2_{col}", d.tile(col, 1), d.tile(col, 0), 1024, "int32", to_stream=c_dims)
        d.join([c[col, 0], c[col, 1]], whole, [0, 2048])
    for col in range(2):
        for row in range(2):
            w = d.worker(d.tile(col, row + 2), stack_bytes=1024)
            with w.forever(), w.loop(4):
                total = w.acquire(c[col, row])
                w.call(zero, total)
                with w.loop(3):
                    w.call(mac, w.acquire(a[row]), w.acquire(b[col]), total)
                    w.release(a[row])
                    w.release(b[col])
                w.release(c[col, row])
    return d


def words_of(registers: Registers) -> dict:
    return {key: [bd.words for bd in bds] for key, bds in chains(registers).items()}


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_relay_registers(generation: str) -> None:
    theirs = run_txn(golden(f"relay_{generation}", "config.bin"))
    ours = run_txn(read_configuration(configuration(relay(generation))).txn)
    assert words_of(ours) == words_of(theirs)
    assert sorted(ours.pushes) == sorted(theirs.pushes)
    assert lock_values(ours) == lock_values(theirs)
    assert streams(ours, 2) == streams(theirs, 2)
    for col in (0, 1):  # shim multiplexers and the token route
        for offset in (0x1F000, 0x1F004, 0x3F008, 0x3F100, 0x3F200):
            assert ours.get((col, 0), offset) == theirs.get((col, 0), offset), hex(offset)


def test_relay_known_words() -> None:
    """A few words of the golden stream, quoted: relays of both generations share them."""
    ours = run_txn(read_configuration(configuration(relay("npu2"))).txn)
    bds = chains(ours)
    assert [bd.words for bd in bds[(0, 1), "mm2s", 0]] == [
        (0x600, 0x3A0000, 0x100000, 0x8002F, 0x1000BF, 0x7, 0, 0x8140FF41),
        (0x600, 0x2A4000, 0x100000, 0x8002F, 0x1000BF, 0x7, 0, 0x8140FF41),
    ]
    assert bds[(0, 1), "s2mm", 0][0].words == (0x600, 0x1A0000, 0, 0, 0, 0, 0, 0x8141FF40)
    assert lock_values(ours) == {((0, 1), 0): 2, ((1, 1), 0): 2}


def test_gemm_2x2_registers() -> None:
    theirs = run_txn(golden("gemm_npu1_2x2_i16", "config.bin"))
    ours = run_txn(read_configuration(configuration(gemm_2x2())).txn)
    assert words_of(ours) == words_of(theirs)
    assert sorted(ours.pushes) == sorted(theirs.pushes)
    assert lock_values(ours) == lock_values(theirs)
    assert streams(ours, 2) == streams(theirs, 2)


def test_gemm_2x2_programs() -> None:
    """Unrolled over one round of its outer loop, each program is the golden operation list."""
    cores = json.loads(golden("gemm_npu1_2x2_i16", "cores.json"))["cores"]
    ours = read_configuration(configuration(gemm_2x2())).cores
    assert sorted(ours) == sorted((c["col"], c["row"]) for c in cores)
    for core in cores:
        expected = [
            [o[0], o[1], [a["buffer"] for a in o[2]]] if o[0] == "call" else o for o in core["ops"]
        ]
        assert unroll(ours[core["col"], core["row"]]) == expected


def test_gemm_4x8_streams_and_locks() -> None:
    """The bf16 GEMM of the 4 x 8 array: streams, chains and locks up to lane and lock choice."""
    theirs = run_txn(golden("gemm_npu2_4x8_bf16", "config.bin"))
    data = gemm.configuration("npu2", "bfloat16", "float32", tile=(32, 64, 32), c_l2_buffers=2)
    ours = run_txn(read_configuration(data).txn)
    assert shape(streams(ours, 8)) == shape(streams(theirs, 8))
    assert lock_values(ours) == lock_values(theirs)
    assert patterns(ours) == patterns(theirs)


def shape(found: dict) -> list:
    """Streams as tile -> tiles, without channel numbers."""
    return sorted((source[0], sorted(s[0] for s in sinks)) for source, sinks in found.items())


def patterns(registers: Registers) -> list:
    """Every chain as its word order, addresses relative to its first BD's."""
    out = []
    for (tile, direction, _), bds in chains(registers).items():
        start = bds[0].base
        orders = [tuple(a - bd.base for a in bd.addresses()) for bd in bds]
        distinct = len({bd.base for bd in bds})
        out.append((tile, direction, len(bds), distinct, hash(tuple(orders)), start >= 0))
    return sorted(out)


def unroll(lines: list[str]) -> list:
    """Executes a program text symbolically; an endless loop runs once."""
    out: list = []
    counters: dict[int, int] = {}

    def block(at: int) -> int:
        while lines[at] != "end":
            words = lines[at].split()
            if words[0] == "loop":
                end = at
                for _ in range(1 if words[1] == "forever" else int(words[1])):
                    end = block(at + 1)
                at = end
            elif words[0] == "advance":
                counter = int(words[1])
                counters[counter] = (counters.get(counter, 0) + 1) % int(words[2])
            elif words[0] == "call":
                out.append(["call", words[1], [resolve(w) for w in words[2:]]])
            else:
                out.append([words[0], int(words[1]), int(words[2])])
            at += 1
        return at

    def resolve(word: str) -> int:
        addresses, _, counter = word.lstrip("@#").partition("%")
        slots = [int(a) for a in addresses.split("|")]
        return slots[counters.get(int(counter), 0)] if counter else slots[0]

    block(1 if lines[0] == "loop forever" else 0)
    return out
