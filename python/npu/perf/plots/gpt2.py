"""Plot of `npu bench gpt2`: a step of GPT-2 by stages, per device, beside the CPU."""

from __future__ import annotations

import io
from typing import Any

from npu.perf.plots import pyplot, write

# Okabe and Ito's colours, as in plots/gemm.py; hatched: measured on the host.
_STAGES = {
    ("simulated_ms", "kernel"): ("kernel", "#0072B2"),
    ("simulated_ms", "synchronisation"): ("input and output synchronisation", "#56B4E9"),
    ("simulated_ms", "configuration"): ("loads of configurations", "#CC79A7"),
    ("measured_ms", "transposition"): ("transposition", "#D55E00"),
    ("measured_ms", "input_copy"): ("input copy", "#E69F00"),
    ("measured_ms", "output_copy"): ("output copy", "#F0E442"),
    ("measured_ms", "call"): ("call", "#999999"),
}


def draw(document: dict[str, Any], suffix: str) -> bytes:
    """The document of `npu bench gpt2 --json` as a picture with the ending ``suffix``."""
    pyplot()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    names = [f"{step['device']}\n{step['machine']}" for step in document["steps"]]
    for (group, key), (label, colour) in _STAGES.items():
        hatched = group == "measured_ms"
        if hatched and document["cpu_ms"] is None:
            continue
        lefts = [_before(step, (group, key)) for step in document["steps"]]
        widths = [step[group][key] for step in document["steps"]]
        kind = "measured on this host" if hatched else "simulated"
        axes.barh(
            names, widths, left=lefts, color=colour, hatch="//" if hatched else None,
            edgecolor="white", label=f"{label}, {kind}",
        )  # fmt: skip
    if document["cpu_ms"] is not None:
        axes.barh(
            ["this CPU\ntorch float32"], [document["cpu_ms"]], color="#009E73", hatch="//",
            edgecolor="white", label="CPU, measured on this host",
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per step")
    axes.set_title(
        f"Products of a step of GPT-2, {document['gflop']:.0f} GFLOP, {document['dtype']} tensors",
        loc="left", weight="bold",
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=3)
    out = io.BytesIO()
    write(figure, out, "." + suffix)
    return out.getvalue()


def _before(step: dict[str, Any], stage: tuple[str, str]) -> float:
    """Where a stage begins in its bar."""
    total = 0.0
    for group, key in _STAGES:
        if (group, key) == stage:
            break
        total += step[group][key] if step[group] else 0.0
    return total
