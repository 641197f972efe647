"""`npu bench operations`: simulated time of requests to the registered operations, by default the
examples of all of them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from npu.cli import bench_gemm_files as files
from npu.cli import common
from npu.perf import kernel_profile


def run(arguments: argparse.Namespace) -> int:
    rows = _simulate(arguments)
    with files.opened(None, arguments.json) as outputs:
        if "json" in outputs:
            document = {
                "kind": "npu bench operations", "times": "simulated",
                "machine": rows[0]["machine"], "kernels": kernel_profile.chosen(arguments.kernels),
                "rows": rows,
            }  # fmt: skip
            outputs["json"].write(files.json_bytes("operations", document))
    if arguments.json != files.STDOUT:
        _print(rows)
    return 0


def _simulate(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from npu.errors import ArgumentError
    from npu.ops.registry import operation, operations
    from npu.perf.operation_simulation import simulate_operation

    device = common.generation("bench", arguments.device)
    if arguments.request and not arguments.operation:
        raise ArgumentError("[bench] --request needs --operation NAME")
    chosen = [operation(arguments.operation)] if arguments.operation else operations().values()
    rows = []
    for one in chosen:
        requests = {"": arguments.request} if arguments.request else one.examples
        for example, request in requests.items():
            print(f"simulating {one.name} {example}", file=sys.stderr)
            result = simulate_operation(
                one.name, device, request, machine=arguments.machine, kernels=arguments.kernels
            )
            head = {"device": device, "operation": one.name, "example": example}
            rows.append(head | {"request": dict(request)} | dataclasses.asdict(result))
    return rows


def _print(rows: list[dict[str, Any]]) -> None:
    print(
        f"simulated time on {rows[0]['device']} (timed emulator executing the real streams; no "
        f"hardware involved), dispatch not included; machine {rows[0]['machine']}"
    )
    print(f"{'operation':>10} {'us':>10} {'GB/s':>6} {'bound':>8}  request")
    for row in rows:
        moved = row["read_bytes"] + row["write_bytes"]
        request = ",".join(f"{k}={v}" for k, v in row["request"].items())
        print(
            f"{row['operation']:>10} {1e6 * row['seconds']:>10.1f} "
            f"{1e-9 * moved / row['seconds']:>6.1f} {row['bound']:>8}  {request}"
            + (f"  ({row['example']})" if row["example"] else "")
        )
    print("GB/s: reads and writes of DRAM together")
