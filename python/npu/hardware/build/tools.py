"""Finds the tools of a build and what they understand: aiecc, Peano's clang++, xclbinutil.

Looked for, in this order: MLIR_AIE_INSTALL_DIR, PEANO_INSTALL_DIR and AIE_XCLBINUTIL, the Python
packages mlir_aie and llvm-aie, PATH, and for xclbinutil XRT's own folder. What is missing is said
in one sentence, with the commands that install it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from npu.errors import BuildError
from npu.hardware.build.process import probe

_WHEELS = "https://github.com/Xilinx/{}/releases/expanded_assets/{}"
_PIP = {
    "aiecc": f"python3 -m pip install mlir_aie -f {_WHEELS.format('mlir-aie', 'latest-wheels-4')}",
    "clang++": "python3 -m pip install llvm-aie==21.0.0.2026080301 "
    f"-f {_WHEELS.format('llvm-aie', 'nightly')}",
}
# Packages with xclbinutil. The one of Debian 12 has XRT 2.13, which is for FPGAs.
_DISTRIBUTIONS = {
    "debian": ("Debian after 12", "sudo apt install libxrt-utils"),
    "ubuntu": ("Ubuntu", "sudo apt install libxrt-utils"),
    "fedora": ("Fedora", "sudo dnf install xrt"),
    "arch": ("Arch Linux", "sudo pacman -S xrt"),
}
_OF = {"aiecc": "mlir-aie", "clang++": "Peano", "xclbinutil": "XRT"}
_VARIABLES = {
    "aiecc": "MLIR_AIE_INSTALL_DIR",
    "clang++": "PEANO_INSTALL_DIR",
    "xclbinutil": "AIE_XCLBINUTIL",
}
_XRT = (Path("/opt/xilinx/xrt/bin"), Path("/opt/xilinx/xrt/bin/unwrapped"))
_OS_RELEASE = Path("/etc/os-release")


@dataclass(frozen=True)
class Tool:
    """A program, and what tells its version from others."""

    path: Path
    version: str


@dataclass(frozen=True)
class Tools:
    """Everything a build runs. ``peano``: the folder that aiecc is given; ``include``: the headers
    of mlir-aie, aie_api among them; ``new_options``: which of aiecc's two sets of options it has;
    ``options``: the help text of aiecc."""

    aiecc: Tool
    clang: Tool
    xclbinutil: Tool
    peano: Path
    include: Path
    new_options: bool
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
    found = {name: _locate(name) for name in _OF}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise BuildError(_missing(missing))
    aiecc, clang, xclbinutil = (Path(found[name] or "") for name in _OF)
    include = _include(aiecc)
    options = probe([aiecc, "--help"])
    if options is None:
        raise BuildError(
            f"[build] {aiecc} --help does not run; install mlir_aie again: {_PIP['aiecc']}"
        )
    new = "get-xclbin" in options or re.search(r"--get\b", options) is not None
    if not new and "aie-generate-xclbin" not in options:
        raise BuildError(
            f"[build] {aiecc} has neither the option --get-xclbin nor --aie-generate-xclbin; "
            f"install a version that this one of npu knows: {_PIP['aiecc']}"
        )
    return Tools(
        Tool(aiecc, _version(aiecc)), Tool(clang, _version(clang)),
        Tool(xclbinutil, _version(xclbinutil)),
        _install_folder(clang), include, new, options,
    )  # fmt: skip


def _locate(name: str) -> Path | None:
    named = os.environ.get(_VARIABLES[name])
    if named:
        path = Path(named).expanduser()
        chosen = path if name == "xclbinutil" else path / "bin" / name
        if name == "xclbinutil" and os.sep not in named:  # a program's name: aiecc looks so, too
            return _program(shutil.which(named))
        if not _runs(chosen):
            raise BuildError(
                f"[build] {_VARIABLES[name]} is {named}, but {chosen} is no program; correct it or "
                "unset it"
            )
        return chosen.absolute()
    places: list[Path | None] = [_program(shutil.which(name))]
    if name == "xclbinutil":
        places += [folder / name for folder in _XRT]
        # Some wheels of mlir_aie have an xclbinutil of their own.
        aiecc = _locate("aiecc")
        places.append(aiecc.parent / name if aiecc else None)
    else:
        folder = _package({"aiecc": "mlir_aie", "clang++": "llvm-aie"}[name])
        # A clang++ on PATH is the host's unless it comes with Peano: only Peano's knows AIE.
        first = [folder / "bin" / name] if folder else []
        places = [*first, *(p for p in places if name != "clang++" or _is_peano(p))]
    return next((place.absolute() for place in places if place and _runs(place)), None)


def _package(distribution: str) -> Path | None:
    """The folder of a wheel in site-packages; llvm-aie's has a name that cannot be imported."""
    try:
        found = importlib.metadata.distribution(distribution).locate_file(distribution)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    folder = Path(str(found))
    return folder if folder.is_dir() else None


def _is_peano(path: Path | None) -> bool:
    if path is None:
        return False
    return "aie2" in (probe([path, "--print-targets"]) or "")


def _program(path: str | None) -> Path | None:
    return Path(path) if path else None


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _include(aiecc: Path) -> Path:
    """The folder with aie_api/aie.hpp, also where aiecc is a link. Raises BuildError."""
    folders = [path.parent.parent / "include" for path in (aiecc, aiecc.resolve())]
    for folder in folders:
        if (folder / "aie_api" / "aie.hpp").is_file():
            return folder
    raise BuildError(
        f"[build] {folders[0]} of mlir-aie has no aie_api/aie.hpp, which kernels include; install "
        f"mlir_aie again: {_PIP['aiecc']}"
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


def _missing(names: list[str]) -> str:
    """One sentence: what is missing, the commands, the variables."""
    python = "" if sys.version_info >= (3, 11) else " of Python 3.11 or later"
    commands = [f"`{_PIP[name]}`" for name in names if name in _PIP]
    if commands and python:
        commands[-1] += f" (in an environment{python})"
    if "xclbinutil" in names:
        commands.append(_system())
    what = _listed([f"{name} ({_OF[name]})" for name in names])
    return (
        f"[build] {what} {'is' if len(names) == 1 else 'are'} needed to build for the NPU and not "
        f"found; install with {_listed(commands)}, or name what is installed in "
        f"{_listed([_VARIABLES[name] for name in names])}"
    )


def _system() -> str:
    """The command that installs xclbinutil here, or those of all distributions."""
    try:
        text = _OS_RELEASE.read_text(errors="replace")
    except OSError:
        text = ""
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    alike = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    known = [_DISTRIBUTIONS[name] for name in alike if name in _DISTRIBUTIONS][:1]
    return " or ".join(f"`{c}` ({d})" for d, c in known or _DISTRIBUTIONS.values())


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
