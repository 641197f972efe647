"""Finds the tools of a build and what they understand: aiecc, Peano's clang++, xclbinutil.

Where they are looked for: places.py. What is missing is said in one sentence, with the commands
that install it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from npu.errors import BuildError
from npu.hardware.build import dialect, places
from npu.hardware.build.process import probe
from npu.hardware.doctor import distribution


@dataclass(frozen=True)
class Tool:
    """A program, and what tells its version from others."""

    path: Path
    version: str


@dataclass(frozen=True)
class Tools:
    """Everything a build runs. ``peano``: the folder that aiecc is given; ``include``: the headers
    of mlir-aie, aie_api among them; ``new_options``: which of aiecc's two sets of options it has;
    ``operands``: whether they read the form of MLIR that has numbers as operands (dialect.py);
    ``options``: the help text of aiecc."""

    aiecc: Tool
    clang: Tool
    xclbinutil: Tool
    peano: Path
    include: Path
    new_options: bool
    operands: bool
    options: str

    def versions(self) -> dict[str, str]:
        """By tool; another version of any makes what was built stale."""
        return {
            "aiecc": self.aiecc.version,
            "clang++": self.clang.version,
            "xclbinutil": self.xclbinutil.version,
        }

    def takes(self, option: str) -> bool:
        """Whether aiecc's help names an option."""
        return re.search(rf"-{re.escape(option)}\b", self.options) is not None


def find() -> Tools:
    """The tools of this machine. Raises BuildError with what is missing and how to install it."""
    found = {name: _located(name) for name in places.KINDS}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise BuildError(_missing(missing))
    aiecc, clang, xclbinutil = (Path(found[name] or "") for name in places.KINDS)
    include = _include(aiecc)
    options = probe([aiecc, "--help"])
    if options is None:
        raise BuildError(
            f"[build] {aiecc} --help does not run; install mlir_aie again: {_again('aiecc')}"
        )
    new = places.has_new_options(options)
    if new is None:
        raise BuildError(
            f"[build] {aiecc} has neither the option --get-xclbin nor --aie-generate-xclbin; "
            f"install a version that this one of npu knows: {_again('aiecc')}"
        )
    return Tools(
        Tool(aiecc, _version(aiecc)), Tool(clang, _version(clang)),
        Tool(xclbinutil, _version(xclbinutil)),
        _install_folder(clang), include, new, dialect.reads_operands(aiecc, new), options,
    )  # fmt: skip


def _located(name: str) -> Path | None:
    found = places.locate(name, _ThisMachine())
    if found.wrong:
        raise BuildError(f"[build] {found.wrong}; correct it or unset it")
    return Path(found.path).absolute() if found.path else None


class _ThisMachine(places.Place):
    def environment(self, name: str) -> str | None:
        value = os.environ.get(name)
        return os.path.expanduser(value) if value else None

    def on_path(self, program: str) -> str | None:
        return shutil.which(program)

    def package(self, name: str) -> str | None:
        return places.package(name)

    def is_program(self, path: str) -> bool:
        return os.path.isfile(path) and os.access(path, os.X_OK)

    def says(self, path: str, *words: str) -> str | None:
        return probe([path, *words])


def _include(aiecc: Path) -> Path:
    """The folder with aie_api/aie.hpp, also where aiecc is a link, or the script that pip makes of
    it in an environment. Raises BuildError."""
    folders = [path.parent.parent / "include" for path in (aiecc, aiecc.resolve())]
    folders += aiecc.parent.parent.glob("lib/python3.*/site-packages/mlir_aie/include")
    for folder in folders:
        if (folder / "aie_api" / "aie.hpp").is_file():
            return folder
    raise BuildError(
        f"[build] {folders[0]} of mlir-aie has no aie_api/aie.hpp, which kernels include; install "
        f"mlir_aie again: {_again('aiecc')}"
    )


def _install_folder(clang: Path) -> Path:
    """Peano's folder, also where clang++ is a link into it: the one that has a linker."""
    folders = [path.parent.parent for path in (clang, clang.resolve())]
    return next((one for one in folders if (one / "bin" / "ld.lld").exists()), folders[1])


def _version(path: Path) -> str:
    """The first telling line of --version and a hash of it all: nightly builds share numbers."""
    text = probe([path, "--version"]) or ""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\d", line)]
    about = hashlib.sha256(f"{text}\n{path.stat().st_size}".encode()).hexdigest()[:12]
    return f"{lines[0][:100] if lines else path.name} ({about})"


def _again(name: str) -> str:
    """The command that installs a tool."""
    python = places.interpreter() if places.wheels_fit(tuple(sys.version_info[:2])) else "python3"
    return " ".join(places.pip_install(name, python))


def _missing(names: list[str]) -> str:
    """One sentence: what is missing, the commands, the variables."""
    kinds = [places.KINDS[name] for name in names]
    commands = [f"`{_again(name)}`" for name in names if places.KINDS[name].wheel]
    if commands and not places.wheels_fit(tuple(sys.version_info[:2])):
        commands[-1] += f" (by a Python {places.wheel_pythons()}; the variables name them then)"
    if "xclbinutil" in names:
        system = distribution.present()
        commands.append(distribution.in_words(system, distribution.install_xclbinutil(system)))
    what = _listed([f"{name} ({kind.of})" for name, kind in zip(names, kinds, strict=True)])
    return (
        f"[build] {what} {'is' if len(names) == 1 else 'are'} needed to build for the NPU and not "
        f"found; install with {_listed(commands)}, or name what is installed in "
        f"{_listed([kind.variable for kind in kinds])}"
    )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
