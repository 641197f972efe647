"""`npu models`: the models on this machine, whether they run and how fast they decode in
simulation. Reads metadata and tensor tables only."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npu.cli import common, progress

if TYPE_CHECKING:
    from npu.models.discovery import Found

HELP = "list the models on this machine, whether they run, and their simulated decode rate"
CONTEXT = 1024  # positions that the simulated token sees
NOTE = (
    "simulated on {device}, no hardware involved, machine {machine}: a token that sees {context} "
    "positions, all on the array in one submission, with the block formats of `--weights auto`; "
    "dispatch included, sampling not (npu bench -m MODEL --simulated has other contexts)"
)


@dataclass
class _Model:
    """A line of the list. ``why``: the reason that it does not run."""

    found: Found
    architecture: str | None = None
    parameters: int | None = None
    types: dict[str, list[str]] = field(default_factory=dict)
    formats: dict[str, int] = field(default_factory=dict)  # block format -> products of a step
    why: str | None = None
    seconds: float | None = None  # of a decode step, simulated
    no_rate: str | None = None  # why the array does not decode it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="npu1 or npu2 (default: $NPU_DEVICE, npu2)")
    common.add_profile_arguments(parser)
    parser.add_argument("--json", action="store_true", help="a JSON document")


def run(arguments: argparse.Namespace) -> int:
    from npu.models import discovery

    device = common.generation("models", arguments.device)
    machine = common.machine_label("models", device, arguments.machine)
    for path in discovery.missing():
        print(f"NPU_MODELS names {path}, which does not exist", file=sys.stderr, flush=True)
    found = discovery.find()
    models: list[_Model] = []
    with progress.shown("reading models", "files", lambda: (len(models), len(found))):
        for one in found:
            models.append(_examined(one, device, machine))
    if arguments.json:
        print(json.dumps(_document(models, device, machine), indent=2))
    else:
        _print(models, device, machine)
    return 0


def _examined(found: Found, device: str, machine: str) -> _Model:
    """Whatever a broken file does ends here."""
    model = _Model(found)
    try:
        _read(model, device, machine)
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        model.why = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    return model


def _read(model: _Model, device: str, machine: str) -> None:
    from npu.errors import ShapeError
    from npu.models.gemma3 import products
    from npu.models.gemma3.header import header_of
    from npu.models.gemma3.names import check_tensors
    from npu.models.sources import open_source
    from npu.perf.decode_simulation import simulate_decode

    source = open_source(model.found.path)
    model.architecture = source.metadata.get("general.architecture")
    header = header_of(str(model.found.path), source)
    check_tensors(source, header.config)
    model.parameters = products.parameters(source, header.config)
    model.types = products.weight_types(source, header.config)
    for product in products.products(source, header.config):
        model.formats[product.format] = model.formats.get(product.format, 0) + 1
    shape = products.decode_shape(model.found.name, source, header.config)
    try:
        model.seconds = simulate_decode(device, shape, CONTEXT, machine=machine).seconds
    except ShapeError as error:
        model.no_rate = " ".join(str(error).split())


def _document(models: list[_Model], device: str, machine: str) -> dict[str, Any]:
    from npu.models import discovery

    return {
        "device": device,
        "machine": machine,
        "times": "simulated",
        "included": NOTE.format(device=device, machine=machine, context=CONTEXT),
        "places": [{"kind": kind, "path": str(path)} for kind, path in discovery.places()],
        "models": [
            {
                "name": model.found.name,
                "place": model.found.place,
                "path": str(model.found.path),
                "architecture": model.architecture,
                "parameters": model.parameters,
                "weights": model.types,
                "products_per_token": model.formats,
                "runs": model.why is None,
                "reason": model.why,
                "simulated_context": CONTEXT,
                "simulated_seconds_per_token": model.seconds,
                "simulated_reason": model.no_rate,
                "simulated_tokens_per_s": 1 / model.seconds if model.seconds else None,
            }
            for model in models
        ],
    }


def _print(models: list[_Model], device: str, machine: str) -> None:
    from npu.models import discovery

    if not models:
        print("no models found; looked in:")
        for kind, path in discovery.places():
            print(f"  {path} ({kind})")
        print("NPU_MODELS names more folders or files, separated by colons")
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for model in models:
        for line in _lines(model):
            print(line.encode(encoding, "replace").decode(encoding))
    if any(model.seconds for model in models):
        note = NOTE.format(device=device, machine=machine, context=CONTEXT)
        print("\n".join(textwrap.wrap(note, 100, break_on_hyphens=False)))


def _count(parameters: int) -> str:
    large = parameters >= 1e8
    return f"{parameters / 1e9:.2f} billion" if large else f"{parameters / 1e6:.1f} million"


def _lines(model: _Model) -> list[str]:
    from npu.models.gemma3 import products

    head = f"{model.found.name} ({model.found.place})"
    if model.why is not None:
        what = f"{model.architecture}: " if isinstance(model.architecture, str) else ""
        return [head, f"    {model.found.path}", f"    does not run: {what}{model.why}"]
    assert model.parameters is not None
    rate = "no simulated rate: the array does not decode these sizes"
    if model.seconds is not None:
        rate = f"decodes {1 / model.seconds:.1f} tok/s (simulated)"
    size = f"{model.architecture}, {_count(model.parameters)} parameters"
    types = products.describe_types(model.types)
    return [head, f"    {model.found.path}", f"    {size}; weights {types}; {rate}"]
