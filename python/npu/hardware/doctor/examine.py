"""The layers between a program and the NPU, in the order in which one breaks the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from npu.hardware.doctor.access import probe_iommu, probe_memory_lock, probe_node
from npu.hardware.doctor.bindings import probe_pyxrt
from npu.hardware.doctor.building import probe_tools, probe_xclbins
from npu.hardware.doctor.command import probe_command
from npu.hardware.doctor.firmware import probe_firmware
from npu.hardware.doctor.kernel import probe_container, probe_driver, probe_kernel
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.pci import probe_npu
from npu.hardware.doctor.result import Result, State, not_needed, unknown
from npu.hardware.doctor.runtime import probe_xrt, probe_xrt_smi
from npu.hardware.doctor.system import System
from npu.hardware.doctor.use import probe_power, probe_users


@dataclasses.dataclass(frozen=True)
class Layer:
    """``name`` is stable, for programs; ``needs``: layers without which there is nothing to see."""

    name: str
    title: str
    probe: Callable[[Machine], Result]
    needs: tuple[str, ...] = ()


_DRIVER = ("npu", "kernel", "driver", "firmware", "iommu")
LAYERS = (
    Layer("npu", "NPU", probe_npu),
    Layer("kernel", "Linux kernel", probe_kernel, ("npu",)),
    Layer("container", "container", probe_container, ("npu",)),
    Layer("driver", "driver amdxdna", probe_driver, ("npu", "kernel")),
    Layer("firmware", "NPU firmware", probe_firmware, ("npu", "kernel", "driver")),
    Layer("iommu", "IOMMU and SVA", probe_iommu, ("npu", "kernel", "driver", "firmware")),
    Layer("node", "device node", probe_node, _DRIVER),
    Layer("memlock", "memory lock", probe_memory_lock, ("npu",)),
    Layer("xrt", "XRT and plugin", probe_xrt, ("npu",)),
    Layer("xrt-smi", "XRT with driver", probe_xrt_smi, (*_DRIVER, "node", "memlock", "xrt")),
    Layer("pyxrt", "pyxrt or module", probe_pyxrt, ("npu", "xrt")),
    Layer("power", "power mode", probe_power, (*_DRIVER, "node", "xrt", "xrt-smi")),
    Layer("users", "other users", probe_users, (*_DRIVER, "node", "xrt", "xrt-smi")),
    Layer("tools", "build tools", probe_tools),
    Layer("xclbins", "xclbin cache", probe_xclbins),
)
COMMAND = Layer("command", "a command on it", probe_command, tuple(layer.name for layer in LAYERS))
ALL_LAYERS = (*LAYERS, COMMAND)
NOT_CHECKED = "not checked"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What was found, layer by layer, in the order of ALL_LAYERS."""

    machine: Machine
    results: dict[str, Result]

    @property
    def first_broken(self) -> Layer | None:
        broken = (layer for layer in ALL_LAYERS if self.results[layer.name].state is State.BROKEN)
        return next(broken, None)

    @property
    def verdict(self) -> State:
        """OK: a command ran on the NPU; BROKEN: some layer is; UNKNOWN: neither."""
        if self.first_broken:
            return State.BROKEN
        ran = self.results[COMMAND.name].state is State.OK
        return State.OK if ran else State.UNKNOWN


def _silent(title: str) -> None:
    pass


def examine(system: System, note: Callable[[str], None] = _silent) -> Diagnosis:
    """Probes all layers of a machine; a layer whose needs are broken is not probed. ``note`` is
    called with the title of each layer before its probe."""
    machine = Machine(system)
    _ = machine.distribution, machine.kernel_release, machine.processor  # of every report
    skipped: set[str] = set()
    for layer in ALL_LAYERS:
        reason = _reason_to_skip(layer, machine, skipped)
        if reason is None:
            note(layer.title)
            machine.results[layer.name] = _probe(layer, machine)
        else:
            skipped.add(layer.name)
            machine.results[layer.name] = reason
    return Diagnosis(machine, machine.results)


def _probe(layer: Layer, machine: Machine) -> Result:
    try:
        return layer.probe(machine)
    except Exception as error:  # a machine nobody thought of: the other layers still tell
        return unknown(f"the probe failed: {type(error).__name__}: {error}")


def _reason_to_skip(layer: Layer, machine: Machine, skipped: set[str]) -> Result | None:
    if "npu" in layer.needs and machine.npu is None:
        if machine.results["npu"].state is State.BROKEN:
            return not_needed("no NPU that it could serve")
        return unknown(f"{NOT_CHECKED}: no NPU found")
    for name in layer.needs:
        if name in skipped or machine.results[name].state is State.BROKEN:
            return unknown(f"{NOT_CHECKED}, see above")
    return None
