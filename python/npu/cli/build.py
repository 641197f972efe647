"""`npu build`: makes the xclbins of configurations and puts them into the cache."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu.cli import common, progress

if TYPE_CHECKING:
    from npu.hardware.build.builder import Outcome
    from npu.hardware.build.one import Settings
    from npu.hardware.build.targets import Target

HELP = "build configurations for the NPU with mlir-aie and Peano, check and keep them"
_TIMEOUT = 3600.0  # s, of one tool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "operation", nargs="*",
        help=f"operations ({common.operation_names()}) or configurations by name; default: what "
        "generate, chat, selftest and a plain npu.matmul run",
    )  # fmt: skip
    parser.add_argument(
        "--device",
        choices=("npu1", "npu2"),
        help="(default: $NPU_DEVICE, else the NPU of this machine, else npu2)",
    )
    parser.add_argument("--all", action="store_true", help="every configuration of the package")
    parser.add_argument(
        "-j", "--jobs", type=common.positive, metavar="N",
        help="builds at a time (one per CPU and 2 GB of free memory)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", default=_TIMEOUT,
        help=f"of each run of a tool ({_TIMEOUT:g})",
    )  # fmt: skip
    parser.add_argument("--keep", metavar="FOLDER", help="keep the files between the steps there")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--force", action="store_true", help="build what is there and fits, too: kernels and all"
    )
    what.add_argument(
        "--list", action="store_true", help="what is built, stale, damaged or missing"
    )
    what.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    what.add_argument(
        "--xrt", action="store_true",
        help="instead: the module through which C, C++ and Python without pyxrt reach the NPU, for "
        "the XRT of this machine",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def run(arguments: argparse.Namespace) -> int:
    from npu.hardware.build import targets

    if arguments.xrt:
        return _xrt(arguments)
    generation, remark = _generation(arguments.device)
    chosen = targets.select(generation, arguments.operation, arguments.all)
    arguments.jobs = arguments.jobs or _jobs()
    settings = None if arguments.list else _settings(arguments, len(chosen))
    if remark:
        print(f"npu: {remark}", file=sys.stderr)
    if settings is None:
        return _list(chosen, arguments.json)
    if arguments.dry_run:
        return _dry_run(chosen, settings, arguments.json)
    return _build(chosen, settings, arguments)


def _xrt(arguments: argparse.Namespace) -> int:
    from npu.errors import ArgumentError
    from npu.hardware.build import xrt_module
    from npu.hardware.build.process import Limits

    if arguments.operation or arguments.all or arguments.device or arguments.keep:
        raise ArgumentError(
            "[build] --xrt builds one module; leave operations and their options out"
        )
    place = xrt_module.build(Limits(arguments.timeout, threading.Event()))
    print(json.dumps({"module": str(place)}) if arguments.json else f"{place}: built")
    return 0


def _jobs() -> int:
    """aiecc holds a copy of the module per core: 1.6 GB for 32, by reports of larger arrays."""
    from npu.memory import available_bytes

    return max(1, min(len(os.sched_getaffinity(0)), available_bytes() // (2 << 30)))


def _generation(device: str | None) -> tuple[str, str]:
    """What is built for, and a remark where nobody named it: this machine's NPU. Raises
    DeviceError."""
    from npu.devices import is_xrt, named_generation

    named = device or os.environ.get("NPU_DEVICE")
    if named and (not is_xrt(named) or named_generation(named)):
        return common.generation("build", named), ""
    own, found = common.own_npu()
    if own is not None:
        return own.generation, f"building for {own.generation}: {own.name}"
    if named:
        return common.generation("build", named), ""  # raises
    remark = f"no NPU to go by ({found}): building for npu2; --device npu1 for Phoenix, Hawk Point"
    return "npu2", remark


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def _settings(arguments: argparse.Namespace, count: int) -> Settings:
    from npu.hardware.build import kernels, tools
    from npu.hardware.build.one import Settings
    from npu.hardware.build.process import Limits

    return Settings(
        tools.find(), kernels.folder(), Limits(arguments.timeout, threading.Event()),
        threads=max(1, arguments.jobs // max(1, min(arguments.jobs, count))),
        keep=Path(arguments.keep) if arguments.keep else None, force=arguments.force,
    )  # fmt: skip


def _build(chosen: list[Target], settings: Settings, arguments: argparse.Namespace) -> int:
    from npu.hardware.build import cache
    from npu.hardware.build.builder import build_all

    removed, left = cache.remove_damaged(chosen[0].generation, settings.limits.stop)
    if removed and not arguments.json:
        entries = "entry" if removed == 1 else "entries"
        print(f"{cache.root()}: {removed} damaged {entries} removed")
    for line in left:
        print(f"npu: {line}", file=sys.stderr)
    with progress.counted("building", "configurations", len(chosen)) as advance:

        def report(outcome: Outcome) -> None:
            advance(1)
            with progress.aside():
                _print(outcome, arguments.json)

        outcomes = build_all(chosen, settings, arguments.jobs, report)
    failed = sum(outcome.state == "failed" for outcome in outcomes)
    if arguments.json:
        print(json.dumps([_as_json(outcome) for outcome in outcomes], indent=2))
    else:
        built = sum(outcome.state == "built" for outcome in outcomes)
        kept = len(outcomes) - built - failed
        print(f"{cache.root()}: {built} built, {kept} were there, {failed} failed")
    return 1 if failed else 0


def _print(outcome: Outcome, as_json: bool) -> None:
    if outcome.state == "failed":
        text = " ".join(outcome.error.split())
        print(f"npu: {outcome.target.key} failed: {text}", file=sys.stderr, flush=True)
    elif not as_json:
        word = "built" if outcome.state == "built" else "was there"
        print(f"{outcome.target.key:44} {word}, {outcome.seconds:.1f} s", flush=True)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "key": outcome.target.key,
        "operation": outcome.target.operation,
        "artefact": outcome.artefact,
        "state": outcome.state,
        "seconds": round(outcome.seconds, 3),
        "path": None if outcome.path is None else str(outcome.path),
        "error": outcome.error,
    }


def _list(chosen: list[Target], as_json: bool) -> int:
    from npu._npu import kernels
    from npu.errors import BuildError
    from npu.hardware.build import cache, tools
    from npu.hardware.build.one import prepare, state

    note = ""
    try:
        found = tools.find()
    except BuildError:
        found, note = None, "; tools are not found, so their versions are not compared"
    rows = []
    with progress.counted("lowering", "configurations", len(chosen), quiet=as_json) as advance:
        for target in chosen:
            prepared = prepare(target)
            now = state(prepared, found, kernels.SOURCE_HASH)
            rows.append(
                {"key": target.key, "operation": target.operation, "name": target.name,
                 "artefact": prepared.artefact, "state": now}
            )  # fmt: skip
            advance(1)
    if as_json:
        print(json.dumps({"folder": str(cache.root()), "configurations": rows}, indent=2))
        return 0
    for row in rows:
        print(f"{row['state']:8} {row['operation']:10} {row['key']}")
    built = sum(row["state"] == "built" for row in rows)
    print(f"{cache.root()}: {built} of {len(rows)} built{note}")
    return 0


def _dry_run(chosen: list[Target], settings: Settings, as_json: bool) -> int:
    from npu.hardware.build.one import commands, prepare

    lists = {}
    for target in chosen:
        prepared = prepare(target)
        folder = (settings.keep or prepared.folder.parent).absolute() / prepared.artefact
        lists[target.key] = commands(prepared, settings, folder)
        if not as_json:
            print(f"# {target.key}")
            for words in lists[target.key]:
                print(shlex.join(words))
    if as_json:
        print(json.dumps(lists, indent=2))
    return 0
