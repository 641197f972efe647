"""Plots of simulated figures. matplotlib is an optional extra, imported when a plot is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from npu.errors import ArgumentError, DeviceError
from npu.formats.atomic_file import check_writable, replacing

FORMATS = (".png", ".svg", ".pdf")

# One look for all plots: a sans-serif face, thin grey axes, text kept as text in SVG files.
_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "npu",  # the same figure gives the same file
}


def pyplot() -> Any:
    """matplotlib.pyplot with the Agg backend and the package's style; DeviceError if missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise DeviceError(
            "[plot] plots need matplotlib, which is not installed: pip install 'npu-xdna[plot]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    parameters: Any = plt.rcParams  # its stubs list every key
    parameters.update(_STYLE)
    return plt


def check_format(path: str | Path) -> Path:
    """The path of a plot, or an error when its ending names no format that can be written."""
    try:
        path = Path(path)
    except TypeError as error:
        raise ArgumentError(f"[plot] {path!r} is not a path: {error}") from error
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(f"[plot] {path}: the name must end in one of {', '.join(FORMATS)}")
    return path


def write(figure: Any, file: Any, suffix: str, dpi: float | str = "figure") -> None:
    """A figure into an open file, in the format of a name's ending, without a date: the same figure
    gives the same file."""
    kind = suffix[1:].lower()
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(kind)
    figure.savefig(file, format=kind, dpi=dpi, metadata={dated: None} if dated else None)


def save(draw: Callable[[], Any], path: str | Path) -> None:
    """Draws a figure into a file, whole or not at all; the name's ending chooses the format. A file
    that cannot be written is an error before the drawing."""
    path = check_writable(check_format(path), "plot")
    figure = draw()
    with replacing(path, "plot") as file:
        write(figure, file, path.suffix)
