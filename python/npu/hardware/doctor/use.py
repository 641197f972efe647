"""How the NPU is being used: its power mode, and contexts of other programs."""

from __future__ import annotations

from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import smi_contexts, smi_power_mode
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown

_CONTEXTS = {"npu1": 6, "npu2": 16}  # of the firmware, for all programs (mlir-aie#3526)
_SLOW = ("powersaver", "balanced")
_SHOWN = 6


def probe_power(machine: Machine) -> Result:
    """The power mode; a slow one breaks nothing."""
    done = machine.system.command("xrt-smi", "examine", "-r", "platform")
    mode = smi_power_mode(done.output) if done and done.exit == 0 else None
    if mode is None:
        return unknown("cannot be read")
    advice = f"power mode {mode}: for speed, sudo xrt-smi configure --pmode performance"
    return ok(mode, *([advice] if mode in _SLOW else []), mode=mode)


def probe_users(machine: Machine) -> Result:
    """Contexts on the NPU: there is a limit for all programs together."""
    assert machine.npu is not None
    done = machine.system.command("xrt-smi", "examine", "-r", "aie-partitions")
    processes = smi_contexts(done.output) if done and done.exit == 0 else None
    if processes is None:
        return unknown("cannot be read")
    count, limit = len(processes), _CONTEXTS[machine.npu.generation]
    values = {"contexts": count, "limit": limit}
    if count >= limit:
        some = " ".join(str(number) for number in sorted(set(processes))[:_SHOWN])
        text = f"Other programs have all {limit} contexts of the NPU. End one of them:"
        return broken(f"all {limit} contexts are taken", Fix(text, (f"ps -fp {some}",)), **values)
    if count:
        notes = "another program uses the NPU: switching between programs costs time"
        return ok(f"{count} of {limit} contexts", notes, **values)
    return ok("none", **values)
