"""`npu bench`: measures a model (`npu bench -m MODEL`), GEMM (`npu bench gemm`) or 4-bit GEMV."""

from __future__ import annotations

import argparse

from npu.cli import common

HELP = "measure a model's TTFT and tokens/s, or GEMM and 4-bit GEMV: simulated, or host time"

_SIMULATED = ("sweep", "k-mt-curve")
_DESIGNS = "designs"  # --designs default
_HOST = ("host", "ragged")
# Which modes an option belongs to; options of other modes are refused.
_MODES: dict[str, tuple[str, ...]] = {
    "context": ("model",),
    "weights": ("model",),
    "tokens": ("model",),
    "arithmetic": ("model", *_HOST, "gemv"),
    "repeats": ("model", *_HOST, "gemv"),
    "model": ("model", *_SIMULATED, _DESIGNS),
    "sizes": (*_SIMULATED, _DESIGNS, *_HOST),
    "dtype": (*_SIMULATED, _DESIGNS, *_HOST),
    "out_dtype": (*_SIMULATED, _DESIGNS),
    "b_layout": (*_SIMULATED, _DESIGNS),
    "accumulate": (_DESIGNS,),
    "bf16": (_DESIGNS,),
    "tile": _SIMULATED,
    "k_mt": ("sweep",),
    "stream_bytes": (*_SIMULATED, _DESIGNS),
    "count": ("sweep",),
    "max_size": ("sweep",),
    "csv": (*_SIMULATED, _DESIGNS),
    "plot": _SIMULATED,
    "scale": ("sweep",),
    "designs": ("sweep", _DESIGNS),
    "projections": ("gemv", "dequant"),
    "batch": ("gemv",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        choices=("model", "gemm", "gemv", "dequant"),
        default="model",
        help="model (default): TTFT and TPS per context length; gemm, gemv, dequant: see below",
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="FILE|MODEL",
        help="model: GGUF file (default: $NPU_MODEL, else the demo model); "
        "gemm: emulator (default) or closed-form, what simulates the time",
    )
    parser.add_argument(
        "--device", help="see `npu devices`; simulated: npu1 or npu2 (default: $NPU_DEVICE, npu2)"
    )
    parser.add_argument(
        "--arithmetic",
        choices=("fast", "silicon"),
        help="how the emulated cores add bf16 products (default: $NPU_ARITHMETIC, else fast)",
    )
    parser.add_argument(
        "--repeats",
        type=common.positive,
        metavar="N",
        help="measured runs, after one warm-up that is discarded (5)",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE.json",
        help="figures as JSON, into a file or instead of the table",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--context",
        type=common.positives,
        metavar="N,N,...",
        help="prompt lengths in tokens (16,64,256)",
    )
    common.add_weights_argument(model)
    model.add_argument(
        "-n", "--tokens", type=common.positive, metavar="N", help="decode steps per prompt (16)"
    )
    _add_gemm_arguments(parser)
    _add_gemv_arguments(parser)


def _add_gemm_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "gemm", "simulated TOPS over hundreds of sizes, per precision and layout of B; or one of"
    )
    mode = group.add_mutually_exclusive_group()
    mode.add_argument("--k-mt-curve", action="store_true", help="simulated TOPS against k_mt")
    mode.add_argument(
        "--host", action="store_true", help="host time of npu.matmul beside NumPy and torch"
    )
    mode.add_argument(
        "--ragged", action="store_true", help="host time of packing edges only beside all"
    )
    add = group.add_argument
    add(
        "--sizes",
        type=common.sizes_or_preset,
        metavar="S|MxKxN,...",
        help="problem sizes, or squares, gemma3, mixed (simulated: chosen; curve: one, about 4K; "
        "designs: mixed; host, ragged: three)",
    )
    add(
        "--designs",
        choices=("published", "default"),
        help="published: one tile per precision (default); default: what npu.matmul chooses on a "
        "device that prefers the array's time",
    )
    add("--accumulate", choices=("wide", "narrow", "both"), help="designs: sums (wide)")
    add("--bf16", choices=("bfp16", "native"), help="designs: products of bfloat16 (bfp16 on npu2)")
    add("--dtype", type=_names, metavar="T,...", help="operands: int8, int16, bfloat16")
    add("--out-dtype", type=_names, metavar="T,...", help="results: int8, int16, int32, bfloat16, float32")  # fmt: skip  # noqa: E501
    add("--b-layout", choices=("row", "col", "both"), help="sweep: both, curve: col")
    add("--tile", type=common.gemm_size, metavar="MxKxN", help="of one core (published kernels)")
    add("--k-mt", type=common.positive, metavar="K", help="depth of a memtile's tiles")
    add("--stream-bytes", type=int, choices=(4, 8), help="per cycle of a stream port")
    add("--count", type=common.positive, metavar="N", help="sizes per sweep, at least (400)")
    add("--max-size", type=common.positive, metavar="S", help="largest M, K and N (8192)")
    add("--csv", metavar="FILE.csv", help="every simulated size, - for standard output")
    add("--plot", metavar="FILE.png|.svg", help="roofline or k_mt plot; needs matplotlib")
    add("--scale", choices=("linear", "log"), help="axes of the roofline plot (linear)")


