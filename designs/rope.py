"""Rotary embedding, with RMSNorm of each vector before it or not: queries and keys of a layer.

x is (tokens, heads, width), width 64, 128 or 256. An object of 256 elements has one head of as
many consecutive tokens as fit; four objects at a time go through a column, which the memtile splits
among its cores. Cosines and sines are broadcast to the column: a core keeps those of its own
tokens, rotates all their heads with them and goes on to the next tokens. Tables are made by the
host, in double precision: a core would need an argument reduction of positions to 131072 that fp32
does not have. Counts and width are RTPs: one configuration serves every size.
"""

from __future__ import annotations

from .api import Design
from .kernel import kernel
from .lowering import forms

CORES = 4  # per column
ELEMENTS = kernel("rope_rotate", "npu2").sizes()[0]  # of an object: aie_kernels/rope.cc
WIDTHS = (64, 128, 256)


def design(generation: str) -> Design:
    """The rotary embedding design of a generation ("npu1", "npu2"). Raises DesignError."""
    out = Design("rope", generation, object_file="rope.o")
    out.params = {"columns": out.columns, "cores": CORES, "object": ELEMENTS}
    for col in range(out.columns):
        _column(out, col)
    return out


configuration, mlir = forms(design)


def _column(out: Design, col: int) -> None:
    cores = out.cores(col, CORES)
    x = out.scatter(f"X{col}", cores, ELEMENTS, "bfloat16")
    table = out.fifo(f"T{col}", out.tile(col, 0), cores, ELEMENTS, "float32")
    y = out.gather(f"Y{col}", cores, ELEMENTS, "bfloat16")
    keep, rotate = out.kernel("rope_keep"), out.kernel("rope_rotate")
    for index, (core, source, sink) in enumerate(zip(cores, x, y, strict=True)):
        worker = out.worker(core)
        groups, heads, doublings, normed, epsilon = map(
            worker.rtp, ("groups", "heads", "doublings", "normed", "epsilon")
        )
        weight, angles = (
            worker.buffer(f"{name}_{col}_{core.row}", "float32", (ELEMENTS,))
            for name in ("weight", "angles")
        )
        with worker.forever():
            worker.wait_rtps()
            worker.call(keep, worker.acquire(table), weight)
            worker.release(table)
            with worker.loop(groups):
                for owner in range(CORES):
                    angles_of_owner = worker.acquire(table)
                    if owner == index:
                        worker.call(keep, angles_of_owner, angles)
                    worker.release(table)
                with worker.loop(heads):
                    vectors, result = worker.acquire(source), worker.acquire(sink)
                    worker.call(rotate, vectors, angles, weight, result, doublings, normed, epsilon)
                    worker.release(source)
                    worker.release(sink)
