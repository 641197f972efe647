"""A command on the device: what everything above is for, and what only running shows.

An installation can look right in every layer and still refuse each context (nix-amd-ai#79).
"""

from __future__ import annotations

import json
import re
from typing import Any

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.building import build_command
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown

_WORDS = ("python", "-m", "npu.hardware.doctor.device_command")
_SECONDS = 60.0  # opening, loading a configuration, one product
_SHOWN = 200  # characters of a message on the screen
_LOG = "sudo dmesg | grep amdxdna | tail"
# Kinds of npu.errors -> found, what it means.
_KINDS = {
    "timeout": ("the command timed out", "hang"),
    "abort": ("the command was aborted", "stack"),
    "versions": ("driver, firmware and XRT do not fit", "stack"),
    "firmware": ("the firmware refused the command", "firmware"),
    "memory_lock": ("memory cannot be locked", "memory"),
    "build": ("its configuration is not built", "build"),
    "generation": ("not a generation that can run this", "wrong"),
    "pyxrt": ("XRT finds no NPU", "plugin"),
}
# The same for what XRT says itself. First match wins.
_MESSAGES = (
    (r"err=-?11\b|failed to allocate BO", "memory cannot be locked", "memory"),
    (r"No such device with index", "XRT finds no NPU", "plugin"),
    (r"[Aa]bort|ABORT", "the command was aborted", "stack"),
    (r"[Tt]ime-?d? ?-?out|TIMEOUT", "the command timed out", "hang"),
)
# A refused context, by the error number of CREATE_HWCTX; any other: by the firmware.
_CONTEXT = {
    2: ("context refused: no device heap", "memory"),
    12: ("context refused: no memory", "memory"),
    19: ("context refused: no free columns", "busy"),
}
# A change of the clock that failed leaves an interrupt taken, so that no context is made until the
# driver is loaded again (xdna-driver#1670).
_STUCK = re.compile(r"xdna.*(?:Set hclock to|Failed to request irq)")


def probe_command(machine: Machine) -> Result:
    """Runs a product in a process of its own, with a time limit."""
    done = machine.system.command(*_WORDS, seconds=_SECONDS)
    if done is None:
        return unknown("Python cannot be started")
    if done.timed_out:
        return broken("no answer within 60 s", _fix(machine, "hang", ""))
    outcome = _outcome(done.output)
    kind = outcome.get("outcome")
    if kind == "ok":
        return _right(machine, outcome)
    if kind == "wrong":
        found = f"{shown(str(outcome.get('wrong')), 8)} of {shown(str(outcome.get('of')), 8)} wrong"
        return broken(f"the result is wrong: {found}", _fix(machine, "wrong", ""))
    message = str(outcome.get("message") or "")
    if kind == "unavailable":
        return unknown("the XRT device is not available", shown(message, _SHOWN))
    if not message:  # it ended without a word of ours: a crash
        message = (done.output.strip().splitlines() or [f"exit code {done.exit}"])[-1]
    found, meaning = _meaning(machine, str(outcome.get("kind")), message)
    return broken(found, _fix(machine, meaning, message), message=shown(message, 400))


def _meaning(machine: Machine, kind: str, message: str) -> tuple[str, str]:
    """What was found, and which repair fits, by the kind of the error, else by its message."""
    if kind == "context" or "CREATE_HWCTX" in message:
        number = re.search(r"err=-?([0-9]{1,3})\b", message)
        if number and int(number[1]) in _CONTEXT:
            return _CONTEXT[int(number[1])]
        if _stuck(machine):
            return "the driver refuses every context", "stuck"
        return "the firmware refuses every context", "stack"
    if kind in _KINDS:
        return _KINDS[kind]
    for pattern, found, meaning in _MESSAGES:
        if re.search(pattern, message):
            return found, meaning
    return "the command failed", "other"


def _stuck(machine: Machine) -> str:
    """The line of the kernel's log by which the driver is stuck, the change of the clock itself if
    it is there; "" if none says so."""
    lines = [line for line in machine.system.kernel_log() or () if _STUCK.search(line)]
    return max(lines, key=lambda line: "hclock" in line, default="")


def _right(machine: Machine, outcome: dict[str, Any]) -> Result:
    assert machine.npu is not None
    generation = outcome.get("generation")
    if generation != machine.npu.generation:
        return broken(
            f"the device says {shown(str(generation), 8)}, PCI says {machine.npu.generation}",
            _fix(machine, "wrong", ""),
        )
    seconds = outcome.get("seconds")
    took = f" in {seconds * 1e3:.1f} ms" if isinstance(seconds, (int, float)) else ""
    return ok(f"a product is right{took}", seconds=seconds)


def _outcome(output: str) -> dict[str, Any]:
    """The last line of the output that is a JSON object."""
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _fix(machine: Machine, meaning: str, message: str) -> Fix:
    system = machine.distribution
    said = f' It says: "{shown(message, _SHOWN)}".' if message else ""
    named = re.search(r"npu build(?: [\w.-]+){1,8}", message)
    build = named[0] if named else build_command(machine)
    if meaning == "hang":
        text = (
            "The NPU takes commands but does not finish them, though all layers above look right. "
            "Load the driver again; if it stays so, driver, firmware and XRT are of different "
            "times: update all three, then power off completely."
        )
        return Fix(text, (_LOG, install.RELOAD, *install.dkms_driver(system)))
    if meaning == "stuck":
        line = shown(_stuck(machine).rpartition("*ERROR*")[2], 60)
        text = (
            f'A change of the NPU\'s clock has failed ("{line}"), and the driver refuses contexts '
            "since. Load it again; drivers since 2026-09 recover."
        )
        return Fix(text, (install.RELOAD, *install.dkms_driver(system)))
    if meaning == "stack":
        text = (
            "Driver, firmware and XRT are of different times: update all three, or build "
            f"amd/xdna-driver, which has them together.{said}"
        )
        return Fix(text, (_LOG, *install.dkms_driver(system)))
    if meaning == "memory":
        commands = ("ulimit -l", *install.unlimited_memory_lock(system))
        return Fix(f"The NPU's memory could not be allocated or locked.{said}", commands)
    if meaning == "busy":
        text = f"Other programs hold the NPU's columns; end one.{said}"
        return Fix(text, ("xrt-smi examine -r aie-partitions",))
    if meaning == "plugin":
        return Fix(f"XRT's NPU plugin is not found.{said}", install.install_xrt(system))
    if meaning == "build":
        return Fix("Build the configuration of this product.", (build,))
    if meaning == "firmware":
        text = f"The firmware refuses what is built here; build it anew.{said}"
        return Fix(text, (_LOG, build if named else f"{build} --force"))
    if meaning == "wrong":
        text = "The NPU computes, but not this: the configurations may be of another generation. "
        commands = (f"{build_command(machine)} --force gemm", "npu selftest")
        return Fix(text + "Build those of products anew and report it.", commands)
    text = f"A command on the NPU fails.{said} Please report it."
    return Fix(text, (_LOG, "npu doctor --record machine.json"))
