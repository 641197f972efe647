"""`npu bench`: measures a model (`npu bench -m MODEL`), GEMM (`npu bench gemm`) or 4-bit GEMV."""

from __future__ import annotations

import argparse

from npu.cli import common

HELP = "measure a model's TTFT and tokens/s, GEMM against NumPy, or 4-bit GEMV"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("model", "gemm", "gemv"),
        default="model",
        help="model (default): TTFT and TPS per context length; gemm: npu.matmul beside NumPy; "
        "gemv: simulated time of Gemma 3's projections on Q4NX weights",
    )
    common.add_model_arguments(parser)
    model = parser.add_argument_group("model")
    model.add_argument(
        "--context",
        type=common.positives,
        default=[16, 64, 256],
        metavar="N,N,...",
        help="prompt lengths in tokens (default: 16,64,256)",
    )
    model.add_argument(
        "-n",
        "--tokens",
        type=common.positive,
        default=16,
        metavar="N",
        help="decode steps after each prompt (%(default)s)",
    )
    gemm = parser.add_argument_group("gemm")
    gemm.add_argument(
        "--sizes",
        type=common.gemm_sizes,
        default=[(256, 256, 256), (512, 512, 512), (1024, 1024, 1024)],
        metavar="S|MxKxN,...",
        help="problem sizes (default: 256,512,1024)",
    )
    gemm.add_argument(
        "--dtype", choices=("bfloat16", "int8"), default="bfloat16", help="operands (%(default)s)"
    )
    gemm.add_argument(
        "--ragged",
        action="store_true",
        help="compare packing the edges only with packing whole operands, instead of NumPy",
    )
    gemv = parser.add_argument_group("gemv")
    gemv.add_argument(
        "--projections",
        type=_models,
        default=["gemma3-1b", "gemma3-4b"],
        metavar="MODEL,...",
        help="models whose projections are timed (default: gemma3-1b,gemma3-4b)",
    )
    gemv.add_argument(
        "--batch",
        type=common.positive,
        default=1,
        metavar="N",
        help="vectors per product, up to 8 (%(default)s)",
    )
    gemv.add_argument(
        "--host", action="store_true", help="measure npu.gemv on this machine too, beside NumPy"
    )
    parser.add_argument(
        "--repeats",
        type=common.positive,
        default=5,
        metavar="N",
        help="measured runs, after one warm-up that is discarded (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _models(text: str) -> list[str]:
    """An argparse type: names of npu.gemv_simulation.PROJECTIONS, separated by commas."""
    from npu.gemv_simulation import PROJECTIONS

    names = text.split(",")
    for name in names:
        if name not in PROJECTIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PROJECTIONS)}")
    return names


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "gemv":
        from npu.cli import bench_gemv

        return bench_gemv.run(arguments)
    if arguments.what == "gemm":
        from npu.cli import bench_gemm, bench_ragged

        if arguments.ragged:
            return bench_ragged.run(arguments)
        return bench_gemm.run(arguments)
    from npu.cli import bench_model

    return bench_model.run(arguments)
