"""`npu devices`: the devices this build knows, why one is unavailable, which is the default."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import npu

HELP = "list the devices, and which one runs by default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(arguments: argparse.Namespace) -> int:
    import npu
    from npu.devices import default_device

    devices, default = npu.devices(), default_device()
    if not any(_is_default(device.name, default.name) for device in devices):
        devices.append(_named(default.name))
    if arguments.json:
        entries = [
            dataclasses.asdict(device)
            | ({"default": True, "default_reason": default.reason}
               if _is_default(device.name, default.name) else {"default": False})
            for device in devices
        ]  # fmt: skip
        print(json.dumps(entries, indent=2))
        return 0
    for device in devices:
        state = "available" if device.available else "not available"
        reason = f": {device.reason}" if device.reason else ""
        print(f"{device.name:10} {device.description}; {state}{reason}")
    missing = [d.name for d in devices if not d.available and d.reason == default.reason]
    why = f"{missing[0]} is not available, see `npu doctor`" if missing else default.reason
    print(f"default    {default.name}: {why}")
    return 0


def _is_default(name: str, default: str) -> bool:
    """Names of the NPU may say its generation and the way to it."""
    from npu.devices import is_xrt

    return name == default or (is_xrt(name) and is_xrt(default))


def _named(name: str) -> npu.DeviceDescription:
    """A default that the package does not list: a variant of an emulated device, or nothing."""
    import npu
    from npu.devices import open_device
    from npu.errors import NpuError

    try:
        device = open_device(name)
    except NpuError as error:
        return npu.DeviceDescription(name, False, "unknown device", str(error))
    kind = "emulated NPU" if device.emulated else "device"
    return npu.DeviceDescription(name, True, kind, "NPU_DEVICE names it")
