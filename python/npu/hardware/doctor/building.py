"""What `npu build` needs, and what it has built."""

from __future__ import annotations

import re

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
    """aiecc (mlir-aie), Peano (llvm-aie) and xclbinutil (XRT or mlir-aie)."""
    missing = [
        name
        for name, there in (
            ("aiecc", _aiecc(machine)),
            ("Peano", _peano(machine)),
            ("xclbinutil", _xclbinutil(machine)),
        )
        if not there
    ]
    if not missing:
        return ok("aiecc, Peano, xclbinutil", missing=[])
    lack = f"{', '.join(missing)} not installed"
    if machine.npu is None or machine.system.xclbins():
        return not_needed(lack, missing=missing)
    text = f"Nothing is built yet, and `npu build` lacks {', '.join(missing)}."
    commands = [command for name, command in _INSTALL.items() if name in missing]
    if "xclbinutil" in missing:
        text += " xclbinutil is one of XRT's tools."
        commands.append(install_xrt_tools(machine.distribution)[-1])
    return broken(lack, Fix(text, (*commands, "npu build --all")), missing=missing)


def _package(machine: Machine, name: str) -> str | None:
    """The folder of an installed Python package, without importing it."""
    done = machine.system.command("python", "-c", _FIND_PACKAGE, name)
    return shown(done.output, 400) if done and done.exit == 0 and done.output.strip() else None


def _aiecc(machine: Machine) -> bool:
    done = machine.system.command("aiecc", "--version")
    return done is not None or _package(machine, "mlir_aie") is not None


def _peano(machine: Machine) -> bool:
    folder = machine.system.environment("PEANO_INSTALL_DIR")
    if folder:
        return machine.system.stat(f"{folder}/bin/clang") is not None
    return _package(machine, "llvm-aie") is not None


def _xclbinutil(machine: Machine) -> bool:
    if machine.system.command("xclbinutil", "--version") is not None:
        return True
    folder = _package(machine, "mlir_aie")
    return bool(folder and machine.system.stat(f"{folder}/bin/hrx-xclbinutil"))


def probe_xclbins(machine: Machine) -> Result:
    """The cache of built configurations."""
    names = machine.system.xclbins()
    if names is None and machine.npu is None:
        return not_needed("no NPU that it could serve")
    if names is None:
        return unknown("the cache cannot be read")
    if names:
        kinds = sorted({re.split(r"[_.]", name)[0] for name in names})
        return ok(f"{len(names)} built ({', '.join(kinds[:4])})", count=len(names))
    if machine.npu is None:
        return not_needed("empty", count=0)
    text = "No configuration has been built for this NPU yet."
    return broken("empty", Fix(text, ("npu build --all",)), count=0)
