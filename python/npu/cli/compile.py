"""`npu compile`: lowers a design to its serialised configuration or to AIE-dialect MLIR."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npu.cli import common

if TYPE_CHECKING:
    from npu.designs.gemm import DesignPoint

HELP = "lower a design to a configuration file or to MLIR for mlir-aie"
_OUTPUTS = {"bfloat16": "float32", "int8": "int32", "int16": "int32"}  # defaults


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "design", nargs="?", help="a registered operation: gemm, gemv, dequant, rms_norm"
    )
    parser.add_argument(
        "--all", metavar="FOLDER",
        help="instead of one design: every configuration of the package, as programs in C and C++ "
        "find them (docs/cpp.md)",
    )  # fmt: skip
    default = "(%(default)s)"
    parser.add_argument("--device", choices=("npu1", "npu2"), default="npu2", help=default)
    parser.add_argument("--dtype", choices=sorted(_OUTPUTS), default="bfloat16", help=default)
    parser.add_argument("--out-dtype", help="default: float32 for bfloat16, int32 for integers")
    parser.add_argument(
        "--size", type=common.gemm_size, metavar="S|MxKxN",
        help="the configuration that npu.matmul chooses for this size where the array's time is "
        "preferred; instead of the options that name a design",
    )  # fmt: skip
    parser.add_argument("--tile", type=common.gemm_size, metavar="MxKxN", help="tile of one core")
    parser.add_argument("--k-mt", type=common.positive, metavar="K", help="K per memtile object")
    parser.add_argument("--b-layout", choices=("row", "col"), default="row", help=default)
    parser.add_argument("--c-buffers", type=int, choices=(0, 1, 2), help="(1)")
    parser.add_argument("--accumulate", choices=("wide", "narrow"), default="wide", help=default)
    parser.add_argument("--bf16", choices=("native", "bfp16"), default="native", help=default)
    kernels = ("published", "pipelined")
    parser.add_argument("--kernel", choices=kernels, help="(published)")
    parser.add_argument(
        "--a-parts", type=common.positive, metavar="P", help="row parts of A tiles (1)"
    )
    parser.add_argument("--emit", choices=("config", "mlir"), default="config", help=default)
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")


def run(arguments: argparse.Namespace) -> int:
    from npu.designs import gemm
    from npu.errors import ArgumentError
    from npu.formats.atomic_file import replacing

    if (arguments.design is None) == (arguments.all is None):
        raise ArgumentError("[compile] name either a design or a folder for --all")
    if arguments.all is not None:
        return _every_configuration(arguments.all)
    if arguments.design == "gemm":
        point = _chosen(arguments) if arguments.size else _named(arguments)
        result = gemm.configuration_of(point) if arguments.emit == "config" else gemm.mlir_of(point)
    else:
        result = _registered(arguments)
    data = result.encode() if isinstance(result, str) else result
    if arguments.output is None:
        sys.stdout.buffer.write(data)
    else:
        with replacing(Path(arguments.output), "compile") as file:
            file.write(data)
        print(f"{arguments.output}: {len(data)} bytes", file=sys.stderr)
    return 0


def _every_configuration(folder: str) -> int:
    from npu.ops.configurations import write_all

    written = write_all(folder)
    print(f"{folder}: {written.files} configurations, {written.bytes} bytes", file=sys.stderr)
    return 0


def _registered(arguments: argparse.Namespace) -> bytes | str:
    """An operation without choices."""
    from npu.errors import ArgumentError
    from npu.ops.registry import operation

    found = operation(arguments.design)
    for name in ("size", "tile", "k_mt", "c_buffers", "kernel", "a_parts", "out_dtype"):
        if getattr(arguments, name) is not None:
            option = name.replace("_", "-")
            raise ArgumentError(f"[compile] --{option} belongs to gemm; leave it out")
    if arguments.emit == "config":
        return found.configuration(arguments.device)
    return found.mlir(arguments.device)


def _named(arguments: argparse.Namespace) -> DesignPoint:
    """The design that the options describe."""
    from npu.designs import gemm

    return gemm.design_point(
        arguments.device,
        arguments.dtype,
        arguments.out_dtype or _OUTPUTS[arguments.dtype],
        tile=arguments.tile,
        k_mt=arguments.k_mt,
        b_layout=arguments.b_layout,
        c_buffers=1 if arguments.c_buffers is None else arguments.c_buffers,
        accumulate=arguments.accumulate,
        bf16=arguments.bf16,
        kernel=arguments.kernel or "published",
        a_parts=arguments.a_parts or 1,
    )


def _chosen(arguments: argparse.Namespace) -> DesignPoint:
    """What npu.matmul chooses for --size."""
    from npu.errors import ArgumentError
    from npu.ops.gemm_designs import first_choice
    from npu.ops.gemm_product import Product

    for name in ("tile", "k_mt", "c_buffers", "kernel", "a_parts"):
        if getattr(arguments, name) is not None:
            option = name.replace("_", "-")
            raise ArgumentError(f"[compile] --size chooses the design; leave out --{option}")
    out_dtype = arguments.out_dtype or _OUTPUTS[arguments.dtype]
    product = Product(
        arguments.dtype, out_dtype, arguments.size, arguments.b_layout, arguments.accumulate,
        arguments.bf16,
    )  # fmt: skip
    options = first_choice(arguments.device, "array", product)
    print(options.text, file=sys.stderr)
    return options
