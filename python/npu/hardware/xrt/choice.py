"""Whether the NPU is what runs by default: only after its self-test has passed on this machine with
these versions (npu/hardware/verdict.py), in the way that programs take (ways.py)."""

from __future__ import annotations

from npu.hardware import verdict
from npu.hardware.xrt import machine, ways


def stamp(asked: str | None = None) -> dict[str, str]:
    """What a verdict on this machine's NPU is for, as ``verdict.write`` takes it. ``asked``: the
    way to it (default: the one that programs take). Raises MissingXrtError, GenerationError,
    VersionError, DeviceError where there is no usable NPU."""
    way = ways.choose(asked)
    return _stamp(way, ways.identity(way))


def self_test() -> tuple[bool, str]:
    """Whether it passed, and which NPU with which verdict. Raises what ``stamp`` raises."""
    way = ways.choose()
    identity = ways.identity(way)
    found = verdict.read(_stamp(way, identity))
    npu = f"{identity.name} ({identity.generation}) at {identity.bdf} {way.reason}"
    if found is None:
        return False, f'{npu}: not tested with these versions; run "npu selftest"'
    if not found.passed:
        return False, f"{npu}: its self-test failed at {found.time}; see {found.report}"
    return True, f"{npu}: its self-test passed at {found.time}"


def _stamp(way: ways.Way, identity: machine.Identity) -> dict[str, str]:
    return {**machine.stamp(identity), "through": way.name}
