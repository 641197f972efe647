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

from npu.perf.plots import pyplot, write

BOUND_COLOURS = {
    "compute": "#0072B2",
    "DRAM": "#D55E00",
    "stream": "#009E73",
    "command": "#CC79A7",
}
_LAYOUTS = {"col": ("o", "column-major B"), "row": ("^", "row-major B")}
_CEILING_STYLES = {"col": "--", "row": ":"}
_LINES = {"col": "#222222", "row": "#777777"}
_STAR: dict[str, Any] = {
    "marker": "*", "linestyle": "none", "markersize": 9, "markeredgewidth": 0.8, "color": "black",
    "markerfacecolor": "#F0E442", "label": "published, measured on hardware",
}  # fmt: skip
_PANEL_INCHES = (3.9, 3.3)
_MAX_COLUMNS = 3


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
    published: list[tuple[float, float]] = dataclasses.field(default_factory=list)
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
    _roofline_legend(figure, panels, bounds, layouts)
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
        style = _CEILING_STYLES[layout]
        ax.axhline(ceiling, color=_LINES[layout], linewidth=0.9, linestyle=style, zorder=1)
    for layout, (marker, _) in _LAYOUTS.items():
        for bound, colour in BOUND_COLOURS.items():
            chosen = [p for p in panel.points if (p.layout, p.bound) == (layout, bound)]
            ax.scatter(
                [p.intensity for p in chosen], [p.tops for p in chosen], s=9, marker=marker,
                facecolor=colour if layout == "col" else "none", edgecolor=colour,
                linewidth=0.5, alpha=0.7, zorder=3 if layout == "col" else 2,
            )  # fmt: skip
    if panel.published:
        _stars(ax, panel.published)
    tile = " × ".join(map(str, panel.tile))
    ax.set_title(f"{_arrow(panel.title)}\ntile {tile}, k_mt {panel.k_mt}")
    ceilings = [c for c in panel.read_ceilings.values() if c < 1.25 * panel.peak_tops]
    top = max([panel.peak_tops, *ceilings, *(p.tops for p in panel.points)])
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
    ax.set_axisbelow(True)
    ax.grid(True, color="#dddddd", linewidth=0.5)
    reads = [f"{value:.2f} ({layout})" for layout, value in panel.read_ceilings.items()]
    ax.text(
        0.98, 0.03,
        f"kernel peak {panel.peak_tops:.2f} TOPS\n"
        f"DRAM read ceiling {', '.join(reads)} TOPS",
        transform=ax.transAxes, ha="right", va="bottom", fontsize=7, linespacing=1.4,
    )  # fmt: skip


def _arrow(text: str) -> str:
    return text.replace("->", "→")


def _stars(ax: Any, points: Sequence[tuple[float, float]]) -> None:
    """Figures measured on hardware by others, above everything else."""
    ax.plot(*zip(*points, strict=True), **_STAR, zorder=5)


def _log_ticks(axis: Any, low: float, high: float) -> None:
    """Plain numbers 1, 2, 3, 5, 7, 10, ... instead of powers of ten."""
    from matplotlib import ticker

    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [d * 10.0**e for e in decades for d in (1, 2, 3, 5, 7) if low <= d * 10.0**e <= high]
    axis.set_major_locator(ticker.FixedLocator(ticks))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_locator(ticker.NullLocator())


def _roofline_legend(
    figure: Any, panels: Sequence[RooflinePanel], bounds: set[str], layouts: set[str]
) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, **look: Any) -> Any:
        return Line2D([], [], label=label, **look)

    dot: dict[str, Any] = {"linestyle": "none", "markersize": 5}
    handles = [
        entry(f"bound by {bound}", color=colour, marker="s", **dot)
        for bound, colour in BOUND_COLOURS.items()
        if bound in bounds
    ]
    for layout, (marker, name) in _LAYOUTS.items():
        if layout in layouts:
            face = "#444444" if layout == "col" else "none"
            handles.append(entry(name, color="#444444", marker=marker, markerfacecolor=face, **dot))
    roof = f"roofline: kernel peak, DRAM reads at {panels[0].dram_gb_per_s:g} GB/s"
    handles.append(entry(roof, color="black", linewidth=1.2))
    for layout, style in _CEILING_STYLES.items():
        if layout in layouts:
            look = {"color": _LINES[layout], "linewidth": 0.9, "linestyle": style}
            handles.append(
                entry(f"DRAM read ceiling of this tiling, {_LAYOUTS[layout][1]}", **look)
            )
    if any(panel.published for panel in panels):
        handles.append(Line2D([], [], **_STAR))
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
        _stars(ax, panel.published)
    ax.axhline(panel.peak_tops, color="black", linewidth=1, linestyle="--", label="kernel peak")
    if panel.chosen is not None:
        ax.axvline(panel.chosen, color="#888888", linewidth=0.9, linestyle=":",
                   label=f"default k_mt {panel.chosen}")  # fmt: skip
    ax.set_title(_arrow(panel.title))
    ax.set_ylim(0, panel.peak_tops * 1.1)
    ax.set_xlim(left=0)
    ax.set_axisbelow(True)
    ax.grid(True, color="#dddddd", linewidth=0.5)
    ax.legend(loc="lower right")


def _columns(count: int) -> int:
    return 2 if count == 4 else min(count, _MAX_COLUMNS)


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
    write(figure, data, f".{kind}", dpi=160)
    pyplot().close(figure)
    return data.getvalue()
