"""What XRT, its driver and the firmware report, as errors of npu.errors that say what to do.

pyxrt raises RuntimeError with the driver's text; error numbers stand in it as "(err=-22)"
(xdna-driver, src/shim/shim_debug.h). The meanings are those of the driver's sources and README.
"""

from __future__ import annotations

import errno
import re
from typing import Any

from npu import stream
from npu.errors import (
    ContextError,
    DeviceError,
    FirmwareError,
    HeapFullError,
    MemoryLockError,
    NpuError,
    RunAbortedError,
    RunTimeoutError,
    VersionError,
)

MORE_LOCKED_MEMORY = (
    'run "ulimit -l unlimited" first, or set memlock in /etc/security/limits.conf (on Fedora also '
    "LimitMEMLOCK in user@.service, in a container --ulimit memlock=-1)"
)
CHECK = 'see "npu doctor"'
HEAP_BYTES = 64 << 20  # of npu1, and what npu2 has at first
LOCK_LIMIT = (errno.EAGAIN, errno.ENOMEM, errno.EPERM)  # of memory that cannot be locked
UNKNOWN_OPERATION = 0xFFFFFFFF  # txn_op_idx of a firmware that does not know

_CONTEXT = {
    errno.ENOENT: "its heap for command streams is missing; open the device again",
    **dict.fromkeys(
        LOCK_LIMIT,
        "memory, or memory that may be locked, is short; close programs or " + MORE_LOCKED_MEMORY,
    ),
    errno.EINVAL: "the firmware refuses it: too many contexts are open on this machine, or the "
    "xclbin wants columns that the NPU does not have; end other programs that use the NPU",
    errno.ENODEV: "no columns of the array are free; end other programs that use the NPU",
}

_SVA = (
    "the driver cannot give the NPU the memory of this process (SVA): switch the IOMMU on in the "
    'BIOS, boot with "amd_iommu=on iommu=pt"'
)
# Of opening /dev/accel/accelN.
_NODE = {
    errno.EACCES: 'this user may not; "sudo usermod -aG render $USER" adds it to the group '
    '"render" that may, from the next login on',
    errno.EPERM: "the system denies access to /dev/accel; in a container pass "
    "--device /dev/accel/accel0",
    errno.ENOENT: '/dev/accel/accel0 is missing; load the driver with "sudo modprobe amdxdna"',
    errno.ENODEV: _SVA,
    errno.EINVAL: _SVA,
    errno.EOPNOTSUPP: _SVA + "; a container or virtual machine may have no SVA at all",
}

# Status codes of the firmware (xdna-driver, aie2_msg_priv.h).
_AIE_ERRORS = {3: "in a stream switch", 4: "in an access", 8: "of a lock", 9: "of a DMA channel"}
_FIRMWARE = {
    0x2000003: "no hardware context is left; end other programs that use the NPU",
    0x3000002: "an instruction of the command stream is not one it knows; build the configuration "
    "with this version of npu-xdna",
    0x3000003: "the configuration (PDI) could not be loaded; build the configuration again",
}


def number_of(error: BaseException) -> int | None:
    """The positive error number in a message of the driver."""
    found = re.search(r"\(err=-?(\d+)\)", str(error))
    return int(found.group(1)) if found else None


def _text(error: BaseException | str) -> str:
    return " ".join(str(error).split())[:300]


def is_lock_limit(error: Exception) -> bool:
    """Whether more memory would have to be locked than this process may."""
    return number_of(error) in LOCK_LIMIT or "failed to allocate BO" in str(error)


def is_unsupported(error: Exception) -> bool:
    return number_of(error) in (errno.EOPNOTSUPP, errno.ENOTTY)


def cannot_pin(error: Exception) -> bool:
    """Whether the driver takes no memory of users, or not of this kind: it is copied then."""
    return is_unsupported(error) or number_of(error) in (errno.EINVAL, errno.EFAULT)


def of_memory(function: str, size: int, error: Exception) -> NpuError:
    """A buffer of ``size`` bytes that the driver does not make or pin."""
    asked = f"[{function}] {size} bytes that the NPU reaches"
    if is_lock_limit(error):
        return MemoryLockError(
            f"{asked}: the driver may not lock that much memory ({_text(error)}); "
            + MORE_LOCKED_MEMORY
        )
    return DeviceError(f"{asked}: {_text(error)}; {CHECK}")


