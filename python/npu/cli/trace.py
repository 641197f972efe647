"""`npu trace`: the timeline of a simulated GEMM or token for Perfetto, and a summary picture."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from npu.cli import bench_simulated, common, dtypes

if TYPE_CHECKING:
    from npu.perf.trace import GemmTrace, Trace

HELP = "record the timeline of a simulated GEMM or token (Perfetto JSON) and draw its summary"


def _tile(text: str) -> tuple[int, int, int]:
    parts = [common.positive(part) for part in text.lower().replace("x", ",").split(",")]
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not m,k,n")
    return parts[0], parts[1], parts[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = "(%(default)s)"
    for name in "MKN":
        parser.add_argument(
            name, type=common.positive, nargs="?", help=f"{name} of C[M,N] = A[M,K] B[K,N]"
        )
    parser.add_argument("--token", action="store_true", help="a token of a decoder, not a GEMM")
    parser.add_argument("--shape", choices=bench_simulated.SHAPES, help="--token: of this model")
    parser.add_argument(
        "--context", type=bench_simulated.contexts, metavar="N", help="--token: its context (1k)"
    )
    parser.add_argument(
        "--format", choices=common.BLOCK_FORMATS, help="--token: of the weights (q4nx)"
    )
    parser.add_argument("--read-gbs", type=float, metavar="GB/s", help="--token: read ceiling")
    parser.add_argument("--device", choices=("npu1", "npu2"), default="npu2", help=default)
    parser.add_argument(
        "--dtype", type=dtypes.operand, metavar="TYPE", default="int8", help=default
    )
    parser.add_argument(
        "--out-dtype",
        type=dtypes.result,
        metavar="TYPE",
        help="default: float32 for bfloat16, int32 for integers",
    )
    parser.add_argument("--tile", type=_tile, metavar="m,k,n", help="tile of one core")
    parser.add_argument("--k-mt", type=common.positive, metavar="K", help="K per memtile object")
    parser.add_argument("--b-layout", choices=("row", "col"), default="col", help=default)
    parser.add_argument("--c-buffers", type=int, choices=(1, 2), default=1, help=default)
    parser.add_argument("--bf16", choices=("native", "bfp16"), default="bfp16", help=default)
    parser.add_argument(
        "--kernel", choices=("published", "pipelined"), default="published", help=default
    )
    parser.add_argument("--a-parts", type=int, default=1, metavar="N", help=default)
    parser.add_argument(
        "--stream-bytes", type=int, choices=(4, 8), help="bytes per cycle of a stream port"
    )
    parser.add_argument(
        "--no-overlap", action="store_true", help="wait for each round before writing more BDs"
    )
    parser.add_argument("--from", dest="from_us", type=float, default=0, metavar="US",
                        help="keep what overlaps a window: its begin in microseconds")  # fmt: skip
    parser.add_argument("--to", dest="to_us", type=float, metavar="US", help="its end")
    parser.add_argument("--limit", type=int, default=1_000_000, metavar="EVENTS",
                        help=f"largest number of events kept {default}")  # fmt: skip
    parser.add_argument("--no-locks", action="store_true", help="leave lock values out")
    parser.add_argument("-o", "--output", metavar="FILE", help="trace, .json or .json.gz")
    parser.add_argument("--png", metavar="FILE", help="summary picture, .png, .svg or .pdf")


def run(arguments: argparse.Namespace) -> int:
    from npu.errors import ArgumentError
    from npu.formats.atomic_file import check_writable
    from npu.perf import plots

    if not arguments.token and None in (arguments.M, arguments.K, arguments.N):
        raise ArgumentError("[trace] name a GEMM as M K N, or a token with --token")
    if arguments.output is None and arguments.png is None:
        raise ArgumentError("[trace] nothing to write; name a file with -o, --png or both")
    if "-" in (arguments.output, arguments.png):
        raise ArgumentError("[trace] - is not a file name here; name a file with -o and --png")
    if arguments.output is not None:
        check_writable(arguments.output, "trace")
    if arguments.png is not None:
        plots.pyplot()
        check_writable(plots.check_format(arguments.png), "trace")
    trace = _token(arguments) if arguments.token else _gemm(arguments)
    _describe(trace)
    if arguments.output is not None:
        size = trace.save(arguments.output)
        print(
            f"{arguments.output}: {len(trace.events)} events, {size} bytes; open it in "
            "https://ui.perfetto.dev",
            file=sys.stderr,
        )
    if arguments.png is not None:
        trace.plot(arguments.png)
        print(f"{arguments.png}: summary", file=sys.stderr)
    return 0


_OF_TOKENS = ("shape", "context", "format", "read_gbs")
_OF_GEMM = {
    "M": None, "K": None, "N": None, "dtype": "int8", "out_dtype": None, "tile": None, "k_mt": None,
    "b_layout": "col", "c_buffers": 1, "bf16": "bfp16", "kernel": "published", "a_parts": 1,
    "stream_bytes": None, "no_overlap": False,
}  # fmt: skip


def _token(arguments: argparse.Namespace) -> Trace:
    import npu
    from npu.errors import ArgumentError

    for name, default in _OF_GEMM.items():
        if getattr(arguments, name) != default:
            option = name if len(name) == 1 else "--" + name.replace("_", "-")
            raise ArgumentError(f"[trace] {option} is of a GEMM; leave it out with --token")
    contexts = arguments.context or [1024]
    if len(contexts) != 1:
        raise ArgumentError("[trace] --context takes one number; a trace is of one token")
    return npu.trace_token(
        arguments.device, arguments.shape or "gemma3-1b", contexts[0],
        format=arguments.format or "q4nx", read_gbs=arguments.read_gbs, from_us=arguments.from_us,
        to_us=arguments.to_us, limit=arguments.limit, locks=not arguments.no_locks,
    )  # fmt: skip


def _gemm(arguments: argparse.Namespace) -> GemmTrace:
    import npu
    from npu.errors import ArgumentError

    for name in _OF_TOKENS:
        if getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            raise ArgumentError(f"[trace] {option} is of a token; give --token, too")
    return npu.trace_gemm(
        arguments.device,
        arguments.M,
        arguments.K,
        arguments.N,
        dtype_in=arguments.dtype,
        dtype_out=common.result_dtype(arguments),
        tile=arguments.tile,
        k_mt=arguments.k_mt,
        b_layout=arguments.b_layout,
        c_buffers=arguments.c_buffers,
        overlap_bds=not arguments.no_overlap,
        bf16=arguments.bf16,
        kernel=arguments.kernel,
        a_parts=arguments.a_parts,
        stream_bytes=arguments.stream_bytes,
        from_us=arguments.from_us,
        to_us=arguments.to_us,
        limit=arguments.limit,
        locks=not arguments.no_locks,
    )


def _describe(trace: Trace) -> None:
    s = trace.simulation
    print(
        f"simulated: {trace.title}: {s.seconds * 1e6:.1f} us, "
        f"{trace.rate[1]:.2f} {trace.rate[0]}, bound: {s.bound}",
        file=sys.stderr,
    )
    if trace.left_out:
        print(
            f"{trace.left_out} events that end after {trace.left_out_from:.1f} us are left out: "
            "raise --limit, narrow --from/--to, or use --no-locks",
            file=sys.stderr,
        )
