"""Programs in the syntax of Peano's assembler, written and read. Nothing written here has met an
assembler yet; the syntax is that of the compiler's own output and of its tests."""

from __future__ import annotations

import re
from dataclasses import replace

from npu.errors import FormatError
from npu.vliw.machine import Fifo, Machine, Operand, Operation
from npu.vliw.program import Address, Bundle, Op, Program

_ADDRESS = re.compile(r"^\[(\w+)(?:\s*,\s*(#?-?\w+))?\](?:\s*,\s*(#?-?\w+))?$")
_FIFO = re.compile(r"^\[(\w+)\s*,\s*((?:lf|sf)\w*)\s*,\s*(\w+)(?:\s*,\s*(\w+))?\]$")
_ORDER = ("vec", "lda", "ldb", "st", "alu", "lng", "mv")


def write(program: Program, prototype: str) -> str:
    """The program as a function that C code can call by ``prototype``."""
    name = program.name
    at = {index: label for label, index in program.labels.items()}
    firsts = {first for first, _ in program.loops}
    lines = [
        f"// {prototype}",
        f"  .globl {name}",
        "  .p2align 4",
        f"  .type {name},@function",
        f"{name}:",
    ]
    for index, bundle in enumerate(program.bundles):
        if index in firsts:
            lines.append("  .p2align 4")
        if index in at:
            lines.append(f"{at[index]}:")
        lines.append("  " + bundle_text(bundle, program.machine))
    end = f".L{name}_end"
    return "\n".join([*lines, f"{end}:", f"  .size {name}, {end}-{name}", ""])


def bundle_text(bundle: Bundle, machine: Machine) -> str:
    """One line: the operations, and nops where the bundle has explicit ones."""
    texts = {op.operation.slot: op_text(op) for op in bundle.ops}
    texts |= {name: machine.slot_named[name].nop for name in bundle.nops}
    return "; ".join(texts[name] for name in _ORDER if name in texts) or "nop"


def op_text(op: Op) -> str:
    """An operation as the assembler reads it."""
    walk = any(
        (isinstance(o, Address) and o.mode == "walk")
        or (isinstance(o, Fifo) and o.step.startswith("d"))
        for o in op.operands
    )
    operands = ", ".join(_operand_text(o) for o in op.operands)
    separator = " " if operands else ""
    return f"{op.operation.mnemonic}{'.2d' if walk else ''}{separator}{operands}"


def _operand_text(operand: str | int | Address | Fifo) -> str:
    if isinstance(operand, Fifo):
        step = f", {operand.step}" if operand.step else ""
        return f"[{operand.pointer}, {operand.file}, {operand.position}{step}]"
    if isinstance(operand, Address):
        step = operand.step if isinstance(operand.step, str) else f"#{operand.step}"
        inside = f", {step}" if operand.mode == "offset" else ""
        return f"[{operand.pointer}{inside}]" + ("" if inside else f", {step}")
    if isinstance(operand, int):
        return f"#{operand}"
    return f"#{operand}" if operand.startswith(".") else operand


def read(text: str, machine: Machine, name: str = "program") -> Program:
    """A program from text; errors name the line."""
    bundles: list[Bundle] = []
    labels: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"//.*", "", line).strip()
        label = re.fullmatch(r"([.\w]+):", line)
        if label:
            labels[label[1]] = len(bundles)
        elif line and not line.startswith("."):
            where = f"line {number}"
            bundle = _bundle(line, machine, where)
            bundle.check(machine, where)
            bundles.append(bundle)
    return Program(name, machine, tuple(bundles), labels)


def _bundle(line: str, machine: Machine, where: str) -> Bundle:
    nops = {slot.nop: slot.name for slot in machine.slots}
    ops, padding = [], set()
    for word in (part.strip() for part in line.split(";")):
        if word in nops:
            padding.add(nops[word])
        elif word and word != "nop":
            ops.append(_op(word, machine, where))
    return Bundle(tuple(ops), frozenset(padding))


def _op(text: str, machine: Machine, where: str) -> Op:
    mnemonic, _, rest = text.partition(" ")
    walk = mnemonic.endswith(".2d")
    base = mnemonic.removesuffix(".2d")
    words = [w.strip() for w in re.findall(r"\[[^\]]*\](?:\s*,\s*[^,\s]+)?|[^,\s]+", rest)]
    forms = machine.by_mnemonic.get(base)
    if not forms:
        raise FormatError(f"[assembly] {where}: {machine.name} has no operation {mnemonic!r}")
    for form in forms:
        operands = [
            _operand(w, k, form, machine, walk) for w, k in zip(words, form.operands, strict=False)
        ]
        if len(words) == len(form.operands) and None not in operands:
            return Op(form, tuple(o for o in operands if o is not None))
    raise FormatError(
        f"[assembly] {where}: {text!r} is no form of {base}: expected "
        + " or ".join(", ".join(o.kind for o in form.operands) for form in forms)
    )


def _operand(
    word: str, operand: Operand, form: Operation, machine: Machine, walk: bool
) -> str | int | Address | Fifo | None:
    """The operand, or None if the word is none of this kind."""
    if operand.kind == "fifo":
        return _fifo(word, form, machine, walk)
    if operand.kind == "address":
        return _address(word, form, walk)
    if operand.kind == "imm":
        value = _number(word)
        fits = value is not None and form.immediate is not None and form.immediate.holds(value)
        return value if fits else None
    if operand.kind == "label":
        return word[1:] if word.startswith("#.") else None
    return word if machine.file_of(word) == operand.kind else None


def _fifo(word: str, form: Operation, machine: Machine, walk: bool) -> Fifo | None:
    match = _FIFO.match(word)
    if not match or bool(match[4]) != form.key.endswith(".leave"):
        return None
    found = Fifo(*match.groups(""))
    steps = not found.step or machine.file_of(found.step) == ("D" if walk else "M")
    return found if steps and replace(found, step="") in machine.fifos else None


def _number(word: str) -> int | None:
    return int(word[1:], 0) if re.fullmatch(r"#-?(0x)?[0-9a-fA-F]+", word) else None


def _address(word: str, form: Operation, walk: bool) -> Address | None:
    match = _ADDRESS.match(word)
    if not match or (match[2] is None) == (match[3] is None):
        return None
    step = match[2] or match[3]
    value = _number(step)
    limit = form.offset if match[2] else form.post
    if value is not None:
        if walk or limit is None or not limit.holds(value):
            return None
        return Address(match[1], "offset" if match[2] else "post", value)
    if match[2]:
        return Address(match[1], "offset", step) if step.startswith("dj") and limit else None
    if walk:
        return Address(match[1], "walk", step) if step.startswith("d") else None
    return Address(match[1], "post", step) if step.startswith("m") else None
