"""`npu compile`: lowers a design to its serialised configuration or to AIE-dialect MLIR."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npu.cli import common, dtypes

if TYPE_CHECKING:
    from npu.designs.gemm import DesignPoint

HELP = "lower a design to a configuration file or to MLIR for mlir-aie"
_NAME, _POINT, _SIZE = "a design's name", "gemm without --size", "gemm --size"
_BELONGS = {
    **dict.fromkeys(("device", "emit", "output"), (_NAME,)),
    **dict.fromkeys(("tile", "k_mt", "c_buffers", "a_parts"), (_POINT,)),
    **dict.fromkeys(
        ("size", "dtype", "dtype_b", "out_dtype", "b_layout", "accumulate", "bf16", "kernel"),
        ("gemm",),
    ),
    "format": ("dequant", "gemv", "decoder"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = common.operation_names()
    parser.add_argument("design", nargs="?", help=f"a registered operation: {names}")
    parser.add_argument(
        "--all", metavar="FOLDER",
        help="instead of one design: every configuration of the package, as programs in C and C++ "
        "find them (docs/cpp.md)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("npu1", "npu2"), help="(default: $NPU_DEVICE, else npu2)"
    )
    parser.add_argument("--emit", choices=("config", "mlir"), help="(config)")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    add = parser.add_argument_group("dequant, gemv, decoder").add_argument
    add("--format", choices=common.BLOCK_FORMATS, help=f"of the blocks ({common.BLOCK_FORMATS[0]})")
    add = parser.add_argument_group("gemm").add_argument
    add("--dtype", type=dtypes.operand_or_blocks, metavar="TYPE", help=f"({dtypes.OPERANDS[0]})")
    add("--dtype-b", choices=dtypes.BLOCKS, help="of B: blocks of BFP16 beside an A of bfloat16")
    add(
        "--out-dtype",
        type=dtypes.result_or_blocks,
        metavar="TYPE",
        help="default: float32 for bfloat16, int32 for integers",
    )
    add(
        "--size", type=common.gemm_size, metavar="S|MxKxN",
        help="the configuration that npu.matmul chooses for this size where the array's time is "
        "preferred; instead of --tile, --k-mt, --c-buffers and --a-parts",
    )  # fmt: skip
    add("--tile", type=common.gemm_size, metavar="MxKxN", help="tile of one core")
    add("--k-mt", type=common.positive, metavar="K", help="K per memtile object")
    add("--b-layout", choices=("row", "col"), help="(row; of blocks col)")
    add("--c-buffers", type=int, choices=(0, 1, 2), help="(1)")
    add("--accumulate", choices=("wide", "narrow", "bfloat16"), help="(wide); bfloat16: of blocks")
    add("--bf16", choices=("native", "bfp16"), help="(native; with --size what npu.matmul uses)")
    kernels = ("published", "pipelined")
    add(
        "--kernel", choices=kernels,
        help="(published, of blocks pipelined; with --size what npu.matmul uses)",
    )  # fmt: skip
    add("--a-parts", type=common.positive, metavar="P", help="row parts of A tiles (1)")


def run(arguments: argparse.Namespace) -> int:
    from npu.designs import gemm
    from npu.errors import ArgumentError
    from npu.formats.atomic_file import replacing

    if (arguments.design is None) == (arguments.all is None):
        raise ArgumentError("[compile] name either a design or a folder for --all")
    common.check_options("compile", arguments, _forms(arguments), _BELONGS)
    if arguments.all is not None:
        return _every_configuration(arguments.all)
    if arguments.design == "gemm":
        point = _chosen(arguments) if arguments.size else _named(arguments)
        result = gemm.mlir_of(point) if arguments.emit == "mlir" else gemm.configuration_of(point)
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


def _forms(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What the command line is, for _BELONGS."""
    if arguments.all is not None:
        return ("--all",)
    if arguments.design != "gemm":
        return (_NAME, str(arguments.design))
    return (_NAME, "gemm", _POINT if arguments.size is None else _SIZE)


def _registered(arguments: argparse.Namespace) -> bytes | str:
    """An operation other than gemm."""
    from npu.ops.registry import operation

    found = operation(arguments.design)
    generation = common.generation("compile", arguments.device)
    choices = {} if arguments.format is None else found.choices_of(arguments.format)
    if arguments.emit == "mlir":
        return found.mlir(generation, **choices)
    return found.configuration(generation, **choices)


def _named(arguments: argparse.Namespace) -> DesignPoint:
    """The design that the options describe."""
    from npu.designs import gemm

    return gemm.design_point(
        common.generation("compile", arguments.device),
        arguments.dtype or dtypes.OPERANDS[0],
        common.result_dtype(arguments),
        tile=arguments.tile,
        k_mt=arguments.k_mt,
        b_layout=arguments.b_layout,
        c_buffers=1 if arguments.c_buffers is None else arguments.c_buffers,
        accumulate=arguments.accumulate or "wide",
        bf16=arguments.bf16,
        kernel=arguments.kernel,
        a_parts=arguments.a_parts or 1,
        b_dtype=arguments.dtype_b,
    )


def _chosen(arguments: argparse.Namespace) -> DesignPoint:
    """What npu.matmul chooses for --size."""
    point, _ = common.chosen_gemm(
        "compile", arguments, arguments.size, designs="array", kernel=arguments.kernel
    )
    print(point.text, file=sys.stderr)
    return point
