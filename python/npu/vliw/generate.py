"""From dataflow to a program: steady state, registers, then warm-up, one hardware loop and
cool-down for every region, and the return."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from npu.errors import DesignError
from npu.vliw import allocation, loop, modulo
from npu.vliw.compaction import Order, Placement, Problem, compact, has_room, shortest, squeezed
from npu.vliw.dataflow import Region
from npu.vliw.instances import Instance, dependences, effects, of_blocks, set_up
from npu.vliw.machine import Machine
from npu.vliw.modulo import COPIES, Steady
from npu.vliw.program import Bundle, Op, Program, Tag, aligned, joined
from npu.vliw.reservation import Timeline

ATTEMPTS = 24  # orders in which warm-up and cool-down are tried
_STARTS = 6  # cycles of the steady state that are tried as the loop's first
_KEPT_PASSES = 2  # of the loop, while its ends are scheduled: more of them change nothing
_FAR = 64  # cycles by which the set-up is before its deadlines, at most
_MOST_CYCLES = 128  # before the first multiplication
_LEADS = range(0, 24, 4)  # cycles by which groups come first
_SETTLED = 10  # cycles after which every result has landed
_TRIED = 16  # intervals, one after the other, of a block alone
_LOOP_SET_UP = 12  # cycles between setting the loop's registers and the loop, at least


@dataclass
class Part:
    """A region's code: operations per cycle, the loop as first and last cycle."""

    cycles: list[list[Op]]
    loop: tuple[int, int] | None


def generate(
    name: str, regions: Sequence[Region], machine: Machine, attempts: int = ATTEMPTS
) -> Program:
    """The function that executes all regions, one after the other."""
    _check_nodes(name, regions, machine)
    arrays = {stream.array for region in regions for stream in region.streams.values()}
    at = dict.fromkeys(sorted(arrays), 0)
    given: dict[str, Tag] = {}
    parts: list[Program] = []
    for number, region in enumerate(regions):
        region = replace(region, reserved=region.reserved | _live(regions, number))
        part = _Scheduler(region, machine, at, given, number, attempts).part()
        if parts:
            parts[-1] = _apart(parts[-1], part, machine)
        parts.append(_program(f"{name}.{number}", machine, part, number))
        for atom, node in modulo.lasting(region, machine).items():
            given[atom] = Tag(node, region.blocks - 1, fixed=True)
    program = aligned(_returning(joined(name, parts)))
    _check_room(f"{name} has {program.code_bytes}", program.code_bytes, machine)
    return program


def _check_room(what: str, size: int, machine: Machine) -> None:
    if size > machine.program_bytes:
        raise DesignError(
            f"[generate] {what} bytes of code; program memory has {machine.program_bytes}: give a "
            "smaller k1, whose steps are unrolled"
        )


def _least_bytes(operations: int, machine: Machine) -> int:
    densest = min(Fraction(size, len(slots)) for size, slots in machine.formats if slots)
    return int(operations * densest)


def _check_nodes(name: str, regions: Sequence[Region], machine: Machine) -> None:
    """Before a long search: the bytes of all operations in bundles of the densest kind."""
    count = sum(len(region.nodes) * min(region.blocks, COPIES) for region in regions)
    least = _least_bytes(count, machine)
    _check_room(f"{name} has at least {least}", least, machine)


@dataclass
class _Around:
    """Warm-up, turn of the loop and cool-down: operations, first cycles and how many there are."""

    problem: Problem
    placed: tuple[Placement, Placement, Placement]
    first: tuple[int, int, int]
    count: tuple[int, int, int]

    @property
    def bundles(self) -> int:
        return sum(self.count)

    def part(self, skipped: int) -> Part:
        """The code, of which the loop executes ``skipped`` blocks more."""
        cycles: list[list[Op]] = []
        laters = (0, 0, skipped)
        for placed, first, count, later in zip(
            self.placed, self.first, self.count, laters, strict=True
        ):
            cycles += _cycles(self.problem, placed, first, count, later)
        length, turn, _ = self.count
        return Part(cycles, (length, length + turn - 1))


