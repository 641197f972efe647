"""What `npu build` needs, and what it has built."""

from __future__ import annotations

from npu.hardware.doctor.distribution import install_xrt_tools
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown
from npu.hardware.doctor.result import Fix, Result, broken, not_needed, ok, unknown

_WHEELS = "https://github.com/Xilinx"
_INSTALL = {
    "aiecc": "pip install mlir_aie -f \\\n"
    f"  {_WHEELS}/mlir-aie/releases/expanded_assets/latest-wheels-4",
    "Peano": f"pip install llvm-aie -f \\\n  {_WHEELS}/llvm-aie/releases/expanded_assets/nightly",
}
_FIND_PACKAGE = (
    "import importlib.util as u, sys; s = u.find_spec(sys.argv[1]); "
    "print(*(s.submodule_search_locations or ()) if s else '')"
)


def probe_tools(machine: Machine) -> Result:
    """aiecc (mlir-aie), Peano (llvm-aie) and xclbinutil (XRT, mlir-aie), where npu build looks."""
    there = {
        "aiecc": _aiecc(machine),
        "Peano": _tool(machine, "PEANO_INSTALL_DIR", "llvm-aie", "clang++"),
        "xclbinutil": _xclbinutil(machine),
    }
    missing = [name for name, found in there.items() if not found]
    if not missing:
        return ok("aiecc, Peano, xclbinutil", missing=[])
    lack = f"{', '.join(missing)} not installed"
    if machine.npu is None or built(machine):
        return not_needed(lack, missing=missing)
    text = f"Nothing is built yet, and `npu build` lacks {', '.join(missing)}."
    commands = [command for name, command in _INSTALL.items() if name in missing]
    if "xclbinutil" in missing:
        text += " xclbinutil is one of XRT's tools."
        commands.append(install_xrt_tools(machine.distribution)[-1])
    return broken(lack, Fix(text, (*commands, build_command(machine))), missing=missing)


def build_command(machine: Machine) -> str:
    """What builds the configurations that are usually needed."""
    return f"npu build --device {machine.npu.generation}" if machine.npu else "npu build"


def built(machine: Machine) -> list[str] | None:
    """What is built for this NPU (without one: for any); None: cannot be told."""
    names = machine.system.xclbins()
    if names is None:
        return None
    start = f"{machine.npu.generation}/" if machine.npu else ""
    return [name for name in names if name.startswith(start)]


def _package(machine: Machine, name: str) -> str | None:
    """The folder of an installed Python package, without importing it."""
    done = machine.system.command("python", "-c", _FIND_PACKAGE, name)
    return shown(done.output, 400) if done and done.exit == 0 and done.output.strip() else None


def _tool(machine: Machine, variable: str, package: str, program: str) -> bool:
    """In the folder that a variable names, else in that of a Python package."""
    folder = machine.system.environment(variable) or _package(machine, package)
    return bool(folder and machine.system.stat(f"{folder}/bin/{program}"))


def _aiecc(machine: Machine) -> bool:
    if _tool(machine, "MLIR_AIE_INSTALL_DIR", "mlir_aie", "aiecc"):
        return True
    return machine.system.command("aiecc", "--version") is not None


def _xclbinutil(machine: Machine) -> bool:
    if named := machine.system.environment("AIE_XCLBINUTIL"):
        return machine.system.stat(named) is not None
    if machine.system.command("xclbinutil", "--version") is not None:
        return True
    return _tool(machine, "MLIR_AIE_INSTALL_DIR", "mlir_aie", "xclbinutil")


def probe_xclbins(machine: Machine) -> Result:
    """The cache of built configurations."""
    names = built(machine)
    if names is None and machine.npu is None:
        return not_needed("no NPU that it could serve")
    if names is None:
        return unknown("the cache cannot be read")
    if names:
        return ok(f"{len(names)} built", count=len(names))
    if machine.npu is None:
        return not_needed("empty", count=0)
    text = f"No configuration has been built for {machine.npu.generation} yet."
    return broken("empty", Fix(text, (build_command(machine),)), count=0)
