"""Routes: an independent walker follows the switch registers from every DMA source and must arrive
at exactly the sinks of the flow, over legal connections, with no wire used twice.

The walker (designs_reference.streams) asserts legality; the flows come from the GEMM designs and
from random sets of flows.
"""

from __future__ import annotations

import random
from itertools import product

import pytest
from designs_reference import chains, read_configuration, run_txn, streams
from hypothesis import given, settings
from hypothesis import strategies as st

from npu._npu import arch
from npu.designs import gemm
from npu.designs.api import Design
from npu.designs.hardware import MASTER_PORTS, SHIM_DMA_PORTS, SLAVE_PORTS, Tile
from npu.designs.lowering import lower, serialise
from npu.designs.lowering.lowered import Endpoint, Flow, Lowered
from npu.designs.lowering.routing import Router
from npu.designs.lowering.serialise import static_stream
from npu.errors import ArgumentError, DesignError

Sinks = dict[tuple[tuple[int, int], int], set[tuple[tuple[int, int], int]]]


def wanted(flows: list[Flow]) -> Sinks:
    def end(e: Endpoint) -> tuple[tuple[int, int], int]:
        return (e.tile.col, e.tile.row), e.channel

    return {end(f.source): {end(s) for s in f.sinks} for f in flows}


def walked(columns: int, flows: list[Flow]) -> Sinks:
    """Routes the flows alone and walks the registers that come out."""
    generation = "npu1" if columns <= 4 else "npu2"
    lowered = Lowered("t", generation, columns, {}, "", flows=flows)
    lowered.connections = Router(columns, "[t]").route(flows)
    lowered.tiles = sorted({c.tile for c in lowered.connections})
    return streams(run_txn(static_stream(lowered)), columns)


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
@pytest.mark.parametrize("pair", gemm.PAIRS)
def test_gemm_streams(generation: str, pair: tuple[str, str]) -> None:
    """Every stream of the GEMM, derived here from its definition."""
    lowered = lower(gemm.design(generation, *pair))
    found = streams(run_txn(read_configuration(serialise(lowered)).txn), lowered.columns)
    columns, stride = lowered.columns, lowered.columns // 4
    expected: list[tuple] = []
    for row in range(4):
        expected.append(((row * stride, 0), 0, [(row * stride, 1)]))
        expected.append(((row * stride, 1), None, [(c, row + 2) for c in range(columns)]))
    for col in range(columns):
        expected.append(((col, 0), 1, [(col, 1)]))
        expected.append(((col, 1), None, [(col, r) for r in range(2, 6)]))
        expected.append(((col, 1), None, [(col, 0)]))
        expected += [((col, r), 0, [(col, 1)]) for r in range(2, 6)]
    tiles = sorted((s, sorted(t for t, _ in sinks)) for (s, _), sinks in found.items())
    assert tiles == sorted((source, sorted(sinks)) for source, _, sinks in expected)
    assert found == wanted(lowered.flows)
    for (tile, channel), sinks in found.items():
        if tile[1] == 1 and next(iter(sinks))[0][1] > 1:  # A on channel 0, B on channel 1 of a core
            rows = {t[1] for t, _ in sinks}
            assert {c for _, c in sinks} == ({0} if len(rows) == 1 else {1}), (tile, channel)
    for port, (col, direction, channel) in read_configuration(serialise(lowered)).ports.items():
        assert direction == ("s2mm" if port[0] == "C" else "mm2s")
        assert channel == {"A": 0, "B": 1, "C": 0}[port[0]]
        assert col == int(port[1]) * (stride if port[0] == "A" else 1)


@pytest.mark.parametrize("generation", ["npu1", "npu2"])
def test_every_stream_has_running_ends(generation: str) -> None:
    """A BD chain runs on each DMA channel that a core or memtile stream uses, and on no other."""
    lowered = lower(gemm.design(generation, "bfloat16", "bfloat16"))
    registers = run_txn(static_stream(lowered))
    found = streams(registers, lowered.columns)
    started = set(chains(registers))
    used = {(t, "mm2s", c) for t, c in found if t[1]}
    used |= {(t, "s2mm", c) for sinks in found.values() for t, c in sinks if t[1]}
    assert started == used


