"""Builds one configuration: lower, compile its kernels, run aiecc, check, put it into the cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from npu._npu.device import Configuration
from npu.designs.lowering import Lowered, lower, print_mlir, serialise, stack
from npu.errors import BuildError
from npu.hardware.build import (
    aiecc,
    cache,
    checks,
    compiled_mlir,
    kernels,
    overlays,
    process,
)
from npu.hardware.build.aiecc import Job
from npu.hardware.build.cache import Xclbin
from npu.hardware.build.checks import Check
from npu.hardware.build.compiled_mlir import Device
from npu.hardware.build.elf import Elf
from npu.hardware.build.process import Limits
from npu.hardware.build.sample import NAME, Sample, sample, with_sequence
from npu.hardware.build.stack import kernel_stacks
from npu.hardware.build.targets import Target
from npu.hardware.build.tools import Tools

_SHOWN = 2  # violated limits that an error lists


@dataclass(frozen=True)
class Prepared:
    """A lowered target. ``folder``: its place in the cache."""

    target: Target
    lowered: Lowered
    config: bytes
    artefact: str
    folder: Path


@dataclass
class Settings:
    """What the builds of one command share. ``threads``: of each aiecc; ``keep``: a folder for the
    files between the steps; ``force``: entries and objects are made though they are there."""

    tools: Tools
    sources: Path
    limits: Limits
    threads: int = 1
    keep: Path | None = None
    force: bool = False
    compiled: set[str] = field(default_factory=set)  # objects that this command has made
    objects: dict[str, threading.Lock] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def prepare(target: Target) -> Prepared:
    """Lowers a target. Raises DesignError."""
    lowered = lower(target.design())
    config = serialise(lowered)
    artefact = str(Configuration.parse(config).artefact)
    return Prepared(target, lowered, config, artefact, cache.place(target.generation, artefact))


def state(prepared: Prepared, tools: Tools | None, sources: str) -> str:
    """ "built", "stale" (other tools or kernels; tools None: not compared), "damaged" or
    "missing"."""
    entry = cache.find(prepared.target.generation, prepared.artefact)
    if entry is None:
        return "damaged" if prepared.folder.exists() else "missing"
    return "built" if _is_fresh(entry, prepared, tools, sources) else "stale"


def build(prepared: Prepared, settings: Settings) -> tuple[Xclbin, bool]:
    """The entry of a configuration, and whether it was made now. Raises BuildError, FileError,
    FormatError and process.Stopped; the cache then has what it had."""
    folder, generation = prepared.folder, prepared.target.generation
    sources = kernels.sources_hash(settings.sources)
    with cache.locked(folder, settings.limits.stop):
        entry = cache.find(generation, prepared.artefact)
        fresh = entry and _is_fresh(entry, prepared, settings.tools, sources)
        if entry and fresh and not settings.force:
            return entry, False
        with cache.partial(folder) as made, cache.writing(folder):
            with _work(prepared, settings, made) as work:
                _make(prepared, settings, work, made, sources)
            cache.publish(made, folder)
    entry = cache.find(generation, prepared.artefact)
    if entry is None:
        raise BuildError(f"[build] {folder} is not complete after the build; look at the disk")
    return entry, True


def commands(prepared: Prepared, settings: Settings, folder: Path) -> list[list[str]]:
    """The command lines of a build in ``folder``, in order; nothing runs."""
    out = prepared.lowered
    recipe = kernels.recipe(out.generation, out.kernels, settings.sources)
    found = [
        kernels.command(
            settings.tools, recipe, settings.sources, folder / "kernels.cc",
            folder / (out.object_file + suffix), stack=bool(suffix),
        )
        for suffix in ("", ".stack")
    ]  # fmt: skip
    return found + [aiecc.command(settings.tools, job) for job in _jobs(prepared, settings, folder)]


def _is_fresh(entry: Xclbin, prepared: Prepared, tools: Tools | None, sources: str) -> bool:
    about = entry.manifest
    return (
        about["kernels"] == sources
        and about.get("configuration") == hashlib.sha256(prepared.config).hexdigest()
        and (tools is None or about["tools"] == tools.versions())
    )


@contextlib.contextmanager
def _work(prepared: Prepared, settings: Settings, made: Path) -> Iterator[Path]:
    """A folder for the files between the steps; removed, unless it is to be kept."""
    if settings.keep is not None:
        work = settings.keep.absolute() / prepared.artefact
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    work = made / "work"
    work.mkdir()
    yield work
    shutil.rmtree(work)


def _jobs(prepared: Prepared, settings: Settings, work: Path) -> list[Job]:
    """The array first, then the cores of each overlay."""
    names = list(compiled_mlir.read(_module(prepared.lowered, settings.tools)))
    jobs = [Job(work, names[0], settings.threads)] if names else []
    return jobs + [
        Job(work, overlay.name, settings.threads, cores_only=True)
        for overlay in prepared.lowered.overlays
    ]


def _module(lowered: Lowered, tools: Tools) -> str:
    """The MLIR, in the form that these tools read."""
    return print_mlir(lowered, operands=tools.operands)


def _make(prepared: Prepared, settings: Settings, work: Path, made: Path, sources: str) -> None:
    """Everything between the locks: the files of the entry in ``made``."""
    begin = time.time()
    tools, out = settings.tools, prepared.lowered
    stack.check(out)  # needs no tool: refused before any runs
    stacks = _kernels(prepared, settings, work)
    one = sample(prepared.target.operation, prepared.config)
    mlir = _module(out, tools)
    if one is not None:
        mlir = with_sequence(mlir, one, operands=tools.operands)
    (work / aiecc.MLIR).write_text(mlir)
    jobs = _jobs(prepared, settings, work)
    for job in jobs:
        shutil.rmtree(job.work, ignore_errors=True)
        shutil.rmtree(job.output, ignore_errors=True)
        job.output.mkdir()
        log = _log(prepared, f"aiecc-{job.device}")
        command = aiecc.command(tools, job)
        process.run(command, work, log, settings.limits, aiecc.environment(tools))
    found = _check_array(prepared, jobs[0], one, stacks)
    cores = [core for core in out.cores if core.overlays]
    for overlay, job in zip(out.overlays, jobs[1:], strict=True):
        elfs = _elfs(job)
        found += checks.addresses(out, _device(job), [core.tile for core in cores])
        for core in cores:
            found += checks.program(core, _linked(elfs, core.tile, job), overlay.name)
        _demand(prepared, found)
        (made / f"{overlay.name}.overlay.bin").write_bytes(overlays.image(overlay, elfs))
    _demand(prepared, found)
    _store(prepared, settings, made, jobs[0], found, sources, one, time.time() - begin)
    for log in _logs(prepared):
        log.unlink(missing_ok=True)


def _check_array(
    prepared: Prepared, job: Job, one: Sample | None, stacks: dict[str, int]
) -> list[Check]:
    out = prepared.lowered
    device, elfs = _device(job), _elfs(job)
    found = checks.stacks(out, stacks)
    for core in (core for core in out.cores if not core.overlays):
        found += checks.program(core, _linked(elfs, core.tile, job))
    found += checks.addresses(out, device) + checks.ports(out, device)
    xclbin = job.output / aiecc.XCLBIN
    if not xclbin.is_file():
        raise BuildError(
            f"[build] aiecc ended without an error and without {xclbin.name}; its output is in "
            f"{_log(prepared, f'aiecc-{job.device}')}"
        )
    found += checks.arguments(checks.declared(xclbin), one)
    if one is not None:
        path = aiecc.sequences(job).get(NAME)
        if path is None:
            raise BuildError("[build] aiecc made no instruction words of the sample stream")
        found += checks.words(one.words, path.read_bytes())
    return found


def _device(job: Job) -> Device:
    """The job's device as aiecc placed it."""
    device = compiled_mlir.read(aiecc.addresses(job)).get(job.device)
    if device is None:
        raise BuildError(f"[build] aiecc's module has no device {job.device}")
    return device


