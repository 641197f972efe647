"""The rows of results of products of blocks with a vector, y += W x: 32 sums in fp32, loaded into
an accumulator before the blocks (two of 16 lanes on XDNA1) and stored after them."""

from __future__ import annotations

from npu.vliw.dataflow import Access, Region, Stream
from npu.vliw.machine import Machine
from npu.vliw.vector_dataflow import Dataflow

Y = 32 * 4  # bytes
_BANK = "y"
_REGISTERS = {True: ("bml8", "bmh8"), False: ("dm4",)}  # whether XDNA1
ALONE = 128  # cycles of code without a loop, longer than any of its values lives


def pinned(flow: Dataflow) -> list[str]:
    """The rows as values of a dataflow, in the registers that they have throughout."""
    kind = "BM" if flow.npu1 else "DM"
    return [flow.value(kind, name, partial=not flow.npu1) for name in _REGISTERS[flow.npu1]]


def loaded(flow: Dataflow) -> None:
    """The stream "y" into the accumulators."""
    for number, rows in enumerate(pinned(flow)):
        for part in range(2):
            if flow.npu1:
                flow.load_am("y", 64 * number + 32 * part, _BANK, rows, part)
            else:
                flow.load_bm("y", 64 * part, _BANK, rows, part)


def stored(machine: Machine, array: str, reserved: frozenset[str]) -> Region:
    """What follows all blocks."""
    flow = Dataflow(machine, "y")
    form = ("vst.am",) if flow.npu1 else ("vst.bm",)
    for number, rows in enumerate(pinned(flow)):
        for part in range(2):
            offset = 64 * number + 32 * part if flow.npu1 else 64 * part
            flow.store(form, f"{rows}:{part}", Access("y", offset), _BANK)
    stream = Stream("y", array, [0])
    return flow.region("y", [stream], {}, reserved=reserved, interval=ALONE)
