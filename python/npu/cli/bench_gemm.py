"""`npu bench gemm`: simulated TOPS over hundreds of problem sizes, per precision and layout of B.

The emulated NPU executes the real streams with timing and without data (or the closed form is
evaluated); no figure is a time of this machine. Prints a summary; CSV, JSON and a roofline plot
on request. docs/benchmarking.md says how the sizes are chosen and how to read the plot.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from npu.cli import bench_gemm_files as files
from npu.cli import bench_gemm_sweep as sweeps
from npu.cli import common, progress
from npu.errors import ArgumentError
from npu.perf import kernel_profile

if TYPE_CHECKING:
    from npu.designs.gemm import DesignPoint
    from npu.perf.published import Published
    from npu.perf.simulate import SimulatedGemm

SOURCES = {
    "emulator": "timed emulator executing the real streams",
    "closed-form": "closed form",
}


def layouts(arguments: argparse.Namespace) -> tuple[str, ...]:
    return ("col", "row") if arguments.b_layout == "both" else (arguments.b_layout,)


def run(arguments: argparse.Namespace) -> int:
    found = _sweeps(arguments)
    with files.opened(arguments.csv, arguments.json, arguments.plot) as outputs:
        begin = time.perf_counter()
        try:
            _simulate(found)
        except KeyboardInterrupt:
            _keep(found, outputs)
            raise
        taken = time.perf_counter() - begin
        if "csv" in outputs:
            outputs["csv"].write(files.csv_bytes(_rows(found)))
        if "json" in outputs:
            outputs["json"].write(files.json_bytes("gemm", document(found, complete=True)))
        if "plot" in outputs:
            outputs["plot"].write(_plot(found, arguments))
    if files.STDOUT not in (arguments.csv, arguments.json):
        _print_summary(found, taken)
        for output in outputs.values():
            print(f"{output.name}: written")
    return 0


def _sweeps(arguments: argparse.Namespace) -> list[sweeps.Sweep]:
    device = common.generation("bench", arguments.device)
    if arguments.sizes and (arguments.count or arguments.max_size):
        raise ArgumentError("[bench] --sizes names the sizes; leave out --count and --max-size")
    found = []
    for pair in sweeps.pairs(arguments.dtype, arguments.out_dtype):
        for layout in layouts(arguments):
            design = sweeps.design_of(device, pair, layout, arguments.tile, arguments.k_mt)
            if arguments.sizes:
                sizes = sweeps.check_sizes(arguments.sizes)
            else:
                limit = arguments.max_size or sweeps.DEFAULT_LIMIT
                count = arguments.count or sweeps.DEFAULT_COUNT
                sizes = sweeps.problem_sizes(design.native, count, limit)
            case = sweeps.Case(
                design, arguments.method, arguments.stream_bytes, arguments.machine,
                arguments.kernels,
            )  # fmt: skip
            found.append(sweeps.Sweep(case, sizes))
    return found


def _simulate(found: list[sweeps.Sweep]) -> None:
    estimate = sweeps.prepare(found)
    total = sum(len(sweep.sizes) for sweep in found)
    print(
        f"simulating {total} GEMMs in {len(found)} sweeps ({found[0].case.method}) on "
        f"{sweeps.threads()} threads; about {estimate:.0f} s if the CPUs are free",
        file=sys.stderr,
    )
    done = sum(len(sweep.results) for sweep in found)
    with progress.counted("simulating", "GEMMs", total, done) as advance:
        sweeps.run(found, advance)


def _keep(found: list[sweeps.Sweep], outputs: dict[str, files.Output]) -> None:
    """After an interrupt: writes the rows there are, and says how many."""
    done = sum(len(sweep.results) for sweep in found)
    total = sum(len(sweep.sizes) for sweep in found)
    kept = []
    if done and "csv" in outputs:
        outputs["csv"].write(files.csv_bytes(_rows(found)))
        kept.append(outputs["csv"].name)
    if done and "json" in outputs:
        outputs["json"].write(files.json_bytes("gemm", document(found, complete=False)))
        kept.append(outputs["json"].name)
    where = f"they are in {' and '.join(kept)}" if kept else "nothing was written"
    print(f"interrupted: {done} of {total} sizes are simulated, {where}", file=sys.stderr)


def _rows(found: list[sweeps.Sweep]) -> list[dict[str, Any]]:
    return [row(sweep.case, size, result) for sweep in found for size, result in sweep.done()]


def row(case: sweeps.Case, size: sweeps.Size, result: SimulatedGemm) -> dict[str, Any]:
    d = case.design
    return {
        "device": d.generation,
        "dtype_in": d.a_dtype,
        "dtype_out": d.c_dtype,
        "b_layout": d.b_layout,
        **dict(zip(("tile_m", "tile_k", "tile_n"), d.tile, strict=True)),
        "k_mt": d.k_mt,
        "method": case.method,
        "machine": result.machine,
        "kernels": result.kernels,
        **_figures(case, size, result),
    }


def _figures(case: sweeps.Case, size: sweeps.Size, result: SimulatedGemm) -> dict[str, Any]:
    """What is particular to one size."""
    return {
        **dict(zip("MKN", size, strict=True)),
        "ops_per_byte": case.intensity(size),
        "simulated_seconds": result.seconds,
        "simulated_tops": result.tops,
        "bound": result.bound,
        **{f"share_{name}": result.shares[name] for name in sweeps.BOUNDS},
        "bytes_L3_read": result.bytes["L3_read"],
        "bytes_L3_write": result.bytes["L3_write"],
    }


def document(found: list[sweeps.Sweep], complete: bool) -> dict[str, Any]:
    """The JSON document: a head, and per sweep its design, its summary and its rows."""
    return {
        "kind": "npu bench gemm",
        "times": "simulated",
        "method": found[0].case.method,
        "stream_bytes": found[0].case.stream_bytes,
        "machine": found[0].case.label,
        "kernels": kernel_profile.chosen(found[0].case.kernels),
        "device": found[0].case.design.generation,
        "complete": complete,
        "sweeps": [_sweep_document(sweep) for sweep in found],
    }


def _sweep_document(sweep: sweeps.Sweep) -> dict[str, Any]:
    case = sweep.case
    return {
        "dtype_in": case.design.a_dtype,
        "dtype_out": case.design.c_dtype,
        "b_layout": case.design.b_layout,
        "tile": list(case.design.tile),
        "k_mt": case.design.k_mt,
        "native_size": list(case.design.native),
        "kernel_peak_tops": case.peak_tops,
        "dram_read_ceiling_tops": case.read_ceiling_tops,
        "dram_read_gb_per_s": case.dram_gb_per_s,
        "summary": summary(sweep),
        "rows": [_figures(case, *item) for item in sweep.done()],
    }


def summary(sweep: sweeps.Sweep) -> dict[str, Any] | None:
    """Count, spread of TOPS, sizes by bound, and the share above 90 % of the kernel's peak."""
    tops = [result.tops for _, result in sweep.done()]
    if not tops:
        return None
    bounds = [result.bound for _, result in sweep.done()]
    peak = sweep.case.peak_tops
    return {
        "count": len(tops),
        "min_tops": min(tops),
        "mean_tops": statistics.fmean(tops),
        "max_tops": max(tops),
        "by_bound": {bound: bounds.count(bound) for bound in sweeps.BOUNDS},
        "share_above_90_percent_of_peak": sum(t > 0.9 * peak for t in tops) / len(tops),
    }


