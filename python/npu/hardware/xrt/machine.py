"""What this machine has: pyxrt, the NPU behind it with its generation, versions.

The generation is read from the PCI device, else from the name that XRT gives, and never guessed: a
build of the other generation gives zeros or hangs the NPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import platform
import re
from pathlib import Path
from typing import Any

from npu._npu import version
from npu.errors import DeviceError, GenerationError, MissingXrtError, VersionError
from npu.hardware.xrt import failures

SYSFS = Path("/sys")
_VENDOR = 0x1022
_PCI_GENERATIONS = {0x1502: "npu1", 0x17F0: "npu2"}
_NEWER = {*range(0x17F1, 0x17F4), *range(0x1B0A, 0x1B0D)}  # AIE4, which has other instructions
_NAMES = (
    (re.compile(r"npu1\b|phoenix|hawk", re.I), "npu1"),
    (re.compile(r"npu[456]\b|strix|krackan|gorgon", re.I), "npu2"),
)
_EMULATED = 'the emulated NPUs are "emu:npu2" and "emu:npu1"'
_NEEDED = (
    "bo", "device", "enumerate_devices", "ert_cmd_state", "hw_context", "kernel", "run",
    "xclBOSyncDirection", "xclbin", "xrt_info_device",
)  # fmt: skip
_OPT = Path("/opt/xilinx/xrt/python")


@dataclasses.dataclass(frozen=True)
class Identity:
    """An NPU: where it is, what it is."""

    generation: str
    name: str
    bdf: str
    pci_id: str
    """"1022:17f0 rev 10", empty where the system does not say."""


def import_pyxrt() -> Any:
    """The module. Raises MissingXrtError, VersionError."""
    try:
        found = importlib.import_module("pyxrt")
    except ModuleNotFoundError as error:
        where = f"add {_OPT} to PYTHONPATH" if _OPT.is_dir() else "install XRT with its NPU plugin"
        raise MissingXrtError(
            f"[device] xrt: Python finds no module pyxrt, XRT's own ({error}); {where} (a build of "
            f"pyxrt is for one version of Python); {_EMULATED}"
        ) from error
    except Exception as error:  # whatever a broken installation raises
        raise MissingXrtError(
            f"[device] xrt: pyxrt cannot be loaded ({error}); it was built for another Python or "
            f"another XRT; {_EMULATED}"
        ) from error
    missing = [name for name in _NEEDED if not hasattr(found, name)]
    if missing:
        raise VersionError(
            f"[device] xrt: the module pyxrt ({getattr(found, '__file__', None)}) has no "
            f"{', '.join(missing)}; install XRT 2.20 or newer; {_EMULATED}"
        )
    return found


def open_device(pyxrt: Any, index: int = 0) -> Any:
    """An open ``pyxrt.device``. Raises MissingXrtError where XRT sees none."""
    try:
        count = int(pyxrt.enumerate_devices())
        if index >= count:
            raise MissingXrtError(
                f"[device] xrt: XRT sees {count} devices; check the amdxdna driver, XRT's NPU "
                f'plugin and the access to /dev/accel/accel0 with "npu doctor"; {_EMULATED}'
            )
        return pyxrt.device(index)
    except RuntimeError as error:
        if isinstance(error, DeviceError):
            raise
        raise failures.of_opening(error) from error


def first_npu(pyxrt: Any, sysfs: Path = SYSFS) -> tuple[Any, Identity]:
    """The first of XRT's devices that is an NPU, open. Raises what ``open_device`` and ``identify``
    raise."""
    device = open_device(pyxrt)
    try:
        return device, identify(pyxrt, device, sysfs)
    except GenerationError:
        for index in range(1, int(pyxrt.enumerate_devices())):
            with contextlib.suppress(GenerationError):
                device = open_device(pyxrt, index)
                return device, identify(pyxrt, device, sysfs)
        raise


def identify(pyxrt: Any, device: Any, sysfs: Path = SYSFS) -> Identity:
    """Which NPU a device is. Raises GenerationError for one that is not known."""
    keys = pyxrt.xrt_info_device
    try:
        name, bdf = str(device.get_info(keys.name)), str(device.get_info(keys.bdf))
    except RuntimeError as error:
        raise failures.of_opening(error) from error
    folder = sysfs / "bus/pci/devices" / bdf
    vendor, number, revision = (_hex(folder / key) for key in ("vendor", "device", "revision"))
    pci_id = ""
    if number is not None and vendor == _VENDOR:
        pci_id = f"{vendor:04x}:{number:04x} rev {revision or 0:02x}"
        generation = _PCI_GENERATIONS.get(number)
        if generation:
            return Identity(generation, name, bdf, pci_id)
        if number in _NEWER:
            raise GenerationError(
                f"[device] xrt: {name} ({pci_id}) is of a generation after npu2, for which nothing "
                f"can be built; {_EMULATED}"
            )
    for pattern, generation in _NAMES if number is None else ():
        if pattern.search(name):
            return Identity(generation, name, bdf, pci_id)
    raise GenerationError(
        f'[device] xrt: "{name}" at {bdf} ({pci_id or "PCI id not readable"}) is not an NPU that '
        f"this version knows; {_EMULATED}"
    )


def stamp(identity: Identity, sysfs: Path = SYSFS) -> dict[str, str]:
    """What a verdict of the self-test depends on. "unknown" where the system does not say."""
    firmware = _read(sysfs / "bus/pci/devices" / identity.bdf / "fw_version")
    driver = _read(sysfs / "module/amdxdna/version") or f"in Linux {platform.release()}"
    return {
        "pci": identity.pci_id or identity.name,
        "firmware": firmware or "unknown",
        "driver": driver,
        "xrt": _xrt_version() or "unknown",
        "npu": str(version),
    }


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(200).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _hex(path: Path) -> int | None:
    try:
        return int(_read(path), 16)
    except ValueError:
        return None


def _xrt_version() -> str:
    """Of the library that pyxrt has loaded, from its file name (libxrt_coreutil.so.2.25.0)."""
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return ""
    found = re.search(r"libxrt_core(?:util)?\.so\.([0-9.]+)", maps)
    return found[1] if found else ""
