"""Writes docs/reference/api.md from the docstrings of the public names: `npu.__all__`, the members
of the public modules and of the classes. Run it with the package installed:

    python docs/generate_api.py            # writes the page
    python docs/generate_api.py --check    # fails if the page is not current

No signature comes from the extension module, whose text depends on the version of nanobind.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import npu

PAGE = Path(__file__).resolve().parent / "reference" / "api.md"
WIDTH = 110
HEAD = """\
# Python API

What `import npu` offers. Made by `docs/generate_api.py` from the docstrings: change those. Arrays
are NumPy arrays, bfloat16 is that of `ml_dtypes`. Errors are in [npu.errors](#npuerrors).
"""
# What a line of a docstring begins with that is about parameters: "``out``: ", "cores, channels: ".
PARAMETER = re.compile(r"(?:``\w+``|[a-z]\w*)(?:, (?:``\w+``|[a-z]\w*))*: ")


def page() -> str:
    """The whole page."""
    found = {name: getattr(npu, name) for name in npu.__all__ if not name.startswith("__")}
    parts = [HEAD, "## Functions\n"]
    parts += [function(f"npu.{n}", o) for n, o in sorted(found.items()) if inspect.isfunction(o)]
    parts.append("## Classes\n")
    classes = {n: o for n, o in found.items() if inspect.isclass(o) and not is_error(o)}
    parts += [type_text(f"npu.{n}", o) for n, o in sorted(classes.items())]
    modules = {n: o for n, o in found.items() if isinstance(o, ModuleType)}
    for name, module in sorted(modules.items()):
        parts += [f"## npu.{name}\n", prose(module.__doc__), *members(f"npu.{name}", module)]
    return "\n".join(part for part in parts if part)


def is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def is_native(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("npu._npu")


def members(path: str, module: ModuleType) -> Iterator[str]:
    """The public names of a module: those of ``__all__``, else those that it defines."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    for name in sorted(names):
        value = getattr(module, name)
        if is_error(value):
            bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
            yield entry(f"**`{name}`** ({bases})", value)
        elif inspect.isclass(value):
            yield type_text(f"{path}.{name}", value)
        elif callable(value):
            yield function(f"{path}.{name}", value)


def function(path: str, value: Any) -> str:
    """Heading, signature and docstring of a function."""
    parts = (f"### {path}\n", signature(path, value), prose(native_doc(value)))
    return "\n".join(part for part in parts if part)


def type_text(path: str, value: Any) -> str:
    """Heading and docstring of a class, then its public methods and properties."""
    native = is_native(value)
    lines = [f"### {path}\n", signature(path, value), prose(inspect.cleandoc(value.__doc__ or ""))]
    for name, member in vars(value).items():
        if name.startswith("_") or native:
            continue
        target = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(target, property):
            lines.append(entry(f"**`{name}`** (property)", target))
        elif inspect.isfunction(target):
            lines.append(entry(f"**`{name}{arguments(target)}`**", target))
    return "\n".join(line for line in lines if line)


def native_doc(value: Any) -> str:
    """The docstring; of a native function without the signature that nanobind puts before it."""
    text = inspect.getdoc(value) or ""
    return text.partition("\n\n")[2] if is_native(value) else text


def entry(head: str, value: Any) -> str:
    """A member in short: a heading in bold and the first paragraph of its docstring."""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    return wrapped(f"{head}: {text}".replace("``", "`") if text else head, "") + "\n"


def signature(path: str, value: Any) -> str:
    """A code block with the signature, one parameter a line where it is long; empty if unknown."""
    if is_native(value) or is_error(value) or hides_constructor(value):
        return ""
    name, text = path.rpartition(".")[2], arguments(value)
    if len(name + text) > 100:
        text = arguments(value, ",\n    ", "(\n    ", ",\n)")
    return f"```python\n{name}{text}\n```\n"


def hides_constructor(value: Any) -> bool:
    """Of classes that other functions make, from handles of the extension module."""
    return inspect.isclass(value) and "handle" in inspect.signature(value).parameters


def arguments(value: Any, comma: str = ", ", opening: str = "(", closing: str = ")") -> str:
    """The parameters and the result, as the source spells their types."""
    found = inspect.signature(value)
    parts: list[str] = []
    kind = None
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            parts.append("*")
        kind = parameter.kind
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        text = stars + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {spelled(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            equals = " = " if parameter.annotation is not parameter.empty else "="
            text += equals + default(parameter.default)
        parts.append(text)
    if not parts:
        opening, closing = "(", ")"
    result = "" if inspect.isclass(value) else found.return_annotation
    arrow = "" if result in ("", found.empty) else f" -> {spelled(result)}"
    return opening + comma.join(parts) + closing + arrow


def spelled(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def default(value: Any) -> str:
    text = repr(value)
    return "..." if text.startswith("<") or " at 0x" in text else text


def prose(text: str | None) -> str:
    """A docstring as Markdown: paragraphs wrapped, parameters as a list, examples as code."""
    out: list[str] = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph.startswith(">>>"):
            out.append(f"```python\n{paragraph}\n```\n")
            continue
        blocks: list[list[str]] = [[]]
        for line in paragraph.splitlines():
            ended = not blocks[-1] or blocks[-1][-1].endswith((".", ";"))
            if ended and PARAMETER.match(line):
                blocks.append([])
            blocks[-1].append(line.strip())
        for index, block in enumerate(blocks):
            if not block:
                continue
            joined = " ".join(block).replace("``", "`")
            if index:
                joined = re.sub(r"^([a-z]\w*)((?:, \w+)*): ", bare_names, joined)
            out.append(wrapped(joined, "- " if index else ""))
        out[-1] += "\n"
    return "\n".join(out)


def bare_names(match: re.Match[str]) -> str:
    names = (match[1] + match[2]).split(", ")
    return ", ".join(f"`{name}`" for name in names) + ": "


def wrapped(text: str, bullet: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )


def main(words: list[str]) -> int:
    text = page()
    if words == ["--check"]:
        if PAGE.read_text() != text:
            print("docs/reference/api.md is not current: run python docs/generate_api.py")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
