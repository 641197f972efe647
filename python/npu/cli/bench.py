"""`npu bench`: measures a model (`npu bench -m MODEL`) or GEMM (`npu bench gemm`)."""

from __future__ import annotations

import argparse

from npu.cli import common

HELP = "measure a model's TTFT and tokens/s, or GEMM against NumPy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("model", "gemm"),
        default="model",
        help="model (default): TTFT and TPS per context length; gemm: npu.matmul beside NumPy",
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
    parser.add_argument(
        "--repeats",
        type=common.positive,
        default=5,
        metavar="N",
        help="measured runs, after one warm-up that is discarded (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "gemm":
        from npu.cli import bench_gemm, bench_ragged

        if arguments.ragged:
            return bench_ragged.run(arguments)
        return bench_gemm.run(arguments)
    from npu.cli import bench_model

    return bench_model.run(arguments)
