"""Plot of simulated decode rates over context, with the published curves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from npu.perf.decode_simulation import SimulatedDecode
from npu.perf.plots import pyplot

# Okabe and Ito's colours, as in plots/gemm.py.
_SIMULATED, _FLOOR = "#0072B2", "#999999"
_PUBLISHED = (("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))


def draw(
    rows: Sequence[SimulatedDecode], published: Mapping[str, Mapping[int, float]], suffix: str
) -> bytes:
    """The picture as a file with the ending ``suffix``."""
    pyplot()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    rows = sorted(rows, key=lambda row: row.context)
    contexts = [row.context for row in rows]
    axes.plot(
        contexts, [row.tokens_per_second for row in rows], marker="o", color=_SIMULATED,
        label=f"simulated, {rows[0].device}",
    )  # fmt: skip
    axes.plot(
        contexts, [1 / row.floor for row in rows], linestyle=":", color=_FLOOR,
        label=f"bytes / {rows[0].ceiling / 1e9:g} GB/s",
    )  # fmt: skip
    for (source, curve), (colour, marker) in zip(published.items(), _PUBLISHED, strict=False):
        axes.plot(
            list(curve), list(curve.values()), marker=marker, linestyle="--", color=colour,
            label=f"published, measured: {source}",
        )  # fmt: skip
    ticks = sorted({*contexts, *(c for curve in published.values() for c in curve)})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [short(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("context, positions")
    axes.set_ylabel("tokens per second")
    axes.set_title(f"{rows[0].shape}: decode, simulated", loc="left", weight="bold")
    axes.legend()
    out = io.BytesIO()
    plain = {"Date": None} if suffix == ".svg" else None
    figure.savefig(out, format=suffix[1:], metadata=plain)
    return out.getvalue()


def short(context: int) -> str:
    """1024 as "1k"."""
    return f"{context // 1024}k" if context % 1024 == 0 else str(context)
