"""What a process needs of the system to use the NPU: IOMMU, device node, permission, locked memory.

Errors of opening the node: the driver binds the process's page tables (SVA) there; -19 ENODEV means
no IOMMU, -95 EOPNOTSUPP one that cannot (xdna-driver#704, #1028; containers: lemonade#1771).
"""

from __future__ import annotations

import re

from npu.hardware.doctor import distribution as install
from npu.hardware.doctor.kernel import iommu_off
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.parse import shown
from npu.hardware.doctor.result import Fix, Result, broken, ok, unknown
from npu.hardware.doctor.system import UNLIMITED, Stat

_SVA_ERRORS = ("ENODEV", "EOPNOTSUPP", "ENOSPC")
_HEAP = 64 << 20  # bytes of a context's device heap, which is locked memory
_GENEROUS = 4 << 30  # weights are locked too
_CONTAINER = (
    "docker run --device /dev/accel/accel0 --ulimit memlock=-1:-1 \\\n"
    "  --group-add $(getent group render | cut -d: -f3) IMAGE"
)


def probe_iommu(machine: Machine) -> Result:
    """Switched on, and able to share page tables with the NPU."""
    assert machine.npu is not None
    if word := iommu_off(machine):
        text = f"{word} on the kernel's command line switches the IOMMU off; the NPU needs it."
        fix = Fix(text, install.boot_words(machine.distribution, remove=word))
        return broken(f"off by {word}", fix)
    kind = machine.system.text(f"{machine.npu.folder}/iommu_group/type")
    kind = kind if re.fullmatch(r"[A-Za-z-]{1,20}", kind) else ""
    if machine.system.names("/sys/class/iommu") == ():
        text = (
            'The IOMMU is off. Switch on "IOMMU" (and "SVM") in the firmware set-up; if it is on, '
            "ask the kernel for it."
        )
        words = install.boot_words(machine.distribution, add="amd_iommu=on iommu=pt")
        return broken("the kernel has no IOMMU", Fix(text, words))
    error = machine.opened.error if machine.opened else None
    line = machine.system.log("SVA bind device failed", "Enable PASID failed")
    if error in _SVA_ERRORS or (line and machine.driver_name is None):
        return _no_sva(machine, error, line)
    return ok(f"on{f', {kind}' if kind else ''}", type=kind or None)


def _no_sva(machine: Machine, error: str | None, line: str | None) -> Result:
    code = error or shown((line or "").rpartition("ret ")[2], 12)
    if machine.container and code in ("EOPNOTSUPP", "-95"):
        text = (
            f"The NPU's driver cannot share page tables with a process in this container ({code}). "
            "Run on the host, or update the host's kernel and driver; then, with Docker or Podman:"
        )
        return broken(f"no SVA in this container ({code})", Fix(text, (_CONTAINER,)))
    text = (
        f"The driver cannot share page tables with the NPU (SVA, {code}). Switch on IOMMU in the "
        "firmware set-up and ask the kernel for it; a kernel that was just updated needs a restart."
    )
    words = install.boot_words(machine.distribution, add="amd_iommu=on iommu=pt")
    return broken(f"on, but SVA fails ({code})", Fix(text, words))


def probe_node(machine: Machine) -> Result:
    """/dev/accel/accelN: there, and this user may open it."""
    node = machine.node
    if node is None:
        return unknown("the driver shows no node for the NPU")
    found = machine.system.stat(node)
    if found is None:
        if machine.container:
            text = f"{node} was not passed to this container. With Docker or Podman:"
            return broken(f"{node} is not in this container", Fix(text, (_CONTAINER,)))
        text = f"The driver runs but {node} is missing: udev did not make it."
        return broken(f"{node} is missing", Fix(text, ("sudo udevadm trigger", "ls -l /dev/accel")))
    error = machine.opened.error if machine.opened else None
    seen = f"{node} {found.owner}:{found.group} {found.mode:04o}"
    if error in ("EACCES", "EPERM"):
        return _denied(machine, node, found, seen)
    if error == "TIMEOUT":
        text = f"Opening {node} hangs: the driver waits for the NPU. Load it again, or power off."
        return broken(f"{node} cannot be opened: it hangs", Fix(text, (install.RELOAD,)))
    if error:
        text = f"Opening {node} fails with {shown(error, 20)}. The kernel's log says why."
        fix = Fix(text, ("sudo dmesg | grep amdxdna | tail", install.RELOAD))
        return broken(f"{node} cannot be opened: {shown(error, 20)}", fix)
    return ok(seen, node=node)


def _denied(machine: Machine, node: str, found: Stat, seen: str) -> Result:
    user, group = machine.system.user(), found.group
    shared = found.mode & 0o060 == 0o060
    if machine.container:
        text = (
            f"The container passes {node} without the group that may open it. With Docker or "
            "Podman:"
        )
        return broken(f"{seen}: not permitted", Fix(text, (_CONTAINER,)))
    if not shared or group in ("root", "nogroup"):
        text = f"{node} is open to root only. A udev rule gives it to the group render."
        rule = 'SUBSYSTEM=="accel", GROUP="render", MODE="0660"'
        commands = (
            f"echo '{rule}' | \\\n  sudo tee /etc/udev/rules.d/70-npu.rules",
            "sudo udevadm control --reload && sudo udevadm trigger -s accel",
            "sudo usermod -aG render $USER   # then log out and in",
        )
        return broken(f"{seen}: root only", Fix(text, commands))
    if group in user.granted and group not in user.groups:
        text = f"You are in the group {group} since your last login. Log out and in, or:"
        return broken(f"{seen}: log in again", Fix(text, (f"newgrp {group}",)))
    text = (
        f"{node} may be opened by the group {group}, which you are not in. Join it, then log out "
    )
    fix = Fix(text + "and in.", (f"sudo usermod -aG {group} $USER",))
    return broken(f"{seen}: not in group {group}", fix)


def probe_memory_lock(machine: Machine) -> Result:
    """RLIMIT_MEMLOCK: everything the NPU reads or writes is locked in memory."""
    soft, hard = machine.system.memory_lock()
    values = {"soft": soft, "hard": hard}
    if soft == UNLIMITED:
        return ok("unlimited", **values)
    if machine.system.user().root and not machine.container:
        return ok(f"{_size(soft)}, which does not bind root", **values)
    if soft >= _GENEROUS:
        return ok(_size(soft), **values)
    if soft > 2 * _HEAP:
        note = f"memory-lock limit {_size(soft)}: models beyond it fail with EAGAIN"
        return ok(f"{_size(soft)}, enough for small models", note, **values)
    text = (
        f"A process may lock {_size(soft)}; a context of the NPU takes {_size(_HEAP)}, weights take"
        " their own size. "
    )
    if machine.container:
        return broken(
            f"{_size(soft)}", Fix(text + "With Docker or Podman:", (_CONTAINER,)), **values
        )
    if hard == UNLIMITED:
        fix = Fix(text + "Raise it in this shell:", ("ulimit -l unlimited",))
        return broken(f"{_size(soft)} (hard limit: none)", fix, **values)
    commands = install.unlimited_memory_lock(machine.distribution)
    fix = Fix(text + "Raise the limit, then restart (log out and in at least).", commands)
    return broken(f"{_size(soft)} is too little", fix, **values)


def _size(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size:
            return (
                f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count // size} {unit}"
            )
    return f"{count} bytes"
