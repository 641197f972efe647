"""Plot of simulated decode rates and times to first token over context, with the published
curves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from npu.perf import published_decode
from npu.perf.decode_simulation import SimulatedDecode
from npu.perf.plots import pyplot, write
from npu.perf.prefill_simulation import SimulatedPrefill

# Okabe and Ito's colours, as in plots/gemm.py.
_SIMULATED, _FLOOR = "#0072B2", "#999999"
_PUBLISHED = (("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))


def draw(
    rows: Sequence[SimulatedDecode], prompts: Sequence[SimulatedPrefill], suffix: str
) -> bytes:
    """The picture as a file with the ending ``suffix``; without prompts, of tokens alone."""
    pyplot()
    from matplotlib.figure import Figure

    panels = 2 if prompts else 1
    figure = Figure(figsize=(6.4 * panels, 4.2), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_tokens(axes[0], sorted(rows, key=lambda row: row.context))
    if prompts:
        _draw_prompts(axes[1], sorted(prompts, key=lambda prompt: prompt.tokens))
    out = io.BytesIO()
    write(figure, out, suffix)
    return out.getvalue()


def _draw_tokens(axes: Any, rows: Sequence[SimulatedDecode]) -> None:
    known = rows[0].device == published_decode.DEVICE
    published = published_decode.curves(rows[0].shape) if known else {}
    contexts = [row.context for row in rows]
    axes.plot(
        contexts, [row.tokens_per_second for row in rows], marker="o", color=_SIMULATED,
        label=f"simulated, {rows[0].device}, {rows[0].machine}, "
        f"kernels: {rows[0].kernels.partition(' (')[0]}",
    )  # fmt: skip
    axes.plot(
        contexts, [1 / row.floor for row in rows], linestyle=":", color=_FLOOR,
        label=f"bytes / {rows[0].ceiling / 1e9:g} GB/s",
    )  # fmt: skip
    _draw_published(axes, published, contexts)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("context, positions")
    axes.set_ylabel("tokens per second")
    axes.set_title(f"{rows[0].shape}: decode, simulated", loc="left", weight="bold")
    axes.legend()


def _draw_prompts(axes: Any, prompts: Sequence[SimulatedPrefill]) -> None:
    known = prompts[0].device == published_decode.DEVICE
    published = published_decode.prompts(prompts[0].shape) if known else {}
    counts = [prompt.tokens for prompt in prompts]
    axes.plot(
        counts, [prompt.seconds for prompt in prompts], marker="o", color=_SIMULATED,
        label=f"simulated, {prompts[0].device}, {prompts[0].machine}, "
        f"kernels: {prompts[0].kernels.partition(' (')[0]}",
    )  # fmt: skip
    _draw_published(axes, published, counts)
    axes.set_yscale("log")
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("seconds to the first token")
    axes.set_title(f"{prompts[0].shape}: prompts, simulated", loc="left", weight="bold")
    axes.legend()


def _draw_published(
    axes: Any, published: Mapping[str, Mapping[int, float]], at: Sequence[int]
) -> None:
    for (source, curve), (colour, marker) in zip(published.items(), _PUBLISHED, strict=False):
        axes.plot(
            list(curve), list(curve.values()), marker=marker, linestyle="--", color=colour,
            label=f"published, measured: {source}",
        )  # fmt: skip
    ticks = sorted({*at, *(c for curve in published.values() for c in curve)})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [short(tick) for tick in ticks])
    axes.minorticks_off()


def short(context: int) -> str:
    """1024 as "1k"."""
    return f"{context // 1024}k" if context % 1024 == 0 else str(context)
