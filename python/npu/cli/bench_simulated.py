"""`npu bench --simulated`: simulated decode rate and time to first token over context of a model or
of a named shape, with where the time goes and the published figures beside it. Reads no weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu.cli import bench_gemm_files as files
from npu.cli import common, simulated_tables

if TYPE_CHECKING:
    from npu.perf.batch_simulation import SimulatedBatch
    from npu.perf.decode_simulation import DecodeShape

_CONTEXTS = (1024, 4096, 16384, 32768)
SHAPES = ("gemma3-270m", "gemma3-1b", "gemma3-4b")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--shape", choices=SHAPES, help="a model's sizes, without its weights")
    what.add_argument(
        "-m", "--model", metavar="PATH",
        help="a model's own matrices and formats (default: $NPU_MODEL, else the demo model)",
    )  # fmt: skip
    add(
        "--context", type=contexts, metavar="N,N,...",
        help="tokens of the prompt, and positions that a token sees: 1k,...,128k (1k,4k,16k,32k)",
    )  # fmt: skip
    add(
        "--batch", type=common.positive, metavar="N",
        help="also a step of so many sequences at once, 1 to 8, each of --context positions",
    )  # fmt: skip
    add("--device", help="npu1 or npu2 (default: $NPU_DEVICE, npu2)")
    add("--format", choices=common.BLOCK_FORMATS, help="of --shape's weights (q4nx)")
    add(
        "--weights", choices=("auto", "q8", "q4nx", "bf16"),
        help="of the model's matrices, as `npu generate --weights` (auto)",
    )  # fmt: skip
    add("--read-gbs", type=float, metavar="GB/s", help="read ceiling of the machine's memory")
    common.add_profile_arguments(parser)
    add("--plot", metavar="FILE.png|.svg", help="tokens/s and TTFT over context; needs matplotlib")


def contexts(text: str) -> list[int]:
    """An argparse type: whole numbers >= 1, separated by commas; "4k" is 4096."""
    found = []
    for part in text.split(","):
        number, k = (part[:-1], 1024) if part[-1:].lower() == "k" else (part, 1)
        found.append(common.positive(number) * k)
    return found


def run(arguments: argparse.Namespace) -> int:
    from npu.errors import ArgumentError

    for option, other in (("format", "--shape"), ("weights", "-m MODEL")):
        if getattr(arguments, option) is not None and (option == "format") != bool(arguments.shape):
            raise ArgumentError(
                f"[bench] --{option} belongs to {other}; leave out --{option} or give {other}"
            )
    device = common.generation("bench", arguments.device)
    outputs = files.opened(json_path=arguments.json, plot_path=arguments.plot)
    with outputs as opened:
        shape, paths = _shape(arguments)
        rows, prompts, note = _simulated(device, shape, arguments)
        batches = _batches(device, shape, arguments)
        document = simulated_tables.document(device, rows, prompts, note, batches)
        if "json" in opened:
            opened["json"].write(files.json_bytes("decode", document, paths))
        if "plot" in opened:
            from npu.perf.plots import decode

            suffix = Path(arguments.plot).suffix.lower()
            opened["plot"].write(decode.draw(rows, prompts, suffix))
    if arguments.json != files.STDOUT:
        simulated_tables.show(document, rows, prompts)
        simulated_tables.show_batches(rows, batches)
    return 0


def _shape(arguments: argparse.Namespace) -> tuple[DecodeShape, Sequence[str]]:
    """What is simulated, and the files it was read from."""
    from npu.perf.decode_simulation import shape_of

    if arguments.shape:
        return shape_of(arguments.shape, arguments.format or common.BLOCK_FORMATS[0]), ()
    from npu.models.gemma3 import products

    header = common.read_header(arguments.model)
    shape = products.decode_shape(
        header.path, header.source, header.config, arguments.weights or "auto"
    )
    return shape, header.source.paths


def _batches(
    device: str, shape: DecodeShape, arguments: argparse.Namespace
) -> list[SimulatedBatch]:
    """Steps of --batch sequences. Raises ShapeError for models that the array does not run so."""
    from npu.perf.batch_simulation import simulate_batch

    if arguments.batch is None:
        return []
    return [
        simulate_batch(
            device,
            shape,
            context,
            arguments.batch,
            read_gbs=arguments.read_gbs,
            machine=arguments.machine,
            kernels=arguments.kernels,
        )
        for context in arguments.context or _CONTEXTS
    ]


def _simulated(
    device: str, shape: DecodeShape, arguments: argparse.Namespace
) -> simulated_tables.Rows:
    from npu.errors import ShapeError
    from npu.perf.decode_simulation import simulate_decode
    from npu.perf.prefill_simulation import simulate_prefill

    wanted = arguments.context or _CONTEXTS
    memory: dict[str, Any] = {
        "read_gbs": arguments.read_gbs, "machine": arguments.machine, "kernels": arguments.kernels,
    }  # fmt: skip
    rows = [simulate_decode(device, shape, context, **memory) for context in wanted]
    try:
        prompts = [simulate_prefill(device, shape, count, **memory) for count in wanted]
    except ShapeError as error:  # prompts of such models are products and host operations
        return rows, [], f"null: no simulation says how long a prompt takes: {error}"
    return rows, prompts, None
