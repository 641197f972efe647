"""DEVICES: what numerical tests run on, else both emulated NPUs.

Names from NPU_TEST_DEVICES, separated by commas. Tests of one device's own behaviour name it.
"""

from __future__ import annotations

import os

DEVICES = tuple(
    name for name in os.environ.get("NPU_TEST_DEVICES", "emu:npu1,emu:npu2").split(",") if name
)
