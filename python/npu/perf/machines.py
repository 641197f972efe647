"""The machines that simulations are of: timing constants that are a machine's and not the array's.

Two laptops with the same NPU differ in what their memory gives it. Each profile names a machine on
which figures were published (backend/arch/machines.cpp); the constants that it does not name are
those of the table in backend/arch/timing.cpp. ``machine=`` chooses one in every simulation and of
a device, `npu validate-model --machines` lists them, and every result says whose it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from npu import _npu
from npu.errors import ArgumentError, DeviceError
from npu.perf import kernel_profile

GENERATIONS = ("npu1", "npu2")
# What differs from machine to machine, in every listing.
MEMORY = ("dram_read", "dram_total")


@dataclasses.dataclass(frozen=True)
class MachineConstant:
    """A constant of `npu validate-model --constants` with the value that it has on a machine."""

    name: str
    value: float
    unit: str
    grade: str
    source: str


@dataclasses.dataclass(frozen=True)
class Machine:
    """``about``: processor, memory and the source of its figures; ``constants``: those that are not
    the table's."""

    name: str
    generation: str
    about: str
    constants: tuple[MachineConstant, ...] = ()

    @property
    def default(self) -> bool:
        """Whether simulations of its generation are of this machine unless another is named."""
        return _default(self.generation) is self

    @property
    def values(self) -> dict[str, float]:
        return {constant.name: constant.value for constant in self.constants}

    def memory(self) -> list[MachineConstant]:
        """Its memory's constants, those of the table included."""
        own = {constant.name: constant for constant in self.constants}
        names = [f"{name}_{self.generation}" for name in MEMORY]
        return [own.get(name) or _of_table(name) for name in names]


# The first of a generation is its default: the table's constants were fitted to its figures.
MACHINES = tuple(
    Machine(name, generation, about, tuple(MachineConstant(*c) for c in constants))
    for name, generation, about, constants in _npu.perf.machines()
)


class Constants(dict[str, float]):
    """The constants of a simulation that are not the table's: those of its machine, and on top what
    its caller changed; and the profile of kernels (kernel_profile.py), None for the default."""

    def __init__(
        self, machine: Machine, changed: Mapping[str, float], kernels: str | None = None
    ) -> None:
        profile = kernel_profile.constant_of("simulate", kernels)
        super().__init__(machine.values | dict(changed) | profile)
        self.machine = machine
        self._changed = dict(changed)

    @property
    def label(self) -> str:
        """What results are stamped with: "strix-atb", "strix-atb with dispatch = 50"."""
        table = {str(c["name"]): float(c["value"]) for c in _npu.perf.constants()}
        own = table | self.machine.values
        changed = [f"{k} = {v:g}" for k, v in sorted(self._changed.items()) if v != own.get(k)]
        return " with ".join(part for part in (self.machine.name, ", ".join(changed)) if part)

    def kernels(self, sources: Mapping[str, str]) -> str:
        """What results are stamped with beside it: kernel_profile.described."""
        return kernel_profile.described(self, sources)


def machine_of(function: str, device: str, name: str | None) -> Machine:
    """The profile ``name``, or the default one of a generation. Raises ArgumentError,
    DeviceError."""
    if device not in GENERATIONS:
        raise DeviceError(f'[{function}] device is {device!r}; use "npu1" or "npu2"')
    if name is None:
        return _default(device)
    here = ", ".join(machine.name for machine in MACHINES if machine.generation == device)
    found = next((machine for machine in MACHINES if machine.name == name), None)
    if found is None:
        raise ArgumentError(f"[{function}] machine is {name!r}; there are, for {device}: {here}")
    if found.generation != device:
        raise ArgumentError(
            f"[{function}] machine {name} has an {found.generation}, the simulation is of "
            f"{device}; use one of {here}"
        )
    return found


def constants_of(
    function: str,
    device: str,
    machine: str | None,
    changed: Mapping[str, float],
    kernels: str | None = None,
) -> Constants:
    """What a simulation of ``device`` runs with; ``changed`` comes last. Raises ArgumentError,
    DeviceError."""
    kernel_profile.constant_of(function, kernels)
    return Constants(machine_of(function, device, machine), changed, kernels)


def document() -> list[dict[str, Any]]:
    """What `npu validate-model --machines --json` prints."""
    return [
        {
            "name": machine.name,
            "generation": machine.generation,
            "default": machine.default,
            "about": machine.about,
            "constants": [dataclasses.asdict(constant) for constant in machine.memory()],
        }
        for machine in MACHINES
    ]


def _default(generation: str) -> Machine:
    return next(machine for machine in MACHINES if machine.generation == generation)


def _of_table(name: str) -> MachineConstant:
    found = next(c for c in _npu.perf.constants() if c["name"] == name)
    return MachineConstant(name, found["value"], found["unit"], found["grade"], found["source"])