def column_gain(found: list[sweeps.Sweep]) -> dict[str, float]:
    """Per pair, the mean over sizes of TOPS with column-major B / with row-major B, minus 1."""
    by_layout = {(sweep.case.pair, sweep.case.design.b_layout): sweep for sweep in found}
    gains = {}
    for (pair, layout), sweep in by_layout.items():
        row = by_layout.get((pair, "row"))
        if layout == "col" and row:
            ratios = [r.tops / row.results[size].tops for size, r in sweep.done()]
            gains[pair] = statistics.fmean(ratios) - 1
    return gains


def _print_summary(found: list[sweeps.Sweep], taken: float) -> None:
    case = found[0].case
    print(
        f"simulated TOPS of GEMM on {case.design.generation} ({SOURCES[case.method]}; no hardware "
        f"involved), dispatch included; {case.profiles}; {taken:.1f} s of host time"
    )
    print(
        f"{'precision':>20} B   {'tile':>11} {'k_mt':>4} {'sizes':>5} {'min':>6} {'mean':>6} "
        f"{'max':>6} {'peak':>6} {'>90%':>5}  bound: " + "/".join(sweeps.BOUNDS)
    )
    for sweep in found:
        s, d = summary(sweep), sweep.case.design
        assert s
        tile = "x".join(map(str, d.tile))
        counts = "/".join(str(value) for value in s["by_bound"].values())
        print(
            f"{sweep.case.pair:>20} {d.b_layout} {tile:>11} {d.k_mt:>4} {s['count']:>5} "
            f"{s['min_tops']:>6.2f} {s['mean_tops']:>6.2f} {s['max_tops']:>6.2f} "
            f"{sweep.case.peak_tops:>6.2f} {100 * s['share_above_90_percent_of_peak']:>4.0f}%  "
            f"{counts}"
        )
    print("peak: all cores in the kernel all the time; >90%: share of the sizes above 90 % of it")
    for pair, gain in column_gain(found).items():
        print(f"{pair}: column-major B {100 * gain:+.1f} % over row-major, mean over the sizes")


def published_tops(design: DesignPoint) -> list[Published]:
    """TOPS of this tile and layout of B that others measured on hardware, any k_mt."""
    from npu.perf import published

    found = []
    for p in published.figures():
        if p.metric == "tops" and p.overlap and p.tile == design.tile:
            same = dataclasses.replace(p.design, k_mt=design.k_mt) == design
            found += [p] if same else []
    return found


def _plot(found: list[sweeps.Sweep], arguments: argparse.Namespace) -> bytes:
    from npu.perf.plots import gemm

    panels: dict[str, gemm.RooflinePanel] = {}
    for sweep in found:
        case = sweep.case
        panel = panels.setdefault(
            case.pair,
            gemm.RooflinePanel(
                case.pair, case.design.tile, case.design.k_mt, case.peak_tops, case.dram_gb_per_s
            ),
        )
        panel.published += [
            (case.intensity(p.size), p.value)
            for p in published_tops(case.design)
            if p.size and p.k_mt == case.design.k_mt
        ]
        panel.read_ceilings[case.design.b_layout] = case.read_ceiling_tops
        panel.points += [
            gemm.Point(case.intensity(size), result.tops, result.bound, case.design.b_layout)
            for size, result in sweep.done()
        ]
    source = SOURCES[found[0].case.method]
    suffix = arguments.plot.rpartition(".")[2].lower()
    return gemm.roofline(
        list(panels.values()),
        f"GEMM on {found[0].case.design.generation}, simulated ({source})\n"
        f"{found[0].case.profiles}",
        suffix,
        arguments.scale or "linear",
    )
