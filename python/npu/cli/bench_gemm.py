"""`npu bench gemm`: host time of npu.matmul beside float32 numpy.matmul, alternating in one run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npu.cli import common

if TYPE_CHECKING:
    from npu import Device


def run(arguments: argparse.Namespace) -> int:
    with common.use_device(arguments) as device:
        rows = [
            measure(size, arguments.dtype, arguments.repeats, device) for size in arguments.sizes
        ]
    if arguments.json:
        print(json.dumps(_document(device, arguments, rows), indent=2))
    else:
        _print_table(device, arguments, rows)
    return 0


def measure(size: tuple[int, int, int], dtype: str, repeats: int, device: Device) -> dict[str, Any]:
    """One size: seconds of both in each repeat and their ratio (NumPy / NPU; above 1 is faster)."""
    import ml_dtypes
    import numpy as np

    import npu

    m, k, n = size
    rng = np.random.default_rng(0)
    if dtype == "int8":
        a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (k, n)))
    else:
        a, b = (
            rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
            for shape in ((m, k), (k, n))
        )
    a32, b32 = a.astype(np.float32), b.astype(np.float32)
    out_dtype = np.int32 if dtype == "int8" else np.float32
    ours: list[float] = []
    numpys: list[float] = []
    for repeat in range(repeats + 1):
        if sys.stderr.isatty():
            print(f"\r{m}x{k}x{n}, run {repeat}/{repeats} ", end="", file=sys.stderr)
        taken = _seconds(lambda: npu.matmul(a, b, out_dtype=out_dtype, device=device))
        reference = _seconds(lambda: np.matmul(a32, b32))
        if repeat:
            ours.append(taken)
            numpys.append(reference)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return {
        "size": [m, k, n],
        "npu_ms": common.spread([1e3 * value for value in ours]),
        "numpy_float32_ms": common.spread([1e3 * value for value in numpys]),
        "gflops": common.spread([2e-9 * m * k * n / value for value in ours]),
        "ratio": common.spread([b / a for a, b in zip(ours, numpys, strict=True)]),
    }


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _document(
    device: Device, arguments: argparse.Namespace, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "device": device.name,
        "emulated": device.emulated,
        "arithmetic": device.arithmetic,
        "times": common.time_label(device),
        "dtype": arguments.dtype,
        "warm_up_runs": 1,
        "repeats": arguments.repeats,
        "results": rows,
    }


def _print_table(device: Device, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    print(common.device_line(device))
    print(
        f"{arguments.dtype} operands, numpy.matmul in float32 beside it; "
        f"{common.time_label(device)}; median [min, max] of {arguments.repeats} alternating runs "
        "after one warm-up"
    )
    print("{:>16}  {:>26}  {:>26}  {:>8}".format("M x K x N", "npu ms", "numpy ms", "ratio"))
    for row in rows:
        cells = [
            "{median:.2f} [{min:.2f}, {max:.2f}]".format(**row[name])
            for name in ("npu_ms", "numpy_float32_ms")
        ]
        size = "x".join(str(value) for value in row["size"])
        print(f"{size:>16}  {cells[0]:>26}  {cells[1]:>26}  {row['ratio']['median']:>8.2f}")
    print("ratio: numpy time / npu time, median of the pairs; above 1 the emulated NPU is faster")
