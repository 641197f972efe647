"""Renders one chat template: the program of the process that ``chat_template.render`` starts.

A template is a program of the file's author. Jinja's sandbox keeps it from Python's objects, but
not from endless loops and gigabytes of text; limits of the operating system do. Not imported by
the package: it reads a job as JSON from standard input and writes {"text"} or {"error"}.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import resource
import sys
from typing import Any

_MEGABYTE = 1 << 20


class _TooMuchTextError(Exception):
    pass


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    sys.path[:] = job["path"]

    _limit(job["seconds"], job["memory"])
    try:
        answer = {"text": _render(job)}
    except MemoryError:
        answer = {"error": f"it needs more than {job['memory'] // _MEGABYTE} MB of memory"}
    except _TooMuchTextError:
        answer = {"error": f"it makes more than {job['characters']} characters"}
    except RecursionError:
        answer = {"error": "it is nested too deeply"}
    except BaseException as error:  # a template can fail in any way
        answer = {"error": str(error)[:1000] or type(error).__name__}
    sys.stdout.write(json.dumps(answer))


def _limit(seconds: int, memory: int) -> None:
    # Address space in use already, in pages (proc(5)).
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        memory += int(file.read().split()[0]) * resource.getpagesize()
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 16,  # modules that are imported late
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _render(job: dict[str, Any]) -> str:
    """The text, in the environment of transformers' chat templates (its documentation, "Chat
    templates"): trimmed blocks, loop controls, generation blocks, raise_exception, strftime_now,
    plain tojson."""
    import jinja2
    from jinja2.ext import Extension
    from jinja2.nodes import Node, Scope
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks the assistant's text for training; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return Scope(body, lineno=line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: int | None = None,
        separators: tuple[str, str] | None = None, sort_keys: bool = False,
    ) -> str:  # fmt: skip
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
            sort_keys=sort_keys,
        )  # fmt: skip

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    parts, left = [], job["characters"]
    for part in environment.from_string(job["template"]).generate(**job["variables"]):
        left -= len(part)
        if left < 0:
            raise _TooMuchTextError
        parts.append(part)
    return "".join(parts)


if __name__ == "__main__":
    main()
