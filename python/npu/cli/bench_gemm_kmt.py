"""`npu bench gemm --k-mt-curve`: simulated TOPS against k_mt, the depth of a memtile's tiles.

A longer k_mt makes longer contiguous reads of DRAM, until the memtiles are full. Without --sizes,
every k_mt is simulated at its own multiple of the native size nearest to 4096 in M, K and N.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from npu.cli import bench_gemm as command
from npu.cli import bench_gemm_files as files
from npu.cli import bench_gemm_sweep as sweeps
from npu.cli import common, progress
from npu.designs.gemm import DesignPoint
from npu.errors import ArgumentError, DesignError
from npu.perf import kernel_profile
from npu.perf.simulate import SimulatedGemm

_ABOUT = 4096
# Swept when no type is named: the pairs of figure 6 of Taka et al., arXiv 2512.13282.
_DEFAULT = {"npu1": ("bfloat16", "bfloat16"), "npu2": ("int8", "int16")}


@dataclasses.dataclass
class Curve:
    """One tile and layout: a case per k_mt, why it ends, and the results so far."""

    chosen: int
    ends: str
    cases: list[tuple[sweeps.Case, sweeps.Size]]
    results: list[SimulatedGemm] = dataclasses.field(default_factory=list)

    @property
    def design(self) -> DesignPoint:
        return self.cases[0][0].design

    def points(self) -> list[tuple[sweeps.Case, sweeps.Size, SimulatedGemm]]:
        return [(*case, result) for case, result in zip(self.cases, self.results, strict=False)]


def run(arguments: argparse.Namespace) -> int:
    curves = _curves(arguments)
    with files.opened(arguments.csv, arguments.json, arguments.plot) as outputs:
        try:
            _simulate(curves)
        except KeyboardInterrupt:
            _write(outputs, curves, complete=False)
            done, total = (sum(len(v) for v in x) for x in
                           ([c.results for c in curves], [c.cases for c in curves]))  # fmt: skip
            print(f"interrupted: {done} of {total} points are simulated", file=sys.stderr)
            raise
        _write(outputs, curves, complete=True)
        if "plot" in outputs:
            outputs["plot"].write(_plot(curves, arguments))
    if files.STDOUT not in (arguments.csv, arguments.json):
        _print(curves)
        for output in outputs.values():
            print(f"{output.name}: written")
    return 0


def _curves(arguments: argparse.Namespace) -> list[Curve]:
    device = common.generation("bench", arguments.device)
    if arguments.sizes and len(arguments.sizes) != 1:
        raise ArgumentError(f"[bench] --k-mt-curve takes one size, not {len(arguments.sizes)}")
    size = sweeps.check_sizes(arguments.sizes)[0] if arguments.sizes else None
    if arguments.dtype or arguments.out_dtype:
        pairs = sweeps.pairs(arguments.dtype, arguments.out_dtype)
    else:
        pairs = [_DEFAULT[device]]
    return [
        _curve(sweeps.design_of(device, pair, layout, arguments.tile, None), size, arguments)
        for pair in pairs
        for layout in command.layouts(arguments)
    ]


def _curve(design: DesignPoint, size: sweeps.Size | None, arguments: argparse.Namespace) -> Curve:
    """All multiples of the tile's k that fit, in order; each is lowered when the emulator runs."""
    cases: list[tuple[sweeps.Case, sweeps.Size]] = []
    pair = design.a_dtype, design.c_dtype
    depth = design.tile[1]
    while size or depth <= _ABOUT // 2:
        try:
            checked = sweeps.design_of(design.generation, pair, design.b_layout, design.tile, depth)
            case = sweeps.Case(
                checked, arguments.method, arguments.stream_bytes, arguments.machine,
                arguments.kernels,
            )  # fmt: skip
            case.run(checked.native)
        except DesignError as error:
            if not cases:
                raise
            return Curve(design.k_mt, str(error), cases)
        cases.append((case, size or _near(checked.native)))
        depth += design.tile[1]
    return Curve(design.k_mt, f"K of about {_ABOUT} is less than two times k_mt {depth}", cases)


def _near(native: sweeps.Size) -> sweeps.Size:
    m, k, n = (max(1, round(_ABOUT / unit)) * unit for unit in native)
    return m, k, n


def _simulate(curves: list[Curve]) -> None:
    total = sum(len(curve.cases) for curve in curves)
    with progress.counted("simulating", "GEMMs", total) as advance:
        for curve in curves:
            for case, size in curve.cases:
                curve.results.append(case.run(size))
                advance(1)


def _write(outputs: dict[str, files.Output], curves: list[Curve], complete: bool) -> None:
    rows = [command.row(*point) for curve in curves for point in curve.points()]
    if not rows:
        return
    if "csv" in outputs:
        outputs["csv"].write(files.csv_bytes(rows))
    if "json" in outputs:
        head = {
            "kind": "npu bench gemm --k-mt-curve",
            "times": "simulated",
            "machine": curves[0].cases[0][0].label,
            "kernels": kernel_profile.chosen(curves[0].cases[0][0].kernels),
            "complete": complete,
            "default_k_mt": [curve.chosen for curve in curves],
            "ends": [curve.ends for curve in curves],
        }
        outputs["json"].write(files.json_bytes("gemm --k-mt-curve", head | {"rows": rows}))


def _print(curves: list[Curve]) -> None:
    for curve in curves:
        case, d = curve.cases[0][0], curve.design
        tile = "x".join(map(str, d.tile))
        print(
            f"simulated TOPS against k_mt on {d.generation} ({command.SOURCES[case.method]}), "
            f"{case.profiles}: {case.pair}, B {d.b_layout}, tile {tile}, "
            f"kernel peak {case.peak_tops:.2f} TOPS"
        )
        print(f"{'k_mt':>6} {'M x K x N':>16} {'TOPS':>7} {'of peak':>8}  bound")
        for one, size, result in curve.points():
            mark = "  default" if one.design.k_mt == curve.chosen else ""
            print(
                f"{one.design.k_mt:>6} {'x'.join(map(str, size)):>16} {result.tops:>7.2f} "
                f"{100 * result.tops / case.peak_tops:>7.0f}%  {result.bound}{mark}"
            )
        print(f"deeper: {curve.ends}")


def _plot(curves: list[Curve], arguments: argparse.Namespace) -> bytes:
    from npu.perf.plots import gemm

    panels: dict[str, gemm.CurvePanel] = {}
    for curve in curves:
        case, d = curve.cases[0][0], curve.design
        tile = " × ".join(map(str, d.tile))
        panel = panels.setdefault(
            case.pair,
            gemm.CurvePanel(f"{case.pair}\ntile {tile}", case.peak_tops, curve.chosen, {}),
        )
        panel.lines[d.b_layout] = [
            (one.design.k_mt, result.tops, result.bound) for one, _, result in curve.points()
        ]
        if not arguments.sizes:
            panel.published += [(p.k_mt, p.value) for p in command.published_tops(d) if p.k_mt]
    first = curves[0]
    size = arguments.sizes[0] if arguments.sizes else None
    what = "x".join(map(str, size)) if size else "about 4K in M, K, N"
    return gemm.k_mt_curves(
        list(panels.values()),
        f"GEMM of {what} on {first.design.generation}, simulated\n"
        f"({command.SOURCES[first.cases[0][0].method]}, {first.cases[0][0].profiles})",
        arguments.plot.rpartition(".")[2].lower(),
    )
