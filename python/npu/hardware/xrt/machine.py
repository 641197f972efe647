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
from npu.hardware import known_npus
from npu.hardware.xrt import failures
from npu.hardware.xrt.signals import uninterrupted

SYSFS = Path("/sys")
_EMULATED = 'the emulated NPUs are "emu:npu2" and "emu:npu1"'
_NEEDED = (
    "bo", "device", "ert_cmd_state", "hw_context", "kernel", "run", "xclBOSyncDirection", "xclbin",
)  # fmt: skip
_PCI = Path("bus/pci/devices")
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
        count = _count(pyxrt)
        if index >= count:
            raise _no_device(count)
        return uninterrupted(pyxrt.device, index)
    except RuntimeError as error:
        if isinstance(error, DeviceError):
            raise
        if re.search(r"device with index", str(error)):  # how XRT says that there is none
            raise _no_device(0) from error
        raise failures.of_opening(error) from error


def _count(pyxrt: Any) -> int:
    """Of XRT's devices; where pyxrt does not count them, the first is tried."""
    return int(pyxrt.enumerate_devices()) if hasattr(pyxrt, "enumerate_devices") else 1


def _no_device(count: int) -> MissingXrtError:
    return MissingXrtError(
        f"[device] xrt: XRT sees {count} devices; check the amdxdna "
        'driver, XRT\'s NPU plugin and the access to /dev/accel/accel0 with "npu doctor"; '
        + _EMULATED
    )


def first_npu(pyxrt: Any, sysfs: Path = SYSFS) -> tuple[Any, Identity]:
    """The first of XRT's devices that is an NPU, open. Raises what ``open_device`` and ``identify``
    raise."""
    device = open_device(pyxrt)
    try:
        return device, identify(pyxrt, device, sysfs)
    except GenerationError:
        for index in range(1, _count(pyxrt)):
            with contextlib.suppress(GenerationError):
                device = open_device(pyxrt, index)
                return device, identify(pyxrt, device, sysfs)
        raise


def identify(pyxrt: Any, device: Any, sysfs: Path = SYSFS) -> Identity:
    """Which NPU a device is. Raises GenerationError for one that is not known."""
    name, bdf = _name_and_address(pyxrt, device, sysfs)
    vendor, number, revision = _ids(sysfs / _PCI / bdf)
    pci_id, amd = "", vendor == known_npus.VENDOR
    if number is not None and vendor is not None:
        pci_id = f"{vendor:04x}:{number:04x} rev {revision or 0:02x}"
    if number is not None and amd:
        kind = known_npus.KNOWN.get((number, revision or 0))
        if kind:
            return Identity(kind.generation, name, bdf, pci_id)
        if number in known_npus.AIE4:
            raise GenerationError(
                f"[device] xrt: {name} ({pci_id}) is of a generation after npu2, for which nothing "
                f"can be built; {_EMULATED}"
            )
    unread = number is None or (revision is None and amd and number in known_npus.DEVICES)
    if unread and (generation := known_npus.generation_of_name(name)):
        return Identity(generation, name, bdf, pci_id)
    raise GenerationError(
        f'[device] xrt: "{name}" at {bdf} ({pci_id or "PCI id not readable"}) is not an NPU that '
        f"this version knows; {_EMULATED}"
    )


def _name_and_address(pyxrt: Any, device: Any, sysfs: Path) -> tuple[str, str]:
    """XRT's name of a device and where it is on the PCI bus. A pyxrt that cannot say has opened the
    first NPU of the system."""
    try:
        keys = pyxrt.xrt_info_device
        name, bdf = (str(uninterrupted(device.get_info, key)) for key in (keys.name, keys.bdf))
        return name, bdf
    except AttributeError:
        pass
    except RuntimeError as error:
        raise failures.of_opening(error) from error
    for folder in sorted((sysfs / _PCI).glob("*")):
        vendor, number, _ = _ids(folder)
        if vendor == known_npus.VENDOR and number in known_npus.DEVICES | known_npus.AIE4:
            return _read(folder / "vbnv") or "an NPU", folder.name
    raise GenerationError(
        f"[device] xrt: this pyxrt does not say which NPU it has opened, and {sysfs / _PCI} has "
        f"none; install XRT 2.20 or newer; {_EMULATED}"
    )


def _ids(folder: Path) -> tuple[int | None, int | None, int | None]:
    """Vendor, device and revision of a PCI device."""
    return _hex(folder / "vendor"), _hex(folder / "device"), _hex(folder / "revision")


def stamp(identity: Identity, sysfs: Path = SYSFS) -> dict[str, str]:
    """What a verdict of the self-test depends on. "unknown" where the system does not say."""
    firmware = _read(sysfs / _PCI / identity.bdf / "fw_version")
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