def _elfs(job: Job) -> dict[tuple[int, int], Elf]:
    return {place: Elf.read(path) for place, path in aiecc.core_elfs(job).items()}


def _linked(elfs: dict[tuple[int, int], Elf], tile: Any, job: Job) -> Elf:
    found = elfs.get((tile.col, tile.row))
    if found is None:
        raise BuildError(
            f"[build] aiecc linked no program for core ({tile.col}, {tile.row}) of device "
            f"{job.device}"
        )
    return found


def _demand(prepared: Prepared, found: list[Check]) -> None:
    """Raises BuildError if a check does not hold, with the first of them."""
    broken = [f"{check.where}: {check.problem}" for check in found if check.problem]
    if broken:
        more = f"; and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
        raise BuildError(
            f"[build] {prepared.target.key} does not pass: {'; '.join(broken[:_SHOWN])}{more}"
        )


def _kernels(prepared: Prepared, settings: Settings, work: Path) -> dict[str, int]:
    """Compiles the kernels into the object of the design; returns their stacks."""
    out = prepared.lowered
    if not out.kernels:
        return {}
    recipe = kernels.recipe(out.generation, out.kernels, settings.sources)
    store = prepared.folder.parent / ".objects"
    store.mkdir(exist_ok=True)
    about = f"{recipe.key}-{settings.tools.clang.version}"
    stem = f"{recipe.key}-{hashlib.sha256(about.encode()).hexdigest()[:12]}"
    with settings.lock:
        lock = settings.objects.setdefault(stem, threading.Lock())
    objects = [store / f"{stem}{suffix}.o" for suffix in ("", ".stack")]
    with lock:
        again = settings.force and stem not in settings.compiled
        if again or not _is_compiled(objects):
            _compile(prepared, settings, recipe, work, objects)
            settings.compiled.add(stem)
    shutil.copyfile(objects[0], work / (out.object_file or "kernels.o"))
    return kernel_stacks(Elf.read(objects[1]), out.kernels)


