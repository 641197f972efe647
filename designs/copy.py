"""Copy: memory to memory through the memtiles, without cores.

What there is to try first on an array: routes, DMA channels, locks and tokens, and nothing that a
compiler for cores has made (`npu selftest`).
"""

from __future__ import annotations

from .api import Design
from .lowering import forms

WORDS = 1024  # of an object


def design(generation: str) -> Design:
    """The copy design of a generation ("npu1", "npu2"). Raises DesignError."""
    out = Design("copy", generation)
    out.params = {"columns": out.columns, "words": WORDS}
    for col in range(out.columns):
        shim, memtile = out.tile(col, 0), out.tile(col, 1)
        x = out.fifo(f"x{col}", shim, memtile, (WORDS,), "int32", port=f"X{col}")
        y = out.fifo(f"y{col}", memtile, shim, (WORDS,), "int32", port=f"Y{col}")
        out.forward(x, y)
    return out


configuration, mlir = forms(design)
