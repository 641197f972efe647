"""`npu bench gemm --ragged`: host time and bytes copied when only the edges of operands are packed,
beside packing and padding them whole; alternating in one run.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from npu import Device
from npu.cli import bench_gemm_files as files
from npu.cli import bench_gemm_host, common

_SIZES = [(1000, 1000, 1000), (1024, 1024, 1000), (1000, 2000, 2050)]  # no native multiples


def run(arguments: argparse.Namespace) -> int:
    dtype = bench_gemm_host.dtype_of(arguments)
    sizes = bench_gemm_host.sizes_of(arguments, _SIZES)
    with files.opened(json_path=arguments.json) as outputs, common.use_device(arguments) as device:
        rows = [
            measure(size, dtype, layout, arguments.repeats, device)
            for size in sizes
            for layout in ("row", "col")
        ]
        if outputs:
            head = {"device": device.name, "times": common.time_label(device)}
            outputs["json"].write(files.json_bytes(head | {"results": rows}))
    if arguments.json == files.STDOUT:
        return 0
    print(common.device_line(device))
    print(f"{dtype}; {common.time_label(device)}; median [min, max] of alternating runs")
    print(f"{'M x K x N':>16}  B    {'edges ms':>22}  {'whole ms':>22}  MB copied  {'ratio':>6}")
    for row in rows:
        cells = ["{median:.2f} [{min:.2f}, {max:.2f}]".format(**row[w]) for w in ("edges", "whole")]
        copied = "{edges_bytes:.2f}, {whole_bytes:.2f}".format(
            **{k: v / 1e6 for k, v in row.items() if k.endswith("bytes")}
        )
        size = "x".join(map(str, row["size"]))
        ratio = row["whole"]["median"] / row["edges"]["median"]
        print(
            f"{size:>16}  {row['b_layout']}  {cells[0]:>22}  {cells[1]:>22}  {copied}  {ratio:.2f}"
        )
    return 0


def measure(
    size: tuple[int, int, int], dtype: str, layout: str, repeats: int, device: Device
) -> dict[str, Any]:
    """One size and layout of B: milliseconds and bytes copied by the host, both ways."""
    import ml_dtypes
    import numpy as np

    import npu

    m, k, n = size
    rng = np.random.default_rng(0)
    kind = np.int8 if dtype == "int8" else ml_dtypes.bfloat16
    a, b = (rng.integers(-8, 8, shape).astype(kind) for shape in ((m, k), (k, n)))
    b = np.asfortranarray(b) if layout == "col" else b
    out = np.empty((m, n), np.int32 if dtype == "int8" else np.float32)
    gemm = device.gemm(dtype, str(out.dtype), layout)
    times: dict[str, list[float]] = {"edges": [], "whole": []}
    copied = {}
    for repeat in range(repeats + 1):
        for name, taken in times.items():
            gemm.set_whole_padding(name == "whole")
            before = npu.stats()
            start = time.perf_counter()
            npu.matmul(a, b, out=out, device=device)
            if repeat:
                taken.append(1e3 * (time.perf_counter() - start))
            copied[f"{name}_bytes"] = (npu.stats() - before).host_copy_bytes
    gemm.set_whole_padding(False)
    spreads = {name: common.spread(values) for name, values in times.items()}
    return {"size": [m, k, n], "b_layout": layout, **spreads, **copied}
