"""Writes the records of machines/: `python machine_records.py` (the package importable).

None was recorded on an NPU: each is put together from the public report or page that its `origin`
names, from three healthy machines and what that report changes. The kernel's messages and the
layout of xrt-smi's output are those of the reports. The machines are in
machines_below.py and machines_above.py; test_doctor_machines.py says what is expected.
"""

from __future__ import annotations

import machines_above  # noqa: F401
import machines_below  # noqa: F401
from machine_base import FOLDER, MACHINES, as_text, fails, module

__all__ = ["FOLDER", "MACHINES", "as_text", "fails", "module"]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in MACHINES.items():
        (FOLDER / f"{name}.json").write_text(as_text(make()))


if __name__ == "__main__":
    main()
