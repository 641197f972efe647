"""One worker program as an aie.core: nested scf.for over lock operations and kernel calls.

Slot counters are loop-carried values, so a loop bounded by an RTP keeps its place in the rotation
from one round, and one run, to the next; a rotating operand is chosen by scf.index_switch. An
overlay loads them when it begins and stores them when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..hardware import DTYPE_MLIR
from .lowered import Core, Instruction, Memory, Operand, RtpWord
from .mlir_syntax import Syntax

_FOREVER = 4294967295  # as mlir-aie writes an infinite loop


@dataclass
class _Loop:
    head: Instruction
    body: list[_Loop | Instruction] = field(default_factory=list)


def print_core(core: Core, program: list[Instruction], tile: str, syntax: Syntax) -> list[str]:
    """The lines of %core_C_R with one of its programs, unindented."""
    printer = _Printer(core, program, syntax)
    body = printer.run()
    for value in syntax.constants:
        printer.constants.setdefault((value, "i32"), syntax.number(value))
    constants = [
        f"{name} = arith.constant {value} : {kind}"
        for (value, kind), name in sorted(printer.constants.items(), key=lambda c: (c[0][1], c[0]))
    ]
    return [
        f"%core_{core.tile.col}_{core.tile.row} = aie.core({tile}) {{",
        *("  " + line for line in [*constants, *body, "aie.end"]),
        f"}} {{stack_size = {core.stack} : i32}}",
    ]


class _Printer:
    def __init__(self, core: Core, program: list[Instruction], syntax: Syntax) -> None:
        self.core, self.program, self.syntax = core, program, syntax
        self.constants: dict[tuple[int, str], str] = {}
        self._values = 0
        self._lines: list[str] = []
        self._depth = 0

    def run(self) -> list[str]:
        if (kept := self.core.slots) is None:
            slots = {n: self._index(0) for n in range(self.core.counters)}
            self._block(_nest(self.program), slots)
            return self._lines
        words = [RtpWord(kept.name, kept, n) for n in range(self.core.counters)]
        slots = {word.index: self._cast(self._load(word), "i32", "index") for word in words}
        self._block(_nest(self.program), slots)
        for word in words:
            value = self._cast(slots[word.index], "index", "i32")
            at = f"%{kept.name}[{self._index(word.index)}]"
            self._line(f"memref.store {value}, {at} : {_memref(kept)}")
        return self._lines

    def _block(self, block: list[_Loop | Instruction], slots: dict[int, str]) -> None:
        """Prints a block; `slots` maps each counter to its current value and is updated."""
        for item in block:
            if isinstance(item, _Loop):
                self._loop(item, slots)
            elif item.code == "call":
                self._call(item, slots)
            elif item.code == "advance":
                slots[item.counter] = self._advance(slots[item.counter], item.value)
            else:
                assert item.lock is not None
                action = {
                    "acquire_ge": "AcquireGreaterEqual",
                    "acquire_eq": "Acquire",
                    "release": "Release",
                }[item.code]
                self._line(self.syntax.use_lock(item.lock.name, action, item.value))

    def _loop(self, loop: _Loop, slots: dict[int, str]) -> None:
        carried = sorted(_advanced(loop))
        bound = self._bound(loop.head)
        zero, one = self._index(0), self._index(1)
        head = f"scf.for {self._value()} = {zero} to {bound} step {one}"
        if not carried:
            self._line(head + " {")
            self._inside(loop, slots)
            self._line("}")
            return
        result = self._value()
        inner = {counter: self._value() for counter in carried}
        arguments = ", ".join(f"{inner[c]} = {slots[c]}" for c in carried)
        types = ", ".join("index" for _ in carried)
        count = f":{len(carried)}" if len(carried) > 1 else ""
        self._line(f"{result}{count} = {head} iter_args({arguments}) -> ({types}) {{")
        after = {**slots, **inner}
        self._inside(loop, after)
        values = ", ".join(after[c] for c in carried)
        self._line(f"  scf.yield {values} : {types}")
        self._line("}")
        for position, counter in enumerate(carried):
            slots[counter] = f"{result}#{position}" if count else result

    def _inside(self, loop: _Loop, slots: dict[int, str]) -> None:
        self._depth += 1
        self._block(loop.body, slots)
        self._depth -= 1

    def _bound(self, head: Instruction) -> str:
        if head.count is None:
            return self._index(_FOREVER)
        if isinstance(head.count, int):
            return self._index(head.count)
        return self._cast(self._load(head.count), "i32", "index")

    def _call(self, call: Instruction, slots: dict[int, str]) -> None:
        operands = [self._operand(o, slots) for o in call.operands]
        names = ", ".join(name for name, _ in operands)
        types = ", ".join(kind for _, kind in operands)
        self._line(f"func.call @{call.function}({names}) : ({types}) -> ()")

    def _operand(self, operand: Operand, slots: dict[int, str]) -> tuple[str, str]:
        if operand.kind == "constant":
            return self._constant(operand.value, "i32"), "i32"
        if operand.rtp is not None:
            return self._load(operand.rtp), "i32"
        kind = _memref(operand.memories[0])
        if operand.counter < 0:
            return f"%{operand.memories[0].name}", kind
        chosen = self._value()
        self._line(f"{chosen} = scf.index_switch {slots[operand.counter]} -> {kind}")
        for slot, memory in enumerate(operand.memories):
            last = slot == len(operand.memories) - 1
            self._line("default {" if last else f"case {slot} {{")
            self._line(f"  scf.yield %{memory.name} : {kind}")
            self._line("}")
        return chosen, kind

    def _advance(self, slot: str, modulus: int) -> str:
        added, wrapped, result = self._value(), self._value(), self._value()
        limit = self._index(modulus)
        self._line(f"{added} = arith.addi {slot}, {self._index(1)} : index")
        self._line(f"{wrapped} = arith.cmpi eq, {added}, {limit} : index")
        self._line(f"{result} = arith.select {wrapped}, {self._index(0)}, {added} : index")
        return result

    def _load(self, word: RtpWord) -> str:
        value = self._value()
        at = self._index(word.index)
        self._line(f"{value} = memref.load %{word.memory.name}[{at}] : {_memref(word.memory)}")
        return value

    def _cast(self, value: str, source: str, result: str) -> str:
        cast = self._value()
        self._line(f"{cast} = arith.index_cast {value} : {source} to {result}")
        return cast

    def _index(self, value: int) -> str:
        return self._constant(value, "index")

    def _constant(self, value: int, kind: str) -> str:
        suffix = "" if kind == "index" else f"_{kind}"
        sign = f"m{-value}" if value < 0 else str(value)
        return self.constants.setdefault((value, kind), f"%c{sign}{suffix}")

    def _value(self) -> str:
        self._values += 1
        return f"%{self._values - 1}"

    def _line(self, text: str) -> None:
        self._lines.append("  " * self._depth + text)


def _nest(program: list[Instruction]) -> list[_Loop | Instruction]:
    top: list[_Loop | Instruction] = []
    stack = [top]
    for instruction in program:
        if instruction.code == "loop":
            loop = _Loop(instruction)
            stack[-1].append(loop)
            stack.append(loop.body)
        elif instruction.code == "end":
            stack.pop()
        else:
            stack[-1].append(instruction)
    return top


def _advanced(loop: _Loop) -> set[int]:
    """Counters that a loop's body advances, inner loops included."""
    out: set[int] = set()
    for item in loop.body:
        if isinstance(item, _Loop):
            out |= _advanced(item)
        elif item.code == "advance":
            out.add(item.counter)
    return out


def _memref(memory: Memory) -> str:
    return f"memref<{'x'.join(map(str, memory.shape))}x{DTYPE_MLIR[memory.dtype]}>"
