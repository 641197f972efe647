"""Plot of a kernel's schedule: which slots are filled in which bundle of its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu.perf import plots
from npu.vliw.kernels import Schedule
from npu.vliw.vector_kernels import LoopSchedule

_ROWS = (
    ("vec", "vector"),
    ("lda", "load A"),
    ("ldb", "load B"),
    ("st", "store"),
    ("alu", "scalar"),
    ("mv", "move"),
)
_COLOURS = {"vec": "#2f6db3", "lda": "#2a9d8f", "ldb": "#2a9d8f", "st": "#e08e2b"}
_LOOP = "#eef1f5"


def save(schedule: Schedule | LoopSchedule, path: str | Path) -> None:
    """Draws the slots; the name's ending chooses the format."""
    plots.save(lambda: draw(schedule), path)


def draw(schedule: Schedule | LoopSchedule) -> Any:
    """The slots over the bundles as a matplotlib figure; loops on a pale ground."""
    plots.pyplot()
    from matplotlib.figure import Figure

    program = schedule.program
    figure = Figure(figsize=(max(8.0, len(program.bundles) / 16), 2.6))
    axes = figure.add_axes((0.09, 0.2, 0.89, 0.62))
    for first, last in program.loops:
        axes.axvspan(first - 0.5, last + 0.5, color=_LOOP, lw=0)
    for row, (slot, _) in enumerate(_ROWS):
        filled = [
            i
            for i, bundle in enumerate(program.bundles)
            if {op.operation.slot for op in bundle.ops} & {slot, "lng" if slot == "mv" else slot}
        ]
        colour = _COLOURS.get(slot, "#6c5b9e")
        axes.bar(filled, 0.8, width=0.8, bottom=row - 0.4, color=colour, linewidth=0)
    axes.set_yticks(range(len(_ROWS)), [name for _, name in _ROWS])
    axes.invert_yaxis()
    axes.set_xlim(-0.5, len(program.bundles) - 0.5)
    axes.set_xlabel("bundle of the code")
    cycles = schedule.simulated().cycles
    title = f"{schedule.label} on {schedule.device}: {cycles} cycles (simulated)"
    axes.set_title(title, loc="left")
    return figure
