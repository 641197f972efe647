"""`npu bench gemm --designs default`: simulated TOPS of what npu.matmul chooses.

Every size is computed with the configuration that npu.matmul chooses for it on a device that
prefers the array's time (npu/ops/gemm_designs.py). The emulator executes the streams that it
submits, ragged edges and splits included. TOPS are those of a call whose configuration is loaded;
the loads of calling all sizes in turn are printed separately.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import time
from typing import Any

from npu.cli import bench_gemm as command
from npu.cli import bench_gemm_files as files
from npu.cli import bench_gemm_sweep as sweeps
from npu.cli import common, progress
from npu.designs.gemm import DesignPoint
from npu.devices import DEFAULT_BF16
from npu.errors import ArgumentError
from npu.ops import gemm_choice, gemm_estimate
from npu.ops.gemm_designs import candidates
from npu.ops.gemm_product import Product
from npu.perf import kernel_profile
from npu.perf.simulate import SimulatedGemm, simulate_call, simulate_gemm
from npu.perf.tune.workload import PRESETS, geometric_mean

_ROUNDS = 10  # in which the sizes are called in turn, to count loads


@dataclasses.dataclass(frozen=True)
class Case(sweeps.Case):
    """One product and layout of B with the configurations that may run it; ``design`` is the one of
    the largest size."""

    accumulate: str = "wide"
    found: tuple[DesignPoint, ...] = ()

    def options(self, size: sweeps.Size) -> DesignPoint:
        """What the first call of a size loads, and further calls of it find loaded."""
        return min(self.found, key=lambda design: gemm_estimate.seconds(design, size))

    def run(self, size: sweeps.Size) -> SimulatedGemm:
        design = self.options(size)
        if self.method == "emulator":
            return simulate_call(design, size, self.stream_bytes, self.machine, self.kernels)
        return simulate_gemm(
            design.generation, *size, design=design, model=self.method,
            stream_bytes=self.stream_bytes, machine=self.machine, kernels=self.kernels,
        )  # fmt: skip

    def in_turn(self, sizes: list[sweeps.Size]) -> dict[str, float]:
        """Loads, and their share of the predicted time, when all sizes are called in turn."""
        load = gemm_estimate.load_seconds(self.design.generation)
        ledger, designs = gemm_choice.Ledger(), {o.key: o for o in self.found}
        loads, total = 0, 0.0
        for size in sizes * _ROUNDS:
            seconds = {key: gemm_estimate.seconds(o, size) for key, o in designs.items()}
            decision = gemm_choice.decide(seconds, ledger, load)
            ledger = decision.ledger
            loads += decision.loads
            total += seconds[decision.candidate] + load * decision.loads
        return {
            "calls": len(sizes) * _ROUNDS, "loads": loads, "load_share": loads * load / total
        }  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    found = _sweeps(arguments)
    with files.opened(arguments.csv, arguments.json) as outputs:
        begin = time.perf_counter()
        _simulate(found)
        taken = time.perf_counter() - begin
        if "csv" in outputs:
            rows = [_head(sweep.case) | row for sweep in found for row in _rows(sweep)]
            outputs["csv"].write(files.csv_bytes(rows))
        if "json" in outputs:
            outputs["json"].write(files.json_bytes("gemm --designs", document(found)))
    if files.STDOUT not in (arguments.csv, arguments.json):
        _print(found, taken)
        for output in outputs.values():
            print(f"{output.name}: written")
    return 0


def _sweeps(arguments: argparse.Namespace) -> list[sweeps.Sweep]:
    device = common.generation("bench", arguments.device)
    bf16 = arguments.bf16 or DEFAULT_BF16[device]
    if bf16 == "bfp16" and device == "npu1":
        raise ArgumentError("[bench] --bf16 bfp16: npu1 multiplies bfloat16 natively only")
    sizes = sweeps.check_sizes(arguments.sizes or PRESETS["mixed"])
    chosen = arguments.accumulate or "wide"
    found = []
    for a, c in _pairs(arguments):
        mode = bf16 if a == "bfloat16" else "native"
        for sums in ("wide", "narrow") if chosen == "both" else (chosen,):
            if sums == "narrow" and c in ("int32", "float32") and chosen == "both":
                continue
            for layout in command.layouts(arguments):
                product = Product(a, c, (1, 1, 1), layout, sums, mode)
                options = candidates(device, "array", product)
                case = Case(
                    options[0], arguments.method, arguments.stream_bytes, arguments.machine,
                    arguments.kernels, sums, options,
                )  # fmt: skip
                largest = case.options(max(sizes))
                found.append(sweeps.Sweep(dataclasses.replace(case, design=largest), sizes))
    return found


def _pairs(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """What is named; nothing: the pairs of the published sweep and those of 32-bit results."""
    found = sweeps.pairs(arguments.dtype, arguments.out_dtype)
    if arguments.dtype is None and arguments.out_dtype is None:
        found.append(("bfloat16", "float32"))
    return found


def _simulate(found: list[sweeps.Sweep]) -> None:
    sweeps.prepare(found)
    total = sum(len(sweep.sizes) for sweep in found)
    done = sum(len(sweep.results) for sweep in found)
    print(f"simulating {total} GEMMs by the {found[0].case.method}", file=sys.stderr)
    with progress.counted("simulating", "GEMMs", total, done) as advance:
        sweeps.run(found, advance)


def _case(sweep: sweeps.Sweep) -> Case:
    assert isinstance(sweep.case, Case)
    return sweep.case


def _head(case: sweeps.Case) -> dict[str, Any]:
    assert isinstance(case, Case)
    d = case.design
    return {
        "device": d.generation, "dtype_in": d.a_dtype, "dtype_out": d.c_dtype,
        "accumulate": case.accumulate, "bf16": d.bf16, "b_layout": d.b_layout,
    }  # fmt: skip


def _configuration(o: DesignPoint) -> dict[str, Any]:
    m, k, n = o.tile
    return {
        "tile_m": m, "tile_k": k, "tile_n": n, "k_mt": o.k_mt, "kernel": o.kernel,
        "c_buffers": o.c_buffers,
    }  # fmt: skip


def _rows(sweep: sweeps.Sweep) -> list[dict[str, Any]]:
    case = _case(sweep)
    return [
        dict(zip("MKN", size, strict=True))
        | _configuration(case.options(size))
        | {
            "predicted_seconds": gemm_estimate.seconds(case.options(size), size),
            "simulated_seconds": result.seconds,
            "simulated_tops": result.tops,
            "bound": result.bound,
            **_limits(result),
        }
        for size, result in sweep.done()
    ]


def _limits(result: SimulatedGemm) -> dict[str, Any]:
    """What was read, and the TOPS of the same design if DRAM, or the cores, never idled."""
    array = result.seconds - result.dispatch_seconds
    busy = {name: result.shares[name] * array for name in ("DRAM", "compute")}
    return {
        "bytes_L3_read": result.bytes["L3_read"],
        **{f"share_{name}": result.shares[name] for name in sweeps.BOUNDS},
        **{
            f"tops_at_full_{name}": result.tops * result.seconds / (result.dispatch_seconds + time)
            for name, time in busy.items()
        },
    }


def document(found: list[sweeps.Sweep]) -> dict[str, Any]:
    """The JSON document: per product and layout of B the geometric mean, what was chosen how often,
    loads, and a row per size."""
    case = found[0].case
    return {
        "kind": "npu bench gemm --designs default",
        "times": "simulated",
        "method": case.method,
        "stream_bytes": case.stream_bytes,
        "machine": case.label,
        "kernels": kernel_profile.chosen(case.kernels),
        "device": case.design.generation,
        "sweeps": [
            _head(sweep.case)
            | {
                "geometric_mean_tops": _mean(sweep),
                "configurations": [
                    _configuration(o) | {"sizes": count} for o, count in _counts(sweep)
                ],
                "in_turn": _case(sweep).in_turn(sweep.sizes),
                "rows": _rows(sweep),
            }
            for sweep in found
        ],
    }


def _mean(sweep: sweeps.Sweep) -> float:
    return float(geometric_mean([result.tops for _, result in sweep.done()]))


def _counts(sweep: sweeps.Sweep) -> list[tuple[DesignPoint, int]]:
    case = _case(sweep)
    return collections.Counter(case.options(size) for size in sweep.sizes).most_common()


def _print(found: list[sweeps.Sweep], taken: float) -> None:
    case = found[0].case
    print(
        f"simulated TOPS of npu.matmul on {case.design.generation} where the array's time is "
        f"preferred ({command.SOURCES[case.method]}; no hardware involved)\n"
        f"dispatch included, configuration loaded; {case.profiles}; {taken:.1f} s of host time"
    )
    print(
        f"{'precision':>20} {'sums':>6} B   {'sizes':>5} {'mean':>6} {'min':>6} {'max':>6}  "
        "configurations: tile, k_mt, sizes"
    )
    for sweep in found:
        d, tops = sweep.case.design, [result.tops for _, result in sweep.done()]
        used = "; ".join(
            f"{'x'.join(map(str, o.tile))}, {o.k_mt}, {count}" for o, count in _counts(sweep)
        )
        print(
            f"{sweep.case.pair:>20} {_case(sweep).accumulate:>6} {d.b_layout} {len(tops):>5} "
            f"{_mean(sweep):>6.2f} {min(tops):>6.2f} {max(tops):>6.2f}  {used}"
        )
    print("mean: geometric, over the sizes")
    if len(found[0].sizes) == 1:
        _print_limits(found)
    if len(found[0].sizes) > 1:
        for sweep in found:
            turn = _case(sweep).in_turn(sweep.sizes)
            print(
                f"{sweep.case.pair} {_case(sweep).accumulate} {sweep.case.design.b_layout}: all "
                f"sizes in turn, {turn['calls']} calls, {turn['loads']} loads, "
                f"{100 * turn['load_share']:.1f} % of the time"
            )


def _print_limits(found: list[sweeps.Sweep]) -> None:
    """What binds the one size."""
    print(
        f"\n{'precision':>20} {'sums':>6} B   {'TOPS':>6} {'read MB':>8} {'DRAM':>6} {'cores':>6}  "
        "TOPS at full DRAM, cores"
    )
    for sweep in found:
        ((_, result),) = sweep.done()
        r = _limits(result)
        print(
            f"{sweep.case.pair:>20} {_case(sweep).accumulate:>6} {sweep.case.design.b_layout} "
            f"{result.tops:>8.2f} {r['bytes_L3_read'] / 1e6:>8.1f} {r['share_DRAM']:>6.1%} "
            f"{r['share_compute']:>6.1%}  {r['tops_at_full_DRAM']:.2f}, "
            f"{r['tops_at_full_compute']:.2f}"
        )
    print(
        "DRAM, cores: share of the time they work; full: the same reads, runs and all, without a "
        "pause; the same kernel calls without a wait; and the dispatch"
    )
