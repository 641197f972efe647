"""The NPUs that the package knows: PCI ids, generations and names.

Ids: drivers/accel/amdxdna/amdxdna_pci_drv.c of the Linux kernel and of amd/xdna-driver, which match
device and revision. A configuration for another NPU gives zeros or hangs it, so that what is not in
these tables is refused.
"""

from __future__ import annotations

import dataclasses
import re

VENDOR = 0x1022  # AMD


@dataclasses.dataclass(frozen=True)
class Kind:
    """``firmware``: its folder below amdnpu of the firmware files."""

    generation: str
    name: str
    firmware: str


# By device and revision.
KNOWN = {
    (0x1502, 0x00): Kind("npu1", "NPU Phoenix or Hawk Point", "1502_00"),
    (0x17F0, 0x10): Kind("npu2", "NPU Strix", "17f0_10"),
    (0x17F0, 0x11): Kind("npu2", "NPU Strix Halo", "17f0_11"),
    (0x17F0, 0x20): Kind("npu2", "NPU Krackan", "17f0_10"),
}
DEVICES = frozenset(device for device, _ in KNOWN)
AIE4 = frozenset((0x17F1, 0x17F2, 0x17F3, 0x1B0A, 0x1B0B, 0x1B0C))  # other instructions
# Of the names that XRT and the driver give ("NPU Strix Halo", "RyzenAI-npu4").
_NAMES = (
    (r"npu1(?!\d)|\bphoenix\b|\bhawk", "npu1"),
    (r"npu[456](?!\d)|\bstrix\b|\bkrackan\b|\bgorgon\b", "npu2"),
)


def generation_of_name(name: str) -> str | None:
    """The generation of an NPU by its name; None for a name that is not known."""
    found = (generation for pattern, generation in _NAMES if re.search(pattern, name, re.I))
    return next(found, None)
