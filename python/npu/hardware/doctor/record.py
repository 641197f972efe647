"""Records of machines: everything the probes asked, in one JSON file, and the machine it replays.

    {"schema": "npu-doctor-record/1", "version": ..., "origin": ...,
     "files": {path: text or {"base64": ...}}, "folders": {path: [name, ...]},
     "links": {path: target}, "stats": {path: {kind, mode, owner, group, size, access}},
     "commands": {"word word": {"exit": n or null, "output": text}}, "opened": {path: {error, ...}},
     "kernel_log": [line, ...] or null, "environment": {name: value}, "user": {...},
     "memory_lock": [soft, hard], "python": {...}, "programs": {name: path},
     "packages": {name: folder}, "xclbins": [name, ...] or null, "damaged_xclbins": the same}

What is not in a record is not there on its machine.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import json
import os
import shlex
from pathlib import Path
from typing import Any

from npu.errors import FileError, FormatError
from npu.hardware.doctor import privacy
from npu.hardware.doctor.system import (
    COMMAND_SECONDS,
    LIMIT,
    UNLIMITED,
    Command,
    OpenedNode,
    Python,
    Stat,
    System,
    User,
)

SCHEMA = "npu-doctor-record/1"
_MAX_BYTES = 16 << 20  # of a record
_SHORT = 4096  # characters of a name, a path or a log line


class Recorder(System):
    """Passes everything on to another system, and remembers question and answer."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.record: dict[str, Any] = {
            "files": {}, "folders": {}, "links": {}, "stats": {}, "commands": {}, "opened": {},
            "environment": {}, "programs": {}, "packages": {},
        }  # fmt: skip

    def private(self, text: str) -> str:
        return self._system.private(text)

    def home(self) -> str:
        return self._system.home()

    def _kept(self, part: str, key: str, answer: Any, stored: Any) -> Any:
        """Remembers question and answer without names, and passes the answer on as it is."""
        if answer is not None:
            self.record[part][self.private(key)] = privacy.each(stored, self.private)
        return answer

    def _fact(self, part: str, answer: Any, stored: Any) -> Any:
        self.record[part] = privacy.each(stored, self.private)
        return answer

    def read(self, path: str) -> str | None:
        text = self._system.read(path)
        return self._kept("files", path, text, text)

    def names(self, path: str) -> tuple[str, ...] | None:
        names = self._system.names(path)
        return self._kept("folders", path, names, names)

    def link(self, path: str) -> str | None:
        target = self._system.link(path)
        return self._kept("links", path, target, target)

    def stat(self, path: str) -> Stat | None:
        found = self._system.stat(path)
        stored = found and {**dataclasses.asdict(found), "mode": f"{found.mode:04o}"}
        return self._kept("stats", path, found, stored)

    def command(self, *words: str, seconds: float = COMMAND_SECONDS) -> Command | None:
        done = self._system.command(*words, seconds=seconds)
        stored = done and dataclasses.asdict(done)
        # Words before they are joined, whose quotes depend on the names.
        key = shlex.join(self.private(word) for word in words)
        return self._kept("commands", key, done, stored)

    def opened(self, path: str) -> OpenedNode | None:
        found = self._system.opened(path)
        return self._kept("opened", path, found, found and dataclasses.asdict(found))

    def kernel_log(self) -> tuple[str, ...] | None:
        lines = self._system.kernel_log()
        return self._fact("kernel_log", lines, lines)

    def environment(self, name: str) -> str | None:
        value = self._system.environment(name)
        return self._kept("environment", name, value, value)

    def user(self) -> User:
        user = self._system.user()
        return self._fact("user", user, dataclasses.asdict(user))

    def memory_lock(self) -> tuple[int, int]:
        limits = self._system.memory_lock()
        return self._fact("memory_lock", limits, limits)

    def python(self) -> Python:
        python = self._system.python()
        return self._fact("python", python, dataclasses.asdict(python))

    def program(self, name: str) -> str | None:
        path = self._system.program(name)
        return self._kept("programs", name, path, path)

    def package(self, name: str) -> str | None:
        folder = self._system.package(name)
        return self._kept("packages", name, folder, folder)

    def xclbins(self) -> tuple[str, ...] | None:
        names = self._system.xclbins()
        return self._fact("xclbins", names, names)

    def damaged_xclbins(self) -> tuple[str, ...] | None:
        names = self._system.damaged_xclbins()
        return self._fact("damaged_xclbins", names, names)


def save(recorder: Recorder, path: str) -> int:
    """Writes a record whole or not at all; its size in bytes. Raises FileError."""
    from npu import __version__

    for ask in (recorder.user, recorder.memory_lock, recorder.python, recorder.kernel_log):
        ask()  # facts that no probe happened to need
    head = {"schema": SCHEMA, "version": __version__, "origin": "npu doctor --record"}
    text = json.dumps({**head, **recorder.record}, indent=1, ensure_ascii=True) + "\n"
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise FileError(
            f"[doctor] record to {path}: {error.strerror}; name a file that can be written"
        ) from None
    return len(text)


