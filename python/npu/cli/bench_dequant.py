"""`npu bench dequant`: simulated time of expanding the projections of Gemma 3 to bfloat16."""

from __future__ import annotations

import argparse
from typing import Any

from npu.cli import bench_gemm_files as files
from npu.cli import common

NOTE = "simulated array time; each submission adds the dispatch ({dispatch:.0f} us)"


def run(arguments: argparse.Namespace) -> int:
    with files.opened(json_path=arguments.json) as outputs, common.use_device(arguments) as device:
        rows = [
            row
            for name in arguments.projections
            for row in measure(
                name, device.generation, arguments.format, arguments.machine, arguments.kernels
            )
        ]
        if outputs:
            document = {
                "device": device.name, "machine": rows[0]["machine"],
                "kernels": rows[0]["kernels"], "format": arguments.format,
                "times": "simulated", "results": rows,
            }  # fmt: skip
            outputs["json"].write(files.json_bytes("dequant", document))
    if arguments.json != files.STDOUT:
        _print_table(device.name, arguments.format, rows)
    return 0


def measure(
    model: str,
    generation: str,
    format: str,
    machine: str | None = None,
    kernels: str | None = None,
) -> list[dict[str, Any]]:
    """One model: a row per projection of a layer."""
    from npu.perf.dequant_simulation import simulate_dequantize
    from npu.perf.gemv_simulation import PROJECTIONS

    rows = []
    for name, (n, k, count) in PROJECTIONS[model].items():
        if name == "head":  # prefill multiplies the head by one token: a GEMV
            continue
        result = simulate_dequantize(
            generation, n, k, format=format, machine=machine, kernels=kernels
        )
        rows.append(
            {
                "model": model,
                "projection": name,
                "n": n,
                "k": k,
                "per_prefill": count,
                "machine": result.machine,
                "kernels": result.kernels,
                "simulated_us": 1e6 * result.seconds,
                "dispatch_us": 1e6 * result.dispatch_seconds,
                "read_gb_per_s": 1e-9 * result.read_bandwidth,
                "write_gb_per_s": 1e-9 * result.write_bandwidth,
                "share_of_ceiling": result.share,
                "bound": result.bound,
            }
        )
    return rows


def _print_table(device: str, format: str, rows: list[dict[str, Any]]) -> None:
    print(f"{device}: {format} weights to bfloat16 in memory; machine {rows[0]['machine']};")
    print(f"kernels: {rows[0]['kernels']};")
    print(NOTE.format(dispatch=rows[0]["dispatch_us"]))
    print("share: of what the memory's bandwidth for reads and writes together leaves for writes")
    print(
        f"{'model':<10} {'projection':<10} {'N':>6} {'K':>6} {'us':>8} {'read GB/s':>10} "
        f"{'write GB/s':>11} {'share':>6}  bound"
    )
    for row in rows:
        print(
            f"{row['model']:<10} {row['projection']:<10} {row['n']:>6} {row['k']:>6} "
            f"{row['simulated_us']:>8.1f} {row['read_gb_per_s']:>10.1f} "
            f"{row['write_gb_per_s']:>11.1f} {row['share_of_ceiling']:>6.0%}  {row['bound']}"
        )
