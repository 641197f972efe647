"""The one object through which the probes see a machine: files, commands, limits, environment.

``LiveSystem`` (live.py) is the present machine, ``ReplaySystem`` (record.py) one that was recorded.
Nothing here raises for a missing or damaged machine: what cannot be read is None.
"""

from __future__ import annotations

import abc
import dataclasses

LIMIT = 64 << 10  # bytes that are read of a file or of a command's output
MAX_NAMES = 4096  # entries of a folder
COMMAND_SECONDS = 20.0
UNLIMITED = -1  # a memory-lock limit


@dataclasses.dataclass(frozen=True)
class Stat:
    """Of a file. ``mode``: permission bits; ``access``: this user may read and write it."""

    kind: str  # "file", "folder", "character device", "other"
    mode: int
    owner: str
    group: str
    size: int
    access: bool


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that ran: its exit code (None: stopped after its time) and both its outputs."""

    exit: int | None
    output: str

    @property
    def timed_out(self) -> bool:
        return self.exit is None


@dataclasses.dataclass(frozen=True)
class OpenedNode:
    """What opening a device node gave. ``error``: None, an errno name or "TIMEOUT"; ``driver`` and
    ``version``: of DRM_IOCTL_VERSION."""

    error: str | None
    driver: str | None = None
    version: tuple[int, int, int] | None = None


@dataclasses.dataclass(frozen=True)
class User:
    """Of this process. ``groups``: those of NPU_GROUPS it has; ``granted``: those that the user
    database gives at the next login."""

    root: bool
    groups: tuple[str, ...]
    granted: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Python:
    """The interpreter that runs. ``abi``: the tag of its extension modules ("cpython-312")."""

    version: str
    abi: str
    virtual: bool  # a virtual environment
    program: str = "python3"  # how a shell calls it


NPU_GROUPS = ("render", "video")
# The only environment variables that are read.
ENVIRONMENT = (
    "LD_LIBRARY_PATH", "XILINX_XRT", "MLIR_AIE_INSTALL_DIR", "PEANO_INSTALL_DIR", "AIE_XCLBINUTIL",
)  # fmt: skip


class System(abc.ABC):
    """A machine as the probes see it. Paths are absolute."""

    @abc.abstractmethod
    def read(self, path: str) -> str | None:
        """The first LIMIT bytes of a file as text (damaged bytes replaced); None: unreadable."""

    @abc.abstractmethod
    def names(self, path: str) -> tuple[str, ...] | None:
        """The sorted entries of a folder, at most MAX_NAMES; None: no readable folder."""

    @abc.abstractmethod
    def link(self, path: str) -> str | None:
        """What a symbolic link holds; None: no link."""

    @abc.abstractmethod
    def stat(self, path: str) -> Stat | None:
        """Of the file a path leads to; None: not there."""

    @abc.abstractmethod
    def command(self, *words: str, seconds: float = COMMAND_SECONDS) -> Command | None:
        """Runs a command with an empty input; ``python`` is this interpreter; None: not there."""

    @abc.abstractmethod
    def opened(self, path: str) -> OpenedNode | None:
        """Opens a device node for reading and writing, and closes it; None: not there."""

    @abc.abstractmethod
    def kernel_log(self) -> tuple[str, ...] | None:
        """Lines of the kernel's log about amdxdna and the IOMMU; None: not readable."""

    @abc.abstractmethod
    def environment(self, name: str) -> str | None:
        """A variable of ENVIRONMENT."""

    @abc.abstractmethod
    def user(self) -> User: ...

    @abc.abstractmethod
    def home(self) -> str:
        """The user's home folder."""

    @abc.abstractmethod
    def memory_lock(self) -> tuple[int, int]:
        """Soft and hard limit in bytes (RLIMIT_MEMLOCK), UNLIMITED for none."""

    @abc.abstractmethod
    def python(self) -> Python: ...

    @abc.abstractmethod
    def program(self, name: str) -> str | None:
        """Where PATH has a program."""

    @abc.abstractmethod
    def package(self, name: str) -> str | None:
        """The folder of a package that is installed for this Python."""

    @abc.abstractmethod
    def xclbins(self) -> tuple[str, ...] | None:
        """What `npu build` has built, as "npu2/ARTEFACT"; None: cannot be told."""

    @abc.abstractmethod
    def damaged_xclbins(self) -> tuple[str, ...] | None:
        """The same of entries that are damaged."""

    def private(self, text: str) -> str:
        """A text as it may leave the machine: without names of users and hosts. What probes see
        and what a user reads and types has them."""
        return text

    def text(self, path: str) -> str:
        """``read`` without surrounding blanks; "" where there is nothing."""
        return (self.read(path) or "").strip()

    def log(self, *patterns: str) -> str | None:
        """The last line of the kernel's log that contains one of some words."""
        lines = [line for line in self.kernel_log() or () if any(word in line for word in patterns)]
        return lines[-1] if lines else None
