"""What `npu build` needs, and what it has built."""

from __future__ import annotations

from npu.hardware.build import cache, places
from npu.hardware.doctor.distribution import install_xclbinutil
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown, version
from npu.hardware.doctor.result import Fix, Result, broken, not_needed, ok, unknown

_CALLED = {"clang++": "Peano"}  # what people know tools as
_SHOWN = 3  # damaged entries that are named
_TOOLS = "~/npu-tools"  # an environment of another Python
_SECONDS = 60.0  # for the first start of a compiler


def probe_tools(machine: Machine) -> Result:
    """aiecc (mlir-aie), Peano (llvm-aie) and xclbinutil (XRT, mlir-aie), where npu build looks."""
    place = _Examined(machine)
    found = {name: places.locate(name, place) for name in places.KINDS}
    missing = [_CALLED.get(name, name) for name, one in found.items() if one.path is None]
    reason = _reason(machine)
    idle = not reason
    if wrong := [one.wrong for one in found.values() if one.wrong]:
        return _wrong(machine, wrong, missing, idle)
    if not missing:
        return _understood(machine, place, found["aiecc"].path or "", idle)
    lack = f"{', '.join(missing)} not installed"
    if idle:
        return not_needed(lack, missing=missing)
    text = f"{reason}, and `npu build` lacks {', '.join(missing)}."
    wheels = [n for n, one in found.items() if one.path is None and places.KINDS[n].wheel]
    python = machine.system.python().version
    if wheels and not places.wheels_fit(version(python) or ()):
        text += f" The wheels are for Python {places.wheel_pythons()}, this is {python}."
        commands = _in_another_python(wheels)
    else:
        commands = [_pip(machine, name) for name in wheels]
    if "xclbinutil" in missing:
        commands += install_xclbinutil(machine.distribution)
    return broken(lack, Fix(text, (*commands, build_command(machine))), missing=missing)


def _in_another_python(wheels: list[str]) -> list[str]:
    """Tools run without their Python: variables name them."""
    python = "python" + ".".join(map(str, places.WHEEL_PYTHONS[1]))
    commands = [f"{python} -m venv {_TOOLS}"]
    for name in wheels:
        commands.append(" \\\n  ".join(places.pip_install(name, f"{_TOOLS}/bin/python")))
    for name in wheels:
        kind = places.KINDS[name]
        folder = f"{_TOOLS}/lib/{python}/site-packages/{kind.package}"
        commands.append(f"export {kind.variable}={folder}")
    return commands


def _reason(machine: Machine) -> str:
    """Why something is to be built; "" where nothing is."""
    if machine.npu is None:
        return ""
    if _damaged(machine):
        return "Some of what is built is damaged"
    return "" if built(machine) else "Nothing is built yet"


def _wrong(machine: Machine, wrong: list[str], missing: list[str], idle: bool) -> Result:
    """A variable that names no tool."""
    variables = [text.partition(" ")[0] for text in wrong]
    found = f"{', '.join(variables)} {'names' if len(wrong) == 1 else 'name'} no tool"
    if idle:
        return not_needed(found, missing=missing)
    text = f"{'. '.join(wrong)}. Correct it, or unset it."
    text = text.replace(f"{machine.system.home()}/", "~/")
    return broken(found, Fix(text, (f"unset {' '.join(variables)}",)), missing=missing)


def _understood(machine: Machine, place: _Examined, aiecc: str, idle: bool) -> Result:
    """All tools are there: does aiecc start, and has it options that npu build knows?"""
    if idle:
        return ok("aiecc, Peano, xclbinutil", missing=[])
    says = place.says(aiecc, "--help")
    if says is not None and places.has_new_options(says) is not None:
        return ok("aiecc, Peano, xclbinutil", missing=[])
    words = says.strip().splitlines()[-1] if says and says.strip() else "nothing"
    text = f'{_shown(machine, aiecc)} --help says: "{shown(words)}". Install it again.'
    fix = Fix(text, (_pip(machine, "aiecc"), build_command(machine)))
    return broken("aiecc does not start, or is of an unknown kind", fix, missing=[])


def _pip(machine: Machine, name: str) -> str:
    python = machine.system.python().program
    return " \\\n  ".join(places.pip_install(name, _shown(machine, python)))


def _shown(machine: Machine, path: str) -> str:
    """A path as it can be typed."""
    home = machine.system.home()
    return "~" + path.removeprefix(home) if path.startswith(f"{home}/") else path


class _Examined(places.Place):
    """The machine as the search for tools sees it."""

    def __init__(self, machine: Machine) -> None:
        self._system = machine.system

    def environment(self, name: str) -> str | None:
        value = self._system.environment(name)
        if value and value.startswith("~/"):
            return self._system.home() + value[1:]
        return value or None

    def on_path(self, program: str) -> str | None:
        return self._system.program(program)

    def package(self, name: str) -> str | None:
        return self._system.package(name)

    def is_program(self, path: str) -> bool:
        found = self._system.stat(path)
        return found is not None and found.kind == "file" and bool(found.mode & 0o111)

    def says(self, path: str, *words: str) -> str | None:
        done = self._system.command(path, *words, seconds=_SECONDS)
        return done.output if done else None


def build_command(machine: Machine) -> str:
    """What builds the configurations that are usually needed."""
    return cache.command(machine.npu.generation) if machine.npu else "npu build"


def built(machine: Machine) -> list[str] | None:
    """What is built for this NPU (without one: for any); None: cannot be told."""
    return _of_npu(machine, machine.system.xclbins())


def _damaged(machine: Machine) -> list[str]:
    return _of_npu(machine, machine.system.damaged_xclbins()) or []


def _of_npu(machine: Machine, names: tuple[str, ...] | None) -> list[str] | None:
    if names is None:
        return None
    start = f"{machine.npu.generation}/" if machine.npu else ""
    return [name for name in names if name.startswith(start)]


def probe_xclbins(machine: Machine) -> Result:
    """The cache of built configurations."""
    names, damaged = built(machine), _damaged(machine)
    if names is None and machine.npu is None:
        return not_needed("no NPU that it could serve")
    if names is None:
        return unknown("the cache cannot be read")
    values = {"count": len(names), "damaged": damaged}
    if machine.npu is None:
        return ok(f"{len(names)} built", **values) if names else not_needed("empty", **values)
    if damaged:
        generation = machine.npu.generation
        text = f"Files in the cache are not as they were written: {_listed(damaged)}."
        return broken(
            f"{len(damaged)} of {len(names) + len(damaged)} damaged",
            Fix(text, (cache.command_for(generation, [n.partition("/")[2] for n in damaged]),)),
            **values,
        )
    if names:
        return ok(f"{len(names)} built", **values)
    text = f"No configuration has been built for {machine.npu.generation} yet."
    return broken("empty", Fix(text, (build_command(machine),)), **values)


def _listed(names: list[str]) -> str:
    """Folders in the cache."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(shown(name) for name in names[:_SHOWN]) + more
