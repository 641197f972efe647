"""The device that the conformance suite runs on: each of NPU_TEST_DEVICES, separated by commas.

Default: both emulated NPUs, their test modes (emulator/residency.h), a device written in
Python (python_relay.py), and the device xrt of both generations over a test double of pyxrt
(tests/doubles). A new device is tested with
``NPU_TEST_DEVICES=mine pytest tests/conformance`` once it is registered or opened by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import npu

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "python"))  # what makes test models
sys.path.append(str(Path(__file__).parents[1] / "doubles"))
import python_relay
import xrt_devices

sys.path.pop()
sys.modules.pop("pyxrt", None)  # the double is not this machine's

DEFAULT = (
    "emu:npu1,emu:npu2,emu:npu1+reload,emu:npu2+reload-second,emu:npu2+reload-random-11,"
    "emu:npu1+intruder,emu:npu2+intruder,emu:npu1+replay,emu:npu2+replay,python:relay,"
    "double:npu1,double:npu2"
)
NAMES = [name for name in os.environ.get("NPU_TEST_DEVICES", DEFAULT).split(",") if name]

npu.register_device("python:relay", python_relay.Relay)
xrt_devices.register()


@pytest.fixture(params=NAMES)
def device(request: pytest.FixtureRequest) -> Iterator[npu.Device]:
    """The device under test, current; `silicon` devices compute everything bit-exactly."""
    with npu.device(request.param) as opened:
        yield opened
    machine = xrt_devices.pyxrt.machine
    assert not machine.violations and not machine.errors
