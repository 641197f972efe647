"""A machine under examination: its system, what several probes ask for, and the results so far."""

from __future__ import annotations

import dataclasses
import functools
import re

from npu.hardware.doctor import parse
from npu.hardware.doctor.result import Result
from npu.hardware.doctor.system import Command, OpenedNode, System


@dataclasses.dataclass(frozen=True)
class Npu:
    """An NPU on the PCI bus. ``generation``: npu1, npu2; ``firmware``: its folder below amdnpu."""

    address: str
    device: int
    revision: int
    generation: str
    name: str
    firmware: str

    @property
    def folder(self) -> str:
        return f"/sys/bus/pci/devices/{self.address}"


class Machine:
    """Passed from probe to probe. ``npu`` is set by the first one."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.npu: Npu | None = None
        self.results: dict[str, Result] = {}

    @functools.cached_property
    def distribution(self) -> parse.Distribution:
        return parse.os_release(self.system.text("/etc/os-release"))

    @functools.cached_property
    def kernel_release(self) -> str:
        """ "6.17.0-22-generic"; "" if it cannot be read."""
        text = self.system.text("/proc/sys/kernel/osrelease")
        return text if re.fullmatch(r"[0-9]{1,4}\.[\w.+~-]{1,60}", text) else ""

    @functools.cached_property
    def kernel(self) -> parse.Version | None:
        return parse.version(self.kernel_release)

    @functools.cached_property
    def processor(self) -> parse.Processor:
        return parse.cpuinfo(self.system.text("/proc/cpuinfo"))

    @property
    def wsl(self) -> bool:
        return "microsoft" in self.kernel_release.lower()

    @functools.cached_property
    def container(self) -> str | None:
        """The kind of container that this process runs in."""
        system = self.system
        if system.stat("/run/.toolboxenv"):
            return "toolbox"
        for path, kind in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
            if system.stat(path):
                return kind
        if kind := system.text("/run/systemd/container"):
            return parse.shown(kind, 20)
        return None

    @functools.cached_property
    def driver_name(self) -> str | None:
        """The driver that is bound to the NPU."""
        link = self.npu and self.system.link(f"{self.npu.folder}/driver")
        return parse.shown(link.rpartition("/")[2], 40) if link else None

    @functools.cached_property
    def node(self) -> str | None:
        """The device node that the NPU's driver has made, there or not."""
        names = (self.npu and self.system.names(f"{self.npu.folder}/accel")) or ()
        names = tuple(name for name in names if name.removeprefix("accel").isdecimal())
        return f"/dev/accel/{parse.shown(names[0], 20)}" if names else None

    @functools.cached_property
    def opened(self) -> OpenedNode | None:
        """What opening the node gave; None where there is none."""
        return self.system.opened(self.node) if self.node else None

    @functools.cached_property
    def smi_examine(self) -> Command | None:
        """What `xrt-smi examine` prints; None: it is missing."""
        return self.system.command("xrt-smi", "examine")
