"""`npu inspect`: a configuration, a command stream or the stream of a GEMM size, in words."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from npu.cli import common

HELP = "print a configuration or command stream (file), or the stream of a GEMM size, in words"
_MAX_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="a serialised configuration or a TXN stream")
    parser.add_argument(
        "--gemm", type=common.gemm_size, metavar="S|MxKxN", help="the stream npu.matmul would build"
    )
    parser.add_argument(
        "--operation", metavar="NAME",
        help="the first stream of a request to an operation: gemm, gemv, dequant, rms_norm",
    )  # fmt: skip
    parser.add_argument(
        "--request", type=common.request, default={}, metavar="FIELD=N,...",
        help="with --operation: the request; left out: lists its fields",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="emu:npu2", help="with --gemm and --operation (%(default)s)"
    )
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "int8", "int16"),
        default="bfloat16",
        help="with --gemm (%(default)s)",
    )
    parser.add_argument("--out-dtype", help="with --gemm (float32 for bfloat16, else int32)")
    parser.add_argument(
        "--b-layout", choices=("row", "col"), default="row", help="with --gemm (%(default)s)"
    )
    parser.add_argument(
        "--designs", choices=("host", "array"),
        help="with --gemm: what the configuration is chosen for (default: $NPU_DESIGNS, else host)",
    )  # fmt: skip
    parser.add_argument(
        "--accumulate", choices=("wide", "narrow"), default="wide", help="with --gemm (%(default)s)"
    )
    parser.add_argument(
        "--bf16", choices=("bfp16", "native"), help="with --gemm (the device's default)"
    )
    parser.add_argument("--json", action="store_true", help="operations or fields as JSON")


def run(arguments: argparse.Namespace) -> int:
    from npu.errors import ArgumentError

    named = (arguments.file, arguments.gemm, arguments.operation)
    if sum(one is not None for one in named) != 1:
        raise ArgumentError("[inspect] name a file, --gemm MxKxN or --operation NAME")
    if arguments.operation and not arguments.request:
        return _print_fields(arguments.operation)
    if arguments.operation:
        data = _operation_stream(arguments)
    else:
        data = _gemm_stream(arguments) if arguments.gemm else _read(Path(arguments.file))
    if data.startswith(b"npu-config"):
        _print_configuration(data, arguments.json)
    else:
        _print_stream(data, arguments.json)
    return 0


def _read(path: Path) -> bytes:
    from npu.errors import ArgumentError

    try:
        with path.open("rb") as file:  # a device or pipe has no size to ask for
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ArgumentError(f"[inspect] {path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise ArgumentError(
            f"[inspect] {path} has more than {_MAX_BYTES} bytes, the limit for streams and "
            "configurations"
        )
    return data


def _gemm_stream(arguments: argparse.Namespace) -> bytes:
    from npu import _npu
    from npu.designs import gemm
    from npu.devices import open_device
    from npu.ops.gemm_designs import first_choice
    from npu.ops.gemm_product import Product

    name = arguments.device.removeprefix("emu:")
    _npu.arch.device_geometry(name)  # refuses unknown names
    device = open_device(f"emu:{name}", bf16=arguments.bf16, designs=arguments.designs)
    out = arguments.out_dtype or ("float32" if arguments.dtype == "bfloat16" else "int32")
    m, k, n = arguments.gemm
    product = Product(
        arguments.dtype, out, (m, k, n), arguments.b_layout, arguments.accumulate,
        device.bf16_of(arguments.dtype),
    )  # fmt: skip
    options = first_choice(device.generation, device.prefers, product, device.kernel_chosen)
    config = gemm.configuration_of(options)
    found = _npu.operations.submissions("gemm", config, {"m": m, "k": k, "n": n})
    total = sum(one["count"] for one in found)
    print(
        f"GEMM {m}x{k}x{n} on {name} with {options.text} ({device.prefers} design): submission 1 "
        f"of {total}; arguments {_names(found[0]['arguments'])}",
        file=sys.stderr,
    )
    return found[0]["stream"]


def _print_fields(name: str) -> int:
    from npu.ops.registry import operation

    found = operation(name)
    print(f"{found.name}: {found.summary}; --request takes")
    for field in found.fields:
        default = "" if field.default is None else f" ({field.default})"
        print(f"  {field.name}: {field.meaning}{default}")
    for example, request in found.examples.items():
        print(f"  {example}: {','.join(f'{k}={v}' for k, v in request.items())}")
    return 0


def _operation_stream(arguments: argparse.Namespace) -> bytes:
    from npu import _npu
    from npu.ops.registry import operation

    found = operation(arguments.operation)
    generation = arguments.device.removeprefix("emu:")
    _npu.arch.device_geometry(generation)  # refuses unknown names
    submissions = found.submissions(found.configuration(generation), arguments.request)
    first, total = submissions[0], sum(one.count for one in submissions)
    print(
        f"{found.name} on {generation}: submission 1 of {total}; arguments "
        f"{_names(first.arguments)}",
        file=sys.stderr,
    )
    return first.stream


def _names(arguments: Any) -> str:
    used = [(i, one) for i, one in enumerate(arguments) if one["bytes"]]
    return ", ".join(f"{i} = {one['name']} ({one['bytes']} bytes)" for i, one in used)


def _print_stream(data: bytes, as_json: bool) -> None:
    from npu import stream

    if as_json:
        document = {"header": stream.header(data), "operations": stream.operations(data)}
        print(json.dumps(document, indent=1))
    else:
        print(stream.disassemble(data), end="")


def _print_configuration(data: bytes, as_json: bool) -> None:
    from npu import _npu, stream

    config: dict[str, Any] = _npu.device.parse_configuration(data)
    txn: bytes = config.pop("txn")
    if as_json:
        config["operations"] = stream.operations(txn)
        print(json.dumps(config, indent=1))
        return
    print(
        f"configuration {config['name']} for {config['generation']}, source {config['source']}, "
        f"hardware artefact {config['artefact']}"
    )
    for name, value in config["params"].items():
        print(f"  param {name} = {value}")
    for name, col, direction, channel in config["ports"]:
        print(f"  port {name}: shim({col},0) {direction} {channel}")
    for name, col, row, address in config["rtps"]:
        print(f"  rtp {name}: core({col},{row}) address {address:#x}")
    for col, row, kind, used, limit in config["resources"]:
        print(f"  tile ({col},{row}): {kind} {used} of {limit}")
    for col, row, program in config["cores"]:
        print(f"core({col},{row}):")
        print("".join(f"    {line}\n" for line in program.splitlines()), end="")
    print(stream.disassemble(txn), end="")
