"""`npu bench gpt2`: the products of a training step of GPT-2, split as in figure 7 of "Unlocking
the AMD Neural Processing Unit for ML Training on the Client": what an NPU takes, simulated, and
what npu.torch does on the host for it, measured beside the products of torch on the CPU.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from npu.cli import bench_gemm_files as files
from npu.cli import common, dtypes, progress
from npu.errors import ArgumentError
from npu.perf.gpt2_products import LAYERS, ROWS, VOCABULARY, WIDTH, Product, flops, products
from npu.perf.gpt2_simulation import SimulatedStep, simulate_step

DEVICES = ("npu1", "npu2")
MEASURED = ("transposition", "input_copy", "output_copy", "call")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", help="npu1 or npu2 (both)")
    add(
        "--dtype", type=dtypes.tensor, default="bfloat16",
        help="of the model's tensors: bf16 (default) or f32",
    )  # fmt: skip
    for name, value, what in (
        ("--tokens", ROWS, "of a batch"), ("--width", WIDTH, "of the model"),
        ("--layers", LAYERS, "of the model"), ("--vocabulary", VOCABULARY, "rows of the head"),
    ):  # fmt: skip
        add(name, type=common.positive, default=value, metavar="N", help=f"{what} ({value})")
    add(
        "--repeats", type=common.positive, default=3, metavar="N",
        help="measured rounds, after one warm-up that is discarded (3)",
    )  # fmt: skip
    add("--no-host", action="store_true", help="simulated times alone, without torch")
    add(
        "--buildable", action="store_true",
        help="configurations that `npu build` compiles for an NPU alone, as an NPU would have them",
    )  # fmt: skip
    common.add_profile_arguments(parser)
    add("--plot", metavar="FILE.png|.svg", help="the split as a plot; needs matplotlib")


def run(arguments: argparse.Namespace) -> int:
    devices = [common.generation("bench", arguments.device)] if arguments.device else DEVICES
    dtype = arguments.dtype
    of = list(
        products(arguments.tokens, arguments.width, arguments.layers, arguments.vocabulary)
    )  # fmt: skip
    measure = None if arguments.no_host else _measure()
    with files.opened(json_path=arguments.json, plot_path=arguments.plot) as outputs:
        with progress.counted("simulating", "products", len(of) * len(devices)) as advance:
            steps = [
                simulate_step(
                    d, of, dtype, arguments.machine, arguments.kernels, advance, arguments.buildable
                )
                for d in devices
            ]
        host = None
        if measure:
            rounds = (arguments.repeats + 1) * len(of)
            with progress.counted("measuring", "products", rounds) as advance:
                host = measure(devices, of, dtype, arguments.repeats, advance)
        found = document(steps, of, dtype, host) | {"buildable": arguments.buildable}
        if "json" in outputs:
            outputs["json"].write(files.json_bytes("gpt2", found))
        if "plot" in outputs:
            from npu.perf.plots import gpt2

            outputs["plot"].write(gpt2.draw(found, arguments.plot.rpartition(".")[2].lower()))
    if arguments.json != files.STDOUT:
        _print(found)
    return 0


def _measure() -> Callable[..., dict[str, Any]]:
    """bench_gpt2_host.measure, which needs torch."""
    try:
        return importlib.import_module("npu.cli.bench_gpt2_host").measure  # type: ignore[no-any-return]
    except ImportError as error:
        raise ArgumentError(
            f"[bench] gpt2 measures npu.torch, and torch does not load ({error}): "
            'pip install "npu-xdna[torch]", or leave the measured part out with --no-host'
        ) from error


def document(
    steps: list[SimulatedStep], of: list[Product], dtype: str, host: dict[str, Any] | None
) -> dict[str, Any]:
    """What --json writes. ``host``: of bench_gpt2_host.measure."""
    one = steps[0] if len(steps) == 1 else None
    return {
        "times": "simulated" + ("; host and CPU: measured on this machine" if host else ""),
        "device": one.device if one else None,
        "machine": one.machine if one else None,
        "kernels": one.kernels if one else None,
        "dtype": dtype,
        "gflop": flops(of) / 1e9,
        "threads": host["threads"] if host else None,
        "repeats": host["repeats"] if host else 0,
        "steps": [_step(step, of, host) for step in steps],
        "cpu_ms": _cpu_total(of, host) if host else None,
        "results": [row for step in steps for row in _rows(step, host)],
    }


def _step(step: SimulatedStep, of: list[Product], host: dict[str, Any] | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device": step.device, "machine": step.machine, "kernels": step.kernels,
        "tops": step.tops, "configurations": step.configurations, "loads": step.loads,
        "simulated_ms": {
            "kernel": 1e3 * step.total("array_seconds"),
            "synchronisation": 1e3 * step.total("dispatch_seconds"),
            "configuration": 1e3 * step.load_seconds,
        },
        "measured_ms": None,
    }  # fmt: skip
    if host:
        found["measured_ms"] = {
            name: sum(host[step.device][one][name]["median"] * one.calls for one in of)
            for name in MEASURED
        }
        copied = sum(host[step.device][one]["copied_bytes"] * one.calls for one in of)
        found["copied_mb"] = copied / 1e6
    return found


def _cpu_total(of: list[Product], host: dict[str, Any]) -> float:
    return float(sum(host["cpu"][one]["median"] * one.calls for one in of))


def _rows(step: SimulatedStep, host: dict[str, Any] | None) -> list[dict[str, Any]]:
    rows = []
    for one in step.products:
        product = one.product
        row: dict[str, Any] = {
            "device": step.device, "projection": product.layer, "operation": product.kind,
            **dict(zip("MKN", product.size, strict=True)), "calls": product.calls,
            "simulated_us": 1e6 * one.seconds, "dispatch_us": 1e6 * one.dispatch_seconds,
            "simulated_tops": one.tops, "bound": one.bound, "designs": one.designs,
        }  # fmt: skip
        if host:
            measured = host[step.device][product]
            row |= {f"{name}_ms": measured[name] for name in MEASURED}
            row["copied_bytes"] = measured["copied_bytes"]
            row["cpu_ms"] = host["cpu"][product]
        rows.append(row)
    return rows


def _print(found: dict[str, Any]) -> None:
    measured = found["cpu_ms"] is not None
    print(f"products of a step of GPT-2, {found['dtype']} tensors, {found['gflop']:.1f} GFLOP")
    head = f"{'layer':<18} {'product':<11} {'M x K x N':>18} {'calls':>5}"
    for step in found["steps"]:
        print(
            f"\n{step['device']}, simulated: machine {step['machine']}; kernels {step['kernels']}"
        )
        print(head + f" {'us':>9} {'TFLOP/s':>8}  bound  " + (_HOST_HEAD if measured else ""))
        for row in found["results"]:
            if row["device"] == step["device"]:
                _print_row(row)
        _print_step(step, found)


_HOST_HEAD = f"| measured here: {'CPU ms':>8} {'transposed':>10} {'in':>7} {'out':>7} {'call':>7}"


def _print_row(row: dict[str, Any]) -> None:
    size = " x ".join(str(row[name]) for name in "MKN")
    line = (
        f"{row['projection']:<18} {row['operation']:<11} {size:>18} {row['calls']:>5} "
        f"{row['simulated_us']:>9.1f} {row['simulated_tops']:>8.2f}  {row['bound']:<7}"
    )
    if "cpu_ms" in row:
        parts = (f"{row[f'{name}_ms']['median']:.3f}" for name in MEASURED)
        widths = (10, 7, 7, 7)
        cells = " ".join(f"{part:>{width}}" for part, width in zip(parts, widths, strict=True))
        line += f"|                {row['cpu_ms']['median']:>8.3f} {cells}"
    print(line.rstrip())


def _print_step(step: dict[str, Any], found: dict[str, Any]) -> None:
    simulated, count = step["simulated_ms"], len(step["configurations"])
    print(
        f"a step, simulated: kernel {simulated['kernel']:.1f} ms, input and output synchronisation "
        f"(dispatch) {simulated['synchronisation']:.1f} ms: {step['tops']:.2f} TFLOP/s; "
        f"{step['loads']} loads of {count} configurations {simulated['configuration']:.1f} ms"
    )
    host = step["measured_ms"]
    if host is None:
        return
    print(
        f"a step, measured on this host: transposition {host['transposition']:.1f} ms, input copy "
        f"{host['input_copy']:.1f} ms, output copy {host['output_copy']:.1f} ms "
        f"({step['copied_mb']:.1f} MB copied), calls {host['call']:.1f} ms"
    )
    print(
        f"the same products on this CPU, torch float32, measured in the same run: "
        f"{found['cpu_ms']:.1f} ms"
    )