def _add_gemv_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "gemv, dequant",
        "simulated time of a decode step's projections on 4-bit weights, and of expanding them "
        "for a prefill; gemv --host: host time of npu.gemv too",
    )
    group.add_argument(
        "--projections", type=_models, metavar="MODEL,...", help="gemma3-1b, gemma3-4b (both)"
    )
    group.add_argument(
        "--batch", type=common.positive, metavar="N", help="vectors per product, up to 8 (1)"
    )


def _names(text: str) -> list[str]:
    return text.split(",")


def _mode(arguments: argparse.Namespace) -> str:
    chosen = [mode for mode in ("k-mt-curve", *_HOST) if getattr(arguments, mode.replace("-", "_"))]
    if arguments.what == "gemm":
        plain = _DESIGNS if arguments.designs == "default" else "sweep"
        return chosen[0] if chosen else plain
    if arguments.what == "gemv" and chosen in ([], ["host"]):
        return "gemv"
    if arguments.what == "dequant" and not chosen:
        return "dequant"
    return chosen[0] if chosen else "model"


def _check_options(arguments: argparse.Namespace, mode: str) -> None:
    from npu.errors import ArgumentError

    if arguments.what in ("gemv", "dequant") and mode != arguments.what:
        raise ArgumentError(f"[bench] --{mode} is about GEMM; use `npu bench gemm --{mode}`")
    if arguments.what == "model" and mode != "model":
        raise ArgumentError(f"[bench] --{mode} is about GEMM; use `npu bench gemm --{mode}`")
    for name, modes in _MODES.items():
        if getattr(arguments, name) is not None and mode not in modes:
            option = "--" + name.replace("_", "-")
            places = {"model": "npu bench", "sweep": "npu bench gemm"}
            places |= {what: f"npu bench {what}" for what in ("gemv", "dequant")}
            places[_DESIGNS] = "npu bench gemm --designs default"
            where = places.get(mode, f"npu bench gemm --{mode}")
            raise ArgumentError(f"[bench] {option} has no meaning for `{where}`; leave it out")


def _models(text: str) -> list[str]:
    """An argparse type: names of npu.gemv_simulation.PROJECTIONS, separated by commas."""
    from npu.perf.gemv_simulation import PROJECTIONS

    names = text.split(",")
    for name in names:
        if name not in PROJECTIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(PROJECTIONS)}")
    return names


def run(arguments: argparse.Namespace) -> int:
    mode = _mode(arguments)
    _check_options(arguments, mode)
    if mode == "sweep":
        from npu.cli import bench_gemm

        return bench_gemm.run(arguments)
    if mode == _DESIGNS:
        from npu.cli import bench_gemm_designs

        return bench_gemm_designs.run(arguments)
    if mode == "k-mt-curve":
        from npu.cli import bench_gemm_kmt

        return bench_gemm_kmt.run(arguments)
    arguments.repeats = arguments.repeats or 5
    if mode == "gemv":
        from npu.cli import bench_gemv

        arguments.projections = arguments.projections or ["gemma3-1b", "gemma3-4b"]
        arguments.batch = arguments.batch or 1
        return bench_gemv.run(arguments)
    if mode == "dequant":
        from npu.cli import bench_dequant

        arguments.projections = arguments.projections or ["gemma3-1b", "gemma3-4b"]
        return bench_dequant.run(arguments)
    if mode == "host":
        from npu.cli import bench_gemm_host

        return bench_gemm_host.run(arguments)
    if mode == "ragged":
        from npu.cli import bench_ragged

        return bench_ragged.run(arguments)
    from npu.cli import bench_model

    arguments.context = arguments.context or [16, 64, 256]
    arguments.tokens = arguments.tokens or 16
    return bench_model.run(arguments)
