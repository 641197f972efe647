"""Registers: for the values of overlapping blocks, for pointers, and for what moves the pointers.

A part of a value's register is taken from its result's landing until its last read. Blocks
alternate between COPIES sets of registers, so lifetimes are arcs on a circle of COPIES intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from npu.errors import DesignError
from npu.vliw.dataflow import Node, Region
from npu.vliw.machine import Machine, Operation
from npu.vliw.modulo import COPIES, Steady, uses

# First and last cycle, value, copy, all cells: bits, of each part as many as the circle has cycles.
_Arc = tuple[int, int, str, int, int]
_Event = tuple[str, int, Operation | None]  # node, cycles after its time, in which form (None: all)
_Spans = dict[int, tuple[int, int]]  # part -> first and last cycle
_POINTERS = ("p0", "p1", "p2", "p3", "p4", "p5")  # p6 and p7 are the caller's
MODIFIERS = 8


def allocate(
    region: Region, machine: Machine, steady: Steady, lifetimes: Lifetimes
) -> dict[tuple[str, int], str] | None:
    """(value, block modulo COPIES) -> register; None if there are too few."""
    spans = lifetimes.of(steady)
    circle = COPIES * steady.interval
    if any(end - start + 1 > circle for parts in spans.values() for start, end in parts.values()):
        return None
    found: dict[tuple[str, int], str] = {}
    for kind in sorted(set(region.allocated.values())):
        arcs = sorted(
            _arc(value, copy, copy * steady.interval, parts, circle)
            for value, parts in spans.items()
            if region.values[value] == kind
            for copy in range(COPIES)
        )
        names = registers_for(region, machine, kind)
        if _pressure(arcs) > len(names):
            return None
        taken = _colour(arcs, names, circle)
        if taken is None:
            return None
        found |= taken
    return found


def _arc(value: str, copy: int, later: int, parts: _Spans, circle: int) -> _Arc:
    cells = 0
    for part, (start, end) in parts.items():
        bits = (1 << max(0, end - start + 1)) - 1 << (start + later) % circle
        cells |= (bits | bits >> circle) % (1 << circle) << part * circle
    first, last = min(s for s, _ in parts.values()), max(e for _, e in parts.values())
    return first + later, last + later, value, copy, cells


def _pressure(arcs: list[_Arc]) -> int:
    """The most values that hold the same part at a time."""
    digits: list[int] = []  # of the number of values, in binary, for all cells at once
    for *_, carry in arcs:
        for place, digit in enumerate(digits):
            digits[place], carry = digit ^ carry, digit & carry
        if carry:
            digits.append(carry)
    most, among = 0, -1
    for place, digit in reversed([*enumerate(digits)]):
        if among & digit:
            among &= digit
            most |= 1 << place
    return most


def registers_for(region: Region, machine: Machine, kind: str) -> list[str]:
    """Those of a file, or of one of its pools, that values may take."""
    file = machine.file[kind.partition("@")[0]]
    names = [f"{prefix}{i}" for i in range(file.count) for prefix in file.views]
    names = list(region.pools.get(kind, names))
    taken = {part for register in region.reserved for part in machine.atoms(register)}
    return [name for name in names if not taken & set(machine.atoms(name))]


def _colour(
    arcs: list[_Arc], names: list[str], circle: int, turns: int = 8
) -> dict[tuple[str, int], str] | None:
    """Registers for arcs, from different starts around the circle until one order works. Where it
    can, an arc takes the register with the most room around it: the less registers follow each
    other closely, the more freely warm-up and cool-down can move their operations."""
    starts = [arcs[len(arcs) * turn // turns][0] for turn in range(turns)]
    for fit in (_roomy, _first, _tight):
        for origin in starts:
            around = sorted(arcs, key=lambda a, o=origin: (a[0] - o) % circle)  # type: ignore[misc]
            found = _fitted(around, names, circle, fit)
            if found is not None:
                return found
    return None


def _fitted(
    arcs: list[_Arc], names: list[str], circle: int, fit: Callable[[list[_Arc], _Arc, int], int]
) -> dict[tuple[str, int], str] | None:
    """Every arc in the free register for which ``fit`` is largest."""
    held: dict[str, list[_Arc]] = {name: [] for name in names}
    busy = dict.fromkeys(names, 0)
    found: dict[tuple[str, int], str] = {}
    for arc in arcs:
        free = [name for name in names if not busy[name] & arc[4]]
        if not free:
            return None
        name = max(free, key=lambda n, a=arc: fit(held[n], a, circle))  # type: ignore[misc]
        held[name].append(arc)
        busy[name] |= arc[4]
        found[arc[2], arc[3]] = name
    return found


def _first(held: list[_Arc], arc: _Arc, circle: int) -> int:
    return 0


def _roomy(held: list[_Arc], arc: _Arc, circle: int) -> int:
    """The smaller gap between an arc and its neighbours."""
    gap, (first, last, *_) = circle, arc
    for before, after, *_ in held:
        gap = min(gap, (first - after) % circle, (before - last) % circle)
    return gap


def _tight(held: list[_Arc], arc: _Arc, circle: int) -> int:
    return -min(((arc[0] - h[1]) % circle for h in held), default=circle)


class Lifetimes:
    """When values of block 0 are there, in any steady state of a region."""

    def __init__(self, region: Region, machine: Machine) -> None:
        count = {value: machine.parts(kind) for value, kind in region.allocated.items()}
        parts = [(value, p) for value in count for p in range(count[value])]
        written: dict[tuple[str, int], list[_Event]] = {part: [] for part in parts}
        read: dict[tuple[str, int], list[_Event]] = {part: [] for part in parts}
        for node in region.nodes:
            forms = [machine.operation[key] for key in node.forms]
            same = all(form.operands == forms[0].operands for form in forms)
            for form in forms[:1] if same else forms:
                for value, part, operand in uses(node, form):
                    if value not in count:
                        continue
                    for p in range(count[value]) if part is None else part:
                        when = None if same else form
                        if operand.latency:
                            written[value, p].append((node.name, operand.latency, when))
                        if operand.stage:
                            read[value, p].append((node.name, operand.stage - 1, when))
        # Parts that the same operands write and read have one lifetime.
        self._alike: dict[tuple[str, tuple[_Event, ...], tuple[_Event, ...]], list[int]] = {}
        for (value, p), events in written.items():
            if events:
                key = value, tuple(events), tuple(read[value, p])
                self._alike.setdefault(key, []).append(p)

    def of(self, steady: Steady) -> dict[str, _Spans]:
        """Per value and part of it, first landing and last read."""
        found: dict[str, _Spans] = {}
        for value, parts, first, last in self._spans(steady):
            found.setdefault(value, {}).update(dict.fromkeys(parts, (first, last)))
        return found

    def whole(self, steady: Steady) -> dict[str, tuple[int, int]]:
        """Per value, the first landing of a part and the last read of one."""
        found: dict[str, tuple[int, int]] = {}
        for value, _, first, last in self._spans(steady):
            if value in found:
                first, last = min(first, found[value][0]), max(last, found[value][1])
            found[value] = first, last
        return found

    def _spans(self, steady: Steady) -> Iterator[tuple[str, list[int], int, int]]:
        time, form = steady.time, steady.form
        for (value, written, read), parts in self._alike.items():
            landings = [time[n] + d for n, d, f in written if f is None or form[n] is f]
            if not landings:  # only forms that were not chosen write it
                continue
            first = min(landings)
            reads = [time[n] + d for n, d, f in read if f is None or form[n] is f]
            yield value, parts, first, max(reads) if reads else first


@dataclass(frozen=True)
class Walk:
    """Steps in two dimensions: ``size`` times ``step``, then once ``modifier``, and again."""

    size: int
    step: int
    modifier: int

    def after(self, count: int) -> int:
        """The step that follows ``count`` of them."""
        return self.modifier if (count + 1) % (self.size + 1) == 0 else self.step


@dataclass
class Addressing:
    """Pointers and steps of a region. ``pointer``: per stream; ``step``: per node, a number, a
    modifier or a d register; ``other``: of every other block, where that differs; ``numbers``: what
    registers hold before the first access."""

    pointer: dict[str, str] = field(default_factory=dict)
    step: dict[str, int | str] = field(default_factory=dict)
    other: dict[str, int | str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)  # stream -> offset after its last access

    def step_of(self, node: str, block: int) -> int | str:
        """The step of a node in a block."""
        return self.other[node] if block % COPIES and node in self.other else self.step[node]


def address(region: Region, machine: Machine, arrays: Iterable[str] = ()) -> Addressing:
    """Steps that lead every stream from access to access and from block to block. ``arrays``:
    pointers that other regions need."""
    found = Addressing(_pointers(region, set(arrays)))
    modifiers = _Modifiers()
    anywhere = []  # what leads to a pointer that is set anew
    for name, nodes in region.accesses.items():
        bases = region.streams[name].bases
        offsets = [node.offset(name) for node in nodes]
        for (node, after), (here, there) in zip(pairwise(nodes), pairwise(offsets), strict=True):
            if node.steps_itself or node.points:
                continue
            if after.points:
                anywhere.append(node.name)
                continue
            found.step[node.name] = _step(node.forms, there - here, machine, modifiers)
        if nodes[0].points and nodes[-1].role != "advance":
            anywhere.append(nodes[-1].name)
            continue
        wrap = offsets[0] - offsets[-1]
        steps = [b - a + wrap for a, b in pairwise(bases)]
        if nodes[-1].steps_itself:  # and leads to the next block
            if any(steps):
                raise DesignError(f"[address] {name} does not go on where its file leaves it")
            found.after[name] = bases[-1] + offsets[-1]
            continue
        last = _next_block(found, nodes[-1], steps, machine, modifiers)
        found.after[name] = bases[-1] + offsets[-1] + last
    found.step |= dict.fromkeys(anywhere, modifiers.any() if anywhere else "")
    found.numbers |= {f"m{index}": value for value, index in modifiers.shared.items()}
    return found


def _next_block(
    found: Addressing, node: Node, steps: list[int], machine: Machine, modifiers: _Modifiers
) -> int:
    """Makes the last access of a stream lead to the next block; the step after the last block."""
    turns = [steps] if _walk(steps) is not None else [steps[turn::COPIES] for turn in range(COPIES)]
    last = 0
    for turn, own in enumerate(turns):
        walk = _walk(own)
        if walk is None:
            raise DesignError(f"[address] no walk in two dimensions takes the steps {own}")
        if isinstance(walk, Walk):  # it counts, so that nobody shares it
            index = modifiers.take()
            step: int | str = f"d{index}"
            numbers = {"m": walk.modifier, "dn": walk.size, "dj": walk.step, "dc": 0}
            found.numbers |= {f"{prefix}{index}": value for prefix, value in numbers.items()}
        else:
            step = _step(node.forms, walk, machine, modifiers)
        (found.other if turn else found.step)[node.name] = step
        if len(steps) % len(turns) == turn:
            last = walk.after(len(own)) if isinstance(walk, Walk) else walk
    return last


def _pointers(region: Region, others: set[str]) -> dict[str, str]:
    """The first stream of an array walks its argument, others a copy."""
    taken = {name for s in region.streams.values() for name in (s.array, s.pointer)} | others
    free = [pointer for pointer in _POINTERS if pointer not in taken]
    found: dict[str, str] = {}
    for stream in region.streams.values():
        if stream.pointer:
            found[stream.name] = stream.pointer
        elif stream.array not in found.values():
            found[stream.name] = stream.array
        elif free:
            found[stream.name] = free.pop(0)
        else:
            raise DesignError(
                f"[address] {len(region.streams)} streams need more pointers than the "
                f"{len(_POINTERS)} that a function may change"
            )
    return found


class _Modifiers:
    """The modifier registers: one per number that several steps share, and one per walk."""

    def __init__(self) -> None:
        self.shared: dict[int, int] = {}
        self._used = 0

    def take(self) -> int:
        if self._used == MODIFIERS:
            raise DesignError(f"[address] the steps need more than {MODIFIERS} modifier registers")
        self._used += 1
        return self._used - 1

    def any(self) -> str:
        """One that is there, whatever it holds."""
        return self.holding(next(iter(self.shared), 0))

    def holding(self, value: int) -> str:
        if value not in self.shared:
            self.shared[value] = self.take()
        return f"m{self.shared[value]}"


def _step(forms: tuple[str, ...], value: int, machine: Machine, shared: _Modifiers) -> int | str:
    """A number if every form can hold it, else a modifier register."""
    limits = [machine.operation[form].post for form in forms]
    if all(limit and limit.holds(value) for limit in limits):
        return value
    return shared.holding(value)


def _walk(steps: list[int]) -> int | Walk | None:
    """What leads from block to block: always the same, or two numbers in turn; None if neither."""
    if len(set(steps)) <= 1:
        return steps[0] if steps else 0
    size = next(i for i, step in enumerate(steps) if step != steps[0])
    walk = Walk(size, steps[0], steps[size])
    expected = [walk.modifier if i % (size + 1) == size else walk.step for i in range(len(steps))]
    return walk if steps == expected else None
