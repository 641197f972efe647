"""Loops over lanes as the scheduler sees them: the bound by values from turn to turn, pinned
registers, waits between regions. Kernels have files of their own.
"""

from __future__ import annotations

import dataclasses

import pytest

from npu.errors import DesignError
from npu.vliw import generate, loop, modulo, rms_norm, softmax, vector_kernels
from npu.vliw.aie2p import AIE2P
from npu.vliw.dataflow import Region, Stream
from npu.vliw.vector_dataflow import Dataflow


def chained(links: int) -> Region:
    """A turn that multiplies into the sum of the turn before ``links`` times."""
    flow = Dataflow(AIE2P, "chain")
    x, total = flow.load("p0", 0, "x"), flow.value("DM", "dm4")
    value = total
    for _ in range(links - 1):
        value = flow.op("vmac.f.x", "DM", value, x, x, "r0")
    flow.into("vmac.f.x", total, value, x, x, "r0")
    stream = Stream("p0", "p0", [64 * turn for turn in range(8)])
    return Region(
        "chain", tuple(flow.nodes), flow.values, {"p0": stream}, {"r0": 60},
        preamble=(("vclr", ("dm4",)),), pinned=flow.pinned, lanes=True,
    )  # fmt: skip


@pytest.mark.parametrize("links", [1, 2, 5])
def test_the_bound_by_values_from_turn_to_turn(links: int) -> None:
    """A product's sum is there 6 cycles later and is read in the fourth: 3 cycles each."""
    region = chained(links)
    assert loop.least_interval(region, AIE2P) == 3 * links
    free = dataclasses.replace(region, pinned={})
    with pytest.raises(DesignError, match="which nobody writes"):
        modulo.dependences(free, AIE2P)


def test_distances_between_turns() -> None:
    region = chained(2)
    first, last = (node.name for node in region.nodes[1:])
    edges = modulo.dependences(region, AIE2P, 10)
    assert (first, last, 3) in edges
    assert (last, first, 3 - 10) in edges  # the sum, a turn later
    assert (first, last, 4 - 6) in edges  # it is read before the next one lands


def test_registers_that_pass_a_region_by() -> None:
    squares, root, scaling = rms_norm.regions(AIE2P, 2)
    assert generate._live([squares, root, scaling], 0) == {"dm4"}
    assert generate._live([squares, root, scaling], 2) == {"x1", "x2", "x3"}
    regions = softmax.regions(AIE2P, 2)
    assert "dm3" not in generate._live(regions, 0) and "dm3" in generate._live(regions, 2)
    passing = [squares, dataclasses.replace(root, pinned={}), root]
    assert generate._live(passing, 1) == {"dm4"}


def test_code_of_several_regions_ends_where_its_results_have_landed() -> None:
    """The sums of the first loop land 6 cycles after its last bundle's product."""
    program = vector_kernels.schedule("npu2", "rms_norm", 4).program
    products = [
        number
        for number, bundle in enumerate(program.bundles)
        for op in bundle.ops
        if op.tag and op.tag.node.startswith("squares") and op.operation.slot == "vec"
    ]
    reads = [
        number
        for number, bundle in enumerate(program.bundles)
        for op in bundle.ops
        if op.tag and op.tag.node.startswith("root")
    ]
    assert min(reads) - max(products) == 6
