#!/usr/bin/env python3
"""Estimates the program memory and the stack of every kernel, in bytes, without a compiler for the
cores.

    python aie_kernels/counting/program_bytes.py            writes designs/kernel_bytes.txt
    python aie_kernels/counting/program_bytes.py --print    a table, largest first

Each source is compiled for x86 against aie_api/aie.hpp of this folder, in which an operation is a
mark in the assembly; marks and instructions are then weighed as below, per generation in two forms:

    fast   as kernels are meant to be compiled; stated conservatively
    small  compiled for size, nothing pipelined, no cycle spent waiting: the least they come to

The stack is that of the fast form: x86 frames with registers at their size.
docs/reference/program_memory.md has the sources of the weights and what they were compared with.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1]
TABLE = KERNELS.parent / "designs" / "kernel_bytes.txt"
ARCH = {"npu1": 20, "npu2": 21}
# mlir-aie compiles kernels with -O2, where LLVM inlines, and unrolls loops of constant counts, much
# as GCC does with -O3: up to 150 instructions of a loop (300 with -O3), GCC 200. Nothing is
# vectorised.
FORMS = {"fast": "-O3", "small": "-Os"}
OPTIONS = [
    *("-std=c++20", "-march=x86-64-v4", "-w", "-S", "-ffunction-sections", "-fno-exceptions"),
    *("-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-unswitch-loops"),
    *("-fno-split-loops", "-fno-tree-loop-distribute-patterns", "-fno-jump-tables"),
    *("-fno-ipa-icf", "-fno-reorder-blocks-and-partition", "-fno-asynchronous-unwind-tables"),
    *("-fcf-protection=none", "-fno-stack-protector"),
]

# Bytes. A bundle has 2 (one nop) to 16 (all six slots); one operation alone 4, or 6 with a 32-bit
# immediate.
OPERATION = 8  # of a vector, outside pipelined loops: 4, and two nops until its result is there
SCALAR = 6
LOAD = 12  # of a scalar: 4, and four nops of the six that may follow
JUMP = 14  # 4, and five delay slots
CALL = 22  # a jump, and the link register saved and restored
FLOAT = 40  # fp32 sum, product, comparison of scalars: to a vector, the operation, and back
LOOP = 48  # three immediates for a hardware loop, alignment of its first and last bundle
PIPELINED = 8  # an operation of a pipelined loop: bundles of 16 hold two or more
# Prologue and epilogue of a pipelined loop: its operations once more, and a bundle in each for
# every cycle of the longest chain of results, as far as that is not hidden.
DRAIN, DEEPEST = 12, 48
WAIT = 2  # a nop, per cycle of a result that the next operation of a serial loop waits for
REACH = 512  # bytes from an address, within which accesses have an immediate; assumed
ALIGNMENT = 16  # of a function
# In the small form: an instruction, by kind, or an operation of a mark.
SMALL = {"mark": 4, "scalar": 4, "jump": 4, "call": 8, "float": 20}
# Routines of the compiler's library, assumed: operations of theirs times SCALAR, rounded up.
LIBRARY = {"integer division": 512, "fp32 comparison": 512, "fp32 division": 1536, "memory": 512}
# Of a frame: a scalar or saved register; a register of 512 bits, for which a float stands.
SLOT, VECTOR_SLOT = 4, 64
ARRAY_ALIGNMENT = 32  # of arrays that vectors are loaded from; others are of scalars or registers
FRAME = 32  # what frames are multiples of
LIBRARY_STACK = 64  # of a routine of the library, assumed

_MARK = re.compile(r"#@ (\d+) (\d+)")
_SLOT = re.compile(r"(-?\d*)\(%r[sb]p(,?)")
_DUMPED = re.compile(r";; Function .*\((\S+?), funcdef_no")
_PARTITION = re.compile(r"Partition \d+: size (\d+) align (\d+)")
_LABEL = re.compile(r"(\.?[\w.$]+):")
_NEAR = re.compile(r"(-?\d+)\(%r\w+\), %r\w+")  # an address a constant away from another one
_CALL_TARGETS = {"memcpy": "memory", "memset": "memory", "memmove": "memory"}
_FLOATS = re.compile(
    r"v?(add|sub|mul|min|max|u?comi|cvt\w*|fn?madd\w*|fn?msub\w*)(ss|sd|si|sil|sl|ssl|sdl)\w*$"
)


@dataclass
class Function:
    """What the assembly of one function holds, in order; loops are found by its backward jumps."""

    name: str
    entry: bool  # a kernel
    items: list[tuple[str, int, int]] = field(default_factory=list)  # (kind, bytes, latency)
    labels: dict[str, int] = field(default_factory=dict)  # before which item
    jumps: list[tuple[int, str]] = field(default_factory=list)  # (item, label)
    calls: set[str] = field(default_factory=set)  # functions, and routines of LIBRARY
    saved: int = 1  # registers, with that of the return address
    slots: set[str] = field(default_factory=set)  # of the frame that scalars are in
    vector_slots: set[str] = field(default_factory=set)
    indexed: bool = False  # whether registers lie in an array that is indexed
    arrays: list[tuple[int, int]] = field(default_factory=list)  # (bytes, alignment)

    def bytes(self, form: str = "fast") -> int:
        if form == "small":
            total = sum(
                size // OPERATION * SMALL[kind] if kind == "mark" else SMALL.get(kind, 0)
                for kind, size, _ in self.items
            )
            return -(-total // ALIGNMENT) * ALIGNMENT
        loops = self.loops()
        inside = {i for start, end in loops for i in range(start, end + 1)}
        total = sum(size for i, (_, size, _) in enumerate(self.items) if i not in inside)
        total += sum(loop_bytes(self.items[start : end + 1]) for start, end in loops)
        return -(-total // ALIGNMENT) * ALIGNMENT

    def frame(self) -> int:
        """Bytes of stack, without those of the functions that it calls."""
        total = SLOT * (self.saved + len(self.slots)) + VECTOR_SLOT * len(self.vector_slots)
        for size, alignment in self.arrays:
            registers = self.indexed and alignment < ARRAY_ALIGNMENT
            total += size * (VECTOR_SLOT // SLOT if registers else 1)
        return -(-total // FRAME) * FRAME

    def loops(self) -> list[tuple[int, int]]:
        """Innermost loops of one block, as (first item, jump)."""
        back = [(self.labels[to], at) for at, to in self.jumps if self.labels.get(to, at + 1) <= at]
        return [(a, b) for a, b in back if self._one_block(a, b)]

    def _one_block(self, start: int, end: int) -> bool:
        inner = any(start <= at < end for at, _ in self.jumps)
        return not (inner or any(k == "call" for k, _, _ in self.items[start:end]))


def loop_bytes(items: list[tuple[str, int, int]]) -> int:
    """Of a pipelined loop: set-up, the loop, its prologue and epilogue; of a serial one: the loop,
    which waits for every result."""
    if any(kind == "serial" for kind, _, _ in items):
        return sum(max(size, size // 2 + WAIT * latency) for _, size, latency in items)
    operations = sum(size // OPERATION if kind == "mark" else 1 for kind, size, _ in items[:-1])
    operations += sum(size // SCALAR - 1 for kind, size, _ in items[:-1] if kind == "float")
    latency = sum(latency for _, _, latency in items)
    return LOOP + 2 * PIPELINED * operations + DRAIN * min(DEEPEST, latency)


def read(assembly: str, dump: str = "") -> dict[str, Function]:
    """The functions of GCC's assembly for x86; dump: of its pass "expand", which has the arrays."""
    functions: dict[str, Function] = {}
    entries = set(re.findall(r"\.globl\s+(\S+)", assembly))
    names = set(re.findall(r"\.type\s+(\S+), @function", assembly))
    current: Function | None = None
    for line in map(str.strip, assembly.splitlines()):
        label = _LABEL.fullmatch(line)
        if label and label[1] in names:
            current = functions[label[1]] = Function(label[1], label[1] in entries)
        elif current is None:
            continue
        elif label:
            current.labels[label[1]] = len(current.items)
        elif line.startswith(".size"):
            current = None
        elif line and (line[0] not in "#." or line.startswith("#@")):
            _add(current, line)
    for alias, name in re.findall(r"\.set\s+(\S+?),(\S+)", assembly):
        for function in functions.values():
            if alias in function.calls:
                function.calls = function.calls - {alias} | {name}
    name = ""
    for line in dump.splitlines():
        if header := _DUMPED.match(line):
            name = header[1]
        elif (array := _PARTITION.match(line)) and name in functions:
            functions[name].arrays.append((int(array[1]), int(array[2])))
    return functions


