"""`npu tune gemm`: the best tiles of the GEMM designs, by simulation."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu.cli import common, dtypes, progress
from npu.perf import kernel_profile

if TYPE_CHECKING:
    from npu.designs.gemm import DesignPoint
    from npu.perf.tune import Entry, Result

HELP = "search for the GEMM tiles that are fastest in simulation"
_DEFAULT_OUT = {"int8": "int32", "int16": "int32", "bfloat16": "bfloat16", "bfp16": "bfp16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("gemm",), help="the operation to tune")
    parser.add_argument("--device", choices=("npu1", "npu2"), default="npu2", help="default: npu2")
    parser.add_argument(
        "--dtype", type=dtypes.operand_or_blocks, default="int8", metavar="TYPE",
        help="element type of A and B: int8 (default), bf16, int16, bfp16 (npu2, in blocks)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype-b", choices=dtypes.BLOCKS, help="of B: blocks of BFP16 beside an A of bf16"
    )
    parser.add_argument(
        "--out-dtype", type=dtypes.result_or_blocks, metavar="TYPE",
        help="of C (default: int32 of integers, else that of A)",
    )  # fmt: skip
    parser.add_argument(
        "--b-layout", choices=("row", "col"), default="col", help="of B (default: col)"
    )
    parser.add_argument(
        "--bf16", choices=("bfp16", "native"), default="bfp16",
        help="how npu2 multiplies bf16 (default: bfp16)",
    )  # fmt: skip
    parser.add_argument(
        "--objective", choices=("core", "array"), default="array",
        help="MACs per cycle of one core, or TOPS of the whole array (default)",
    )  # fmt: skip
    parser.add_argument(
        "--designs", choices=("published", "pipelined", "all"), default="all",
        help="which variants of the design (default: all)",
    )  # fmt: skip
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--size", type=_size, metavar="M,K,N",
        help="the problem (default: about 4K, whole native sizes of each tile)",
    )  # fmt: skip
    sizes.add_argument(
        "--sizes", type=_sizes, metavar="LIST",
        help="several, S or MxKxN separated by commas, or squares, gemma3, mixed: geometric mean",
    )  # fmt: skip
    parser.add_argument(
        "--c-buffers", type=int, choices=(0, 1, 2),
        help="C tiles per core, 0: wide sums narrowed where they lie (default: all are tried)",
    )  # fmt: skip
    parser.add_argument(
        "--accumulate", choices=("wide", "narrow", "bfloat16"), default="narrow",
        help="sums in 32 bits, in C's type (default) as the published designs keep them, or for a "
        "C in blocks in bfloat16",
    )  # fmt: skip
    parser.add_argument("--top", type=common.positive, default=20, help="rows (default: 20)")
    parser.add_argument(
        "--emulate", type=common.positive, default=32, metavar="N",
        help="designs that the emulator ranks again (default: 32)",
    )  # fmt: skip
    parser.add_argument(
        "--stream-bytes", type=int, choices=(4, 8),
        help="bytes per cycle of a stream port (default: 4)",
    )  # fmt: skip
    common.add_profile_arguments(parser)
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV; - is stdout")


def _size(text: str) -> tuple[int, int, int]:
    return common.gemm_size(text.replace(",", "x"))


def _sizes(text: str) -> list[tuple[int, int, int]] | str:
    return text if text in ("squares", "gemma3", "mixed") else common.gemm_sizes(text)


def run(arguments: argparse.Namespace) -> int:
    from npu.perf import tune

    a = arguments.dtype
    space = tune.Space(
        arguments.device, a, arguments.out_dtype or _DEFAULT_OUT[a],
        b_layout=arguments.b_layout, bf16=arguments.bf16, designs=arguments.designs,
        accumulate=arguments.accumulate, dtype_b=arguments.dtype_b,
    )  # fmt: skip
    sizes = arguments.sizes or ([arguments.size] if arguments.size else [])
    sizes = tune.PRESETS[sizes] if isinstance(sizes, str) else sizes
    evaluator = tune.Evaluator(
        space,
        tune.Workload(tuple(sizes)),
        arguments.stream_bytes,
        machine=arguments.machine,
        kernels=arguments.kernels,
    )
    _check_writable(arguments)
    started = time.perf_counter()
    result = tune.gemm(
        evaluator, arguments.objective, arguments.top, arguments.emulate,
        tune.C_BUFFERS if arguments.c_buffers is None else (arguments.c_buffers,), _progress,
    )  # fmt: skip
    taken = time.perf_counter() - started
    if "-" not in (arguments.json, arguments.csv):
        _print(result, taken)
    _write(arguments.json, json.dumps(_document(result), indent=2) + "\n")
    _write(arguments.csv, _csv(result))
    return 0


def _progress(points: Iterable[DesignPoint], what: str) -> Iterator[DesignPoint]:
    total = len(points) if isinstance(points, Sized) else None
    with progress.counted(what, "designs", total) as advance:
        for point in points:
            yield point
            advance(1)


# Files


def _check_writable(arguments: argparse.Namespace) -> None:
    """Raises before the search, not after it."""
    from npu.errors import ArgumentError
    from npu.formats.atomic_file import check_writable

    if arguments.json == arguments.csv == "-":
        raise ArgumentError(
            "[tune] --json - and --csv - both write to standard output; name a file"
        )
    for path in (arguments.json, arguments.csv):
        if path not in (None, "-"):
            check_writable(path, "tune")


def _write(path: str | None, text: str) -> None:
    from npu.formats import atomic_file

    if path == "-":
        sys.stdout.write(text)
    elif path is not None:
        with atomic_file.replacing(Path(path), "tune") as file:
            file.write(text.encode())


def _document(result: Result) -> dict[str, Any]:
    space, workload = result.evaluator.space, result.evaluator.workload
    return {
        "simulated": True,
        "device": space.generation,
        "dtype_in": space.dtype_in,
        "dtype_out": space.dtype_out,
        "b_layout": space.b_layout,
        "bf16": space.bf16,
        "accumulate": space.accumulate,
        "designs": space.designs,
        "stream_bytes": result.evaluator.constant(f"stream_{space.generation}"),
        "machine": result.evaluator.values.label,
        "kernels": kernel_profile.chosen(result.evaluator.kernels),
        "objective": result.objective,
        "sizes": [list(size) for size in workload.sizes] or "about 4K",
        "designs_evaluated": result.designs,
        "tiles_evaluated": result.tiles,
        "ranking": [e.row() for e in result.entries],
        "best_of_each_variant": [e.row() for e in result.variants],
        "published": [e.row() for e in result.published],
        "walk": [e.row() for e in result.walk],
        "k_mt_curve": [{"k_mt": k, "tops": tops} for k, tops in result.k_mt_curve],
        "k_mt_saturated": result.k_mt_saturated,
        "not_lowered": result.not_lowered,
    }


def _csv(result: Result) -> str:
    import io

    out = io.StringIO()
    rows = [e.row() for e in (*result.entries, *result.published)]
    for row in rows:
        row["tile"] = "x".join(map(str, row["tile"]))
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


# The terminal


def _print(result: Result, taken: float) -> None:
    evaluator = result.evaluator
    space = evaluator.space
    both = (space.generation, space.dtype_in) == ("npu2", "bfloat16")
    kind = f" through {space.bf16}" if both and space.bf16 != "native" else ""
    stream = evaluator.constant(f"stream_{space.generation}")
    print(
        f"{space.generation}, {space.dtype_in} -> {space.dtype_out}{kind}, "
        f"B {space.b_layout}-major, {space.accumulate} sums, {stream:g} B/cycle streams"
    )
    print(f"sizes: {evaluator.workload.describe()}")
    kernels = kernel_profile.chosen(evaluator.kernels)
    print(f"machine {evaluator.values.label}; kernels: {kernels}")
    print(
        f"simulated; {result.designs} designs with {result.tiles} tiles searched in {taken:.1f} s "
        "of host time"
    )
    if result.objective == "core":
        _print_core(result)
        return
    _heading("fastest", array=True)
    for e in result.entries:
        print(_row(e))
    if len(result.variants) > 1:
        _heading("best of each variant", array=True)
        for e in result.variants:
            print(_row(e))
    if result.published:
        _heading("published tiles and their rank by the closed form", array=True)
        for e in result.published:
            print(_row(e))
    if result.walk:
        _heading("the paper's walk: k down, m n up", array=True)
        for e in result.walk:
            print(_row(e))
    if result.k_mt_curve:
        print("\nTOPS of the fastest over k_mt (emulator):")
        print("  " + "  ".join(f"{k}: {tops:.2f}" for k, tops in result.k_mt_curve))
        print(f"  smallest within 1 %: k_mt = {result.k_mt_saturated}")
    if result.not_lowered:
        print(f"\n{len(result.not_lowered)} designs could not be lowered: {result.not_lowered[0]}")


def _print_core(result: Result) -> None:
    _heading("most MACs per cycle with streams that keep up (equation 4)", array=False)
    for e in result.entries:
        print(_row(e, array=False))
    if result.published:
        _heading("published; rank 0: the streams do not keep up", array=False)
        for e in result.published:
            print(_row(e, array=False))


def _heading(title: str, array: bool) -> None:
    print(f"\n{title}")
    line = f"{'':>5} {'design':16} {'m x k x n':>13} {'k_mt':>5} {'C':>2}"
    line += f" {'L1 KiB':>12} {'L2 KiB':>12} {'MAC/cyc':>7}"
    line += (
        f" {'closed':>6} {'TOPS':>6}  {'bound':8} stops m/k/n, k_mt" if array else "  stops m/k/n"
    )
    print(line)


def _row(e: Entry, array: bool = True) -> str:
    tile = "x".join(map(str, e.tile))
    l1 = f"{e.l1_bytes / 1024:.1f} ({100 * e.l1_share:.0f}%)"
    l2 = f"{e.l2_bytes / 1024:.0f} ({100 * e.l2_share:.0f}%)"
    line = f"{e.rank:5} {e.variant:16} {tile:>13} {e.k_mt:5} {e.c_buffers:2}"
    line += f" {l1:>12} {l2:>12} {e.macs_per_cycle:7.1f}"
    if not array:
        return f"{line}  {e.tile_limit}  {e.published}".rstrip()
    tops = "-" if e.emulator_tops is None else f"{e.emulator_tops:.2f}"
    line += f" {e.closed_form_tops:6.2f} {tops:>6}  {e.bound:8} {e.tile_limit}, {e.k_mt_limit}"
    return f"{line}  {e.published}".rstrip()
