"""Plots of simulated GEMM: roofline sweeps over problem sizes, and TOPS against k_mt.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; layouts of B differ
in the shape of the marker too.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any

from npu.plots import pyplot

BOUND_COLOURS = {
    "compute": "#0072B2",
    "DRAM": "#D55E00",
    "stream": "#009E73",
    "command": "#CC79A7",
}
_LAYOUTS = {"col": ("o", "column-major B"), "row": ("^", "row-major B")}
_LINES = {"col": "#222222", "row": "#777777"}
_PANEL_INCHES = (3.9, 3.3)
_MOST_COLUMNS = 3


@dataclasses.dataclass(frozen=True)
class Point:
    """One problem size: operations per byte, TOPS, what bounds it, layout of B."""

    intensity: float
    tops: float
    bound: str
    layout: str


@dataclasses.dataclass
class RooflinePanel:
    """One precision; ceilings in TOPS, ``dram_gb_per_s`` of the sloping roof."""

    title: str
    tile: tuple[int, int, int]
    k_mt: int
    peak_tops: float
    dram_gb_per_s: float
    read_ceilings: dict[str, float] = dataclasses.field(default_factory=dict)
    points: list[Point] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class CurvePanel:
    """TOPS against k_mt: per layout of B the (k_mt, TOPS, bound) points."""

    title: str
    peak_tops: float
    chosen: int | None
    lines: dict[str, list[tuple[int, float, str]]]
    published: list[tuple[int, float]] = dataclasses.field(default_factory=list)


def roofline(panels: Sequence[RooflinePanel], title: str, kind: str, scale: str) -> bytes:
    """The picture as a file of that kind ("png", "svg", "pdf"); scale "log" or "linear"."""
    figure, axes = _grid(len(panels))
    for ax, panel in zip(axes, panels, strict=True):
        _roofline_panel(ax, panel, scale)
    for ax in _lowest(axes):
        ax.set_xlabel("arithmetic intensity (operations / byte of A, B, C)")
    for ax in axes[:: _columns(len(panels))]:
        ax.set_ylabel("simulated TOPS")
    bounds = {point.bound for panel in panels for point in panel.points}
    layouts = {point.layout for panel in panels for point in panel.points}
    _roofline_legend(figure, bounds, layouts)
    return _finish(figure, title, kind)


def _roofline_panel(ax: Any, panel: RooflinePanel, scale: str) -> None:
    low = min(point.intensity for point in panel.points)
    high = max(point.intensity for point in panel.points)
    if scale == "log":
        left, right = low / 1.15, high * 1.15
    else:
        left, right = 0.0, high * 1.04
    knee = 1e3 * panel.peak_tops / panel.dram_gb_per_s
    roof = sorted({max(left, 1e-9), *([knee] if left < knee < right else []), right})
    ax.plot(
        roof,
        [min(panel.peak_tops, x * panel.dram_gb_per_s / 1e3) for x in roof],
        color="black", linewidth=1.2, zorder=1,
    )  # fmt: skip
    for layout, ceiling in panel.read_ceilings.items():
        style = ":" if layout == "row" else "--"
        ax.axhline(ceiling, color=_LINES[layout], linewidth=0.9, linestyle=style, zorder=1)
    for layout, (marker, _) in _LAYOUTS.items():
        for bound, colour in BOUND_COLOURS.items():
            chosen = [p for p in panel.points if (p.layout, p.bound) == (layout, bound)]
            ax.scatter(
                [p.intensity for p in chosen], [p.tops for p in chosen], s=9, marker=marker,
                facecolor=colour if layout == "col" else "none", edgecolor=colour,
                linewidth=0.5, alpha=0.7, zorder=3 if layout == "col" else 2,
            )  # fmt: skip
    tile = " × ".join(map(str, panel.tile))
    ax.set_title(f"{panel.title}\ntile {tile}, k_mt {panel.k_mt}")
    top = max([panel.peak_tops, *(p.tops for p in panel.points)])
    ax.set_xlim(left, right)
    if scale == "log":
        ax.set_xscale("log")
        ax.set_yscale("log")
        bottom = min(p.tops for p in panel.points) / 1.25
        ax.set_ylim(bottom, top * 1.25)
        _log_ticks(ax.xaxis, left, right)
        _log_ticks(ax.yaxis, bottom, top * 1.25)
    else:
        ax.set_ylim(0, top * 1.08)
    ax.grid(True, color="#dddddd", linewidth=0.5, zorder=0)
    _label_roof(ax, panel, left, scale)
    ax.annotate(
        f"kernel peak {panel.peak_tops:.3g}", (right, panel.peak_tops), (-2, 3),
        textcoords="offset points", ha="right", va="bottom", fontsize=7,
    )  # fmt: skip


def _label_roof(ax: Any, panel: RooflinePanel, left: float, scale: str) -> None:
    """The bandwidth along the sloping part, turned as the line is."""
    knee = 1e3 * panel.peak_tops / panel.dram_gb_per_s
    if left >= 0.9 * knee:
        return
    x = math.sqrt(left * knee) if scale == "log" else (left + knee) / 2
    slope = math.degrees(
        math.atan2(1, 1) if scale == "log" else math.atan(panel.dram_gb_per_s / 1e3)
    )
    ax.text(
        x, x * panel.dram_gb_per_s / 1e3, f"{panel.dram_gb_per_s:g} GB/s", rotation=slope,
        rotation_mode="anchor", transform_rotates_text=True, ha="center", va="bottom", fontsize=7,
    )  # fmt: skip


def _log_ticks(axis: Any, low: float, high: float) -> None:
    """Plain numbers 1, 2, 5, 10, ... instead of powers of ten."""
    from matplotlib import ticker

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [d * 10.0**e for e in decades for d in (1, 2, 5) if low <= d * 10.0**e <= high]
    axis.set_major_locator(ticker.FixedLocator(ticks))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_locator(ticker.NullLocator())


def _roofline_legend(figure: Any, bounds: set[str], layouts: set[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker="s", linestyle="none", markersize=5,
               label=f"bound by {bound}")
        for bound, colour in BOUND_COLOURS.items() if bound in bounds
    ]  # fmt: skip
    handles += [
        Line2D([], [], color="#444444", marker=marker, linestyle="none", markersize=5,
               markerfacecolor="#444444" if layout == "col" else "none", label=name)
        for layout, (marker, name) in _LAYOUTS.items() if layout in layouts
    ]  # fmt: skip
    handles.append(Line2D([], [], color="black", linewidth=1.2,
                          label="roofline: kernel peak and DRAM read bandwidth"))  # fmt: skip
    for layout, style in (("col", "--"), ("row", ":")):
        if layout in layouts:
            handles.append(
                Line2D([], [], color=_LINES[layout], linewidth=0.9, linestyle=style,
                       label=f"DRAM read ceiling of this tiling, {_LAYOUTS[layout][1]}")
            )  # fmt: skip
    wide = figure.get_size_inches()[0] > 8
    figure.legend(handles=handles, loc="outside lower center", ncols=4 if wide else 2)


def k_mt_curves(panels: Sequence[CurvePanel], title: str, kind: str) -> bytes:
    """TOPS against k_mt, as a file of that kind."""
    figure, axes = _grid(len(panels))
    for ax, panel in zip(axes, panels, strict=True):
        _curve_panel(ax, panel)
        ax.set_xlabel("k_mt (elements)")
    for ax in axes[:: _columns(len(panels))]:
        ax.set_ylabel("simulated TOPS")
    return _finish(figure, title, kind)


def _curve_panel(ax: Any, panel: CurvePanel) -> None:
    for layout, points in panel.lines.items():
        marker, name = _LAYOUTS[layout]
        colour = "#0072B2" if layout == "col" else "#D55E00"
        ax.plot([p[0] for p in points], [p[1] for p in points], marker=marker, markersize=4,
                color=colour, linewidth=1.2, label=name)  # fmt: skip
    if panel.published:
        ax.plot(*zip(*panel.published, strict=True), marker="*", linestyle="none", markersize=9,
                color="black", markerfacecolor="#F0E442", label="published, hardware")  # fmt: skip
    ax.axhline(panel.peak_tops, color="black", linewidth=1, linestyle="--", label="kernel peak")
    if panel.chosen is not None:
        ax.axvline(panel.chosen, color="#888888", linewidth=0.9, linestyle=":",
                   label=f"default k_mt {panel.chosen}")  # fmt: skip
    ax.set_title(panel.title)
    ax.set_ylim(0, panel.peak_tops * 1.1)
    ax.set_xlim(left=0)
    ax.grid(True, color="#dddddd", linewidth=0.5, zorder=0)
    ax.legend(loc="lower right")


def _columns(count: int) -> int:
    return 2 if count == 4 else min(count, _MOST_COLUMNS)


def _grid(count: int) -> tuple[Any, list[Any]]:
    plt = pyplot()
    columns = _columns(count)
    rows = math.ceil(count / columns)
    width, height = _PANEL_INCHES
    size = max(columns * width, 5.5), rows * height + 0.9
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    axes = list(grid.flat)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def _lowest(axes: list[Any]) -> list[Any]:
    return axes[-_columns(len(axes)) :]


def _finish(figure: Any, title: str, kind: str) -> bytes:
    figure.suptitle(title, fontsize=11)
    data = io.BytesIO()
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(kind)  # left out: same input, same file
    figure.savefig(data, format=kind, dpi=160, metadata={dated: None} if dated else None)
    pyplot().close(figure)
    return data.getvalue()