def _add(function: Function, line: str) -> None:
    items = function.items
    if line.startswith("#@ serial"):
        items.append(("serial", 0, 0))
        return
    if mark := _MARK.match(line):
        items.append(("mark", OPERATION * int(mark[1]), int(mark[2])))
        return
    name, _, operands = line.partition("\t")
    _add_slots(function, name, operands)
    if name.startswith("j"):
        function.jumps.append((len(items), operands))
        items.append(("jump", JUMP, 0))
        if not operands.startswith(".L"):  # to another function
            function.calls.add(_CALL_TARGETS.get(operands, operands))
    elif name == "ret":
        items.append(("call", JUMP, 0))
    elif name == "call":
        function.calls.add(_CALL_TARGETS.get(operands, operands))
        items.append(("call", CALL, 0))
    elif name in ("idivl", "divl", "idivq", "divq"):
        function.calls.add("integer division")
        items.append(("call", CALL, 0))
    elif name in ("vdivss", "vsqrtss"):
        function.calls.add("fp32 division")
        items.append(("call", CALL, 0))
    elif _FLOATS.match(name):
        if "comi" in name:
            function.calls.add("fp32 comparison")
        items.append(("float", FLOAT, 6))
    elif name.startswith("v") and "%xmm" in operands and "(" not in operands:
        items.append(("mark", OPERATION, 2))  # a vector register is copied
    elif name.startswith("v") and "(%rsp)" in operands:
        items.append(("mark", 2 * OPERATION, 7))  # or spilled, in two halves
    elif name == "leaq" and (near := _NEAR.fullmatch(operands)) and abs(int(near[1])) <= REACH:
        pass  # accesses have constant distances, or steps, as immediates
    elif "(" in operands and not name.startswith(("lea", "push")):
        items.append(_memory(name, operands))
    else:
        items.append(("scalar", SCALAR, 1))