def of_sync(size: int, error: Exception) -> NpuError:
    """Bytes that do not get from the host to the NPU or back."""
    return DeviceError(f"[sync] {size} bytes that the NPU reaches: {_text(error)}; {CHECK}")


def heap_is_full(error: Exception) -> bool:
    """Whether there is no room for another command stream: neither in the heap, nor in a second
    part, which older firmware of npu2 does not support."""
    text = str(error)
    return (
        number_of(error) == errno.ENOSPC
        or "can't expand further" in text
        or (is_unsupported(error) and "CREATE_BO" in text)
    )


def full_heap(size: int, budget: int, refused: Exception | None) -> NpuError:
    """``refused``: what the driver says, if it was asked."""
    if refused is not None and not heap_is_full(refused):
        return of_memory("submit", size, refused)
    return HeapFullError(
        f"[submit] a command stream of {size} bytes: no room in the NPU's heap, of whose "
        f"{HEAP_BYTES >> 20} MiB streams may take {budget >> 20}, beside the streams of runs under "
        "way; wait for runs, or submit less at a time"
    )


def of_context(name: str, error: Exception) -> NpuError:
    """A hardware context that was refused."""
    asked = f'[load] a hardware context for configuration "{name}"'
    number = number_of(error)
    if heap_is_full(error):
        return ContextError(
            f"{asked}: the NPU's heap has no room for it ({_text(error)}); end other users of it "
            "in this process"
        )
    if number in _CONTEXT and "GET_INFO" not in str(error):
        return ContextError(f"{asked}: {_CONTEXT[number]} ({_text(error)})")
    code = _code_in(str(error))
    if code == 0x2000003:
        return ContextError(f"{asked}: {_FIRMWARE[code]} ({_text(error)})")
    return _versions(asked, error) or DeviceError(f"{asked}: {_text(error)}; {CHECK}")


def contexts_to_close(error: BaseException | None) -> int:
    """How many contexts it is worth closing for one that was refused: one where their number is
    the limit, any where memory or columns are, none else."""
    if not isinstance(error, Exception) or "GET_INFO" in str(error):
        return 0
    if heap_is_full(error) or number_of(error) in (errno.ENOMEM, errno.EAGAIN, errno.ENODEV):
        return 1000
    return int(number_of(error) == errno.EINVAL or _code_in(str(error)) == 0x2000003)


def of_xclbin(path: str, error: Exception, again: str) -> NpuError:
    """An xclbin that XRT does not take. ``again``: the command that builds it again."""
    return _versions(f"[load] {path}", error) or DeviceError(
        f"[load] {path}: XRT cannot use it ({_text(error)}); build the configuration again: {again}"
    )


def of_opening(error: Exception) -> NpuError:
    """A device that XRT cannot open or ask."""
    asked, text = "[device] xrt", str(error)
    if is_lock_limit(error) and ("mmap" in text or "BO" in text):
        return MemoryLockError(
            f"{asked}: opening the NPU locks {HEAP_BYTES >> 20} MiB of memory, more than this "
            f"process may ({_text(error)}); {MORE_LOCKED_MEMORY}"
        )
    found = f"{asked}: XRT cannot open the NPU ({_text(error)})"
    number = number_of(error)
    if re.search(r"Open \S+ failed", text) and number in _NODE:
        return DeviceError(f"{found}: {_NODE[number]}; {CHECK}")
    return _versions(asked, error) or DeviceError(f"{found}; {CHECK}")


def of_start(error: Exception) -> NpuError:
    """A run that the driver does not accept."""
    if is_lock_limit(error):
        return MemoryLockError(
            f"[submit] the driver may not lock the memory of the arguments ({_text(error)}); "
            + MORE_LOCKED_MEMORY
        )
    return _versions("[submit] a run", error) or DeviceError(
        f"[submit] the driver refuses the run ({_text(error)}); {CHECK}"
    )


