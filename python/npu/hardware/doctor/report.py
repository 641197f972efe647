"""A diagnosis as text that fits a terminal of 80 x 24, and as JSON."""

from __future__ import annotations

import itertools
import textwrap
from typing import Any

from npu.hardware.doctor import privacy
from npu.hardware.doctor.distribution import EMULATED
from npu.hardware.doctor.examine import ALL_LAYERS, NOT_CHECKED, Diagnosis, Layer
from npu.hardware.doctor.machine import Machine
from npu.hardware.doctor.result import Fix, Result, State

SCHEMA = "npu-doctor/1"
WIDTH = 80
LINES = 23  # of a terminal, one is the prompt's
_MARKS = {
    State.OK: "ok", State.BROKEN: "BROKEN", State.UNKNOWN: "?", State.NOT_NEEDED: "-",
}  # fmt: skip
# What rows without news are called when they share a line, in the order in which they do.
_SHARED = {
    State.NOT_NEEDED: "not needed", State.UNKNOWN: NOT_CHECKED, State.OK: "all right",
}  # fmt: skip


def plain(diagnosis: Diagnosis) -> str:
    """A table of the layers, and what to do about the first broken one."""
    end = _conclusion(diagnosis)
    room = LINES - 2 - len(end)  # below the head line and an empty one
    rows = _table(diagnosis, room)
    return _printable([_head(diagnosis), *rows, "", *end])


def verbose(diagnosis: Diagnosis) -> str:
    """Every layer with its values, notes and fix."""
    lines = [_head(diagnosis)]
    for layer in ALL_LAYERS:
        result = diagnosis.results[layer.name]
        lines += ["", f"{_MARKS[result.state]:7} {layer.title}: {result.found}"]
        for name, value in result.values.items():
            lines.append(f"        {name}: {value}")
        for note in result.notes:
            lines += textwrap.wrap(f"note: {note}", WIDTH - 8, initial_indent=" " * 8,
                                   subsequent_indent=" " * 10)  # fmt: skip
        lines += [f"        {line}" for line in _fix(result.fix)] if result.fix else []
    return _printable([*lines, "", *_conclusion(diagnosis)])


def _printable(lines: list[str]) -> str:
    """One text; what files and tools gave cannot move the cursor of a terminal."""
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in lines)


def _head(diagnosis: Diagnosis) -> str:
    machine = diagnosis.machine
    system, kernel = machine.distribution.name, machine.kernel_release or "?"
    return f"npu doctor: {system}, Linux {kernel}"[:WIDTH]


def _row(mark: str, title: str, found: str) -> str:
    return f"{mark:7} {title:16} {_cut(found, WIDTH - 25)}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _table(diagnosis: Diagnosis, room: int) -> list[str]:
    """One row per layer; where they are too many, those without news share rows."""
    rows = [(layer, diagnosis.results[layer.name]) for layer in ALL_LAYERS]
    shared = set() if diagnosis.machine.npu else {_SHARED[State.NOT_NEEDED], NOT_CHECKED}
    lines = _lines(rows, shared)
    for words in _SHARED.values():
        if len(lines) > room:
            shared.add(words)
            lines = _lines(rows, shared)
    return lines


def _lines(rows: list[tuple[Layer, Result]], shared: set[str]) -> list[str]:
    """The rows; neighbours of one kind that is in ``shared`` are one row."""
    lines: list[str] = []
    for words, members in itertools.groupby(rows, lambda row: _sharing(row[1])):
        group = list(members)
        if words not in shared or len(group) == 1:
            lines += [
                _row(_MARKS[result.state], layer.title, result.found) for layer, result in group
            ]
            continue
        text = f"{words}: {', '.join(layer.title for layer, _ in group)}"
        mark = f"{_MARKS[group[0][1].state]:7} "
        lines += textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * 8)
    return lines


def _sharing(result: Result) -> str:
    """The kind of a row that may share a line, "" for one that has news."""
    news = result.state is State.UNKNOWN and not result.found.startswith(NOT_CHECKED)
    return "" if news else _SHARED.get(result.state, "")


def _conclusion(diagnosis: Diagnosis) -> list[str]:
    first = diagnosis.first_broken
    if first:
        fix = diagnosis.results[first.name].fix
        assert fix is not None
        return _fix(fix)
    if diagnosis.verdict is State.OK:
        notes = [note for result in diagnosis.results.values() for note in result.notes]
        text = "All right: the NPU computes."
        if notes:
            text += f" {len(notes)} remark(s): npu doctor --verbose."
        return textwrap.wrap(text, WIDTH)
    if diagnosis.machine.npu is None:
        text = (
            f"No NPU was found, but that is not sure: {diagnosis.results['npu'].found}. Run "
            "outside of sandboxes and containers; if it stays so, report it with `npu doctor "
            f"--record FILE`. {EMULATED}"
        )
        return textwrap.wrap(text, WIDTH)
    reason = diagnosis.results["command"]
    text = f"Nothing broken was found, but no command ran on the NPU: {reason.found}."
    text += "".join(f" {note}." for note in reason.notes[:1])
    return textwrap.wrap(text, WIDTH)


def _fix(fix: Fix) -> list[str]:
    """A paragraph, then the commands as they are typed, never wrapped."""
    commands = [f"  {line}" for command in fix.commands for line in command.splitlines()]
    return [*textwrap.wrap(fix.text, WIDTH), *commands]


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis in JSON types, without names of users and hosts; the schema is described in
    docs/hardware.md."""
    from npu import __version__

    machine, first = diagnosis.machine, diagnosis.first_broken
    found = {
        "schema": SCHEMA,
        "version": __version__,
        "verdict": diagnosis.verdict.value,
        "first_broken": first.name if first else None,
        "generation": machine.npu.generation if machine.npu else None,
        "system": machine.distribution.name,
        "kernel": machine.kernel_release,
        "layers": [_layer(machine, layer, diagnosis.results[layer.name]) for layer in ALL_LAYERS],
    }
    return {key: privacy.each(value, machine.system.private) for key, value in found.items()}


def _layer(machine: Machine, layer: Layer, result: Result) -> dict[str, Any]:
    fix = result.fix and {
        "text": result.fix.text,
        "commands": [_typed(machine, command) for command in result.fix.commands],
    }
    return {
        "name": layer.name,
        "title": layer.title,
        "state": result.state.value,
        "found": result.found,
        "fix": fix,
        "notes": list(result.notes),
        "values": dict(result.values),
    }


def _typed(machine: Machine, command: str) -> str:
    """A command that names no home folder and still works."""
    home = machine.system.home()
    return command.replace(f"{home}/", "$HOME/") if len(home) > 1 else command
