"""The command `npu`: one module per subcommand.

Each subcommand is a module of this package with ``HELP``, ``add_arguments(parser)`` and
``run(arguments) -> exit code``; the modules import the heavy parts only when they run. Every error
is one line on stderr: exit code 2 for a wrong command line, 1 for anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from npu.cli import bench

COMMANDS = (
    "generate",
    "chat",
    "bench",
    "models",
    "convert",
    "q4nx",
    "devices",
    "selftest",
    "doctor",
    "inspect",
    "compile",
    "build",
    "validate-model",
    "tune",
    "trace",
    "kernel",
)
_INTERRUPTED = 130  # 128 + SIGINT
_BROKEN_PIPE = 141  # 128 + SIGPIPE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _report(f"{message} (see `{self.prog} --help`)")
        sys.exit(2)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="npu", description="AMD Ryzen AI NPU, in this version emulated.")
    parser.add_argument("--version", action="version", version=f"npu-xdna {_version()}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"npu.cli.{name.replace('-', '_')}")
        sub = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run, prog=sub.prog)
    return parser


def _version() -> str:
    from npu import __version__

    return __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    output = _Output(sys.stdout)
    sys.stdout = cast(TextIO, output)
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv), output)
        with contextlib.suppress(OSError):  # the output remembers it
            output.flush()
    finally:
        sys.stdout = output.stream
    if output.error is not None:
        code = _output_failed(output.error)
    try:
        sys.stderr.flush()
    except (OSError, ValueError):  # the work does not depend on it
        _drop(sys.stderr)
    return code


def _output_failed(error: OSError) -> int:
    _drop(sys.stdout)
    if isinstance(error, BrokenPipeError):  # the reader of our output left
        return _BROKEN_PIPE
    _report(f"cannot write to standard output: {error.strerror or error}")
    return 1


def _drop(stream: TextIO) -> None:
    """What is left in a stream goes nowhere: Python would try once more at exit, and fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Output:
    """Standard output that remembers a failed write, also one that somebody else has caught."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self.error = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _run(words: list[str], output: _Output) -> int:
    from npu.errors import NpuError

    try:
        if words[:1] == ["bench"]:
            words[1:] = bench.expand(words[1:])
        arguments, unknown = build_parser().parse_known_args(words)
        if unknown:
            _report(f"unrecognized arguments: {' '.join(unknown)} (see `{arguments.prog} --help`)")
            return 2
        if getattr(arguments, "kernels", None) == "both":
            from npu.cli import profiles

            return profiles.run(arguments)
        code: int = arguments.run(arguments)
        return code
    except SystemExit as stop:  # argparse: --help or a wrong command line
        return stop.code if isinstance(stop.code, int) else 1
    except NpuError as error:
        _report(str(error))
    except KeyboardInterrupt:
        _report("interrupted")
        return _INTERRUPTED
    except Exception as error:
        if error is output.error:
            return 1  # `main` says it
        if os.environ.get("NPU_TRACEBACK"):
            raise
        _report(f"{type(error).__name__}: {error} (NPU_TRACEBACK=1 shows where)")
    return 1


def _report(message: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be full or closed
        print(f"npu: error: {' '.join(message.split())}", file=sys.stderr)
