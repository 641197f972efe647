"""Where the tools of a build are looked for, and what installs them.

One rule for `npu build`, which runs them on this machine, and `npu doctor`, which examines this
machine or a recorded one (a ``Place``).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Kind:
    """A tool. ``variable`` names its installation (of xclbinutil: the program); ``package``: the
    folder of its wheel; ``wheel``: what pip installs, from the page ``release`` of ``owner``."""

    of: str
    variable: str
    package: str = ""
    wheel: str = ""
    owner: str = ""
    release: str = ""


KINDS = {
    "aiecc": Kind(
        "mlir-aie", "MLIR_AIE_INSTALL_DIR", "mlir_aie", "mlir_aie", "mlir-aie", "latest-wheels-4"
    ),
    "clang++": Kind(
        "Peano", "PEANO_INSTALL_DIR", "llvm-aie", "llvm-aie==21.0.0.2026080301", "llvm-aie",
        "nightly",
    ),
    "xclbinutil": Kind("XRT", "AIE_XCLBINUTIL"),
}  # fmt: skip
WHEEL_PYTHONS = ((3, 11), (3, 14))  # of mlir_aie: oldest and newest
_XRT = "/opt/xilinx/xrt"
_IN_XRT = ("bin", "bin/unwrapped")


class Place(Protocol):
    """What is asked of a machine. Paths are absolute."""

    def environment(self, name: str) -> str | None:
        """A variable, "~" replaced; None: not set, or empty."""

    def on_path(self, program: str) -> str | None:
        """Where PATH has a program."""

    def package(self, name: str) -> str | None:
        """The folder of an installed Python package."""

    def is_program(self, path: str) -> bool:
        """Whether it is a file that can be executed."""

    def says(self, path: str, *words: str) -> str | None:
        """What a program prints; None: it does not run."""


@dataclass(frozen=True)
class Found:
    """Where a tool is; ``wrong``: what its variable says that is not so."""

    path: str | None
    wrong: str = ""


def locate(name: str, place: Place) -> Found:
    """A tool of KINDS: where its variable says, else where it usually is."""
    variable = KINDS[name].variable
    if named := place.environment(variable):
        return _named(name, variable, named, place)
    return Found(next((path for path in _usual(name, place) if place.is_program(path)), None))


def _named(name: str, variable: str, named: str, place: Place) -> Found:
    if name != "xclbinutil":
        path = f"{named}/bin/{name}"
    elif "/" in named:
        path = named
    else:  # a program's name: aiecc takes it so, too
        path = place.on_path(named) or ""
    if path and place.is_program(path):
        return Found(path)
    what = f"{path} is no program" if path else f"PATH has no {named}"
    return Found(None, f"{variable} is {named}, but {what}")


def _usual(name: str, place: Place) -> Iterator[str]:
    package, there = KINDS[name].package, place.on_path(name)
    if package:
        if folder := place.package(package):
            yield f"{folder}/bin/{name}"
        # A clang++ on PATH is the host's unless it comes with Peano: only Peano's knows AIE.
        if there and (name != "clang++" or "aie2" in (place.says(there, "--print-targets") or "")):
            yield there
        return
    if there:
        yield there
    for root in dict.fromkeys((place.environment("XILINX_XRT") or _XRT, _XRT)):
        yield from (f"{root}/{folder}/{name}" for folder in _IN_XRT)
    if aiecc := locate("aiecc", place).path:  # some wheels of mlir_aie have one of their own
        yield f"{os.path.dirname(aiecc)}/{name}"


def has_new_options(text: str) -> bool | None:
    """Which of its two sets of options aiecc's help text names; None: neither."""
    if "get-xclbin" in text or re.search(r"--get\b", text):
        return True
    return False if "aie-generate-xclbin" in text else None


def pip_install(name: str, python: str, version: str = "") -> tuple[str, str]:
    """The command that installs a wheel for an interpreter, in two parts that go on one line; of
    one version of mlir_aie if it is given."""
    kind = KINDS[name]
    wheel, release = kind.wheel, kind.release
    if version:
        wheel, release = f"{wheel}=={version}", f"v{version}"
    address = f"https://github.com/Xilinx/{kind.owner}/releases/expanded_assets/{release}"
    return f"{python} -m pip install {wheel} -f", address


def wheels_fit(version: tuple[int, ...]) -> bool:
    """Whether there are wheels for a version of Python."""
    return WHEEL_PYTHONS[0] <= version[:2] <= WHEEL_PYTHONS[1]


def wheel_pythons() -> str:
    """ "3.11 to 3.14"."""
    return " to ".join(".".join(map(str, version)) for version in WHEEL_PYTHONS)


def interpreter() -> str:
    """How a shell calls the Python that runs this package: wheels must go into its environment."""
    usual = shutil.which("python3")
    if usual and os.path.dirname(usual) == os.path.dirname(sys.executable):
        return "python3"
    return sys.executable or "python3"


def package(name: str) -> str | None:
    """The folder of an installed package of this interpreter; llvm-aie's cannot be imported."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    folders = (found and found.submodule_search_locations) or ()
    return next((os.path.abspath(one) for one in folders if os.path.isdir(one)), None)
