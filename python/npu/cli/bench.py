"""`npu bench`: measures a model (`npu bench -m MODEL`), GEMM, GEMV or dequantisation.

Each subcommand has only its own options. `npu bench gemm` has modes, named by a flag, which are
subcommands of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
from collections.abc import Callable, Collection, Sequence

from npu.cli import bench_compare, bench_gpt2, bench_model, bench_simulated, common, dtypes

HELP = "measure a model's TTFT and tokens/s, or GEMM and GEMV: simulated, or host time"


_LIBRARIES = ("numpy", "torch")  # that multiply matrices
_COMPARED = ("model", "gemm --host")  # subcommands with --against


@dataclasses.dataclass(frozen=True)
class _Subcommand:
    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    module: str  # of npu.cli, with `run`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, subcommand in _SUBCOMMANDS.items():
        sub = chosen.add_parser(
            name, help=subcommand.help, description=subcommand.help, epilog=_modes(name)
        )
        subcommand.add_options(sub)
        if name not in _COMPARED:
            sub.add_argument("--against", type=_no_comparison, help=argparse.SUPPRESS)
        sub.add_argument(
            "--json",
            nargs="?",
            const="-",
            metavar="FILE.json",
            help="figures as JSON, into a file or instead of the table",
        )
        sub.set_defaults(module=subcommand.module, prog=sub.prog)


def _modes(name: str) -> str | None:
    """What `npu bench NAME --help` says about modes, whose options are their own."""
    modes = [words[1] for words in map(str.split, _SUBCOMMANDS) if words[0] == name and words[1:]]
    listed = ", ".join(f"{name} {mode}" for mode in modes)
    return f"modes with options of their own, see their --help: {listed}" if modes else None


def expand(words: Sequence[str]) -> list[str]:
    """The words after `npu bench` with their subcommand first: "model" is understood, and a mode of
    gemm is one."""
    if words and words[0] in ("-h", "--help"):
        return list(words)
    other = bool(words) and words[0] in _SUBCOMMANDS and words[0] != "gemm"
    if _against_library(words) and not other:
        return ["gemm --host", *(word for word in words if word not in ("gemm", "--host"))]
    if "--compare" in words:
        return ["compare", *(word for word in words if word != "--compare")]
    named = bool(words) and words[0] in _SUBCOMMANDS and words[0] != "model"
    shapes = any(word == "--shape" or word.startswith("--shape=") for word in words)
    if not named and ("--simulated" in words or shapes):
        return ["simulated", *(word for word in words if word not in ("--simulated", "model"))]
    if not words or words[0] not in _SUBCOMMANDS:
        return ["model", *words]
    for mode in words[1:]:
        if f"{words[0]} {mode}" in _SUBCOMMANDS:
            rest = list(words[1:])
            rest.remove(mode)
            return [f"{words[0]} {mode}", *rest]
    return list(words)


def _against_library(words: Sequence[str]) -> bool:
    """Whether --against names libraries that multiply matrices."""
    for word, value in itertools.pairwise([*words, ""]):
        name, _, given = word.partition("=")
        if name == "--against":
            return set((given or value).split(",")) <= set(_LIBRARIES)
    return False


def run(arguments: argparse.Namespace) -> int:
    module = importlib.import_module(f"npu.cli.{arguments.module}")
    code: int = module.run(arguments)
    return code


# Options


def _sweep_options(parser: argparse.ArgumentParser) -> None:
    _simulated_gemm(parser, layouts="both", sizes="problem sizes instead of a sweep")
    _tile_and_plot(parser)
    add = parser.add_argument
    add("--k-mt", type=common.positive, metavar="K", help="depth of a memtile's tiles")
    add("--count", type=common.positive, metavar="N", help="least number of sizes per sweep (400)")
    add("--max-size", type=common.positive, metavar="S", help="largest M, K and N (8192)")
    add("--scale", choices=("linear", "log"), help="axes of the roofline plot (linear)")


def _designs_options(parser: argparse.ArgumentParser) -> None:
    _simulated_gemm(parser, layouts="both", sizes=None)
    add = parser.add_argument
    add(
        "designs", choices=("default",),
        help="what npu.matmul chooses where the array's time is preferred",
    )  # fmt: skip
    add(
        "--sizes", type=common.sizes_or_preset, metavar="S|MxKxN,...",
        help="problem sizes, or squares, gemma3, mixed (mixed)",
    )  # fmt: skip
    add(
        "--accumulate",
        choices=("wide", "narrow", "both"),
        default="wide",
        help="kind of sums (wide)",
    )
    add("--bf16", choices=("bfp16", "native"), help="how bfloat16 is multiplied (bfp16 on npu2)")


def _curve_options(parser: argparse.ArgumentParser) -> None:
    _simulated_gemm(parser, layouts="col", sizes="one problem size (about 4K)")
    _tile_and_plot(parser)


def _host_options(parser: argparse.ArgumentParser) -> None:
    common.add_device_arguments(parser)
    _repeats(parser)
    _gemm_sizes(parser, "problem sizes (three)")
    parser.add_argument("--dtype", type=dtypes.operands, metavar="T", help="operands: bf16 or int8")
    parser.add_argument(
        "--against", type=_libraries, nargs="+", metavar="numpy,torch",
        help="the libraries beside npu.matmul (numpy and, where it is installed, torch)",
    )  # fmt: skip


def _gemv_options(parser: argparse.ArgumentParser) -> None:
    common.add_device_arguments(parser)
    _repeats(parser)
    _projections(parser)
    parser.add_argument(
        "--batch", type=common.positive, default=1, metavar="N",
        help="vectors per product, up to 8 (1)",
    )  # fmt: skip
    _format(parser)
    parser.add_argument("--host", action="store_true", help="host time of npu.gemv, too")
    common.add_profile_arguments(parser)


def _operations_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="npu1 or npu2 (default: $NPU_DEVICE, npu2)")
    parser.add_argument("--operation", metavar="NAME", help="one operation (all)")
    parser.add_argument(
        "--request", type=common.request, metavar="FIELD=N,...",
        help="with --operation: the request (its examples)",
    )  # fmt: skip
    common.add_profile_arguments(parser)


def _dequant_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="device name, see `npu devices` (default: $NPU_DEVICE)")
    parser.set_defaults(arithmetic=None)
    _projections(parser)
    _format(parser)
    common.add_profile_arguments(parser)


# What several of them have


def _format(parser: argparse.ArgumentParser) -> None:
    first = common.BLOCK_FORMATS[0]
    parser.add_argument(
        "--format", choices=common.BLOCK_FORMATS, default=first, help=f"of the blocks ({first})"
    )


def _repeats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=common.positive, default=5, metavar="N",
        help="measured runs, after one warm-up that is discarded (5)",
    )  # fmt: skip


def _projections(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--projections", type=_models, default=["gemma3-1b", "gemma3-4b"], metavar="MODEL,...",
        help="gemma3-1b, gemma3-4b (both)",
    )  # fmt: skip


def _gemm_sizes(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--sizes", type=common.gemm_sizes, metavar="S|MxKxN,...", help=what)


def _simulated_gemm(parser: argparse.ArgumentParser, layouts: str, sizes: str | None) -> None:
    add = parser.add_argument
    add("--device", help="npu1 or npu2 (default: $NPU_DEVICE, npu2)")
    add(
        "--method", choices=("emulator", "closed-form"), default="emulator",
        help="method of simulation (emulator)",
    )  # fmt: skip
    if sizes is not None:
        _gemm_sizes(parser, sizes)
    add("--dtype", type=dtypes.operands, metavar="T,...", help="operands: int8, int16, bf16")
    add(
        "--out-dtype", type=dtypes.results, metavar="T,...",
        help="results: int8, int16, int32, bf16, f32",
    )  # fmt: skip
    add(
        "--b-layout", choices=("row", "col", "both"), default=layouts,
        help=f"layout of B, row- or column-major ({layouts})",
    )  # fmt: skip
    add("--stream-bytes", type=int, choices=(4, 8), help="bytes per cycle of a stream port")
    common.add_profile_arguments(parser)
    add("--csv", metavar="FILE.csv", help="one row per simulated size; - is standard output")


def _tile_and_plot(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tile", type=common.gemm_size, metavar="MxKxN", help="tile of a core (published kernels)")
    add("--plot", metavar="FILE.png|.svg", help="the figures as a plot; needs matplotlib")


def _libraries(text: str) -> list[str]:
    """An argparse type: libraries beside npu.matmul."""
    return _names(text, _LIBRARIES)


def _no_comparison(text: str) -> None:
    """An argparse type: refuses --against where it has no meaning."""
    raise argparse.ArgumentTypeError(
        "what is compared is a model with llama.cpp (`npu bench -m MODEL --against llama.cpp`) and "
        f"products of matrices with {' or '.join(_LIBRARIES)} (`npu bench gemm --host --against "
        f"{','.join(_LIBRARIES)}`), not what this command measures"
    )


def _models(text: str) -> list[str]:
    """An argparse type: names of npu.perf.gemv_simulation.PROJECTIONS, separated by commas."""
    from npu.perf.gemv_simulation import PROJECTIONS

    return _names(text, PROJECTIONS)


def _names(text: str, known: Collection[str]) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
    return names


_SUBCOMMANDS = {
    "model": _Subcommand(
        "a model's tokens per second: prompts, generation, depths (what `npu bench` alone does)",
        bench_model.add_options, "bench_model",
    ),
    "simulated": _Subcommand(
        "simulated decode rate over context, of a model or a shape (`--simulated`, `--shape`)",
        bench_simulated.add_options, "bench_simulated",
    ),
    "gemm": _Subcommand(
        "simulated TOPS over hundreds of sizes, per precision and layout of B",
        _sweep_options, "bench_gemm",
    ),
    "gemm --designs": _Subcommand(
        "simulated TOPS of what npu.matmul chooses, per size (`--designs default`)",
        _designs_options, "bench_gemm_designs",
    ),
    "gemm --k-mt-curve": _Subcommand(
        "simulated TOPS against k_mt", _curve_options, "bench_gemm_kmt"
    ),
    "gemm --host": _Subcommand(
        "host time of npu.matmul beside NumPy and torch", _host_options, "bench_gemm_host"
    ),
    "gemv": _Subcommand(
        "simulated time of a decode step's projections on 4-bit weights",
        _gemv_options, "bench_gemv",
    ),
    "gpt2": _Subcommand(
        "simulated time of the products of a training step of GPT-2, and its host work, measured",
        bench_gpt2.add_options, "bench_gpt2",
    ),
    "operations": _Subcommand(
        "simulated time of requests to any registered operation",
        _operations_options, "bench_operations",
    ),
    "dequant": _Subcommand(
        "simulated time of expanding 4-bit projections for a prefill",
        _dequant_options, "bench_dequant",
    ),
    "compare": _Subcommand(
        "ratios of the figures of two runs (`--compare A.json B.json`)",
        bench_compare.add_options, "bench_compare",
    ),
}  # fmt: skip