class _Scheduler:
    """One region. ``at``: where the arguments point, updated; ``given``: what registers hold."""

    def __init__(
        self,
        region: Region,
        machine: Machine,
        at: dict[str, int],
        given: dict[str, Tag],
        number: int,
        attempts: int,
    ) -> None:
        self.region, self.machine, self.number, self.attempts = region, machine, number, attempts
        self.given = dict(given)
        self.steady, self.registers = _steady(_Repeated(region, machine))
        self.addressing = allocation.address(region, machine, at)
        self.set_up = set_up(region, machine, self.addressing, at)
        for stream, end in self.addressing.after.items():
            if self.addressing.pointer[stream] in at:
                at[self.addressing.pointer[stream]] = end

    def part(self) -> Part:
        """The shortest code found, over where in the steady state the loop begins."""
        interval, blocks = self.steady.interval, self.region.blocks
        times = self.steady.time.values()
        first = max(times) - interval + 1  # all blocks that it touches exist
        turn = COPIES * interval
        passes = (blocks * interval + min(times) - first) // turn
        if passes < 1:
            return self._straight(blocks)
        self._check_loop(blocks - COPIES * passes)
        kept = min(passes, _KEPT_PASSES)
        blocks -= COPIES * (passes - kept)
        slack = blocks * interval + min(times) - first - kept * turn
        starts = range(first, first + min(slack, interval - 1) + 1)
        stride = -(-len(starts) // _STARTS)
        problem = self._problem(self._loop_registers(passes), blocks)
        found = [self._around(problem, start, kept) for start in starts[::stride]]
        return min(found, key=lambda around: around.bundles).part(COPIES * (passes - kept))

    def _check_loop(self, outside: int) -> None:
        """Whether the loop and ``outside`` blocks beside it have room, before a long search."""
        slots: list[set[str]] = [set() for _ in range(self.steady.interval)]
        for node, time in self.steady.time.items():
            slots[time % self.steady.interval].add(self.steady.form[node].slot)
        size = COPIES * sum(self.machine.bundle_bytes(frozenset(some)) for some in slots)
        size += _least_bytes(outside * len(self.region.nodes), self.machine)
        what = f"the loop over {self.region.name} blocks, filled and drained, has at least {size}"
        _check_room(what, size, self.machine)

    def _problem(self, extra: list[Instance], blocks: int) -> Problem:
        instances = [*self.set_up, *extra]
        instances += of_blocks(
            self.region, self.machine, self.steady, self.registers, self.addressing, blocks,
            self.given,
        )  # fmt: skip
        return Problem(self.machine, instances, *dependences(instances, self.machine))

    def _straight(self, blocks: int) -> Part:
        """All blocks without a loop."""
        problem = self._problem([], blocks)
        every = frozenset(range(len(problem.instances)))
        rigid = self._rigid(problem, every)
        if rigid:
            first = min(rigid.values())
            placed = self._first_that_works(problem, every, rigid, rigid, first, None)[1]
        else:
            placed = self._shortest(problem, every, {}, Timeline(0))
        cycles = _cycles(problem, placed, 0, 1 + max(t for t, _ in placed.values()))
        return Part(cycles, None)

    def _around(self, problem: Problem, start: int, kept: int) -> _Around:
        """Code whose loop begins with cycle ``start`` of the steady state."""
        turn = COPIES * self.steady.interval
        end = start + kept * turn
        time = {i: instance.time for i, instance in enumerate(problem.instances)}
        set_up = start - 2 * _LOOP_SET_UP
        time |= dict.fromkeys(self._setting, set_up)
        inside = {i: t for i, t in time.items() if start <= t < end}
        anchor = min(inside, key=lambda i: inside[i])
        behind = anchor, _LOOP_SET_UP + inside[anchor] - start
        problem = problem.ahead(self._setting, set_up, *behind)
        early = frozenset(i for i, t in time.items() if t < start)
        late = frozenset(i for i, t in time.items() if t >= end)
        rigid = self._rigid(problem, early)
        if self._rigid(problem, inside):
            fixed = inside | rigid
            length, warm = self._first_that_works(problem, early, fixed, rigid, start, start)
            if self.region.lanes:
                cool = _in_place(problem, {i: time[i] for i in late})
            else:
                cool = self._rigid_cool_down(problem, late, inside, end)
        else:
            length, warm = self._warm_up(problem, early, inside, start)
            cool = self._shortest(problem, late, inside, Timeline(end))
        body = _in_place(problem, {i: t for i, t in inside.items() if t < start + turn})
        last = 1 + max((t for t, _ in cool.values()), default=end - 1)
        return _Around(problem, (warm, body, cool), (0, start, end), (length, turn, last - end))

    @property
    def _setting(self) -> range:
        """What sets the loop's registers, among the instances."""
        begin = len(self.set_up)
        return range(begin, begin + len(self._loop_registers(passes=1)))

    def _loop_registers(self, passes: int) -> list[Instance]:
        def move(key: str, *operands: str | int) -> Instance:
            return Instance(0, (self.machine.operation[key],), operands)

        return [
            move("movxm.label", "ls", f".l_start{self.number}"),
            move("movxm.label", "le", f".l_end{self.number}"),
            move("movxm.LOOP", "lc", passes),
        ]

    def _rigid(self, problem: Problem, indices: Iterable[int]) -> dict[int, int]:
        """What keeps its distances outside the loop as well, with its times: multiplications with
        places of their own, which share accumulators only because of these, and all of a loop over
        lanes, whose values enter registers while others still leave them."""
        placed = {
            node.name
            for node in self.region.nodes
            if self.region.lanes or (node.role == "multiply" and node.at is not None)
        }
        return {
            i: problem.instances[i].time
            for i in indices
            if problem.instances[i].block >= 0
            and (tag := problem.instances[i].tag)
            and tag.node in placed
        }

    def _rigid_cool_down(
        self, problem: Problem, late: frozenset[int], inside: dict[int, int], end: int
    ) -> Placement:
        """As in the steady state, but the sums that are stored first are ready sooner where that
        takes no more than an exchange with another multiplication; stores follow."""
        stores = frozenset(
            i for i in late if problem.instances[i].forms[0].action.startswith("store")
        )
        times = {i: problem.instances[i].time for i in late - stores} | inside
        at = {times[i]: i for i in self._rigid(problem, late)}

        def valid(index: int, time: int, times: dict[int, int]) -> bool:
            before = (times[o] + d for o, d in problem.before.get(index, ()) if o in times)
            after = (times[o] - d for o, d in problem.after.get(index, ()) if o in times)
            return max(before, default=time) <= time <= min(after, default=time)

        for time in sorted(at):
            one, other = at.get(time), at.get(time - 1)
            if one is None or not any(o in stores for o, _ in problem.after.get(one, ())):
                continue
            found = times | {one: time - 1} | ({other: time} if other is not None else {})
            moved = [one] if other is None else [one, other]
            if time > end and all(valid(i, found[i], found) for i in moved):
                times = found
                break
        placed = self._maybe_shortest(problem, stores, times, problem.taken(times, end))
        if placed is None:
            return _in_place(problem, {i: problem.instances[i].time for i in late})
        return placed | _in_place(problem, {i: times[i] for i in late - stores})

    def _first_that_works(
        self,
        problem: Problem,
        movable: frozenset[int],
        fixed: dict[int, int],
        rigid: dict[int, int],
        start: int,
        end: int | None,
    ) -> tuple[int, Placement]:
        """The least number of cycles before ``start`` in which everything can be placed around
        ``rigid``; with ``end``, nothing after it."""
        rest = movable.difference(rigid)
        orders = self._orders(problem, rest, fixed)
        own = {i: problem.instances[i].time for i in rest if problem.instances[i].block >= 0}
        least = start - min(rigid.values(), default=start)
        around = problem.taken(fixed, start - least - _MOST_CYCLES)
        for cycles in range(least, least + _MOST_CYCLES):
            moved = {i: t - start + cycles for i, t in fixed.items()}
            taken = around.since(start - cycles, 0)
            last = None if end is None else end - start + cycles - 1
            numbers = random.Random(0)
            # Most numbers of cycles are too few whatever the order.
            attempts = self.attempts if has_room(problem, rest, moved, taken, last) else 0
            for attempt in range(attempts):
                # Backward and forward in turn, each in its orders.
                backward = last is not None and attempt % 2 == 0
                order = orders[backward][attempt // 2 % len(_LEADS)]
                order = order.shaken(attempt // (2 * len(_LEADS)), numbers)
                limit = last if backward else None
                placed = compact(problem, rest, moved, order, taken, limit)
                if placed and _ends_by(placed, last):
                    return cycles, placed | _in_place(problem, {i: moved[i] for i in rigid})
            # Else all blocks as they are in the steady state, if that is late enough.
            kept = {i: t - start + cycles for i, t in own.items()}
            if min(kept.values(), default=0) >= 0:
                order, beside = orders[0][0], moved | kept
                taken = problem.taken(beside, 0)
                placed = compact(problem, rest.difference(own), beside, order, taken)
                if placed is not None and _ends_by(placed, last):
                    kept |= {i: moved[i] for i in rigid}
                    return cycles, placed | _in_place(problem, kept)
        raise self._failure()

    def _orders(
        self, problem: Problem, movable: frozenset[int], fixed: dict[int, int]
    ) -> tuple[list[Order], list[Order]]:
        """Forward by deadlines, backward by times of the steady state; groups some cycles sooner
        than these say, as they have the least room between their neighbours."""
        names = {node.name for node in self.region.nodes if node.group}
        grouped = {i for i in movable if (t := problem.instances[i].tag) and t.node in names}
        deadlines = problem.deadlines(movable, fixed)
        times = {i: max(problem.instances[i].time, deadlines[i] - _FAR) for i in movable}
        forward = [Order({i: t - n * (i in grouped) for i, t in deadlines.items()}) for n in _LEADS]
        backward = [Order({i: t + n * (i in grouped) for i, t in times.items()}) for n in _LEADS]
        return forward, backward

    def _warm_up(
        self, problem: Problem, early: frozenset[int], inside: dict[int, int], start: int
    ) -> tuple[int, Placement]:
        """The shortest warm-up found, and its length."""

        # By how many cycles an operation's time is before the loop, at least.
        beyond = {
            index: max([1, *(d - (inside[o] - start) for o, d in edges if o in inside)])
            for index, edges in ((index, problem.after.get(index, ())) for index in early)
        }

        def reach(index: int, time: int) -> int:
            """The length that the warm-up needs for this operation."""
            return max(time + beyond[index], 0)

        def length(placed: Placement) -> int:
            return max(reach(index, time) for index, (time, _) in placed.items())

        def place(order: Order) -> Placement | None:
            """Twice, as the loop's own reads and writes bind as well where it ends up."""
            placed = compact(problem, early, {}, order, Timeline(0))
            if placed is None:
                return None
            cycles = length(placed)
            fixed = {i: t - start + cycles for i, t in inside.items()}
            placed = compact(problem, early, fixed, order, Timeline(0))
            return placed if placed and length(placed) <= cycles else None

        first = Order(problem.deadlines(early, inside))
        placed = shortest(place, reach, first, self.attempts)
        if placed is None:
            raise self._failure()

        def around(last: int) -> dict[int, int]:
            return {i: t - start + last + 1 for i, t in inside.items()}

        cycles = length(placed)
        tight = squeezed(
            lambda order, last: compact(problem, early, around(last), order, Timeline(0), last),
            lambda last: has_room(problem, early, around(last), Timeline(0), last),
            placed,
            cycles - 1,
            self.attempts,
        )
        return (cycles, placed) if tight is placed else (length(tight), tight)

    def _shortest(
        self, problem: Problem, movable: frozenset[int], fixed: dict[int, int], taken: Timeline
    ) -> Placement:
        found = self._maybe_shortest(problem, movable, fixed, taken)
        if found is None:
            raise self._failure()
        return found

    def _maybe_shortest(
        self, problem: Problem, movable: frozenset[int], fixed: dict[int, int], taken: Timeline
    ) -> Placement | None:
        """The placement that ends first."""
        first_order = Order(problem.deadlines(movable, fixed))
        found = shortest(
            lambda order: compact(problem, movable, fixed, order, taken),
            lambda _, time: time,
            first_order,
            self.attempts,
        )
        if found is None:
            return None
        return squeezed(
            lambda order, last: compact(problem, movable, fixed, order, taken, last),
            lambda last: has_room(problem, movable, fixed, taken, last),
            found,
            max((time for time, _ in found.values()), default=taken.first),
            self.attempts,
        )

    def _failure(self) -> DesignError:
        return DesignError(
            f"[generate] blocks of {self.region.name}: none of {self.attempts} orders of the "
            "operations outside the loop works; give more attempts"
        )


class _Repeated:
    """A region as far as its steady state depends on it: on its nodes and the registers for their
    values, not on where its blocks lie, nor on how many there are beyond one."""

    def __init__(self, region: Region, machine: Machine) -> None:
        self.region, self.machine = region, machine
        self._key = (
            region.nodes, region.blocks == 1, tuple(region.streams), tuple(region.values.items()),
            tuple(region.pinned.items()), tuple((k, tuple(v)) for k, v in region.pools.items()),
            frozenset(region.partial), frozenset(region.reserved), region.lanes, region.interval,
            region.start, region.patience, region.tail,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Repeated):
            return NotImplemented
        return self.machine is other.machine and self._key == other._key


@functools.lru_cache(maxsize=128)
def _steady(repeated: _Repeated) -> tuple[Steady, dict[tuple[str, int], str]]:
    """The shortest interval for which times and registers are found, and with it the latest loads:
    what is loaded early must be loaded before the first multiplication. A block alone: the fewest
    cycles."""
    region, machine = repeated.region, repeated.machine
    search = loop if region.lanes else modulo
    least = max(region.interval, search.least_interval(region, machine))
    loads = [node.name for node in region.nodes if node.role == "load"]
    lifetimes = allocation.Lifetimes(region, machine)
    for interval in _intervals(least, region.blocks):
        best, most = None, 0
        for steady in search.schedules(region, machine, interval):
            if region.blocks == 1:
                merit = min(steady.time.values()) - max(steady.time.values())
            else:
                merit = sum(steady.time[name] for name in loads)
            if best is None or merit > most:
                registers = allocation.allocate(region, machine, steady, lifetimes)
                if registers is not None:
                    best, most = (steady, registers), merit
        if best:
            return best
    raise DesignError(f"[generate] {region.name}: no interval below {4 * least + 64} cycles works")


def _intervals(least: int, blocks: int) -> Iterator[int]:
    """All from the least on; of a block alone, whose interval costs nothing, fewer and fewer."""
    interval, end = least, 4 * least + 64
    while interval < end:
        yield interval
        interval += 1 if blocks > 1 or interval < least + _TRIED else interval // 8


def _ends_by(placed: Placement, last: int | None) -> bool:
    return last is None or max((time for time, _ in placed.values()), default=last) <= last


def _in_place(problem: Problem, times: dict[int, int]) -> Placement:
    return {i: (time, problem.instances[i].forms[0]) for i, time in times.items()}


def _cycles(
    problem: Problem, placed: Placement, first: int, count: int, later: int = 0
) -> list[list[Op]]:
    cycles: list[list[Op]] = [[] for _ in range(count)]
    for index, (time, form) in placed.items():
        cycles[time - first].append(problem.instances[index].op(form, later))
    return cycles


def _program(name: str, machine: Machine, part: Part, number: int) -> Program:
    bundles = tuple(Bundle(tuple(ops)) for ops in part.cycles)
    if part.loop is None:
        return Program(name, machine, bundles, loop_step=COPIES)
    labels = {f".l_start{number}": part.loop[0], f".l_end{number}": part.loop[1]}
    return Program(name, machine, bundles, labels, (part.loop,), COPIES)


def _live(regions: Sequence[Region], number: int) -> frozenset[str]:
    """The pinned registers of a region, and those that pass it by."""
    here, before, after = (
        {register for region in some for register in region.pinned.values()}
        for some in (regions[number : number + 1], regions[:number], regions[number + 1 :])
    )
    return frozenset(here | before & after)


def _apart(before: Program, after: Part, machine: Machine) -> Program:
    """A region's code with as many bundles behind it as the next one has to wait for its results
    and ports. What begins or ends more than _SETTLED cycles away does not matter."""
    tail = [bundle.ops for bundle in before.bundles[-_SETTLED:]]
    head = after.cycles[:_SETTLED]
    for wait in range(_SETTLED):
        if not _collides(tail, head, len(tail) + wait, machine):
            break
    return replace(before, bundles=(*before.bundles, *(Bundle(),) * wait))


def _collides(
    tail: Sequence[Sequence[Op]], head: Sequence[Sequence[Op]], start: int, machine: Machine
) -> bool:
    """Whether code that begins in cycle ``start`` meets what is still under way."""
    last: dict[tuple[str, int], int] = {}  # (part, whether read) -> last cycle
    ports = set()
    for cycle, ops in enumerate(tail):
        for op in ops:
            ports |= {(port, cycle + stage - 1) for port, stage in op.operation.ports}
            for atom, offset, is_read in effects(op.operation, op.operands, machine):
                last[atom, is_read] = max(last.get((atom, is_read), 0), cycle + offset)
    for cycle, ops in enumerate(head, start):
        for op in ops:
            if any((port, cycle + stage - 1) in ports for port, stage in op.operation.ports):
                return True
            for atom, offset, is_read in effects(op.operation, op.operands, machine):
                time = cycle + offset
                if time < last.get((atom, 0), -1) + 1 - is_read:
                    return True
                if not is_read and time <= last.get((atom, 1), -1):
                    return True
    return False


def _returning(program: Program) -> Program:
    """Puts `ret` as many bundles before the end as it has delay slots, after the last loop."""
    form = program.machine.operation["ret"]
    ret = Op(form, ("lr",))
    bundles = list(program.bundles)
    after = program.loops[-1][1] + 1 if program.loops else 0
    while True:
        at = len(bundles) - 1 - form.delay_slots
        if at >= after and not bundles[at].slots & {"alu", "lng"}:
            break
        bundles.append(Bundle())
    bundles[at] = replace(bundles[at], ops=(*bundles[at].ops, ret))
    return replace(program, bundles=tuple(bundles))
