"""`npu bench gemv`: simulated time of every projection of Gemma 3; with --host this machine's."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npu.cli import bench_gemm_files as files
from npu.cli import common, progress
from npu.formats.blocks import bytes_of, grid

if TYPE_CHECKING:
    from npu import Device

NOTE = (
    "simulated array time, weights read once; on top of each submission come the completion token "
    "({token:.0f} us) and the dispatch ({dispatch:.0f} us)"
)


def run(arguments: argparse.Namespace) -> int:
    with files.opened(json_path=arguments.json) as outputs, common.use_device(arguments) as device:
        with progress.counted("measuring", "projections") as advance:
            rows = [
                row
                for name in arguments.projections
                for row in measure(name, arguments, device, advance)
            ]
        if outputs:
            outputs["json"].write(files.json_bytes("gemv", _document(device, arguments, rows)))
    if arguments.json != files.STDOUT:
        _print_table(device, arguments, rows)
    return 0


def measure(
    model: str, arguments: argparse.Namespace, device: Device, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    """One model: a row per projection. ``advance(1)`` after each."""
    from npu.perf.gemv_simulation import PROJECTIONS, simulate_gemv

    batch, format = arguments.batch, arguments.format
    rows: list[dict[str, Any]] = []
    for name, (n, k, count) in PROJECTIONS[model].items():
        result = simulate_gemv(
            device.generation, n, k, batch, format=format, machine=arguments.machine,
            kernels=arguments.kernels,
        )  # fmt: skip
        row: dict[str, Any] = {
            "model": model,
            "projection": name,
            "n": n,
            "k": k,
            "per_token": count,
            "machine": result.machine,
            "kernels": result.kernels,
            "simulated_us": 1e6 * result.seconds,
            "token_us": 1e6 * result.token_seconds,
            "dispatch_us": 1e6 * result.dispatch_seconds,
            "gb_per_s": 1e-9 * result.bandwidth,
            "share_of_ceiling": result.share,
            "bound": result.bound,
        }
        if arguments.host:
            row["host"] = measure_host(n, k, batch, format, arguments.repeats, device)
        rows.append(row)
        advance(1)
    return rows


def measure_host(
    n: int, k: int, batch: int, format: str, repeats: int, device: Device
) -> dict[str, Any]:
    """npu.gemv beside NumPy's float32 product of the dequantised matrix, alternating."""
    import ml_dtypes
    import numpy as np

    import npu

    rng = np.random.default_rng(0)
    count, size = math.prod(grid((n, k), format)), bytes_of(format)
    blocks = rng.integers(0, 60, (count, size), dtype=np.uint8)  # finite numbers
    weights = npu.bind((blocks, (n, k), format), device=device)
    x = rng.standard_normal((batch, k), np.float32).astype(ml_dtypes.bfloat16)
    # A matrix too large for this machine's memory is measured on part of its rows.
    part = min(n, max(32, (256 << 20) // (4 * k)))
    dense = rng.standard_normal((part, k), np.float32)
    x32 = np.ascontiguousarray(x.astype(np.float32).T)
    ours: list[float] = []
    numpys: list[float] = []
    for repeat in range(repeats + 1):
        begin = time.perf_counter()
        npu.gemv(weights, x)
        middle = time.perf_counter()
        np.matmul(dense, x32)
        end = time.perf_counter()
        if repeat:
            ours.append(middle - begin)
            numpys.append((end - middle) * n / part)
    return {
        "npu_ms": common.spread([1e3 * value for value in ours]),
        "numpy_float32_ms": common.spread([1e3 * value for value in numpys]),
        "gb_per_s": common.spread([1e-9 * size * count / value for value in ours]),
        "ns_per_block": common.spread([1e9 * value / count for value in ours]),
    }


def _document(
    device: Device, arguments: argparse.Namespace, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "device": device.name,
        "machine": rows[0]["machine"],
        "kernels": rows[0]["kernels"],
        "emulated": device.emulated,
        "arithmetic": device.arithmetic,
        "times": "simulated; host: " + common.time_label(device),
        "batch": arguments.batch,
        "format": arguments.format,
        "repeats": arguments.repeats if arguments.host else 0,
        "results": rows,
    }


def _print_table(device: Device, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    print(common.device_line(device))
    print(f"y = W x, W in {arguments.format} blocks, batch {arguments.batch};")
    print(f"machine {rows[0]['machine']}; kernels: {rows[0]['kernels']};")
    print(NOTE.format(token=rows[0]["token_us"], dispatch=rows[0]["dispatch_us"]))
    head = (
        f"{'model':<10} {'projection':<10} {'N x K':>14} {'us':>9} {'GB/s':>7} {'of ceiling':>10}"
    )
    print(f"{head}  bound" + ("      host ms  numpy ms   GB/s  ns/block" if arguments.host else ""))
    for row in rows:
        size = f"{row['n']} x {row['k']}"
        line = (
            f"{row['model']:<10} {row['projection']:<10} {size:>14} {row['simulated_us']:>9.1f} "
            f"{row['gb_per_s']:>7.2f} {100 * row['share_of_ceiling']:>9.1f}%  {row['bound']:<7}"
        )
        if arguments.host:
            host = row["host"]
            line += (
                f" {host['npu_ms']['median']:>9.3f} {host['numpy_float32_ms']['median']:>9.3f} "
                f"{host['gb_per_s']['median']:>6.2f} {host['ns_per_block']['median']:>9.0f}"
            )
        print(line.rstrip())
    for model in arguments.projections:
        mine = [row for row in rows if row["model"] == model]
        line = f"{model}, one token: simulated {_total(mine, 'simulated_us') / 1e3:.2f} ms"
        if arguments.host:
            total = sum(row["per_token"] * row["host"]["npu_ms"]["median"] for row in mine)
            line += f"; {common.time_label(device)} {total:.1f} ms"
        print(line)


def _total(rows: list[dict[str, Any]], key: str) -> float:
    return sum(row["per_token"] * row[key] for row in rows)
