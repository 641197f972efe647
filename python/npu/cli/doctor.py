"""`npu doctor`: what keeps this machine from using its NPU, and the commands that repair it."""

from __future__ import annotations

import argparse
import json
import sys

HELP = "check everything between a program and the NPU; say what is broken and how to repair it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every layer as JSON")
    form.add_argument("--verbose", action="store_true", help="every layer with values and fixes")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--record", metavar="FILE",
        help="also write what was looked at to a file, without serial numbers and names of users "
        "and hosts; attach it to an issue",
    )  # fmt: skip
    source.add_argument("--replay", metavar="FILE", help="examine the machine of such a file")
    parser.epilog = "Exit code: 0 a command ran on the NPU, 1 not, 2 wrong command line."


def run(arguments: argparse.Namespace) -> int:
    from npu.hardware.doctor import record, report
    from npu.hardware.doctor.examine import examine
    from npu.hardware.doctor.live import LiveSystem
    from npu.hardware.doctor.result import State
    from npu.hardware.doctor.system import System

    system: System = record.load(arguments.replay) if arguments.replay else LiveSystem()
    recorder = record.Recorder(system)
    diagnosis = examine(recorder, _note)
    _note("")
    if arguments.json:
        print(json.dumps(report.document(diagnosis), indent=2))
    else:
        print(report.verbose(diagnosis) if arguments.verbose else report.plain(diagnosis))
    if arguments.record:
        _save(recorder, arguments.record, quiet=arguments.json)
    return 0 if diagnosis.verdict is State.OK else 1


def _note(title: str) -> None:
    """What is being looked at, on a terminal: a probe may wait for an NPU that does not answer."""
    if sys.stderr.isatty():
        print(f"\r{title:24}\r", end="", file=sys.stderr, flush=True)


def _save(recorder: object, path: str, *, quiet: bool) -> None:
    from npu.hardware.doctor import record

    assert isinstance(recorder, record.Recorder)
    size = record.save(recorder, path)
    if not quiet:
        print(f"\nWrote {path} ({size / 1024:.1f} KB). Read it before you attach it to an issue.")
