"""The ways from Python to XRT: pyxrt, its bindings for one version of Python, or libnpu_xrt.so, the
module of the C++ device (docs/cpp.md), which serves any.
"""

from __future__ import annotations

import dataclasses
import json
import re

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown
from npu.hardware.doctor.result import Fix, Result, State, broken, ok
from npu.hardware.doctor.runtime import OPT

_SETUP = f"source {OPT}/setup.sh"
_PYXRT = "import pyxrt; print(pyxrt.__file__)"
_MODULE = re.compile(r"pyxrt(?:\.(cpython-\d+|abi3)[\w-]*)?\.so")
_LIBRARY = ("python", "-m", "npu.hardware.doctor.module_command")
_BUILD = "npu build --xrt"
_VARIABLE = "NPU_XRT_MODULE"
_UNSET = f"unset {_VARIABLE}"


def probe_pyxrt(machine: Machine) -> Result:
    """pyxrt where this Python imports it, else libnpu_xrt.so."""
    found = _pyxrt(machine)
    path, problem = _library(machine)
    values = {**found.values, "module": path}
    if found.state is State.OK:
        repair = f"build it again: {_BUILD}" if path else _UNSET
        notes = (f"C and C++ programs: {problem}; {repair}",) if problem else ()
        return dataclasses.replace(found, notes=notes, values=values)
    if path is None and problem:
        text = f"pyxrt: {found.found}. The module that serves any Python: {problem}."
        return broken(f"{_VARIABLE} names no file", Fix(text, (_UNSET,)), **values)
    if path is None:
        return dataclasses.replace(found, values=values)
    if not problem:
        return ok(f"libnpu_xrt.so (pyxrt: {found.found})", **values)
    text = f"pyxrt: {found.found}. The module that serves any Python is there, but {problem}."
    fix = Fix(f"{text} Build it again.", (*_headers(machine), _BUILD))
    return broken("libnpu_xrt.so cannot be used", fix, **values)


def _library(machine: Machine) -> tuple[str | None, str]:
    """Where libnpu_xrt.so is, and what is wrong with it in words."""
    done = machine.system.command(*_LIBRARY)
    try:
        said = json.loads(done.output.splitlines()[-1]) if done else {}
        path = said.get("path")
    except (ValueError, IndexError, AttributeError, RecursionError):
        said, path = {}, None
    if not isinstance(path, str):
        named = said.get("named") if isinstance(said, dict) else None
        return None, f"{_VARIABLE} is {shown(str(named))}, which is not there" if named else ""
    path = shown(path)
    if error := said.get("error"):
        return path, f"{path} does not load ({shown(str(error))})"
    if said.get("wanted") not in (None, said.get("abi")):
        return path, f"{path} is of another version of this package"
    return path, ""


def _headers(machine: Machine) -> tuple[str, ...]:
    """What installs XRT's headers, with a compiler, where they are not there."""
    root = machine.system.environment("XILINX_XRT") or OPT
    there = (f"{folder}/include/xrt" for folder in dict.fromkeys(("/usr", root, OPT)))
    if any(machine.system.stat(path) for path in there):
        return ()
    return install.install_headers(machine.distribution)


def _any_python(machine: Machine, text: str) -> Fix:
    """The module instead of pyxrt: less than building XRT, and for any Python."""
    text += " The C++ module serves any Python: build it for the XRT that is installed."
    return Fix(text, (*_headers(machine), _BUILD))


def _pyxrt(machine: Machine) -> Result:
    """XRT's Python bindings, which are built for one version of Python."""
    done = machine.system.command("python", "-c", _PYXRT)
    if done and done.exit == 0:
        return ok(f"for Python {machine.system.python().version}", file=shown(done.output))
    if done and done.timed_out:
        text = "`import pyxrt` does not end; XRT waits for the NPU. Load its driver again."
        return broken("import hangs", Fix(text, (install.RELOAD,)))
    there = _modules(machine)
    if not there:
        text = "XRT's Python bindings (pyxrt) are not installed."
        commands = install.install_pyxrt(machine.distribution)
        if install.SOURCE in commands:
            fix = _any_python(machine, text + " There is no package of them for this system.")
        else:
            fix = Fix(f"{text} Of any Python: `{_BUILD}`, with XRT's headers.", commands)
        return broken("not installed", fix)
    return _not_imported(machine, there, done.output if done else "")


def _modules(machine: Machine) -> list[tuple[str, str | None]]:
    """(folder, ABI tag) of every pyxrt that lies where XRT's packages put it."""
    root = machine.system.environment("XILINX_XRT") or OPT
    folders = dict.fromkeys((f"{root}/python", f"{OPT}/python", "/usr/lib/python3/dist-packages"))
    for base in ("/usr/lib", "/usr/lib64"):
        for name in machine.system.names(base) or ():
            if re.fullmatch(r"python3\.\d+", name):
                folders |= dict.fromkeys((f"{base}/{name}/site-packages",))
    found = []
    for folder in folders:
        for name in machine.system.names(folder) or ():
            if matched := _MODULE.fullmatch(name):
                found.append((folder, matched[1]))
    return found


def _not_imported(machine: Machine, there: list[tuple[str, str | None]], said: str) -> Result:
    """There is a pyxrt that this Python does not import: another version, folder, damage."""
    mine = machine.system.python()
    fitting = [folder for folder, tag in there if tag in (mine.abi, "abi3")]
    if not fitting and (tags := [tag for _, tag in there if tag]):
        other = tags[0].removeprefix("cpython-")
        other = f"{other[0]}.{other[1:]}"
        text = f"pyxrt in {there[0][0]} is built for Python {other}; this is {mine.version}."
        if there[0][0].startswith("/usr/"):
            text += f" It serves environments of `python{other} -m venv --system-site-packages`."
        return broken(f"for Python {other}, this is {mine.version}", _any_python(machine, text))
    folder = (fitting or [there[0][0]])[0]
    if "No module named 'pyxrt'" in said or not said:
        text = f"pyxrt lies in {folder}, where this Python does not look."
        command = _SETUP if folder.startswith(OPT) else f'export PYTHONPATH="{folder}"'
        return broken(f"not on this Python's path: {folder}", Fix(text, (command,)))
    text = f"pyxrt in {folder} does not load: {shown(said.strip().splitlines()[-1])}"
    commands = install.install_pyxrt(machine.distribution)
    fix = _any_python(machine, text) if install.SOURCE in commands else Fix(text, commands)
    return broken("does not load", fix)
