"""`npu bench --simulated`: simulated decode rate over context of a model or of a named shape, with
where the time goes and the published figures beside it. Reads no weights."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu.cli import bench_gemm_files as files
from npu.cli import common

if TYPE_CHECKING:
    from npu.perf.decode_simulation import DecodeShape, SimulatedDecode

_CONTEXTS = (1024, 4096, 16384, 32768)
SHAPES = ("gemma3-270m", "gemma3-1b", "gemma3-4b")
_NO_TTFT = "null: prompts are not on the array yet, so no simulation says how long one takes"
_COLUMNS = {
    "weights": "weights", "kv": "KV", "products": "product", "attention": "attent.",
    "small operations": "small", "command processor": "command", "waiting": "waiting",
    "dispatch": "dispatch",
}  # fmt: skip
_LEGEND = (
    "Simulated, no hardware involved: one token with its largest logits, everything on the array. "
    "weights, KV: bytes / read ceiling. The rest is time in which memory was not at its ceiling "
    "while weights were multiplied (product), attention or the vector core ran (small: norms, "
    "rotation, GeGLU), the command processor worked, or nothing did (waiting); docs/decoder.md."
)


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
        help="positions that the token sees: 1k,4k,...,128k (1k,4k,16k,32k)",
    )  # fmt: skip
    add("--device", help="npu1 or npu2 (default: $NPU_DEVICE, npu2)")
    add("--format", choices=common.BLOCK_FORMATS, help="of --shape's weights (q4nx)")
    add(
        "--weights", choices=("auto", "q8", "q4nx", "bf16"),
        help="of the model's matrices, as `npu generate --weights` (auto)",
    )  # fmt: skip
    add("--read-gbs", type=float, metavar="GB/s", help="read ceiling of the machine's memory")
    add("--plot", metavar="FILE.png|.svg", help="tokens/s over context; needs matplotlib")


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
        rows = _simulated(device, shape, arguments)
        document = _document(device, rows)
        if "json" in opened:
            opened["json"].write(files.json_bytes("decode", document, paths))
        if "plot" in opened:
            from npu.perf.plots import decode

            suffix = Path(arguments.plot).suffix.lower()
            opened["plot"].write(decode.draw(rows, _curves(device, shape.name), suffix))
    if arguments.json != files.STDOUT:
        _print(document, rows)
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


def _simulated(
    device: str, shape: DecodeShape, arguments: argparse.Namespace
) -> list[SimulatedDecode]:
    from npu.perf.decode_simulation import simulate_decode

    wanted = arguments.context or _CONTEXTS
    return [
        simulate_decode(device, shape, context, read_gbs=arguments.read_gbs) for context in wanted
    ]


def _curves(device: str, shape: str) -> dict[str, dict[int, float]]:
    from npu.perf import published_decode

    return published_decode.curves(shape) if device == published_decode.DEVICE else {}


def _document(device: str, rows: Sequence[SimulatedDecode]) -> dict[str, Any]:
    curves = _curves(device, rows[0].shape)
    return {
        "device": device,
        "times": "simulated",
        "shape": rows[0].shape,
        "read_ceiling_bytes_per_second": rows[0].ceiling,
        "ttft_note": _NO_TTFT,
        "results": [
            {
                "context": row.context,
                "ttft_seconds": None,
                "decode_tokens_per_second": row.tokens_per_second,
                "seconds_per_token": row.seconds,
                "split_seconds": row.split,
                "bound": row.bound,
                "weight_bytes": row.weight_bytes,
                "kv_bytes": row.kv_bytes,
                "published": [
                    {
                        "source": source,
                        "tokens_per_second": curve[row.context],
                        "ratio": row.tokens_per_second / curve[row.context],
                    }
                    for source, curve in curves.items()
                    if row.context in curve
                ],
            }
            for row in rows
        ],
    }


def _print(document: dict[str, Any], rows: Sequence[SimulatedDecode]) -> None:
    ceiling = document["read_ceiling_bytes_per_second"] / 1e9
    print(f"{document['shape']}: decode on {document['device']}, simulated")
    print(f"reads up to {ceiling:g} GB/s; {rows[0].weight_bytes / 1e6:.0f} MB of weights per token")
    print("\n".join(textwrap.wrap(_LEGEND, 100)))
    print(f"{'':>7} {'':>7} {'ms':>8}  of these ms:")
    head = "".join(f"{name:>9}" for name in _COLUMNS.values())
    print(f"{'context':>7} {'tok/s':>7} {'/ token':>8}{head}")
    for row in rows:
        parts = "".join(f"{row.split[name] * 1e3:>9.2f}" for name in _COLUMNS)
        print(f"{row.context:>7} {row.tokens_per_second:>7.1f} {row.seconds * 1e3:>8.2f}{parts}")
    bounds = list(dict.fromkeys(row.bound for row in rows))
    print(f"largest part: {', then '.join(bounds)}")
    found = [(r["context"], one) for r in document["results"] for one in r["published"]]
    if found:
        print("published (measured on hardware), and simulated / published:")
    for context in dict.fromkeys(context for context, _ in found):
        texts = [
            f"{one['source']}: {one['tokens_per_second']:.1f} tok/s, {one['ratio']:.2f}x"
            for at, one in found
            if at == context
        ]
        print(f"{context:>7}  {';  '.join(texts)}")
