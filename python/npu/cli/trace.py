"""`npu trace`: the timeline of a simulated GEMM, token or prompt for Perfetto, and a summary."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from npu.cli import bench_simulated, common, dtypes

if TYPE_CHECKING:
    from npu.perf.trace import GemmTrace, Trace

HELP = "record the timeline of a simulated GEMM, token or prompt (Perfetto JSON), draw its summary"


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
    _add_model_arguments(parser)
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
    common.add_profile_arguments(parser)
    parser.add_argument("--from", dest="from_us", type=float, default=0, metavar="US",
                        help="keep what overlaps a window: its begin in microseconds")  # fmt: skip
    parser.add_argument("--to", dest="to_us", type=float, metavar="US", help="its end")
    parser.add_argument("--limit", type=int, default=1_000_000, metavar="EVENTS",
                        help=f"largest number of events kept {default}")  # fmt: skip
    parser.add_argument("--no-locks", action="store_true", help="leave lock values out")
    parser.add_argument("-o", "--output", metavar="FILE", help="trace, .json or .json.gz")
    parser.add_argument("--png", metavar="FILE", help="summary picture, .png, .svg or .pdf")


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, bench_simulated.contexts
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--token", action="store_true", help="a token of a decoder, not a GEMM")
    what.add_argument("--prefill", action="store_true", help="a chunk of a prompt, not a GEMM")
    both = "--token, --prefill:"
    add("--shape", choices=bench_simulated.SHAPES, help=f"{both} of this model (gemma3-1b)")
    add("--format", choices=common.BLOCK_FORMATS, help=f"{both} of the weights (q4nx)")
    add("--read-gbs", type=float, metavar="GB/s", help=f"{both} read ceiling")
    add("--context", type=number, metavar="N", help="--token: its context (1k)")
    add("--tokens", type=number, metavar="N", help="--prefill: of the chunk, up to 1k (1k)")
    add("--position", type=number, metavar="N", help="--prefill: of its first token (0)")
    add("--layers", type=common.positive, metavar="N", help="--prefill: the first ones only (all)")


def run(arguments: argparse.Namespace) -> int:
    from npu.errors import ArgumentError
    from npu.formats.atomic_file import check_writable
    from npu.perf import plots

    model = arguments.token or arguments.prefill
    if not model and None in (arguments.M, arguments.K, arguments.N):
        raise ArgumentError(
            "[trace] name a GEMM as M K N, a token with --token, or a prompt with --prefill"
        )
    if arguments.output is None and arguments.png is None:
        raise ArgumentError("[trace] nothing to write; name a file with -o, --png or both")
    if "-" in (arguments.output, arguments.png):
        raise ArgumentError("[trace] - is not a file name here; name a file with -o and --png")
    if arguments.output is not None:
        check_writable(arguments.output, "trace")
    if arguments.png is not None:
        plots.pyplot()
        check_writable(plots.check_format(arguments.png), "trace")
    trace = _model(arguments) if model else _gemm(arguments)
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


_OF_MODELS = ("shape", "format", "read_gbs")
_OF_TOKENS = ("context",)
_OF_PROMPTS = ("tokens", "position", "layers")
_OF_GEMM = {
    "M": None, "K": None, "N": None, "dtype": "int8", "out_dtype": None, "tile": None, "k_mt": None,
    "b_layout": "col", "c_buffers": 1, "bf16": "bfp16", "kernel": "published", "a_parts": 1,
    "stream_bytes": None, "no_overlap": False,
}  # fmt: skip


def _model(arguments: argparse.Namespace) -> Trace:
    import npu
    from npu.errors import ArgumentError

    flag = "--token" if arguments.token else "--prefill"
    for name, default in _OF_GEMM.items():
        if getattr(arguments, name) != default:
            raise ArgumentError(f"[trace] {_option(name)} is of a GEMM; leave it out with {flag}")
    _refuse(arguments, _OF_PROMPTS if arguments.token else _OF_TOKENS, flag)
    common = (arguments.device, arguments.shape or "gemma3-1b")
    kept = {
        "format": arguments.format or "q4nx", "read_gbs": arguments.read_gbs,
        "from_us": arguments.from_us, "to_us": arguments.to_us, "limit": arguments.limit,
        "locks": not arguments.no_locks, "machine": arguments.machine,
        "kernels": arguments.kernels,
    }  # fmt: skip
    if arguments.token:
        return npu.trace_token(*common, _one(arguments, "context", 1024), **kept)
    return npu.trace_prefill(
        *common, _one(arguments, "tokens", 1024), position=_one(arguments, "position", 0),
        layers=arguments.layers, **kept,
    )  # fmt: skip


def _one(arguments: argparse.Namespace, name: str, default: int) -> int:
    from npu.errors import ArgumentError

    values = getattr(arguments, name) or [default]
    if len(values) != 1:
        raise ArgumentError(f"[trace] --{name} takes one number; a trace is of one run")
    return int(values[0])


def _option(name: str) -> str:
    return name if len(name) == 1 else "--" + name.replace("_", "-")


def _refuse(arguments: argparse.Namespace, names: Sequence[str], flag: str) -> None:
    """Raises for options of what is not traced."""
    from npu.errors import ArgumentError

    kinds = dict.fromkeys(_OF_MODELS, "a token or a prompt; give --token or --prefill")
    kinds |= dict.fromkeys(_OF_TOKENS, "a token; give --token")
    kinds |= dict.fromkeys(_OF_PROMPTS, "a prompt; give --prefill")
    for name in names:
        if getattr(arguments, name) is not None:
            instead = f", not {flag}" if flag else ", too"
            raise ArgumentError(f"[trace] {_option(name)} is of {kinds[name]}{instead}")


def _gemm(arguments: argparse.Namespace) -> GemmTrace:
    import npu

    _refuse(arguments, (*_OF_MODELS, *_OF_TOKENS, *_OF_PROMPTS), "")
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
        machine=arguments.machine,
        kernels=arguments.kernels,
    )


def _describe(trace: Trace) -> None:
    s = trace.simulation
    print(
        f"simulated: {trace.title}: {s.seconds * 1e6:.1f} us, "
        f"{trace.rate[1]:.2f} {trace.rate[0]}, bound: {s.bound}; "
        f"machine {trace.machine}; kernels: {s.kernels}",
        file=sys.stderr,
    )
    if trace.left_out:
        print(
            f"{trace.left_out} events that end after {trace.left_out_from:.1f} us are left out: "
            "raise --limit, narrow --from/--to, or use --no-locks",
            file=sys.stderr,
        )
