"""The present machine. Every command has a time limit, every read a size limit; nothing raises."""

from __future__ import annotations

import contextlib
import functools
import getpass
import grp
import json
import os
import pwd
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from npu.hardware.build import cache, places
from npu.hardware.doctor import privacy
from npu.hardware.doctor.system import (
    COMMAND_SECONDS,
    ENVIRONMENT,
    LIMIT,
    MAX_NAMES,
    NPU_GROUPS,
    UNLIMITED,
    Command,
    OpenedNode,
    Python,
    Stat,
    System,
    User,
)

_TOOL_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/bin", "/opt/xilinx/xrt/bin")
_OPEN_SECONDS = 10.0
_LOG_BYTES = 8 << 20
_NO_LOG = 200  # bytes of journalctl's remark that there is nothing to see
_KILL_SECONDS = 1.0  # until a killed process is left behind: it may hang in the kernel


class LiveSystem(System):
    """This machine, this process."""

    def __init__(self) -> None:
        self._scrub = privacy.Scrubber(os.path.expanduser("~"), own_names())
        self._log: tuple[str, ...] | None = None
        self._log_read = False

    def private(self, text: str) -> str:
        return self._scrub(text)

    def home(self) -> str:
        return os.path.expanduser("~")

    def read(self, path: str) -> str | None:
        try:
            # No blocking: a path may turn out to be a pipe.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            data = _read_some(handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        return privacy.reduced(path, data.decode(errors="replace"))

    def names(self, path: str) -> tuple[str, ...] | None:
        try:
            with os.scandir(path) as entries:
                found = sorted(
                    entry.name for entry, _ in zip(entries, range(MAX_NAMES), strict=False)
                )
        except OSError:
            return None
        return tuple(found)

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(path)
        except OSError:
            return None

    def stat(self, path: str) -> Stat | None:
        try:
            found = os.stat(path)
            access = os.access(path, os.R_OK | os.W_OK)
        except (OSError, ValueError):
            return None
        kinds = (
            (stat.S_ISREG, "file"),
            (stat.S_ISDIR, "folder"),
            (stat.S_ISCHR, "character device"),
        )
        kind = next((name for test, name in kinds if test(found.st_mode)), "other")
        owner, group = _owner(found.st_uid), _group(found.st_gid)
        return Stat(kind, stat.S_IMODE(found.st_mode), owner, group, found.st_size, access)

    def command(self, *words: str, seconds: float = COMMAND_SECONDS) -> Command | None:
        program = sys.executable if words[0] == "python" else _which(words[0])
        if program is None:
            return None
        return run((program, *words[1:]), seconds)

    def opened(self, path: str) -> OpenedNode | None:
        if not os.path.exists(path):
            return None
        script = str(Path(__file__).with_name("open_node.py"))
        done = run((sys.executable, "-I", "-S", script, path), _OPEN_SECONDS)
        if done is None or done.timed_out:
            return OpenedNode("TIMEOUT")
        try:
            answer = json.loads(done.output)
            version = answer.get("version")
            return OpenedNode(
                answer["error"], answer.get("driver"), tuple(version) if version else None
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return OpenedNode("EIO")

    def kernel_log(self) -> tuple[str, ...] | None:
        if not self._log_read:
            self._log, self._log_read = self._read_log(), True
        return self._log

    def _read_log(self) -> tuple[str, ...] | None:
        journal = ("journalctl", "-k", "-b", "-q", "-o", "cat", "--no-pager")
        for name, *options in (journal, ("dmesg",)):
            program = _which(name)
            done = program and run((program, *options), COMMAND_SECONDS, _LOG_BYTES)
            if done and done.exit == 0 and len(done.output) > _NO_LOG:
                return privacy.kernel_lines(done.output)
        return None

    def environment(self, name: str) -> str | None:
        assert name in ENVIRONMENT
        return os.environ.get(name)

    def user(self) -> User:
        with contextlib.suppress(OSError):
            mine = {_group(number) for number in (*os.getgroups(), os.getegid())}
            granted = {g.gr_name for g in grp.getgrall() if _user() in g.gr_mem} | mine
            return User(
                os.geteuid() == 0,
                tuple(name for name in NPU_GROUPS if name in mine),
                tuple(name for name in NPU_GROUPS if name in granted),
            )
        return User(os.geteuid() == 0, (), ())

    def memory_lock(self) -> tuple[int, int]:
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        infinity = resource.RLIM_INFINITY
        return UNLIMITED if soft == infinity else soft, UNLIMITED if hard == infinity else hard

    def python(self) -> Python:
        abi = (sysconfig.get_config_var("SOABI") or "").rsplit("-x86_64", 1)[0]
        version = ".".join(str(part) for part in sys.version_info[:3])
        return Python(version, abi, sys.prefix != sys.base_prefix, places.interpreter())

    def program(self, name: str) -> str | None:
        return shutil.which(name)

    def package(self, name: str) -> str | None:
        return places.package(name)

    def xclbins(self) -> tuple[str, ...] | None:
        return self._entries and self._entries[0]

    def damaged_xclbins(self) -> tuple[str, ...] | None:
        return self._entries and self._entries[1]

    @functools.cached_property
    def _entries(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Complete and damaged entries of the cache of xclbins, as "npu2/ARTEFACT"; None if it
        cannot be read. All files are compared with their hashes, so once."""
        try:
            complete, damaged = cache.examined()
            return _artefacts([entry.folder for entry in complete]), _artefacts(damaged)
        except Exception:
            return None


def _artefacts(folders: list[Path]) -> tuple[str, ...]:
    return tuple(sorted(f"{folder.parent.name}/{folder.name}" for folder in folders))


def run(words: tuple[str, ...], seconds: float, limit: int = LIMIT) -> Command | None:
    """Runs a program in a session of its own, and ends it when its time is over (exit None) or it
    has printed ``limit`` bytes (exit -9). None: it cannot be started."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, env=environment,
        )  # fmt: skip
    except (OSError, ValueError):
        return None
    assert process.stdout is not None
    end = time.monotonic() + seconds
    try:
        data = _output(process, process.stdout.fileno(), end, limit)
        if len(data) >= limit:
            _kill(process)
            return Command(-signal.SIGKILL, data.decode(errors="replace"))
        try:
            code: int | None = process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            _kill(process)
            code = None
    except BaseException:  # Ctrl-C too
        _kill(process)
        raise
    finally:
        process.stdout.close()
    return Command(code, data.decode(errors="replace"))


def _output(process: subprocess.Popen[bytes], handle: int, end: float, limit: int) -> bytes:
    """What a process prints until it ends, or until its time or ``limit`` bytes are over."""
    os.set_blocking(handle, False)
    data = bytearray()
    while len(data) < limit and time.monotonic() < end:
        ended = process.poll() is not None  # before the read: nothing is lost
        try:
            part = os.read(handle, limit - len(data))
        except BlockingIOError:
            if ended:  # a grandchild keeps the pipe open
                break
            time.sleep(0.01)
            continue
        if not part:
            break
        data += part
    return bytes(data)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it started; one that hangs in the kernel is left behind."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


def _read_some(handle: int) -> bytes:
    """The first LIMIT bytes of a file."""
    data = b""
    while len(data) < LIMIT and (part := os.read(handle, LIMIT - len(data))):
        data += part
    return data


def _which(name: str) -> str | None:
    folders = [os.environ.get("PATH", os.defpath)]
    if xrt := os.environ.get("XILINX_XRT"):
        folders.append(os.path.join(xrt, "bin"))
    return shutil.which(name, path=os.pathsep.join([*folders, *_TOOL_FOLDERS]))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def own_names() -> list[str]:
    """Of the user and the host."""
    host = socket.gethostname()
    return [name for name in (_user(), host, host.partition(".")[0]) if name]


def _owner(number: int) -> str:
    """ "root" or another system account's name; a person's is left out."""
    if 0 < number < 1000 or number == 0:
        with contextlib.suppress(KeyError):
            return pwd.getpwuid(number).pw_name
    return "nobody" if number == 65534 else "USER"


def _group(number: int) -> str:
    try:
        name = grp.getgrgid(number).gr_name
    except KeyError:
        return "nogroup" if number == 65534 else str(number)
    return name if number < 1000 or name in NPU_GROUPS else "GROUP"