@st.composite
def flow_sets(draw: st.DrawFn) -> tuple[int, list[Flow]]:
    """Random flows over distinct channels, broadcasts included."""
    columns = draw(st.sampled_from([1, 2, 4, 8]))
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    counts = {0: 2, 1: 6}
    ends = [
        Endpoint(Tile(c, r), i)
        for c, r in product(range(columns), range(6))
        for i in range(counts.get(r, 2))
    ]
    sources, sinks = ends[:], ends[:]
    rng.shuffle(sources)
    rng.shuffle(sinks)
    flows = []
    for index in range(draw(st.integers(1, 4 * columns))):
        source = sources.pop()
        count = rng.choice([1, 1, 1, 2, 4])
        targets: list[Endpoint] = []
        for sink in list(sinks):
            seen = {t.tile for t in targets} | {source.tile}
            if len(targets) < count and sink.tile not in seen:
                targets.append(sink)
                sinks.remove(sink)
        if targets:
            flows.append(Flow(f"f{index}", source, targets))
    return columns, flows


@settings(max_examples=80, deadline=None)
@given(flow_sets())
def test_random_flows(case: tuple[int, list[Flow]]) -> None:
    columns, flows = case
    try:
        found = walked(columns, flows)
    except DesignError as error:
        assert "no free lanes" in str(error)  # a refusal must say so; wrong routes must not pass
        return
    assert found == wanted(flows)


def test_detour_below_the_memtile() -> None:
    """Four lanes lead from core (1, 2) into its memtile; a fifth stream comes up from the shim."""
    flows = [
        Flow(f"f{i}", Endpoint(Tile(0, 2 + i // 2), i % 2), [Endpoint(Tile(1, 1), i)])
        for i in range(5)
    ]
    assert walked(2, flows) == wanted(flows)


def test_memtile_passes_through_on_one_lane() -> None:
    """Shim to core: the lane must be free on both sides of the memtile."""
    d = Design("d", "npu2")
    for i in range(2):
        core = d.tile(0, 2 + i)
        up = d.fifo(f"up{i}", d.tile(0, 0), core, 16)
        down = d.fifo(f"down{i}", core, d.tile(0, 0), 16)
        w = d.worker(core)
        with w.forever():
            for fifo in (up, down):
                w.acquire(fifo)
                w.release(fifo)
    lowered = lower(d)
    assert streams(run_txn(static_stream(lowered)), 8) == wanted(lowered.flows)


def test_routes_are_deterministic() -> None:
    design = gemm.design("npu2", "int8", "int32")
    assert serialise(lower(design)) == serialise(lower(gemm.design("npu2", "int8", "int32")))


def test_ports_of_neighbouring_switches_meet():
    """Every master of a side has a slave on the other side of the border, ports of one tile share
    no register, and the shim's DMA hangs on South ports that exist."""
    above = {"shim": "mem", "mem": "core", "core": "core"}
    for kind in above:
        for table in (MASTER_PORTS[kind], SLAVE_PORTS[kind]):
            used = [first + i for first, count in table.values() for i in range(count)]
            assert len(set(used)) == len(used)
        assert MASTER_PORTS[kind]["north"][1] == SLAVE_PORTS[above[kind]]["south"][1]
        assert MASTER_PORTS[above[kind]]["south"][1] == SLAVE_PORTS[kind]["north"][1]
        if kind != "mem":
            assert MASTER_PORTS[kind]["east"][1] == SLAVE_PORTS[kind]["west"][1]
            assert MASTER_PORTS[kind]["west"][1] == SLAVE_PORTS[kind]["east"][1]
    for direction, table in (("mm2s", SLAVE_PORTS), ("s2mm", MASTER_PORTS)):
        ports, offsets, shifts = zip(*SHIM_DMA_PORTS[direction], strict=True)
        assert len(set(ports)) == len(set(shifts)) == 2 and len(set(offsets)) == 1
        assert all(0 <= port < table["shim"]["south"][1] for port in ports)
    with pytest.raises(ArgumentError, match=r"\[shim_dma_port\] channel 2"):
        arch.shim_dma_port("mm2s", 2)
    with pytest.raises(ArgumentError, match="unknown tile kind"):
        arch.switch_ports("cpu", True)