class ReplaySystem(System):
    """The machine of a record."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record

    def _get(self, part: str, key: str) -> Any:
        return self._record.get(part, {}).get(key)

    def read(self, path: str) -> str | None:
        stored = self._get("files", path)
        if isinstance(stored, dict):
            return base64.b64decode(stored["base64"])[:LIMIT].decode(errors="replace")
        return None if stored is None else str(stored)[:LIMIT]

    def names(self, path: str) -> tuple[str, ...] | None:
        stored = self._get("folders", path)
        return None if stored is None else tuple(stored)

    def link(self, path: str) -> str | None:
        stored = self._get("links", path)
        return None if stored is None else str(stored)

    def stat(self, path: str) -> Stat | None:
        stored = self._get("stats", path)
        return stored and Stat(**{**stored, "mode": int(stored["mode"], 8)})

    def command(self, *words: str, seconds: float = COMMAND_SECONDS) -> Command | None:
        stored = self._get("commands", shlex.join(words))
        return stored and Command(stored["exit"], stored["output"][:LIMIT])

    def opened(self, path: str) -> OpenedNode | None:
        stored = self._get("opened", path)
        if stored is None:
            return None
        version = stored.get("version")
        return OpenedNode(stored["error"], stored.get("driver"), version and tuple(version))

    def kernel_log(self) -> tuple[str, ...] | None:
        lines = self._record.get("kernel_log")
        return None if lines is None else tuple(lines)

    def environment(self, name: str) -> str | None:
        return self._get("environment", name)

    def user(self) -> User:
        user = self._record.get("user", {"root": False, "groups": [], "granted": []})
        return User(user["root"], tuple(user["groups"]), tuple(user["granted"]))

    def home(self) -> str:
        return privacy.HOME

    def memory_lock(self) -> tuple[int, int]:
        soft, hard = self._record.get("memory_lock", (UNLIMITED, UNLIMITED))
        return soft, hard

    def python(self) -> Python:
        return Python(**self._record.get("python", {"version": "?", "abi": "", "virtual": False}))

    def program(self, name: str) -> str | None:
        return self._get("programs", name)

    def package(self, name: str) -> str | None:
        return self._get("packages", name)

    def xclbins(self) -> tuple[str, ...] | None:
        names = self._record.get("xclbins")
        return None if names is None else tuple(names)

    def damaged_xclbins(self) -> tuple[str, ...] | None:
        return tuple(self._record.get("damaged_xclbins") or ())


def load(path: str) -> ReplaySystem:
    """The machine of a record file. Raises FormatError, which names the damaged part."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(
            f"[doctor] replay of {path}: {reason}; name a file that `npu doctor --record` wrote"
        ) from None
    if len(data) > _MAX_BYTES:
        raise _damaged(path, f"more than {_MAX_BYTES >> 20} MB")
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise _damaged(path, "no JSON") from None
    schema = record.get("schema") if isinstance(record, dict) else None
    if schema != SCHEMA:
        raise _damaged(path, f"schema {str(schema)[:40]!r}, not {SCHEMA!r}")
    for part, check in _CHECKS.items():
        if part in record and not check(record[part]):
            raise _damaged(path, f"{part!r} is not as a record has it")
    return ReplaySystem(record)


def _damaged(path: str, found: str) -> FormatError:
    return FormatError(
        f"[doctor] replay of {path}: {found}; name a file that `npu doctor --record` wrote"
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_bytes(value: Any) -> bool:
    if not (isinstance(value, dict) and set(value) == {"base64"} and _is_text(value["base64"])):
        return False
    try:
        return base64.b64decode(value["base64"], validate=True) is not None
    except (binascii.Error, ValueError):
        return False


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(_is_text(v) and len(v) <= _SHORT for v in value)


def _each(check: Any) -> Any:
    return lambda value: isinstance(value, dict) and all(check(part) for part in value.values())


def _fields(**checks: Any) -> Any:
    """Of a dict that has these fields, right ones, and no others."""
    return lambda value: (
        isinstance(value, dict)
        and set(value) == set(checks)
        and all(check(value[name]) for name, check in checks.items())
    )


def _or_none(check: Any) -> Any:
    return lambda value: value is None or check(value)


def _mode(value: Any) -> bool:
    return _is_text(value) and 0 < len(value) <= 5 and set(value) <= set("01234567")


def _version(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(_is_int(part) for part in value)


def _limits(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_int(part) for part in value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_PYTHON = _fields(version=_is_text, abi=_is_text, virtual=_is_bool, program=_is_text)
_CHECKS = {
    "files": _each(lambda value: _is_text(value) or _is_bytes(value)),
    "folders": _each(_names),
    "links": _each(_is_text),
    "stats": _each(_fields(kind=_is_text, mode=_mode, owner=_is_text, group=_is_text,
                           size=_is_int, access=_is_bool)),
    "commands": _each(_fields(exit=_or_none(_is_int), output=_is_text)),
    "opened": _each(_fields(error=_or_none(_is_text), driver=_or_none(_is_text),
                            version=_or_none(_version))),
    "kernel_log": _or_none(_names),
    "environment": _each(_is_text),
    "user": _fields(root=_is_bool, groups=_names, granted=_names),
    "memory_lock": _limits,
    "python": lambda value: _PYTHON({"program": "", **value} if isinstance(value, dict) else value),
    "programs": _each(_is_text),
    "packages": _each(_is_text),
    "xclbins": _or_none(_names),
    "damaged_xclbins": _or_none(_names),
}  # fmt: skip
