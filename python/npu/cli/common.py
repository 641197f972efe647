"""What several subcommands share: the device in use, the model to load, progress on a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npu import Device
    from npu.gemma3 import Model, Tokenizer


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        help="GGUF model (default: $NPU_MODEL, else the demo model)",
    )
    parser.add_argument(
        "--device", help="device name, see `npu devices` (default: $NPU_DEVICE, else automatic)"
    )
    parser.add_argument(
        "--arithmetic",
        choices=("fast", "silicon"),
        help="how the emulated cores add bf16 products (default: $NPU_ARITHMETIC, else fast)",
    )


@contextlib.contextmanager
def use_device(arguments: argparse.Namespace) -> Iterator[Device]:
    """Makes the device of the command line current, else leaves the package's own choice."""
    import npu

    if arguments.device is None and arguments.arithmetic is None:
        yield npu.current_device()
        return
    name = arguments.device or npu.current_device().name
    with npu.device(name, arithmetic=arguments.arithmetic) as device:
        yield device


def device_line(device: Device) -> str:
    """The words that name device and arithmetic."""
    emulated = " (emulated)" if device.emulated else ""
    return f"device: {device.name}{emulated}, bf16 arithmetic: {device.arithmetic}"


def time_label(device: Device) -> str:
    """What the printed times are: never the NPU's own when it is emulated."""
    return "host time, the NPU is emulated" if device.emulated else "host time"


def default_model() -> str | None:
    """Path of the model used without -m: $NPU_MODEL, or the demo model of a checkout."""
    if named := os.environ.get("NPU_MODEL"):
        return named
    package = Path(__file__).resolve().parents[1]
    places = (package / "models", package.parents[1] / "examples/models", Path("examples/models"))
    for place in places:
        if found := sorted(place.glob("*.gguf")):
            return str(found[0])
    return None


def load_model(path: str | None) -> tuple[str, Model, Tokenizer]:
    """Loads the named or the default model; returns its path too."""
    from npu import gemma3
    from npu.errors import ArgumentError

    path = path or default_model()
    if path is None:
        raise ArgumentError("no model given and no demo model found; name one with -m FILE.gguf")
    with _progress_bar() as progress:
        return (path, *gemma3.load(path, progress))


@contextlib.contextmanager
def _progress_bar() -> Iterator[Any]:
    """A progress callback: a bar on a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc="loading", leave=False, delay=0.5) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress
