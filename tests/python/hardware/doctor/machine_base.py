"""What broken machines are made of: the registry of records, and what several have in common."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from healthy_machines import (
    AIECC,
    DEVICE,
    MODULE,
    MODULE_FILE,
    NO_PYXRT,
    NODE,
    PCI,
    PEANO,
    PYXRT,
    XCLBINUTIL,
    Record,
    done,
    halo_fedora,
    phoenix_arch,
    strix_ubuntu,
)

FOLDER = Path(__file__).parent / "machines"


# What the machines have in common that is broken in one way.


def without_npu(record: Record) -> None:
    record["folders"]["/sys/bus/pci/devices"] = ["0000:00:00.0"]
    record["files"] = {p: t for p, t in record["files"].items() if not p.startswith(PCI)}
    without_driver(record)


def without_driver(record: Record) -> None:
    """Nothing has loaded amdxdna."""
    record["folders"].pop("/sys/module/amdxdna", None)
    not_started(record)
    record["kernel_log"] = ["AMD-Vi: Interrupt remapping enabled"]


def not_started(record: Record, *log: str) -> None:
    """amdxdna is loaded and gave the NPU up."""
    for part, name in (
        ("links", f"{PCI}/driver"), ("folders", f"{PCI}/accel"), ("files", f"{PCI}/fw_version"),
        ("stats", NODE), ("opened", NODE),
    ):  # fmt: skip
        record[part].pop(name, None)
    record["commands"]["xrt-smi examine"] = done("XRT\n  Version : 2.25.0\n  0 devices found\n")
    record["kernel_log"] = list(log)


def without_xrt(record: Record) -> None:
    for part in ("stats", "links"):
        record[part] = {p: v for p, v in record[part].items() if "libxrt" not in p}
    record["commands"] = {n: v for n, v in record["commands"].items() if "xrt-smi" not in n}
    record["commands"][PYXRT] = done(NO_PYXRT, 1)


def without_tools(record: Record, *tools: str) -> None:
    """None of aiecc, Peano's clang++ and xclbinutil, or not some of them."""
    for path in (AIECC, PEANO, XCLBINUTIL):
        if not tools or path in tools:
            record["stats"].pop(path)
            for part in ("packages", "programs"):
                record[part] = {n: p for n, p in record[part].items() if not path.startswith(p)}


def fails(record: Record, kind: str, message: str) -> None:
    outcome = {"outcome": "error", "kind": kind, "message": message}
    record["commands"][DEVICE] = done(json.dumps(outcome) + "\n")


def module(**said: object) -> dict[str, Any]:
    """What the command says that loads libnpu_xrt.so."""
    return done(json.dumps({"path": MODULE_FILE, **said}) + "\n")


def with_module(record: Record, **said: object) -> None:
    """It is there, and pyxrt is not."""
    record["commands"][PYXRT] = done(NO_PYXRT, 1)
    record["commands"][MODULE] = module(**said)


MACHINES: dict[str, Callable[[], Record]] = {
    "healthy_npu2_ubuntu": strix_ubuntu,
    "healthy_npu2_fedora": halo_fedora,
    "healthy_npu1_arch": phoenix_arch,
}


def machine(base: Callable[[], Record], origin: str) -> Callable[..., Callable[[], Record]]:
    """Registers a machine: a base, and a function that breaks it."""

    def register(change: Callable[[Record], None]) -> Callable[[], Record]:
        def make() -> Record:
            record = copy.deepcopy(base())
            record["origin"] = f"put together after {origin}"
            change(record)
            return record

        MACHINES[change.__name__] = make
        return make

    return register


def as_text(record: Record) -> str:
    """One line per file, folder or command."""
    parts = []
    for name, value in record.items():
        text = json.dumps(value)
        if isinstance(value, dict) and value:
            rows = (f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
            text = "{\n" + ",\n".join(rows) + "\n }"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
