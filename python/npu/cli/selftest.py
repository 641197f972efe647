"""`npu selftest`: results of a device beside those of the emulated NPU, its times beside simulated
ones, and a report file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from npu.cli import common

HELP = "check a device's results and measure it; writes a report to attach to an issue"
_DEFAULT = "npu-selftest.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", metavar="D", help="(default: $NPU_DEVICE, else xrt, the NPU of this machine)"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help=f"the report ({_DEFAULT})")
    parser.add_argument("--runs", type=common.positive, default=10, help="of each measurement (10)")
    parser.add_argument("--no-times", action="store_true", help="check results only")
    parser.add_argument("--json", action="store_true", help="print the report, write no file")


def run(arguments: argparse.Namespace) -> int:
    from npu.devices import open_device
    from npu.errors import ArgumentError
    from npu.formats.atomic_file import check_writable
    from npu.hardware.selftest import report
    from npu.hardware.selftest import run as selftest

    if arguments.json and arguments.output:
        raise ArgumentError("[selftest] --json prints the report; leave -o out")
    path = arguments.output or _DEFAULT
    if not arguments.json:
        check_writable(path, "selftest")  # before minutes of work
    device = open_device(arguments.device or os.environ.get("NPU_DEVICE") or "xrt")
    out = sys.stderr if arguments.json else sys.stdout
    print(
        f"self-test of {device.name}: results beside emu:{device.generation}, arithmetic silicon",
        file=out,
    )
    found = selftest.run(
        device, runs=arguments.runs, times=not arguments.no_times,
        progress=_Lines(out, device.emulated),
    )  # fmt: skip
    found = {"stamp": _stamp(found), "machine": _machine(device.emulated)} | found
    print(_summary(found), file=out)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        report.save(path, found)
        print(f"report: {path}")
        if any(row.get("not_built") for row in found["checks"]):
            print(
                f"no verdict: configurations are missing; `npu build --device {device.generation}`"
            )
        elif device.way:
            _keep_verdict(found["passed"], path, device.way)
    return 0 if found["passed"] else 1


class _Lines:
    """Prints results as they come, with a head over the times."""

    def __init__(self, out: Any, emulated: bool) -> None:
        self._out, self._emulated, self._head = out, emulated, False

    def __call__(self, line: str) -> None:
        if not line.startswith(("passed", "FAILED")) and not self._head:
            self._head = True
            first = "host time" if self._emulated else "measured"
            print(f"\n{'median, microseconds':63} {first:>11} {'simulated':>11}", file=self._out)
        print(line, file=self._out, flush=True)


def _stamp(found: dict[str, Any]) -> dict[str, Any]:
    from npu.cli.stamp import stamp

    device = found["device"]
    return stamp("selftest", {"device": device["name"], "arithmetic": device["arithmetic"]})


def _keep_verdict(passed: bool, path: str, way: str) -> None:
    """From now on the NPU is what runs by default where it is reached in this way, or is not."""
    from npu.hardware import verdict
    from npu.hardware.xrt import choice

    verdict.write(choice.stamp(way), passed, os.path.abspath(path))
    print("the NPU runs by default from now on" if passed else "the emulated NPU stays the default")


def _machine(emulated: bool) -> dict[str, Any] | None:
    """What `npu doctor` finds where there is an NPU: versions of driver and firmware, and more."""
    if emulated:
        return None
    from npu.hardware.doctor import report
    from npu.hardware.doctor.examine import examine
    from npu.hardware.doctor.live import LiveSystem

    return report.document(examine(LiveSystem(), lambda title: None))


def _summary(found: dict[str, Any]) -> str:
    failed = [row["name"] for row in found["checks"] if not row["passed"]]
    errors = [row["operation"] for row in found["measurements"] if "error" in row]
    words = f"{len(found['checks']) - len(failed)} of {len(found['checks'])} checks passed"
    if failed:
        words += f"; failed: {', '.join(failed)}"
    if errors:
        words += f"; not measured: {', '.join(sorted(set(errors)))}"
    return f"\n{words}, {found['seconds']:.0f} s"