def _add_slots(function: Function, name: str, operands: str) -> None:
    """What an instruction says of its function's frame."""
    function.saved += name.startswith("push")
    vector = name.startswith("v") and not name.startswith(("vmovq", "vmovd", "vpextr", "vpinsr"))
    for offset, index in _SLOT.findall(operands):
        (function.vector_slots if vector else function.slots).add(offset)
        function.indexed |= vector and bool(index)


def _memory(name: str, operands: str) -> tuple[str, int, int]:
    """An instruction with an operand in memory; constants of x86 are immediates of the cores."""
    if "(%rip)" in operands:
        return ("scalar", SCALAR, 1)
    moves = name.startswith(("mov", "vmov"))
    if moves and operands.endswith(")"):
        return ("scalar", SCALAR, 2)
    return ("scalar", LOAD, 7) if moves else ("float", LOAD + SCALAR, 8)


def compiled(source: Path, generation: str, form: str = "fast") -> dict[str, Function]:
    """The functions of a source."""
    with tempfile.TemporaryDirectory() as folder:
        out, dump = Path(folder) / "kernel.s", Path(folder) / "kernel.expand"
        folders = [f"-I{KERNELS / 'counting'}", f"-I{KERNELS}"]
        options = [FORMS[form], *OPTIONS, f"-D__AIE_ARCH__={ARCH[generation]}", *folders]
        options += [f"-fdump-rtl-expand={dump}"]
        subprocess.run(["g++", *options, "-o", str(out), str(source)], check=True)
        return read(out.read_text(), dump.read_text() if dump.exists() else "")


def title(symbol: str, source: str) -> str:
    """A readable name of a function that kernels share."""
    parts, at = [], re.sub("^_ZNK?", "", symbol)
    while length := re.match(r"\d+", at):
        end = len(length[0]) + int(length[0])
        parts.append(at[len(length[0]) : end])
        at = at[end:]
    named = [p for p in parts if p != "_GLOBAL__N_1"]
    return f"{source}: {'::'.join(named) or 'part of a function'}"


Estimate = tuple[int, tuple[str, ...]]  # bytes, and all that it needs of what is shared


