"""Summary of a recorded run: the array with the busy share of every tile, and where time goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from npu.perf import plots
from npu.perf.timeline import Timeline, Track

_COMPUTE, _IN, _OUT = "#2f6db3", "#2a9d8f", "#e08e2b"
_PALE = "#eef1f5"
# Parts of a bar: the events it adds up, its colour, its name in the legend.
_PARTS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("kernel",), _COMPUTE, "kernels"),
    (("operation",), "#6c5b9e", "operations"),
    (("send", "receive"), _IN, "moving data"),
    (("wait memory",), "#b5443c", "waiting for DRAM"),
    (("task start",), "#d9a441", "task start"),
    (("wait lock",), "#8d99a6", "waiting for a lock"),
    (("wait data",), "#b9c2cc", "waiting for data"),
    (("wait receiver",), "#d3b8a4", "waiting for a receiver"),
    (("wait arbiter",), "#c48fb0", "waiting for an arbiter"),
    (("wait token",), "#c9bfe0", "waiting for a token"),
)
_IDLE = "#f2f2f2"


def save(trace: Timeline, path: str | Path) -> None:
    """Draws the summary; the name's ending chooses the format."""
    plots.save(lambda: draw(trace), path)


def draw(trace: Timeline) -> Any:
    """The summary as a matplotlib figure."""
    plots.pyplot()
    from matplotlib.figure import Figure

    columns = 1 + max(track.col for track in trace.tracks)
    # No figure of pyplot's: it would keep it.
    figure = Figure(figsize=(max(11.0, 5.6 + 1.05 * columns), 9.4))
    grid = figure.add_gridspec(
        2, 1, height_ratios=(1.3, 1), left=0.17, right=0.97, top=0.85, bottom=0.09, hspace=0.27
    )
    _draw_array(trace, figure.add_subplot(grid[0]), columns)
    _draw_breakdown(trace, figure.add_subplot(grid[1]))
    _draw_titles(trace, figure)
    return figure


def _draw_titles(trace: Timeline, figure: Any) -> None:
    s = trace.simulation
    title = f"{trace.what} on {trace.title.replace(' x ', ' × ')}"
    figure.text(0.02, 0.975, title, fontsize=13, weight="bold", va="top")
    begin, end = trace.window
    whole = begin == 0 and end >= s.seconds * 1e6 * (1 - 1e-9)
    parts = [
        f"{s.seconds * 1e6:,.1f} µs with {s.dispatch_seconds * 1e6:.0f} µs dispatch",
        f"{trace.rate[1]:.2f} {trace.rate[0]}",
        f"bound: {s.bound}",
        f"machine {trace.machine}",
        f"kernels: {s.kernels.partition(' (')[0]}",
    ]
    if not whole:
        parts.append(f"shown: {begin:,.1f} to {end:,.1f} µs")
    figure.text(0.02, 0.946, "    ".join(parts), fontsize=10, va="top", color="#333333")
    design = trace.design.replace(" x ", " × ")
    figure.text(0.02, 0.921, design, fontsize=9, va="top", color="#666666")
    note = (
        "All times are simulated by npu trace (docs/timing.md); none was measured on hardware. "
        "Shares are of the array's time, the dispatch left out."
    )
    figure.text(0.02, 0.012, note, fontsize=8, color="#666666")


def _share(trace: Timeline, track: Track, *kinds: str) -> float:
    length = trace.window_cycles
    return min(1.0, sum(track.cycles[kind] for kind in kinds) / length) if length else 0.0


def _busiest(trace: Timeline, col: int, row: int, kind: str) -> float | None:
    """The largest busy share of a tile's tracks of a kind; None if it uses none."""
    kinds = ("kernel",) if kind == "core" else ("send", "receive")
    shares = [
        _share(trace, t, *kinds)
        for t in trace.tracks
        if (t.col, t.row, t.kind) == (col, row, kind) and t.used
    ]
    return max(shares) if shares else None