def _is_compiled(objects: list[Path]) -> bool:
    """Whether both objects are as they were written."""
    try:
        return _sums(objects[0]).read_text("utf-8") == _summed(objects)
    except (OSError, ValueError):
        return False


def _sums(first: Path) -> Path:
    return first.with_suffix(".sha256")


def _summed(objects: list[Path]) -> str:
    return "".join(f"{cache.sha256(path)}\n" for path in objects)


def _compile(
    prepared: Prepared, settings: Settings, recipe: kernels.Recipe, work: Path,
    objects: list[Path],
) -> None:  # fmt: skip
    """Both objects of a recipe, which appear when they are complete."""
    source = work / "kernels.cc"
    source.write_text(recipe.text)
    made = [path.with_name(f".{path.name}.{os.getpid()}") for path in objects]
    try:
        for path, stack in zip(made, (False, True), strict=True):
            command = kernels.command(
                settings.tools, recipe, settings.sources, source, path, stack=stack
            )
            process.run(command, work, _log(prepared, "clang++"), settings.limits)
        Elf.read(made[0])
        kernel_stacks(Elf.read(made[1]), prepared.lowered.kernels)
        _sums(objects[0]).unlink(missing_ok=True)
        sums = _summed(made)
        for path, target in zip(made, objects, strict=True):
            os.replace(path, target)
        _sums(objects[0]).write_text(sums, "utf-8")
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def _store(
    prepared: Prepared, settings: Settings, made: Path, job: Job, found: list[Check],
    sources: str, one: Sample | None, seconds: float,
) -> None:  # fmt: skip
    from npu import __version__

    shutil.copyfile(job.output / aiecc.XCLBIN, made / cache.DESIGN)
    for name, path in aiecc.sequences(job).items():
        shutil.copyfile(path, made / f"{name}.bin")
    files = {
        path.name: {
            "bytes": path.stat().st_size,
            "sha256": cache.sha256(path),
        }
        for path in sorted(made.iterdir())
        if path.is_file()
    }
    parsed = Configuration.parse(prepared.config).as_dict()
    manifest = {
        "format": cache.FORMAT,
        "name": parsed["name"],
        "generation": prepared.target.generation,
        "artefact": prepared.artefact,
        "operation": prepared.target.operation,
        "key": prepared.target.key,
        "configuration": hashlib.sha256(prepared.config).hexdigest(),
        "kernels": sources,
        "tools": settings.tools.versions(),
        "npu": __version__,
        "built": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 1),
        "sample": one.request if one else None,
        "buffers": {c.name: c.value for c in found}["kernel arguments"],
        "ports": [list(port) for port in parsed["ports"]],
        "overlays": [overlay.name for overlay in prepared.lowered.overlays],
        "checks": [asdict(check) for check in found],
        "files": files,
    }
    (made / cache.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")


def _log(prepared: Prepared, tool: str) -> Path:
    folder = prepared.folder.parent / ".logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{prepared.artefact}.{tool}.log"


def _logs(prepared: Prepared) -> list[Path]:
    return list((prepared.folder.parent / ".logs").glob(f"{prepared.artefact}.*.log"))