def of_wait(error: Exception) -> NpuError:
    """A run that the driver cannot wait for."""
    return DeviceError(
        f"[wait] the driver does not say whether the run has ended ({_text(error)}); the hardware "
        f"context is built afresh for the next call; {CHECK}"
    )


def _versions(asked: str, error: Exception) -> NpuError | None:
    """EOPNOTSUPP means many things, but with these requests only one."""
    number, text = number_of(error), str(error)
    asking = "GET_INFO" in text or "GET_ARRAY" in text
    if (asking and number in (errno.EOPNOTSUPP, errno.EINVAL)) or (
        "EXEC_CMD" in text and number == errno.EOPNOTSUPP
    ):
        woken = "" if number_of(error) == errno.EOPNOTSUPP else ", or could not wake the NPU"
        return VersionError(
            f"{asked}: the amdxdna driver does not know a request of this XRT{woken} "
            f"({_text(error)}); the driver is older than XRT: install both from the same release"
            + (f", or {CHECK}" if woken else "")
        )
    return None


def of_run(state: str, detail: str, words: bytes, first: bool, again: str) -> NpuError:
    """A run that ended in another state than COMPLETED.

    ``state``: XRT's name of it. ``detail``: XRT's message. ``words``: the stream. ``first``: the
    run was the first of its context. ``again``: the command that builds the xclbin again.
    """
    if state.endswith("TIMEOUT"):
        found = re.search(r"txn_op_idx = 0x([0-9a-fA-F]+)", detail)
        index = found and int(found[1], 16)
        return timed_out("the driver's watchdog ended it", words, again, index)
    if state.endswith("ABORT") and first:
        return VersionError(
            "[wait] the first run after loading a configuration was aborted: firmware and driver "
            "do not fit each other, or another program tore the context down; update "
            f"linux-firmware and the amdxdna driver together, {CHECK}"
        )
    if state.endswith("ABORT"):
        return RunAbortedError(
            "[wait] the run was aborted: its hardware context was torn down while it was under way "
            "(another program's time-out, a reset, or suspend); call again, the configuration is "
            "loaded afresh"
        )
    code = _code_in(detail)
    return FirmwareError(
        f"[wait] the NPU ended the run with {state}: {_firmware_words(code, again)}; the "
        "configuration is loaded afresh for the next call"
    )


def timed_out(reason: str, words: bytes, again: str, index: Any = None) -> NpuError:
    """A run that did not end. ``again``: the command that builds the xclbin again; ``index``: of
    the stream operation that had been reached."""
    return RunTimeoutError(
        f"[wait] the run did not end: {reason}; {_reached(words, index)}; the hardware context is "
        "built afresh for the next call. If it happens again, the build does not fit the stream: "
        f'build the configuration again ({again}) and run "npu selftest"'
    )


def _reached(words: bytes, index: Any) -> str:
    lines = stream.disassemble(words).splitlines()[1:]
    if index is None or index == UNKNOWN_OPERATION or index >= len(lines):
        return f"which of its {len(lines)} operations it reached, neither driver nor firmware says"
    return f"operation {index} of {len(lines)} was reached: {' '.join(lines[index].split())}"


def _code_in(text: str) -> int | None:
    """A status code of the firmware in a message."""
    codes = [int(found, 16) for found in re.findall(r"0x([0-9a-fA-F]{7,8})\b", text)]
    return next((code for code in codes if 1 <= code >> 24 <= 4), None)


def _firmware_words(code: int | None, again: str) -> str:
    if code is None:
        return 'XRT passes no code on; the kernel log has it ("sudo dmesg | grep amdxdna")'
    if code in _FIRMWARE:
        how = f": {again}" if "build" in _FIRMWARE[code] else ""
        return f"firmware status {code:#x}, {_FIRMWARE[code]}{how}"
    if code >> 24 == 1:
        where = _AIE_ERRORS.get(code & 0xFF, "of the array")
        return (
            f"firmware status {code:#x}, an error {where}; run it on the emulator, which names it"
        )
    if code >> 24 == 4:
        return f"firmware status {code:#x}, input that it does not take; {CHECK}"
    return f"firmware status {code:#x}; {CHECK}"
