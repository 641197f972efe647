"""`npu devices`: the devices this build knows, why one is unavailable, which is the default."""

from __future__ import annotations

import argparse
import dataclasses
import json

HELP = "list the devices, and which one runs by default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(arguments: argparse.Namespace) -> int:
    import npu
    from npu.devices import default_device

    devices, default = npu.devices(), default_device()
    if arguments.json:
        entries = [
            dataclasses.asdict(device) | {"default": device.name == default.name}
            for device in devices
        ]
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
