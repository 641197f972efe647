"""The exception classes of the package.

Every message reads ``[function] what was asked, what was found, what to do``. ``kind`` is a short
stable name ("deadlock", "shape", ...) for programs that want to tell errors of one class apart.
"""

from __future__ import annotations


class NpuError(Exception):
    """Base of all errors raised by the package."""

    kind: str = "error"


class ArgumentError(NpuError, ValueError):
    """A value that no operation accepts."""

    kind = "argument"


class ShapeError(ArgumentError):
    """Array shapes that are invalid or do not match."""

    kind = "shape"


class DtypeError(NpuError, TypeError):
    """An element type, or a pair of them, that is not supported."""

    kind = "dtype"


class FormatError(NpuError, ValueError):
    """A file or byte string that does not parse: stream, configuration, model."""

    kind = "format"


class FileError(NpuError, OSError):
    """A file that cannot be written: no space, no permission."""

    kind = "file"


class DeviceError(NpuError, RuntimeError):
    """A device that is unknown, unavailable, or does not support the request."""

    kind = "device"


class RunTimeoutError(DeviceError):
    """A run on the NPU that did not end in time; the message names the operation reached."""

    kind = "timeout"


class RunAbortedError(DeviceError):
    """A run that ended because its hardware context was torn down."""

    kind = "abort"


class FirmwareError(DeviceError):
    """A command that the NPU's firmware refused or that failed in the array."""

    kind = "firmware"


class ContextError(DeviceError):
    """A hardware context that the driver does not give."""

    kind = "context"


class HeapFullError(DeviceError):
    """No room for a command stream in the memory that the NPU's firmware reads streams from."""

    kind = "heap"


class MemoryLockError(DeviceError):
    """More locked memory than the system lets the process have."""

    kind = "memory_lock"


class GenerationError(DeviceError):
    """A configuration or build of the other generation of NPUs."""

    kind = "generation"


class VersionError(DeviceError):
    """Driver, firmware and XRT that do not fit each other."""

    kind = "versions"


class MissingBuildError(DeviceError):
    """A configuration that has not been built for the NPU; the message has the command."""

    kind = "build"


class MissingXrtError(DeviceError):
    """XRT, what calls it (pyxrt or libnpu_xrt.so), or the NPU that it should show, is not there."""

    kind = "xrt"


class StreamError(NpuError, RuntimeError):
    """A runtime stream that touches what it may not."""

    kind = "forbidden"


class EmulatorError(NpuError, RuntimeError):
    """An error of the program that the emulated NPU runs; ``kind`` says which."""


class DeadlockError(EmulatorError):
    """No agent of the array can make progress; the message names what each waits for."""

    kind = "deadlock"


class ScheduleError(EmulatorError):
    """A program of bundles that breaks a rule of the core it runs on; the message names both."""

    kind = "schedule"


class DesignError(NpuError, ValueError):
    """A design that does not fit the hardware; the message names the limit."""

    kind = "design"


class BuildError(NpuError, RuntimeError):
    """A build for the hardware that cannot start, fails, or breaks a limit; the message names the
    tool and its log, or the core and its kernels."""

    kind = "build"


_CLASSES: dict[str, type[NpuError]] = {
    "argument": ArgumentError,
    "shape": ShapeError,
    "dtype": DtypeError,
    "format": FormatError,
    "device": DeviceError,
    "unavailable": DeviceError,
    "forbidden": StreamError,
    "deadlock": DeadlockError,
    "timeout": RunTimeoutError,
    "abort": RunAbortedError,
    "firmware": FirmwareError,
    "context": ContextError,
    "heap": HeapFullError,
    "memory_lock": MemoryLockError,
    "generation": GenerationError,
    "versions": VersionError,
    "build": MissingBuildError,
    "xrt": MissingXrtError,
}


def make_error(kind: str, message: str) -> NpuError:
    """The exception object for an error kind of the C++ core (called by the extension)."""
    error = _CLASSES.get(kind, EmulatorError)(message)
    error.kind = kind
    return error
