"""Compiles kernels: the sources in aie_kernels/ that a design's cores call, by Peano, into the one
object file that its MLIR links with.

An object is one translation unit that includes those sources, so that what they share exists once;
functions have sections of their own, of which the linker keeps what a core calls. Flags are those
of mlir-aie (compile_cxx_core_function). A second object with the same code carries the stack
sizes: older linker scripts of mlir-aie have no place for them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from npu._npu import kernels
from npu.errors import BuildError
from npu.hardware.build.tools import Tools

TARGETS = {"npu1": "aie2-none-unknown-elf", "npu2": "aie2p-none-unknown-elf"}
# __AIE_API_AIE_ADF_HPP__: aie_api then leaves out adf.h, which Peano does not have. Jump tables of
# switches would lie in data memory, which nothing fills for the kernels of an overlay.
_FLAGS = (
    "-c", "-O2", "-std=c++20", "-DNDEBUG", "-D__AIE_API_AIE_ADF_HPP__", "-Wno-attributes",
    "-Wno-macro-redefined", "-Wno-parentheses", "-Wno-empty-body", "-ffunction-sections",
    "-fdata-sections", "-fno-jump-tables",
)  # fmt: skip
STACK_FLAG = "-fstack-size-section"
_KERNEL = re.compile(r"^NPU_KERNEL\s+void\s+(\w+)\s*\(", re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """The translation unit of an object. ``key``: the same for the same code."""

    generation: str
    text: str
    sources: tuple[str, ...]
    key: str


def folder() -> Path:
    """aie_kernels/: beside the package, of the repository, or $NPU_AIE_KERNELS.

    Raises BuildError where there is none, or where its sources are not those that this package was
    built from: an artefact is named by them.
    """
    package = Path(__file__).resolve().parents[2]
    named = os.environ.get("NPU_AIE_KERNELS")
    places = (
        [Path(named).expanduser()] if named
        else [package / "aie_kernels", package.parents[1] / "aie_kernels"]
    )  # fmt: skip
    for place in places:
        if (place / "kernel.h").is_file():
            _check_sources(place)
            return place
    raise BuildError(
        f"[build] the sources of the kernels are not in {' or '.join(map(str, places))}; name the "
        "folder aie_kernels of the source package in NPU_AIE_KERNELS"
    )


def sources_hash(place: Path) -> str:
    """As aie_kernels/host_kernels.cmake states the identity of the sources."""
    paths = sorted([*place.glob("*.cc"), *place.glob("*.h")], key=str)
    hashes = (hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def recipe(generation: str, names: Iterable[str], place: Path) -> Recipe:
    """The translation unit with the kernels of these names. Raises BuildError for one that no
    source defines."""
    wanted = sorted(set(names))
    where = _defined(place)
    if missing := [name for name in wanted if name not in where]:
        raise BuildError(
            f"[build] kernel {missing[0]} is in no source of {place}; a design with kernels of "
            "one's own is built by its author"
        )
    sources = tuple(sorted({where[name] for name in wanted}))
    text = "".join(f'#include "{source}"\n' for source in sources)
    about = f"{generation}\n{_FLAGS}\n{sources_hash(place)}\n{text}"
    return Recipe(generation, text, sources, hashlib.sha256(about.encode()).hexdigest()[:16])


def command(
    tools: Tools, recipe: Recipe, place: Path, source: Path, output: Path, *, stack: bool
) -> list[str]:
    """The compiler's command line. stack: for the object that carries stack sizes."""
    return [
        str(tools.clang.path), *_FLAGS, *([STACK_FLAG] if stack else []),
        f"--target={TARGETS[recipe.generation]}", f"-I{place}", f"-I{tools.include}",
        str(source), "-o", str(output),
    ]  # fmt: skip


def _check_sources(place: Path) -> None:
    found = sources_hash(place)
    if found != kernels.SOURCE_HASH:
        raise BuildError(
            f"[build] the kernels in {place} are not those this package was built from "
            f"({found[:12]}, not {kernels.SOURCE_HASH[:12]}); install the package again, or name "
            "its own sources in NPU_AIE_KERNELS"
        )


@cache
def _defined(place: Path) -> dict[str, str]:
    """Source by kernel."""
    return {
        name: path.name
        for path in sorted(place.glob("*.cc"))
        for name in _KERNEL.findall(path.read_text())
    }
