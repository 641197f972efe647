"""`npu bench gemm --host`: host time of npu.matmul beside numpy.matmul in float32 and, where torch
is installed, torch.matmul in bfloat16; alternating in one run, on the same number of threads. Each
pauses, then takes its first call and, apart from it, several more in a row.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from npu.cli import bench_gemm_files as files
from npu.cli import bench_gemm_sweep as sweeps
from npu.cli import common, progress
from npu.errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from npu import Device

_SIZES = [(256, 256, 256), (512, 512, 512), (1024, 1024, 1024)]
_DTYPES = ("bfloat16", "int8")
# Worker threads of OpenBLAS poll for some 100 ms after a call, torch's for milliseconds, and they
# take a CPU from what runs next: each library begins after a pause in which they go to sleep.
_PAUSE_MS = 200
# After it the CPU's caches are others' and threads sleep: what the first call pays for, those that
# follow it do not. As many follow as come to so many multiplications.
_LEAST_MULTIPLICATIONS, _MOST_CALLS = 1 << 30, 100
# Bytes per element of A and B: bfloat16, float32, torch's, a float32 that is converted, the packed
# copy of the device; and of C: a float32 or int32 result of each library.
_INPUT_BYTES, _RESULT_BYTES = 2 + 4 + 2 + 4 + 2, 12


def dtype_of(arguments: argparse.Namespace) -> str:
    """The one operand type of a host-time run; bfloat16 unless another is named."""
    chosen = ",".join(arguments.dtype or ["bfloat16"])
    if chosen not in _DTYPES:
        raise ArgumentError(f"[bench] --dtype {chosen}: host time is measured for bfloat16 or int8")
    return chosen


def sizes_of(
    arguments: argparse.Namespace, default: Sequence[sweeps.Size] = _SIZES
) -> list[sweeps.Size]:
    """The chosen sizes, or an error when one needs more memory than this machine has."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for m, k, n in arguments.sizes or default:
        needed = _INPUT_BYTES * (m * k + k * n) + _RESULT_BYTES * m * n
        if needed > there:
            raise ShapeError(
                f"[bench] size {m}x{k}x{n} needs about {needed / 1e9:.3g} GB, this machine has "
                f"{there / 1e9:.3g}; choose a smaller one"
            )
    return list(arguments.sizes or default)


def run(arguments: argparse.Namespace) -> int:
    dtype, sizes = dtype_of(arguments), sizes_of(arguments)
    with files.opened(json_path=arguments.json) as outputs, common.use_device(arguments) as device:
        with _torch([name for names in arguments.against or [] for name in names]) as torch:
            rows = [_Measurement(size, dtype, device, torch).run(arguments.repeats)
                    for size in _progress(sizes)]  # fmt: skip
            threads = _threads(torch)
        if outputs:
            head = _head(device, dtype, arguments.repeats, threads)
            outputs["json"].write(files.json_bytes("gemm --host", head | {"results": rows}))
    if arguments.json != files.STDOUT:
        _print_table(device, dtype, arguments.repeats, threads, rows)
    return 0


def _progress(sizes: list[sweeps.Size]) -> Iterator[sweeps.Size]:
    with progress.counted("measuring", "sizes", len(sizes)) as advance:
        for size in sizes:
            yield size
            advance(1)


@contextlib.contextmanager
def _torch(wanted: list[str]) -> Iterator[Any]:
    """The module torch with as many threads as the emulator, or None when it is not installed, or
    not among the libraries that are wanted."""
    try:
        torch = importlib.import_module("torch") if "torch" in (wanted or ["torch"]) else None
    except ImportError as error:
        if wanted:
            raise ArgumentError(
                f"[bench] --against torch: torch is not there ({error}); `pip install torch`, or "
                "leave it out"
            ) from error
        torch = None
    if torch is None:
        yield None
        return
    before = torch.get_num_threads()
    torch.set_num_threads(sweeps.threads())
    try:
        yield torch
    finally:
        torch.set_num_threads(before)


