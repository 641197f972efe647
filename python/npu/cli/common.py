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


@contextlib.contextmanager
def use_device(name: str | None) -> Iterator[dict[str, Any]]:
    """Makes a device current; yields its description (see :func:`describe_devices`)."""
    import npu

    select = getattr(npu, "device", None)
    with select(name) if select and name else contextlib.nullcontext():
        current = getattr(npu, "current_device", None)
        info = _describe(current()) if current else {"name": name or "numpy stand-in"}
        yield {"arithmetic": "bf16 operands, fp32 accumulation", **info}


def describe_devices() -> list[dict[str, Any]]:
    """All devices as dictionaries: ``name`` and whatever else the device says of itself."""
    import npu

    devices = getattr(npu, "devices", None)
    return [_describe(device) for device in devices()] if devices else []


def _describe(device: Any) -> dict[str, Any]:
    if isinstance(device, str):
        return {"name": device}
    if isinstance(device, dict):
        return dict(device)
    names = [name for name in dir(device) if not name.startswith("_")]
    values = {name: getattr(device, name) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


def is_emulated(device: dict[str, Any]) -> bool:
    return str(device.get("name", "")).startswith("emu:")


def device_line(device: dict[str, Any]) -> str:
    """The sentence that names device and arithmetic, for stderr."""
    emulated = ", emulated" if is_emulated(device) else ""
    return f"device: {device['name']}{emulated}; arithmetic: {device['arithmetic']}"


def time_label(device: dict[str, Any]) -> str:
    """What the printed times are: never the NPU's own when it is emulated."""
    return "host time, emulated NPU" if is_emulated(device) else "host time"


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
