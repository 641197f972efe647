"""`npu inspect`: a configuration, command stream, xclbin, PDI or CDO, or the stream of a GEMM size,
in words."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from npu.cli import common, dtypes

HELP = (
    "print a file (configuration, command stream, xclbin, PDI, CDO) or the stream of a GEMM size, "
    "in words"
)
_MAX_BYTES = 64 << 20
# How files begin that inspect does not read.
_OTHERS = (
    (b"\x7fELF", "an ELF file (program, object or ELF of instructions)"),
    (b"GGUF", "a GGUF model (see `npu generate -m`)"),
    (b"PK\3\4", "a zip archive"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"\xfd7zXZ", "compressed by xz"),
)
_MAX_ESTIMATED = 1 << 30  # M, K, N that a configuration can be chosen for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", help="configuration, TXN stream, xclbin, PDI or CDO")
    parser.add_argument(
        "--gemm", type=common.gemm_size, metavar="S|MxKxN", help="the stream npu.matmul would build"
    )
    parser.add_argument(
        "--operation", metavar="NAME",
        help=f"the first stream of a request to an operation: {common.operation_names()}",
    )  # fmt: skip
    parser.add_argument(
        "--request", type=common.request, metavar="FIELD=N,...",
        help="with --operation: the request; left out: lists its fields",
    )  # fmt: skip
    parser.add_argument(
        "--device",
        help="npu1 or npu2, with --gemm and --operation (default: $NPU_DEVICE, else npu2)",
    )
    choice = parser.add_argument_group("what a GEMM's configuration is chosen for")
    choice.add_argument(
        "--dtype", type=dtypes.operand, metavar="TYPE", help=f"({dtypes.OPERANDS[0]})"
    )
    choice.add_argument(
        "--out-dtype", type=dtypes.result, metavar="TYPE", help="(float32 for bfloat16, else int32)"
    )
    choice.add_argument("--b-layout", choices=("row", "col"), help="(row)")
    choice.add_argument(
        "--designs", choices=("host", "array"), help="(default: $NPU_DESIGNS, else host)"
    )
    choice.add_argument("--accumulate", choices=("wide", "narrow"), help="(wide)")
    choice.add_argument("--bf16", choices=("bfp16", "native"), help="(the device's default)")
    parser.add_argument("--json", action="store_true", help="operations or fields as JSON")


_OPERATION = "--operation NAME --request"
_GEMM = ("--gemm", "--operation gemm --request")
_BELONGS = {
    "request": ("--operation",),
    "device": ("--gemm", _OPERATION),
    **dict.fromkeys(("dtype", "out_dtype", "b_layout", "designs", "accumulate", "bf16"), _GEMM),
}


def run(arguments: argparse.Namespace) -> int:
    from npu.errors import ArgumentError

    named = (arguments.file, arguments.gemm, arguments.operation)
    if sum(one is not None for one in named) != 1:
        raise ArgumentError("[inspect] name a file, --gemm MxKxN or --operation NAME")
    common.check_options("inspect", arguments, _forms(arguments), _BELONGS)
    if arguments.operation is not None and arguments.request is None:
        return _print_fields(arguments.operation, arguments.json)
    if arguments.file is None:
        _print_stream(_stream(arguments), arguments.json)
    else:
        _print_file(Path(arguments.file), arguments.json)
    return 0


def _print_file(path: Path, as_json: bool) -> None:
    """Raises FormatError, which names the file."""
    from npu.cli import inspect_image
    from npu.errors import FormatError

    data = _read(path)
    if inspect_image.is_image(data):
        inspect_image.print_image(data, path.name, as_json)
        return
    reader = next((one for start, one in _READERS if data.startswith(start)), None)
    if reader is None:
        raise FormatError(
            f"[inspect] {path} is {_kind(data)}; inspect reads configurations, command streams "
            "(TXN), xclbins, PDIs and binary CDOs"
        )
    try:
        reader(data, as_json)
    except FormatError as error:
        raise FormatError(f"[inspect] {path}: {str(error).partition('] ')[2]}") from error


def _kind(data: bytes) -> str:
    """What a file is that nothing here reads, as far as its first bytes tell."""
    if not data:
        return "empty"
    for start, kind in _OTHERS:
        if data.startswith(start):
            return kind
    text = data[:4096].decode("utf-8", "replace")
    if "\0" not in text and text.count("\ufffd") <= 1:  # a character may be cut at the end
        return "text"
    return f"of no known kind (it begins with {data[:8].hex(' ')})"


def _forms(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What the command line is, for _BELONGS."""
    if arguments.file is not None:
        return ("a file",)
    if arguments.gemm is not None:
        return ("--gemm",)
    if arguments.request is None:
        return ("--operation", "--operation without --request")
    return ("--operation", _OPERATION, f"--operation {arguments.operation} --request")


def _read(path: Path) -> bytes:
    from npu.errors import ArgumentError

    try:
        with path.open("rb") as file:  # a device or pipe has no size to ask for
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ArgumentError(f"[inspect] {path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise ArgumentError(
            f"[inspect] {path} has more than {_MAX_BYTES} bytes, the limit for files to print"
        )
    if data.startswith(b"version https://git-lfs"):
        raise ArgumentError(f"[inspect] {path} is a Git LFS pointer; fetch the file (git lfs pull)")
    return data


def _stream(arguments: argparse.Namespace) -> bytes:
    """The first stream of --gemm or of --operation."""
    from npu.designs import gemm
    from npu.ops.registry import operation

    found = operation("gemm" if arguments.gemm else arguments.operation)
    request = arguments.request or dict(zip("mkn", arguments.gemm, strict=True))
    generation = common.generation("inspect", arguments.device)
    if found.name == "gemm":
        # Sizes that are missing or wrong are refused with the rest of the request.
        m, k, n = (min(max(request.get(field, 1), 1), _MAX_ESTIMATED) for field in "mkn")
        design, prefers = common.chosen_gemm(
            "inspect", arguments, (m, k, n), designs=arguments.designs
        )
        config = gemm.configuration_of(design)
        size = "x".join(str(request.get(field)) for field in "mkn")
        what = f"GEMM {size} on {generation} with {design.text} ({prefers} design)"
    else:
        config = found.configuration(generation, **found.choices_for(request))
        what = f"{found.name} on {generation}"
    submissions = found.submissions(config, request)
    first, total = submissions[0], sum(one.count for one in submissions)
    print(f"{what}: submission 1 of {total}; arguments {_names(first.arguments)}", file=sys.stderr)
    return first.stream


def _print_fields(name: str, as_json: bool) -> int:
    from npu.ops.registry import operation

    found = operation(name)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=1))
        return 0
    print(f"{found.name}: {found.summary}; --request takes")
    for field in found.fields:
        default = "" if field.default is None else f" ({field.default})"
        print(f"  {field.name}: {field.meaning}{default}")
    for example, request in found.examples.items():
        print(f"  {example}: {','.join(f'{k}={v}' for k, v in request.items())}")
    return 0


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


def _print_program(program: str) -> None:
    print("".join(f"    {line}\n" for line in program.splitlines()), end="")


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
    for name, col, direction, channel, packet in config["ports"]:
        packets = "" if packet is None else f", packets of id {packet}"
        print(f"  port {name}: shim({col},0) {direction} {channel}{packets}")
    for name, col, row, address in config["rtps"]:
        print(f"  rtp {name}: core({col},{row}) address {address:#x}")
    for col, row, kind, used, limit in config["resources"]:
        grade = (
            "" if kind != "program" else " (estimated)" if used <= limit else " (estimated over)"
        )
        print(f"  tile ({col},{row}): {kind} {used} of {limit}{grade}")
    for name, size, counters, program in config["overlays"]:
        print(f"overlay {name}, loaded by streams, {size} bytes, counters at {counters:#x}:")
        _print_program(program)
    for col, row, program in config["cores"]:
        loaded = " overlays" if config["overlays"] and not program else ""
        print(f"core({col},{row}):{loaded}")
        _print_program(program)
    print(stream.disassemble(txn), end="")


# By the first bytes; a command stream's are its header's version, 0.1 or 1.0.
_READERS = (
    (b"npu-config", _print_configuration),
    (b"\0\1", _print_stream),
    (b"\1\0", _print_stream),
)
