"""Whether the NPU is what runs by default: only after its self-test has passed on this machine with
these versions (npu/hardware/verdict.py)."""

from __future__ import annotations

from npu.hardware import verdict
from npu.hardware.xrt import machine


def stamp() -> dict[str, str]:
    """What a verdict on this machine's NPU is for, as ``verdict.write`` takes it. Raises
    MissingXrtError, GenerationError, VersionError, DeviceError where there is no usable NPU."""
    return machine.stamp(machine.first_npu(machine.import_pyxrt())[1])


def self_test() -> tuple[bool, str]:
    """Whether it passed, and which NPU with which verdict. Raises what ``stamp`` raises."""
    identity = machine.first_npu(machine.import_pyxrt())[1]
    found = verdict.read(machine.stamp(identity))
    npu = f"{identity.name} ({identity.generation}) at {identity.bdf}"
    if found is None:
        return False, f'{npu}: not tested with these versions; run "npu selftest"'
    if not found.passed:
        return False, f"{npu}: its self-test failed at {found.time}; see {found.report}"
    return True, f"{npu}: its self-test passed at {found.time}"
