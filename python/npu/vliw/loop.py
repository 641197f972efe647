"""The steady state of loops over lanes: a time for every node of any dataflow such that a new
block can start every ``interval`` cycles.

Nodes are placed backwards, in the reverse of their order: what nobody reads, or what has a place
of its own (``Node.at``), evenly over the interval, everything else as late as its readers allow, so
that values wait in registers as little as possible. A node whose units are taken moves back; where
none is free in a whole interval, others move (iterative modulo scheduling: Rau, MICRO 1994). Orders
differ by random numbers with fixed seeds.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from npu.vliw.allocation import lifetimes, registers_for
from npu.vliw.dataflow import Region
from npu.vliw.machine import Machine, Operation
from npu.vliw.modulo import Steady, dependences
from npu.vliw.reservation import Needs, needs

_STARTS = 12  # random orders per interval
_TAIL = 16  # cycles from the last place to the ends, about
_REPAIRS = 6  # tries of one attempt
_TURNS = 6  # times that a node is placed in a try, on average and at most
_SPREAD = 16  # places by which nodes move in the order, about


def least_interval(region: Region, machine: Machine) -> int:
    """The bound by units, ports and banks; what has a choice of units is shared evenly."""
    fixed: Counter[str] = Counter()
    either: Counter[frozenset[str]] = Counter()
    for node in region.nodes:
        sets = [
            {name for name, _ in needs(machine, machine.operation[form], node)}
            for form in node.forms
        ]
        common = set.intersection(*sets)
        fixed.update(common)
        slots = frozenset(machine.operation[form].slot for form in node.forms)
        if len(slots) > 1:
            either[slots] += 1
    turns = _recurrence(region, machine)
    shared = [
        -(-(count + sum(fixed[slot] for slot in slots)) // len(slots))
        for slots, count in either.items()
    ]
    pointers = {name for name in fixed if name.startswith("pointer")}
    units = [count for name, count in fixed.items() if name not in pointers]
    return max(units + shared + [turns])


def _recurrence(region: Region, machine: Machine) -> int:
    """The bound by values that a turn takes from the one before: the shortest interval in which
    nothing has to follow itself."""
    interval = 1
    while region.pinned and _follows_itself(dependences(region, machine, interval)):
        interval += 1
    return interval


def _follows_itself(edges: list[tuple[str, str, int]]) -> bool:
    """Whether some circle of dependences takes time."""
    time: dict[str, int] = defaultdict(int)
    nodes = {name for first, second, _ in edges for name in (first, second)}
    for _ in range(len(nodes) + 1):
        late = [(b, time[a] + d) for a, b, d in edges if time[a] + d > time[b]]
        if not late:
            return False
        for name, least in late:
            time[name] = max(time[name], least)
    return True


def schedules(region: Region, machine: Machine, interval: int) -> Iterator[Steady]:
    """Steady states with this interval whose values fit the registers by number. From each of some
    random orders small changes lead to orders whose values need fewer registers."""
    search = _Search(region, machine, interval)
    found = False
    for start in range(region.start, region.start + _STARTS):
        for steady in _climb(search, random.Random(start)):
            found = True
            yield steady
        if found:
            return


def _climb(search: _Search, numbers: random.Random) -> Iterator[Steady]:
    spread = numbers.uniform(0, _SPREAD)
    best = {name: spread * numbers.random() for name in search.position}
    least: tuple[int, int] | None = None
    idle = 0
    while idle < search.region.patience:
        moved = dict(best)
        if least:
            for name in numbers.sample(sorted(best), min(len(best), numbers.randint(1, 6))):
                moved[name] += numbers.gauss(0, _SPREAD / 2)
        idle += 1
        steady = search.run(moved)
        if steady is None:
            continue
        crowding = search.crowding(steady)
        if least is None or crowding < least:
            best, least, idle = moved, crowding, 0
            if crowding[0] == 0:
                yield steady


class _Search:
    """Places the nodes of a block again and again."""

    def __init__(self, region: Region, machine: Machine, interval: int) -> None:
        self.region, self.machine, self.interval = region, machine, interval
        self.room = {
            kind: len(registers_for(region, machine, kind))
            for kind in set(region.allocated.values())
        }
        self.before: dict[str, list[tuple[str, int]]] = {node.name: [] for node in region.nodes}
        self.after: dict[str, list[tuple[str, int]]] = {node.name: [] for node in region.nodes}
        for first, second, distance in dependences(region, machine, interval):
            self.before[second].append((first, distance))
            self.after[first].append((second, distance))
        self.units: dict[str, list[tuple[Operation, Needs]]] = {}
        for node in region.nodes:
            forms = [machine.operation[key] for key in node.forms]
            self.units[node.name] = [(form, needs(machine, form, node)) for form in forms]
        values = [node.name for node in region.nodes]
        self.position = {name: number for number, name in enumerate(values)}
        self.readers = {name: self._readers(name) for name in values}
        ends = [name for name in values if not self.readers[name]]
        self.wanted = {name: interval * n // len(ends) for n, name in enumerate(ends)}
        if region.blocks == 1:
            self.wanted = dict.fromkeys(ends, interval)
        paced = [node for node in region.nodes if node.at is not None]
        if paced:  # the ends follow
            if region.tail:  # what only later turns read is an end as well
                far = -interval // 2
                ends = [n for n in values if all(d < far for _, d in self.readers[n])]
            self.wanted = dict.fromkeys(ends, interval + (region.tail or _TAIL))
            self.wanted |= {node.name: interval * (node.at or 0) // len(paced) for node in paced}

    def _readers(self, name: str) -> list[tuple[str, int]]:
        """Nodes that read its result; those that only follow it in a stream do not count."""
        stream = {
            (a.name, b.name) for nodes in self.region.accesses.values() for a, b in pairwise(nodes)
        }
        return [(other, d) for other, d in self.after[name] if (name, other) not in stream]

    def crowding(self, steady: Steady) -> tuple[int, int]:
        """By how much values exceed the registers, squared and summed over the interval, and for
        how many cycles they hold some."""
        taken = {kind: [0] * self.interval for kind in self.room}
        cycles = 0
        for value, parts in lifetimes(self.region, self.machine, steady).items():
            first, last = min(s for s, _ in parts.values()), max(e for _, e in parts.values())
            cycles += last - first + 1
            of = taken[self.region.values[value]]
            for cycle in range(first, last + 1):
                of[cycle % self.interval] += 1
        over = sum(
            max(0, count - self.room[kind]) ** 2 for kind, of in taken.items() for count in of
        )
        return over, cycles

    def run(self, moved: dict[str, float]) -> Steady | None:
        """One attempt, with nodes taken so many places later than their own. A stream follows
        itself into the next block: where it ends too late, it ends sooner in another try."""
        key = {name: -at - moved[name] for name, at in self.position.items()}
        sooner: Counter[str] = Counter()
        for _ in range(_REPAIRS):
            steady = self._scheduled(key, sooner)
            late = self._late(steady) if steady else {}
            if not late:
                return steady
            sooner.update(late)
        return None

    def _late(self, steady: Steady) -> dict[str, int]:
        """By how many cycles the last access of a stream is after the next block's first."""
        time, found = steady.time, {}
        for nodes in self.region.accesses.values():
            last = nodes[-1].name
            cycles = time[last] + 1 - time[nodes[0].name] - self.interval
            if cycles > 0:
                found[last] = cycles
        return found

    def _scheduled(self, key: dict[str, float], sooner: Counter[str]) -> Steady | None:
        """Nodes with small keys first, those of ``sooner`` so many cycles before they must be."""
        steady, taken = Steady(self.interval), _Owners(self.interval)
        ready = [(key[name], name) for name in self.after]
        heapq.heapify(ready)
        tried: dict[str, int] = {}
        for _ in range(_TURNS * len(key)):
            if not ready:
                return steady
            _, name = heapq.heappop(ready)
            latest = self._latest(name, steady) - sooner[name]
            moved = self._place(name, latest, steady, taken, tried)
            time = steady.time[name]
            moved |= {u for u, d in self.before[name] if steady.time.get(u, time - d) > time - d}
            for other in moved:
                taken.release(other)
                del steady.time[other]
                heapq.heappush(ready, (key[other], other))
        return None

    def _latest(self, name: str, steady: Steady) -> int:
        """When the nodes behind it need it."""
        known = steady.time
        latest = min((known[v] - d for v, d in self.after[name] if v in known), default=None)
        wanted = self.wanted.get(name)
        return min((t for t in (latest, wanted) if t is not None), default=self.interval)

    def _place(
        self, name: str, latest: int, steady: Steady, taken: _Owners, tried: dict[str, int]
    ) -> set[str]:
        """As late as it can be. Where nothing is free for it, others have to move: their names."""
        times = range(latest, latest - self.interval, -1)
        places = ((time, *unit) for time in times for unit in self.units[name])
        free = next((p for p in places if not taken.by(p[2], p[0])), None)
        if free:
            time, form, needed = free
        else:
            time = min(latest, tried.get(name, latest + 1) - 1)
            form, needed = min(self.units[name], key=lambda u: len(taken.by(u[1], time)))
        moved = taken.by(needed, time)
        taken.take(name, needed, time, moved)
        steady.time[name], steady.form[name] = time, form
        tried[name] = time
        return moved


class _Owners:
    """Who takes what in which cycle of the interval."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._owner: dict[tuple[str, int], str] = {}
        self._of: dict[str, list[tuple[str, int]]] = {}

    def by(self, needed: Needs, time: int) -> set[str]:
        """Who takes some of what is needed at a time."""
        keys = ((name, (time + offset) % self._interval) for name, offset in needed)
        return {self._owner[key] for key in keys if key in self._owner}

    def take(self, name: str, needed: Needs, time: int, instead: set[str]) -> None:
        for other in instead:
            self.release(other)
        self._of[name] = [(what, (time + offset) % self._interval) for what, offset in needed]
        self._owner.update(dict.fromkeys(self._of[name], name))

    def release(self, name: str) -> None:
        for key in self._of.pop(name, ()):
            del self._owner[key]
