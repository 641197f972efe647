"""Lines of a chat: from a terminal with editing and history (readline), or from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_PROMPT, _CONTINUED = "> ", ". "
_HISTORY_LINES = 1000


class Lines:
    """Messages, one ``read`` each. ``interactive``: a person types them."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()

    def read(self) -> str | None:
        """The next message without the newline at its end; None at the end of input.

        A line that ends in a backslash goes on in the next one. Raises KeyboardInterrupt for
        Ctrl-C at a terminal.
        """
        parts: list[str] = []
        while True:
            line = self._line(_CONTINUED if parts else _PROMPT)
            if line is None:
                return "\n".join(parts) if parts else None
            if not line.endswith("\\"):
                return "\n".join([*parts, line])
            parts.append(line[:-1])

    def _line(self, prompt: str) -> str | None:
        if self.interactive:
            try:
                return input(prompt)
            except EOFError:
                print(flush=True)
                return None
        line = sys.stdin.buffer.readline()
        return line.decode("utf-8", errors="replace").rstrip("\r\n") if line else None


@contextlib.contextmanager
def edited() -> Iterator[Lines]:
    """Lines; at a terminal with line editing, and with a history that is kept in a file."""
    lines = Lines()
    if not lines.interactive:
        yield lines
        return
    try:
        import readline
    except ImportError:  # built without it
        yield lines
        return
    # A pasted text is one message, whatever newlines it has.
    readline.parse_and_bind("set enable-bracketed-paste on")
    path = _history_file()
    if path is not None:
        with contextlib.suppress(OSError):
            readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield lines
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                readline.write_history_file(path)
                os.chmod(path, 0o600)


def _history_file() -> Path | None:
    """A file that only its owner reads, in the user's state folder; None where none can be."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(base) / "npu-xdna" / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except OSError:
        return None
    return path
