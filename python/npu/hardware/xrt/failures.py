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
UNKNOWN_OPERATION = 0xFFFFFFFF  # txn_op_idx of a firmware that does not know

_CONTEXT = {
    errno.ENOENT: "its heap for command streams is missing; open the device again",
    errno.ENOMEM: "memory, or memory that may be locked, is short; close programs or "
    + MORE_LOCKED_MEMORY,
    errno.EINVAL: "the firmware refuses it: too many contexts are open on this machine, or the "
    "xclbin wants columns that the NPU does not have; end other programs that use the NPU",
    errno.ENODEV: "no columns of the array are free; end other programs that use the NPU",
}

# Status codes of the firmware (xdna-driver, aie2_msg_priv.h).
_AIE_ERRORS = {3: "in a stream switch", 4: "in an access", 8: "of a lock", 9: "of a DMA channel"}
_FIRMWARE = {
    0x2000003: "no hardware context is left; end other programs that use the NPU",
    0x3000002: "an instruction of the command stream is not one it knows; build npu-xdna and the "
    "configuration from the same version",
    0x3000003: "the configuration (PDI) could not be loaded; build the configuration again",
}


def number_of(error: BaseException) -> int | None:
    """The positive error number in a message of the driver."""
    found = re.search(r"\(err=-?(\d+)\)", str(error))
    return int(found.group(1)) if found else None


def _text(error: BaseException | str) -> str:
    return " ".join(str(error).split())[:300]


def of_memory(function: str, size: int, error: Exception) -> NpuError:
    """A buffer of ``size`` bytes that the driver does not make or pin."""
    number = number_of(error)
    asked = f"[{function}] {size} bytes that the NPU reaches"
    if number in (errno.EAGAIN, errno.ENOMEM) or "failed to allocate BO" in str(error):
        return MemoryLockError(
            f"{asked}: the driver may not lock that much memory ({_text(error)}); "
            + MORE_LOCKED_MEMORY
        )
    return DeviceError(f"{asked}: {_text(error)}; {CHECK}")


def heap_is_full(error: Exception) -> bool:
    """Whether there is no room for another command stream."""
    return number_of(error) == errno.ENOSPC or "can't expand further" in str(error)


def full_heap(size: int, limit: int) -> NpuError:
    return HeapFullError(
        f"[submit] a command stream of {size} bytes: no room in the NPU's heap of {limit >> 20} "
        "MiB beside the streams of runs under way; wait for runs, or submit less at a time"
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


def of_xclbin(path: str, error: Exception) -> NpuError:
    """An xclbin that XRT does not take."""
    return _versions(f"[load] {path}", error) or DeviceError(
        f"[load] {path}: XRT cannot use it ({_text(error)}); build the configuration again"
    )


def of_opening(error: Exception) -> NpuError:
    """A device that XRT cannot open or ask."""
    return _versions("[device] xrt", error) or DeviceError(
        f"[device] xrt: XRT cannot open the NPU ({_text(error)}); {CHECK}"
    )


def of_start(error: Exception) -> NpuError:
    """A run that the driver does not accept."""
    if number_of(error) == errno.EAGAIN:
        return MemoryLockError(
            f"[submit] the driver may not lock the memory of the arguments ({_text(error)}); "
            + MORE_LOCKED_MEMORY
        )
    return _versions("[submit] a run", error) or DeviceError(
        f"[submit] the driver refuses the run ({_text(error)}); {CHECK}"
    )


def _versions(asked: str, error: Exception) -> NpuError | None:
    if number_of(error) == errno.EOPNOTSUPP or (
        "GET_INFO" in str(error) and number_of(error) == errno.EINVAL
    ):
        return VersionError(
            f"{asked}: the amdxdna driver does not know a request of this XRT ({_text(error)}); "
            "the driver is older than XRT: install both from the same release"
        )
    return None


def of_run(state: str, detail: str, words: bytes, first: bool) -> NpuError:
    """A run that ended in another state than COMPLETED.

    ``state``: XRT's name of it. ``detail``: XRT's message. ``words``: the stream. ``first``: the
    run was the first of its context.
    """
    if state.endswith("TIMEOUT"):
        found = re.search(r"txn_op_idx = 0x([0-9a-fA-F]+)", detail)
        return timed_out("the driver's watchdog ended it", words, found and int(found[1], 16))
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
        f"[wait] the NPU ended the run with {state}: {_firmware_words(code)}; the configuration is "
        "loaded afresh for the next call"
    )


def timed_out(reason: str, words: bytes, index: Any = None) -> NpuError:
    """A run that did not end. ``index``: of the stream operation that had been reached."""
    return RunTimeoutError(
        f"[wait] the run did not end: {reason}; {_reached(words, index)}; the hardware context is "
        "built afresh for the next call. If it happens again, the build does not fit the stream: "
        'build the configuration again and run "npu selftest"'
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


def _firmware_words(code: int | None) -> str:
    if code is None:
        return 'XRT passes no code on; the kernel log has it ("sudo dmesg | grep amdxdna")'
    if code in _FIRMWARE:
        return f"firmware status {code:#x}, {_FIRMWARE[code]}"
    if code >> 24 == 1:
        where = _AIE_ERRORS.get(code & 0xFF, "of the array")
        return (
            f"firmware status {code:#x}, an error {where}; run it on the emulator, which names it"
        )
    if code >> 24 == 4:
        return f"firmware status {code:#x}, input that it does not take; {CHECK}"
    return f"firmware status {code:#x}; {CHECK}"
