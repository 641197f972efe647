"""`npu devices`: the devices this build knows, and why one is unavailable."""

from __future__ import annotations

import argparse
import dataclasses
import json

HELP = "list the devices"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(arguments: argparse.Namespace) -> int:
    import npu

    devices = npu.devices()
    if arguments.json:
        print(json.dumps([dataclasses.asdict(device) for device in devices], indent=2))
        return 0
    for device in devices:
        state = "available" if device.available else f"not available: {device.reason}"
        print(f"{device.name:10} {device.description}; {state}")
    return 0
