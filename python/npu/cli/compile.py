"""`npu compile`: lowers a design to its serialised configuration or to AIE-dialect MLIR."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from npu.cli import common

HELP = "lower a design to a configuration file or to MLIR for mlir-aie"
_OUTPUTS = {"bfloat16": "float32", "int8": "int32", "int16": "int32"}  # defaults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("design", choices=("gemm",), help="the design")
    default = "(%(default)s)"
    parser.add_argument("--device", choices=("npu1", "npu2"), default="npu2", help=default)
    parser.add_argument("--dtype", choices=sorted(_OUTPUTS), default="bfloat16", help=default)
    parser.add_argument("--out-dtype", help="default: float32 for bfloat16, int32 for integers")
    parser.add_argument("--tile", type=common.gemm_size, metavar="MxKxN", help="tile of one core")
    parser.add_argument("--k-mt", type=common.positive, metavar="K", help="K per memtile object")
    parser.add_argument("--b-layout", choices=("row", "col"), default="row", help=default)
    parser.add_argument("--c-buffers", type=int, choices=(1, 2), default=1, help=default)
    parser.add_argument("--accumulate", choices=("wide", "narrow"), default="wide", help=default)
    parser.add_argument("--bf16", choices=("native", "bfp16"), default="native", help=default)
    kernels = ("published", "pipelined")
    parser.add_argument("--kernel", choices=kernels, default="published", help=default)
    parser.add_argument(
        "--a-parts", type=common.positive, default=1, metavar="P", help="row parts of A tiles"
    )
    parser.add_argument("--emit", choices=("config", "mlir"), default="config", help=default)
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")


def run(arguments: argparse.Namespace) -> int:
    from npu.designs import gemm
    from npu.formats.atomic_file import replacing

    out_dtype = arguments.out_dtype or _OUTPUTS[arguments.dtype]
    lower = gemm.configuration if arguments.emit == "config" else gemm.mlir
    result = lower(
        arguments.device,
        arguments.dtype,
        out_dtype,
        tile=arguments.tile,
        k_mt=arguments.k_mt,
        b_layout=arguments.b_layout,
        c_buffers=arguments.c_buffers,
        accumulate=arguments.accumulate,
        bf16=arguments.bf16,
        kernel=arguments.kernel,
        a_parts=arguments.a_parts,
    )
    data = result.encode() if isinstance(result, str) else result
    if arguments.output is None:
        sys.stdout.buffer.write(data)
    else:
        with replacing(Path(arguments.output), "compile") as file:
            file.write(data)
        print(f"{arguments.output}: {len(data)} bytes", file=sys.stderr)
    return 0