def _draw_array(trace: Timeline, axes: Any, columns: int) -> None:
    """A tile is a box: its kernels' share as a number and a filling, its DMA as two bars."""
    labels = {0: "shim", 1: "memtile"} | {row: f"core row {row}" for row in range(2, 6)}
    for col in range(columns):
        for row in labels:
            _draw_tile(trace, axes, col, row)
    axes.set_xlim(0, columns)
    axes.set_ylim(0, 6)
    axes.set_xticks([c + 0.5 for c in range(columns)], [f"column {c}" for c in range(columns)])
    axes.set_yticks([row + 0.5 for row in labels], list(labels.values()))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title("Busy share per tile, %", loc="left", weight="bold", pad=16)
    handles = [
        _patch(_COMPUTE, "core: kernels"),
        _patch(_IN, "DMA in (S2MM)"),
        _patch(_OUT, "DMA out (MM2S)"),
    ]
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=3, borderaxespad=0.3,
        title="a DMA bar is the tile's busiest channel", title_fontsize=8, alignment="right",
    )  # fmt: skip


def _draw_tile(trace: Timeline, axes: Any, col: int, row: int) -> None:
    left, bottom, width, height = col + 0.04, row + 0.06, 0.92, 0.88
    axes.add_patch(_box(left, bottom, width, height, _PALE))
    compute = _busiest(trace, col, row, "core")
    if compute is not None:
        axes.add_patch(_box(left, bottom + 0.49, width * compute, 0.39, _COMPUTE))
        dark = compute > 0.6
        axes.text(
            col + 0.5, bottom + 0.68, f"{100 * compute:.0f}", ha="center", va="center", fontsize=10,
            weight="bold", color="white" if dark else "#222222",
        )  # fmt: skip
    bars = [("in", _IN, 0.27), ("out", _OUT, 0.05)]
    if row < 2:  # no core: more room for the DMA
        bars = [("in", _IN, 0.50), ("out", _OUT, 0.14)]
    thick = 0.17 if row >= 2 else 0.26
    for kind, colour, offset in bars:
        share = _busiest(trace, col, row, kind)
        if share is None:
            continue
        room = width - 0.30
        axes.add_patch(_box(left + 0.03, bottom + offset, room, thick, "#dde2e8"))
        axes.add_patch(_box(left + 0.03, bottom + offset, room * share, thick, colour))
        axes.text(
            left + width - 0.03, bottom + offset + thick / 2, f"{100 * share:.0f}", ha="right",
            va="center", fontsize=7.5, color="#333333",
        )  # fmt: skip


def _box(x: float, y: float, width: float, height: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor="none")


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label)


def _rows(trace: Timeline) -> list[tuple[str, Callable[[Track], bool]]]:
    """The bars of the breakdown, top first: a name and the tracks it averages."""
    cores = [bar for bar in trace.bars if not bar[0].startswith("shim")]
    return [
        ("command processor", lambda t: t.kind == "command"),
        *cores,
        ("core DMA in", lambda t: t.kind == "in" and t.row >= 2),
        ("core DMA out", lambda t: t.kind == "out" and t.row >= 2),
        ("memtile DMA in", lambda t: t.kind == "in" and t.row == 1),
        ("memtile DMA out", lambda t: t.kind == "out" and t.row == 1),
        *(bar for bar in trace.bars if bar not in cores),
    ]


def _draw_breakdown(trace: Timeline, axes: Any) -> None:
    labels, seen = [], []
    for position, (name, wanted) in enumerate(_rows(trace)):
        tracks = [t for t in trace.tracks if t.used and wanted(t)]
        labels.append(f"{name}  ({len(tracks)})" if len(tracks) != 1 else name)
        left = 0.0
        for kinds, colour, part in _PARTS:
            share = sum(_share(trace, t, *kinds) for t in tracks) / max(1, len(tracks))
            if share <= 0:
                continue
            if (colour, part) not in seen:
                seen.append((colour, part))
            axes.barh(position, 100 * share, left=100 * left, height=0.7, color=colour)
            if share >= 0.04:
                dark = colour in (_COMPUTE, _IN, "#6c5b9e", "#b5443c", "#8d99a6")
                axes.text(
                    100 * (left + share / 2), position, f"{100 * share:.0f}", ha="center",
                    va="center", fontsize=8, color="white" if dark else "#333333",
                )  # fmt: skip
            left += share
        axes.barh(position, 100 * max(0.0, 1 - left), left=100 * left, height=0.7, color=_IDLE)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the array's time, %, mean of the channels in use (their number)")
    axes.set_title("Where the time goes", loc="left", weight="bold")
    order = [(colour, part) for _, colour, part in _PARTS if (colour, part) in seen]
    handles = [_patch(colour, part) for colour, part in [*order, (_IDLE, "no task")]]
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=5, borderaxespad=0.2,
        columnspacing=1.0, handlelength=1.2,
    )  # fmt: skip
