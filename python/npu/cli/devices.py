"""`npu devices`: the devices of this machine and why an absent one is absent."""

from __future__ import annotations

import argparse
import json

from npu.cli import common

HELP = "list the devices"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(arguments: argparse.Namespace) -> int:
    devices = common.describe_devices()
    if arguments.json:
        print(json.dumps(devices, indent=2, default=str))
        return 0
    for device in devices:
        details = ", ".join(
            f"{name.replace('_', ' ')} {value}"
            for name, value in device.items()
            if name != "name" and value not in (None, "")
        )
        print(f"{device.get('name', '?'):12} {details}".rstrip())
    return 0
