"""The ways from Python to the NPU: pyxrt, or the C++ device through libnpu_xrt.so.

pyxrt is compiled for one version of Python, usually the distribution's. Programs of another Python
take the device of the C++ library (docs/cpp.md), whose module ``npu build --xrt`` makes for the XRT
of this machine. Both are the same device to everything above.
"""

from __future__ import annotations

import dataclasses

from npu import _npu
from npu.errors import MissingXrtError, VersionError
from npu.hardware.xrt import machine


@dataclasses.dataclass(frozen=True)
class Way:
    """``name``: "pyxrt" or "module"; ``reason``: why, in words."""

    name: str
    reason: str


def choose(asked: str | None = None) -> Way:
    """The way of that name; by default pyxrt where it can be used, else the module where there is
    one. Raises what ``machine.import_pyxrt`` raises."""
    if asked is not None:
        return Way(asked, f"through {asked}")
    try:
        machine.import_pyxrt()
    except (MissingXrtError, VersionError) as error:
        module = _npu.device.xrt_module()
        if module is None:
            raise type(error)(
                f"{error}; programs of any Python reach it through libnpu_xrt.so, which "
                '"npu build --xrt" makes'
            ) from error
        return Way("module", f"through {module}, because this Python has no pyxrt that it can use")
    return Way("pyxrt", "through pyxrt")


def identity(way: Way) -> machine.Identity:
    """The NPU that it leads to. Raises MissingXrtError, GenerationError, VersionError,
    DeviceError."""
    if way.name == "pyxrt":
        return machine.first_npu(machine.import_pyxrt())[1]
    return machine.Identity(**_npu.device.xrt_identity())