def estimates(
    generation: str, form: str, sources: list[Path]
) -> tuple[dict[str, Estimate], dict[str, int]]:
    """(kernels, what they share) of a generation."""
    kernels: dict[str, Estimate] = {}
    shared = dict(LIBRARY)
    with ThreadPoolExecutor(2) as pool:
        every = list(pool.map(lambda source: compiled(source, generation, form), sources))
    for source, functions in zip(sources, every, strict=True):
        titles: dict[str, str] = {}
        for symbol, function in functions.items():
            if function.entry:
                continue
            name = unique = title(symbol, source.name)
            number = 1
            while unique in shared:
                number += 1
                unique = f"{name} ({number})"
            titles[symbol], shared[unique] = unique, function.bytes(form)
        for symbol, function in functions.items():
            if function.entry:
                needed = {titles.get(c, c) for c in _reached(function, functions)}
                kernels[symbol] = (function.bytes(form), tuple(sorted(needed)))
    used = {name for _, needed in kernels.values() for name in needed}
    return dict(sorted(kernels.items())), {n: size for n, size in shared.items() if n in used}


def stack(function: Function, functions: dict[str, Function]) -> int:
    """Of a function with the deepest chain of calls that it starts."""
    called = [functions[c] for c in function.calls if c in functions and c != function.name]
    deepest = [stack(f, functions) for f in called]
    library = LIBRARY_STACK if function.calls & LIBRARY.keys() else 0
    return function.frame() + max([*deepest, library])


def stacks(generation: str, sources: list[Path]) -> dict[str, int]:
    """Kernels and the stack that they need."""
    with ThreadPoolExecutor(2) as pool:
        every = list(pool.map(lambda source: compiled(source, generation), sources))
    return {
        name: stack(function, functions)
        for functions in every
        for name, function in sorted(functions.items())
        if function.entry
    }


def _reached(function: Function, functions: dict[str, Function]) -> set[str]:
    found: set[str] = set()
    todo = list(function.calls)
    while todo:
        name = todo.pop()
        if name not in found and name != function.name:
            found.add(name)
            todo += functions[name].calls if name in functions else ()
    return found


def sources() -> list[Path]:
    return [s for s in sorted(KERNELS.glob("*.cc")) if "NPU_DECLARE(" in s.read_text()]


def gcc() -> str:
    """The compiler, by its major version."""
    run = subprocess.run(["g++", "-dumpversion"], check=True, capture_output=True, text=True)
    return f"GCC {run.stdout.split('.')[0].strip()}"


def lines(form: str, generation: str) -> list[str]:
    """Of designs/kernel_bytes.txt."""
    kernels, shared = estimates(generation, form, sources())
    at = f"{form} {generation}"
    text = [f"{at} shared {size} {name}" for name, size in shared.items()]
    for name, (size, needed) in kernels.items():
        text.append("; ".join([f"{at} kernel {size} {name}", *needed]))
    if form == "fast":
        depths = stacks(generation, sources())
        text += [f"{at} stack {depths[name]} {name}" for name in kernels]
    return text


def table() -> str:
    """The text of designs/kernel_bytes.txt."""
    head = [
        f"# Estimated program memory and stack of the kernels, with {gcc()}",
        "# Written by aie_kernels/counting/program_bytes.py: run it when kernels have changed.",
        "# form, generation, kernel or shared, bytes, name; what a kernel needs of what is shared",
        "# form, generation, stack, bytes, kernel",
    ]
    rows = [line for form in FORMS for generation in ARCH for line in lines(form, generation)]
    return "\n".join([*head, *rows, ""])


def main() -> None:
    if "--print" not in sys.argv:
        TABLE.write_text(table())
        return
    for form in FORMS:
        for generation in ARCH:
            kernels, shared = estimates(generation, form, sources())
            sums = {
                k: size + sum(shared[n] for n in needed) for k, (size, needed) in kernels.items()
            }
            for name in sorted(sums, key=sums.__getitem__, reverse=True):
                size, needed = kernels[name]
                print(f"{form} {generation} {name:32} {sums[name]:6} = {size}", end="")
                print("".join(f" + {shared[n]} ({n})" for n in needed))


if __name__ == "__main__":
    main()
