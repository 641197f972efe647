"""`npu convert`: a Gemma 3 model to a Q4NX file."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from npu.cli.progress import reported

HELP = "convert a Gemma 3 model (GGUF file or safetensors folder) to 4-bit Q4NX weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input", help="GGUF file, folder with a safetensors checkpoint, or Q4NX file"
    )
    parser.add_argument("output", help="the file to write, or a folder that gets model.q4nx")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")


def run(arguments: argparse.Namespace) -> int:
    from npu.models.convert import convert

    begin = time.perf_counter()
    with _clean_stop(), reported("converting", quiet=arguments.quiet) as report:
        path = convert(arguments.input, arguments.output, force=arguments.force, progress=report)
    if not arguments.quiet:
        size = path.stat().st_size
        seconds = time.perf_counter() - begin
        with contextlib.suppress(OSError):  # the file is there, whoever reads stderr
            print(f"{path}: {size / 1e6:.1f} MB in {seconds:.1f} s", file=sys.stderr, flush=True)
    return 0


@contextlib.contextmanager
def _clean_stop() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that no partial file of gigabytes stays behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    # SIGHUP that is ignored already stays so: nohup.
    numbers = [signal.SIGTERM, signal.SIGHUP]
    wanted = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
    try:
        for number in wanted:
            signal.signal(number, stop)
        yield
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_DFL)
