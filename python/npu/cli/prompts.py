"""The prompts of `npu generate`: one from the command line, a file or standard input, or many from
a file with one prompt a line."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_KEYS = {"prompt", "system"}  # of a line that is a JSON object
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


@dataclass(frozen=True)
class Prompt:
    text: str
    system: str | None = None


def read(arguments: argparse.Namespace) -> list[Prompt]:
    """The prompts that the command line names. Raises ArgumentError."""
    process = unescaped if arguments.escape else str
    system = system_message(arguments, process)
    if arguments.prompts is not None:
        return _lines(arguments.prompts, system)
    if arguments.file is not None:
        text = _without_newline(_read_text(arguments.file, "--file"))
    elif arguments.prompt is None or arguments.prompt == "-":
        text = _standard_input().rstrip("\n")
    else:
        text = arguments.prompt
    return [Prompt(process(text), system)]


def system_message(arguments: argparse.Namespace, process: Callable[[str], str]) -> str | None:
    """The system message that the command line names. Raises ArgumentError."""
    system: str | None = arguments.system
    if arguments.system_file is not None:
        system = _without_newline(_read_text(arguments.system_file, "--system-prompt-file"))
    return process(system) if system else None


def unescaped(text: str) -> str:
    r"""Text with \n, \r, \t, \', \", \\ and bytes \xHH replaced; other backslashes stay."""

    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            return bytes.fromhex(match[1].replace("\\x", "")).decode("utf-8", errors="replace")
        return _ESCAPES.get(match[2], match[0])

    return re.sub(r"((?:\\x[0-9a-fA-F]{2})+)|\\(.)", replaced, text, flags=re.DOTALL)


def _lines(name: str, system: str | None) -> list[Prompt]:
    from npu.errors import ArgumentError

    text = _standard_input() if name == "-" else _read_text(name, "--prompts")
    found = [
        _prompt(line.strip(), number, system)
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
    if not found:
        raise ArgumentError(f"[generate] --prompts {name}: no line has a prompt; write one a line")
    return found


def _prompt(line: str, number: int, system: str | None) -> Prompt:
    """A line: a prompt as it stands, or JSON if it starts like a string or an object."""
    from npu.errors import ArgumentError

    if line[0] not in '"{':
        return Prompt(line, system)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, str):
        return Prompt(value, system)
    good = isinstance(value, dict) and "prompt" in value and set(value) <= _KEYS
    if not good or not all(isinstance(part, str) for part in value.values()):
        raise ArgumentError(
            f"[generate] --prompts: line {number} starts like JSON and is neither a string nor an "
            'object {"prompt": "...", "system": "..."}; write a prompt that starts so as a string'
        )
    return Prompt(value["prompt"], value.get("system", system))


def _without_newline(text: str) -> str:
    """A file's text without the newline that ends its last line."""
    return text.removesuffix("\n").removesuffix("\r")


def _read_text(name: str, option: str) -> str:
    from npu.errors import ArgumentError

    try:
        return Path(name).read_bytes().decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(
            f"[generate] {option}: cannot read {name}: {reason}; name a text file"
        ) from None


def _standard_input() -> str:
    if sys.stdin.isatty():
        print("reading from the terminal; end it with Ctrl-D", file=sys.stderr, flush=True)
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")
