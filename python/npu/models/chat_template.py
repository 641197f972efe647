"""Prompts of conversations: a model's own chat template, or Gemma 3's turn format without one.

Templates run in a process of their own (template_process.py), whose time, memory and output are
limited; starting it takes about a tenth of a second.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from os.path import isabs
from pathlib import Path
from typing import Any

from npu.errors import ArgumentError, FormatError

Message = Mapping[str, Any]  # "role" and "content": a string, or parts {"type": "text", "text": ..}

_PROGRAM = Path(__file__).with_name("template_process.py")
_SECONDS = 4  # CPU time, the start included; loops of templates take milliseconds
_PATIENCE = 60  # seconds of a busy machine for these
_MEMORY, _TEXT = 256 << 20, 1 << 20  # bytes, characters: room for a template's own needs
_MEMORY_FACTOR, _TEXT_FACTOR = 32, 4  # and for what it is given


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The text of a template; FormatError with one sentence when it fails or exceeds its limits."""
    try:
        size = len(template) + len(json.dumps(variables))
        seconds = _SECONDS + size // (4 << 20)
        job = {
            "template": template,
            "variables": dict(variables),
            # The process runs elsewhere, and programs put all kinds of values on their path.
            "path": [place for place in sys.path if isinstance(place, str) and isabs(place)],
            "seconds": seconds,
            "memory": _MEMORY + _MEMORY_FACTOR * size,
            "characters": _TEXT + _TEXT_FACTOR * size,
        }
        raw = json.dumps(job).encode()
    except (TypeError, ValueError, RecursionError) as error:  # not a value of JSON
        raise ArgumentError(
            f"[tokenizer] a message is no text or plain data: {error}; give role and content"
        ) from None
    answer = _answer(raw, seconds)
    if not isinstance(text := answer.get("text"), str):
        # The template words its own refusals: nothing that a terminal would act on.
        words = " ".join(str(answer.get("error")).split())
        reason = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
        shown = reason if len(reason) <= 300 else reason[:297] + "..."
        raise FormatError(f"[tokenizer] the model's chat template failed: {shown}")
    return text


def _answer(job: bytes, seconds: int) -> dict[str, Any]:
    # Isolated and without site: only the paths of the job.
    command = [sys.executable or "python3", "-I", "-S", "-B", str(_PROGRAM)]
    try:
        done = subprocess.run(
            command, input=job, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
            timeout=_PATIENCE + seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {_PATIENCE + seconds} s"}
    except OSError as error:
        return {"error": f"{command[0]} did not start: {error.strerror}"}
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"error": f"it took longer than {seconds} s"}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": f"its process ended with code {done.returncode}"}
    return answer if isinstance(answer, dict) else {}


def gemma_turns(messages: Sequence[Message], bos: str, *, add_generation_prompt: bool) -> str:
    """The prompt of a conversation in the turn format of Gemma 3's own template.

    An optional system message goes into the first user turn; then user and assistant (or "model")
    alternate. Raises ArgumentError for anything else.
    """
    turns = list(messages)
    prefix = ""
    if turns and _role(turns[0]) == "system":
        prefix = _system_text(turns.pop(0)) + "\n\n"
    if not turns:
        raise ArgumentError("[tokenizer] the chat has no user message; give one")
    text = [bos]
    before = len(messages) - len(turns)
    for index, message in enumerate(turns):
        role = "model" if _role(message) == "assistant" else _role(message)
        expected = "model" if index % 2 else "user"
        if role != expected:
            raise ArgumentError(
                f"[tokenizer] message {before + index + 1} of the chat has the role "
                f"{_role(message)!r}; after an optional system message, roles must alternate user, "
                "assistant, user, ..."
            )
        text.append(f"<start_of_turn>{role}\n{'' if index else prefix}{_content(message)}")
        text.append("<end_of_turn>\n")
    return "".join(text) + ("<start_of_turn>model\n" if add_generation_prompt else "")


def _role(message: Message) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str):
        raise ArgumentError("[tokenizer] a message of the chat has no role; give role and content")
    return role


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content.strip()
    return "".join(_part(part) for part in _parts(content))


def _system_text(message: Message) -> str:
    """A system message is taken as it is; of a list, its first text (as Gemma 3's template)."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    texts = [p["text"] for p in _parts(content) if isinstance(p.get("text"), str)]
    if not texts:
        raise _unknown_content(content)
    return str(texts[0])


def _parts(content: Any) -> list[Mapping[str, Any]]:
    if not isinstance(content, (list, tuple)) or not all(isinstance(p, Mapping) for p in content):
        raise _unknown_content(content)
    return list(content)


def _part(part: Mapping[str, Any]) -> str:
    if part.get("type") == "image":
        return "<start_of_image>"
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"]).strip()
    raise _unknown_content(part)


def _unknown_content(content: Any) -> ArgumentError:
    return ArgumentError(
        f"[tokenizer] a message's content is {str(content)[:60]!r}; give a string or a list of "
        '{"type": "text", "text": ...}'
    )
