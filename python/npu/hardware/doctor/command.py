"""A command on the device: what everything above is for, and what only running shows.

An installation can look right in every layer and still refuse each context (nix-amd-ai#79).
"""

from __future__ import annotations

import json
import re
from typing import Any

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown

_WORDS = ("python", "-m", "npu.hardware.doctor.device_command")
_SECONDS = 60.0  # opening, loading a configuration, one product
_LOG = "sudo dmesg | grep amdxdna | tail"
# What the message of a failed command contains -> found, what it means. First match wins.
_MEANINGS = (
    (r"CREATE_HWCTX.*err=-?2\b", "context refused: no device heap", "memory"),
    (r"CREATE_HWCTX.*err=-?12\b", "context refused: no memory", "memory"),
    (r"CREATE_HWCTX.*err=-?19\b", "context refused: no free columns", "busy"),
    (r"CREATE_HWCTX", "the firmware refuses every context", "stack"),
    (r"err=-?11\b|failed to allocate BO|EAGAIN|memlock", "memory cannot be locked", "memory"),
    (r"No such device with index", "XRT finds no NPU", "plugin"),
    (r"[Aa]bort", "the command was aborted", "stack"),
    (r"[Tt]ime-?d? ?-?out|TIMEOUT", "the command timed out", "hang"),
    (r"xclbin", "no usable configuration", "build"),
)


def probe_command(machine: Machine) -> Result:
    """Runs a product in a process of its own, with a time limit."""
    done = machine.system.command(*_WORDS, seconds=_SECONDS)
    if done is None:
        return unknown("Python cannot be started")
    if done.timed_out:
        return broken("no answer within 60 s", _fix(machine, "hang", ""))
    outcome = _outcome(done.output)
    message = shown(str(outcome.get("message", "")), 160)
    kind = outcome.get("outcome")
    if kind == "ok":
        return _right(machine, outcome)
    if kind == "unavailable":
        return unknown("the XRT device is not available", message)
    if kind == "wrong":
        found = f"{shown(str(outcome.get('wrong')), 8)} of {shown(str(outcome.get('of')), 8)} wrong"
        return broken(f"the result is wrong: {found}", _fix(machine, "wrong", ""))
    for pattern, found, meaning in _MEANINGS:
        if re.search(pattern, message):
            return broken(found, _fix(machine, meaning, message), message=message)
    last = message or shown((done.output.strip().splitlines() or ["no output"])[-1], 160)
    return broken("the command failed", _fix(machine, "other", last), message=last)


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
    said = f' It says: "{message}".' if message else ""
    if meaning == "hang":
        text = (
            "The NPU takes commands but does not finish them, though all layers above look right. "
            "Load the driver again; if it stays so, driver, firmware and XRT are of different "
            "times: update all three, then power off completely."
        )
        return Fix(text, (_LOG, install.RELOAD, *install.dkms_driver(system)))
    if meaning == "stack":
        text = f"Driver, firmware and XRT are of different times: update all three.{said}"
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
        return Fix(f"Build the configurations for this NPU.{said}", ("npu build --all",))
    if meaning == "wrong":
        text = "The NPU computes, but not this: the configurations may be of another generation. "
        return Fix(text + "Build them anew and report it.", ("npu build --all", "npu selftest"))
    text = f"A command on the NPU fails.{said} Please report it."
    return Fix(text, (_LOG, "npu doctor --record machine.json"))