def _threads(torch: Any) -> dict[str, Any]:
    """Threads of each; NumPy's BLAS has no interface for it, so threadpoolctl or its variables."""
    found: dict[str, Any] = {"npu": sweeps.threads(), "numpy": None}
    try:
        pools = importlib.import_module("threadpoolctl").threadpool_info()
        found["numpy"] = max(p["num_threads"] for p in pools if p["user_api"] == "blas")
    except (ImportError, ValueError):
        for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
            if os.environ.get(name, "").isdigit():
                found["numpy"] = int(os.environ[name])
                break
    if torch is not None:
        found["torch"] = torch.get_num_threads()
    return found


class _Measurement:
    """One size: its operands in every library's own form, made before anything is timed."""

    def __init__(self, size: sweeps.Size, dtype: str, device: Device, torch: Any) -> None:
        import ml_dtypes
        import numpy as np

        import npu

        self.size = m, k, n = size
        self.device = device
        self.in_a_row = min(max(1, _LEAST_MULTIPLICATIONS // (m * k * n)), _MOST_CALLS)
        rng = np.random.default_rng(0)
        a: Any
        b: Any
        if dtype == "int8":
            a, b = (rng.integers(-128, 128, s, dtype=np.int8) for s in ((m, k), (k, n)))
        else:
            a, b = (
                rng.standard_normal(s, np.float32).astype(ml_dtypes.bfloat16)
                for s in ((m, k), (k, n))
            )
        out_dtype = np.int32 if dtype == "int8" else np.float32
        a32, b32 = a.astype(np.float32), b.astype(np.float32)
        self.calls: dict[str, Callable[[], Any]] = {
            "npu": lambda: npu.matmul(a, b, out_dtype=out_dtype, device=device),
            "numpy_float32": lambda: np.matmul(a32, b32),
        }
        if torch is not None:
            ta, tb = (torch.from_numpy(x).to(torch.bfloat16) for x in (a32, b32))
            self.calls["torch_bfloat16"] = lambda: torch.matmul(ta, tb)

    def run(self, repeats: int) -> dict[str, Any]:
        """Seconds of a call in each round; the first round, of one, is not counted."""
        import npu

        taken: dict[str, list[float]] = {name: [] for name in self.calls}
        firsts: dict[str, list[float]] = {name: [] for name in self.calls}
        snapshots = [npu.stats()]
        for repeat in range(repeats + 1):
            for name, call in self.calls.items():
                time.sleep(_PAUSE_MS / 1e3)
                after_pause = _seconds(call, 1)
                if repeat:
                    firsts[name].append(after_pause)
                    taken[name].append(_seconds(call, self.in_a_row))
            if repeat == 0:
                snapshots.append(npu.stats())
        snapshots.append(npu.stats())
        m, k, n = self.size
        row: dict[str, Any] = {"size": list(self.size), "calls_in_a_row": self.in_a_row}
        for name, values in taken.items():
            row[f"{name}_ms"] = common.spread([1e3 * value for value in values])
            row[f"{name}_first_ms"] = common.spread([1e3 * value for value in firsts[name]])
        row["gflops"] = common.spread([2e-9 * m * k * n / value for value in taken["npu"]])
        row["design"] = str(npu.last_gemm(self.device))
        row["ratio"] = _ratio(taken, "numpy_float32")
        row["ratio_of_first"] = _ratio(firsts, "numpy_float32")
        row["ratio_of_best"] = min(taken["numpy_float32"]) / min(taken["npu"])
        if "torch_bfloat16" in taken:
            row["ratio_torch"] = _ratio(taken, "torch_bfloat16")
            row["ratio_torch_of_first"] = _ratio(firsts, "torch_bfloat16")
        first, repeated = snapshots[1] - snapshots[0], snapshots[2] - snapshots[1]
        row["stats_first"] = dataclasses.asdict(first)
        row["stats_repeats"] = dataclasses.asdict(repeated)
        row["stream_build_us"] = _each(first.stream_build_ns, first.streams_built)
        row["submission_us"] = _each(repeated.submit_overhead_ns, repeated.submissions)
        return row


def _seconds(call: Callable[[], Any], count: int) -> float:
    """The mean of so many calls in a row."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def _ratio(taken: dict[str, list[float]], other: str) -> dict[str, Any]:
    """Time of the other / time of npu.matmul in the same round; above 1 the latter is faster."""
    pairs = zip(taken["npu"], taken[other], strict=True)
    return common.spread([theirs / ours for ours, theirs in pairs])


def _each(nanoseconds: int, count: int) -> float | None:
    """Microseconds of each, None where there were none."""
    return nanoseconds / 1e3 / count if count else None


def _head(device: Device, dtype: str, repeats: int, threads: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": device.name,
        "emulated": device.emulated,
        "arithmetic": device.arithmetic,
        "times": common.time_label(device),
        "dtype": dtype,
        "threads": threads,
        "warm_up_runs": 1,
        "repeats": repeats,
        "pause_ms": _PAUSE_MS,
    }


def _print_table(
    device: Device, dtype: str, repeats: int, threads: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    print(common.device_line(device))
    print(
        f"{dtype} operands; {common.time_label(device)}; median [min, max] of {repeats} "
        f"alternating runs after one warm-up, each after {_PAUSE_MS} ms of pause and a first call"
    )
    said = (f"{name} {count or 'as its BLAS chooses'}" for name, count in threads.items())
    print("threads: " + ", ".join(said))
    names = [name for name in ("npu", "numpy_float32", "torch_bfloat16") if f"{name}_ms" in rows[0]]
    heads = "  ".join(f"{name.replace('_', ' ') + ' ms':>24}" for name in names)
    print(
        f"{'M x K x N':>16}  {heads}  {'ratio':>6}  of best  of first"
        + ("  of torch  its first" if len(names) > 2 else "")
    )
    for row in rows:
        cells = [
            "{} [{}, {}]".format(*(_ms(row[f"{name}_ms"][x]) for x in ("median", "min", "max")))
            for name in names
        ]
        size = "x".join(str(value) for value in row["size"])
        line = f"{size:>16}  " + "  ".join(f"{cell:>24}" for cell in cells)
        line += f"  {row['ratio']['median']:>6.2f}  {row['ratio_of_best']:>7.2f}"
        line += f"  {row['ratio_of_first']['median']:>8.2f}"
        if "ratio_torch" in row:
            line += f"  {row['ratio_torch']['median']:>8.2f}"
            line += f"  {row['ratio_torch_of_first']['median']:>9.2f}"
        print(line)
    print(
        "ratio: numpy's time / npu's, median of the pairs; of best: of the shortest; of first: of "
        "calls after\nthe pause; "
        + ("of torch, its first: torch's; " if len(names) > 2 else "")
        + "above 1 the emulated NPU is faster"
    )
    for row in rows:
        several = f" ({row['calls_in_a_row']} in a row)" if row["calls_in_a_row"] > 1 else ""
        print(f"{'x'.join(str(value) for value in row['size'])}{several} ran as {row['design']}")
    _print_streams(rows)
    _print_stats(rows)


def _print_streams(rows: list[dict[str, Any]]) -> None:
    """Host time of streams and submissions: what the array does not do itself."""
    for row in rows:
        build, submission = (
            "not measured (none)" if row[name] is None else f"{row[name]:.1f} us"
            for name in ("stream_build_us", "submission_us")
        )
        size = "x".join(str(value) for value in row["size"])
        print(
            f"{size}: construction of a stream for the unseen size {build}; "
            f"submission of a cached one, without the array's own time, {submission}"
        )


def _print_stats(rows: list[dict[str, Any]]) -> None:
    """What npu.stats() counted in the first call of a size and in each repeat, zeros left out."""
    for row in rows:
        size = "x".join(str(value) for value in row["size"])
        for key, when in (("stats_first", "first call"), ("stats_repeats", "repeats")):
            found = [f"{name} {_number(value)}" for name, value in row[key].items() if value]
            print(f"npu.stats() of {size}, {when}: {', '.join(found) or 'nothing'}")


def _ms(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def _number(value: float) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
