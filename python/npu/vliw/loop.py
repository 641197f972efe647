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
from itertools import accumulate, pairwise

from npu.vliw.allocation import Lifetimes, registers_for
from npu.vliw.dataflow import Region
from npu.vliw.machine import Machine, Operation
from npu.vliw.modulo import Steady, dependences
from npu.vliw.reservation import Cells, Reservation, first_free, needs

_STARTS = 12  # random orders per interval
_TAIL = 16  # cycles from the last place to the ends, about
_REPAIRS = 6  # tries of one attempt
_TURNS = 6  # times that a node is placed in a try, on average and at most
_SPREAD = 16  # places by which nodes move in the order, about
_NEVER = 1 << 40  # the time of a node without one


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
    """Places the nodes of a block again and again; nodes by number, in the order of names."""

    def __init__(self, region: Region, machine: Machine, interval: int) -> None:
        self.region, self.machine, self.interval = region, machine, interval
        self.lifetimes = Lifetimes(region, machine)
        self.room = {
            kind: len(registers_for(region, machine, kind))
            for kind in set(region.allocated.values())
        }
        self.position = {node.name: number for number, node in enumerate(region.nodes)}
        self.names = sorted(self.position)
        number = {name: n for n, name in enumerate(self.names)}
        self.before: list[list[tuple[int, int]]] = [[] for _ in number]
        self.after: list[list[tuple[int, int]]] = [[] for _ in number]
        for first, second, distance in dependences(region, machine, interval):
            self.before[number[second]].append((number[first], distance))
            self.after[number[first]].append((number[second], distance))
        self.empty = Reservation(interval)
        self.units: list[list[tuple[Operation, Cells]]] = [[] for _ in number]
        for node in region.nodes:
            forms = [machine.operation[key] for key in node.forms]
            self.units[number[node.name]] = [
                (form, self.empty.cells(needs(machine, form, node))) for form in forms
            ]
        self.streams = {
            (number[a.name], number[b.name])
            for nodes in region.accesses.values()
            for a, b in pairwise(nodes)
        }
        self.ends = [
            (number[nodes[0].name], number[nodes[-1].name]) for nodes in region.accesses.values()
        ]
        wanted = self._wanted(number)
        self.wanted = [wanted.get(name, _NEVER) for name in self.names]

    def _wanted(self, number: dict[str, int]) -> dict[str, int]:
        """Places of nodes that have some of their own or that nobody reads."""
        region, interval = self.region, self.interval
        readers = {name: self._readers(number[name]) for name in self.position}
        ends = [name for name in self.position if not readers[name]]
        wanted = {name: interval * n // len(ends) for n, name in enumerate(ends)}
        if region.blocks == 1:
            wanted = dict.fromkeys(ends, interval)
        paced = [node for node in region.nodes if node.at is not None]
        if paced:  # the ends follow
            if region.tail:  # what only later turns read is an end as well
                far = -interval // 2
                ends = [n for n in self.position if all(d < far for _, d in readers[n])]
            wanted = dict.fromkeys(ends, interval + (region.tail or _TAIL))
            wanted |= {node.name: interval * (node.at or 0) // len(paced) for node in paced}
        return wanted

    def _readers(self, node: int) -> list[tuple[int, int]]:
        """Nodes that read its result; those that only follow it in a stream do not count."""
        return [(v, d) for v, d in self.after[node] if (node, v) not in self.streams]

    def crowding(self, steady: Steady) -> tuple[int, int]:
        """By how much values exceed the registers, squared and summed over the interval, and for
        how many cycles they hold some."""
        interval, cycles = self.interval, 0
        # Per kind, how many values more a cycle has than the one before.
        more = {kind: [0] * interval for kind in self.room}
        for value, (first, last) in self.lifetimes.whole(steady).items():
            length = last - first + 1
            cycles += length
            if length > 0:
                turns, rest = divmod(length, interval)
                begin, end = first % interval, first % interval + rest
                of = more[self.region.values[value]]
                of[0] += turns + (end >= interval)
                of[begin] += 1
                of[end % interval] -= 1
        over = sum(
            max(0, count - self.room[kind]) ** 2
            for kind, of in more.items()
            for count in accumulate(of)
        )
        return over, cycles

    def run(self, moved: dict[str, float]) -> Steady | None:
        """One attempt, with nodes taken so many places later than their own. A stream follows
        itself into the next block: where it ends too late, it ends sooner in another try."""
        keys = [-self.position[name] - moved[name] for name in self.names]
        sooner: Counter[int] = Counter()
        for _ in range(_REPAIRS):
            found = self._scheduled(keys, sooner)
            late = self._late(found[0]) if found else {}
            if not late:
                return self._steady(*found) if found else None
            sooner.update(late)
        return None

    def _steady(self, time: list[int], form: list[Operation]) -> Steady:
        return Steady(
            self.interval,
            dict(zip(self.names, time, strict=True)),
            dict(zip(self.names, form, strict=True)),
        )

    def _late(self, time: list[int]) -> dict[int, int]:
        """By how many cycles the last access of a stream is after the next block's first."""
        return {
            last: cycles
            for first, last in self.ends
            if (cycles := time[last] + 1 - time[first] - self.interval) > 0
        }

    def _scheduled(
        self, keys: list[float], sooner: Counter[int]
    ) -> tuple[list[int], list[Operation]] | None:
        """Nodes with small keys first, those of ``sooner`` so many cycles before they must be."""
        time, form = [_NEVER] * len(keys), [units[0][0] for units in self.units]
        taken = _Owners(self.interval)
        ready = [(key, node) for node, key in enumerate(keys)]
        heapq.heapify(ready)
        tried: dict[int, int] = {}
        for _ in range(_TURNS * len(keys)):
            if not ready:
                return time, form
            _, node = heapq.heappop(ready)
            latest = self._latest(node, time) - sooner.get(node, 0)
            at, form[node], cells = self._place(node, latest, taken, tried)
            moved = taken.take_over(node, cells[at % self.interval])
            time[node] = tried[node] = at
            for other, distance in self.before[node]:
                if at - distance < time[other] < _NEVER and other not in moved:
                    taken.give_back(other)
                    moved.append(other)
            for other in moved:
                time[other] = _NEVER
                heapq.heappush(ready, (keys[other], other))
        return None

    def _latest(self, node: int, time: list[int]) -> int:
        """When the nodes behind it need it."""
        latest = self.wanted[node]
        for other, distance in self.after[node]:
            if time[other] - distance < latest:
                latest = time[other] - distance
        return latest if latest < _NEVER // 2 else self.interval

    def _place(
        self, node: int, latest: int, taken: _Owners, tried: dict[int, int]
    ) -> tuple[int, Operation, Cells]:
        """As late as it can be. Where nothing is free for it, others have to move."""
        best = first_free(self.units[node], taken.latest, True, latest)
        if best:
            return best
        time = min(latest, tried.get(node, latest + 1) - 1)
        return (
            time,
            *min(self.units[node], key=lambda unit: len(taken.by(unit[1][time % self.interval]))),
        )


class _Owners(Reservation):
    """Who takes what in which cycle of the interval."""

    def __init__(self, interval: int) -> None:
        super().__init__(interval)
        self._of: dict[int, int] = {}

    def by(self, bits: int) -> list[int]:
        """Who takes some of these."""
        return [node for node, own in self._of.items() if own & bits]

    def take_over(self, node: int, bits: int) -> list[int]:
        """Takes what is needed from whoever has it, whom it returns."""
        others = self.by(bits) if self._taken & bits else []
        for other in others:
            self.give_back(other)
        self._taken |= bits
        self._of[node] = bits
        return others

    def give_back(self, node: int) -> None:
        self._taken ^= self._of.pop(node)
