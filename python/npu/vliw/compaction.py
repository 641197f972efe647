"""Warm-up and cool-down: the operations outside the loop, each as early as its operands, its
registers and the slots allow, instead of where the steady state has them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from npu.vliw.instances import Edges, Instance
from npu.vliw.machine import Machine, Operation
from npu.vliw.reservation import Needs, Timeline, first_free, needs

_FAR = 4096  # no schedule leaves so many cycles taken
_NEVER = 1 << 40
_NEAR = 4  # cycles before the end that count as near it

Tie = tuple[int, int, int]
Placement = dict[int, tuple[int, Operation]]


class Ties:
    """Dependences of movable instances: ``next``, per instance, those that wait for it, with the
    distance, ``waiting``, for how many each one waits; ``before`` and ``after``, (instance, other,
    distance) for others that do not move."""

    def __init__(
        self, inside_before: Edges, before: list[Tie], inside_after: Edges, after: list[Tie],
        backward: bool,
    ) -> None:  # fmt: skip
        self.before, self.after = before, after
        self.next = inside_before if backward else inside_after
        behind = inside_after if backward else inside_before
        self.waiting = {index: len(edges) for index, edges in behind.items()}


def _parted(edges: Edges, movable: frozenset[int]) -> tuple[Edges, list[Tie]]:
    """Edges of movable instances to each other, and those to others."""
    inside: Edges = {}
    outside: list[Tie] = []
    for index in movable:
        inside[index] = [edge for edge in edges.get(index, ()) if edge[0] in movable]
        outside += [(index, *edge) for edge in edges.get(index, ()) if edge[0] not in movable]
    return inside, outside


@dataclass(frozen=True)
class Problem:
    """Instances with their dependences, as `instances.dependences` gives them."""

    machine: Machine
    instances: list[Instance]
    before: Edges
    after: Edges
    # What `ties` has found; dependences must not change any more once it was asked.
    _ties: dict[tuple[frozenset[int], bool], Ties] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def units(self) -> list[tuple[tuple[Operation, Needs], ...]]:
        """Per instance, what may execute it and what that takes."""
        known: dict[tuple[str, str | None, str | None], Needs] = {}  # most instances are alike
        found = []
        for instance in self.instances:
            units = []
            for form in instance.forms:
                key = form.key, instance.bank, instance.pointer
                if key not in known:
                    known[key] = needs(self.machine, form, instance)
                units.append((form, known[key]))
            found.append(tuple(units))
        return found

    def ahead(self, indices: Sequence[int], time: int, other: int, distance: int) -> Problem:
        """The same with these instances at another time and at least so many cycles before another
        one, which is all that ties them to others."""
        instances, after = [*self.instances], self.after.copy()
        for index in indices:
            instances[index] = replace(instances[index], time=time)
            after[index] = [*after.get(index, ()), (other, distance)]
        return replace(self, instances=instances, after=after)

    def taken(self, fixed: Mapping[int, int], first: int) -> Timeline:
        """The cycles from ``first`` on that instances take at these times."""
        found = Timeline(first)
        for index, time in fixed.items():
            found.take(self.units[index][0][1], time)
        return found

    def ties(self, movable: frozenset[int], backward: bool) -> Ties:
        found = self._ties.get((movable, backward))
        if found is None:
            found = self._ties[movable, backward] = Ties(
                *_parted(self.before, movable), *_parted(self.after, movable), backward
            )
        return found

    def deadlines(self, movable: Collection[int], fixed: Mapping[int, int]) -> dict[int, int]:
        """The latest cycle of each such that the multiplications keep their times."""
        found: dict[int, int] = {}
        for index in sorted(movable, key=lambda i: -self.instances[i].time):
            instance = self.instances[index]
            timed = instance.forms[0].action.startswith(("multiply", "store"))
            own = [instance.time] if timed else []
            for other, distance in self.after.get(index, ()):
                if other in found or other in fixed:
                    own.append(found.get(other, fixed.get(other, 0)) - distance)
            found[index] = min(own, default=instance.time)
        return found


@dataclass(frozen=True)
class Order:
    """What decides between operations: small keys come first, ``swapped`` ones take the last unit
    that is free instead of the first."""

    keys: Mapping[int, float]
    swapped: frozenset[int] = frozenset()

    def shaken(self, spread: int, numbers: random.Random) -> Order:
        """Every operation up to ``spread`` later."""
        return Order({index: key + spread * numbers.random() for index, key in self.keys.items()})

    def varied(self, movable: Sequence[int], numbers: random.Random) -> Order:
        """A few operations earlier or later, or on another unit."""
        keys, swapped = dict(self.keys), set(self.swapped)
        for index in numbers.sample(movable, min(len(movable), numbers.randint(1, 4))):
            if numbers.random() < 0.3:
                swapped ^= {index}
            else:
                keys[index] += numbers.gauss(0, 6)
        return Order(keys, frozenset(swapped))


def compact(
    problem: Problem,
    movable: frozenset[int],
    fixed: Mapping[int, int],
    order: Order,
    taken: Timeline,
    last: int | None = None,
) -> Placement | None:
    """Places all of ``movable`` around what is ``fixed`` in cycles of ``taken`` that are free, each
    as soon as what it depends on is placed. With ``last``, the other way round: each as late as it
    can be, large keys first, none after that cycle. None if something is left no cycle.
    """
    backward = last is not None
    sign = -1 if backward else 1
    ties = problem.ties(movable, backward)
    reserved = taken.copy()
    search = reserved.latest if backward else reserved.earliest
    earliest, latest = _bounds(ties, fixed, movable, taken.first, last)
    placed: Placement = {}
    waiting = ties.waiting.copy()
    ready = [(sign * order.keys[i], i) for i, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    while len(placed) < len(waiting):
        if not ready:  # operations that depend on each other in a circle
            return None
        _, index = heapq.heappop(ready)
        begin, end = earliest[index], latest[index]
        if not backward:
            end = min(end, begin + _FAR)
        units = problem.units[index][:: -1 if index in order.swapped else 1]
        found = first_free(units, search, backward, begin, end)
        if found is None:
            return None
        time, form, needed = found
        reserved.take(needed, time)
        placed[index] = time, form
        for other, distance in ties.next[index]:
            if backward:
                if time - distance < latest[other]:
                    latest[other] = time - distance
            elif time + distance > earliest[other]:
                earliest[other] = time + distance
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, (sign * order.keys[other], other))
    return placed


def _bounds(
    ties: Ties, fixed: Mapping[int, int], movable: frozenset[int], first: int, last: int | None
) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last cycle of each as far as what is fixed binds it."""
    earliest = dict.fromkeys(movable, first)
    latest = dict.fromkeys(movable, _NEVER if last is None else last)
    for index, other, distance in ties.before:
        if other in fixed and fixed[other] + distance > earliest[index]:
            earliest[index] = fixed[other] + distance
    for index, other, distance in ties.after:
        if other in fixed and fixed[other] - distance < latest[index]:
            latest[index] = fixed[other] - distance
    return earliest, latest


def has_room(
    problem: Problem,
    movable: frozenset[int],
    fixed: Mapping[int, int],
    taken: Timeline,
    last: int | None,
) -> bool:
    """Whether each of ``movable`` alone finds a free cycle up to ``last`` between the soonest that
    others allow and the latest. Where one does not, `compact` finds nothing in any order."""
    ties = problem.ties(movable, False)
    earliest, latest = _bounds(ties, fixed, movable, taken.first, last)
    waiting = ties.waiting.copy()
    ready = [index for index, count in waiting.items() if count == 0]
    for index in ready:  # which grows
        window = earliest[index], latest[index]
        soonest = first_free(problem.units[index], taken.earliest, False, *window)
        if soonest is None:
            return False
        earliest[index] = soonest[0]
        for other, distance in ties.next[index]:
            earliest[other] = max(earliest[other], earliest[index] + distance)
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    for index in reversed(ready):
        end = min([latest[index], *(latest[other] - d for other, d in ties.next[index])])
        if end < _NEVER // 2:
            found = first_free(problem.units[index], taken.latest, True, earliest[index], end)
            if found is None:
                return False
            end = found[0]
        latest[index] = end
    return len(ready) == len(waiting)


def shortest(
    place: Callable[[Order], Placement | None],
    reach: Callable[[int, int], int],
    start: Order,
    steps: int,
) -> Placement | None:
    """The best placement among ``steps``, half of them random orders near ``start``, half a climb
    from the best of these: the least of the largest ``reach(index, time)``, then the fewest
    operations near it."""
    numbers = random.Random(0)
    movable = sorted(start.keys)
    best: tuple[tuple[int, int], Order, Placement] | None = None
    for step in range(steps):
        if step == 0:
            order = start
        elif best is None or step < steps // 2:
            order = start.shaken(1 + step % 8, numbers)
        else:
            order = best[1].varied(movable, numbers)
        placed = place(order)
        if placed is None:
            continue
        ends = [reach(index, time) for index, (time, _) in placed.items()]
        last = max(ends, default=0)
        cost = (last, sum(max(0, end - last + _NEAR) for end in ends))
        if best is None or cost <= best[0]:
            best = cost, order, placed
    return best[2] if best else None


def squeezed(
    place: Callable[[Order, int], Placement | None],
    possible: Callable[[int], bool],
    start: Placement,
    last: int,
    steps: int,
) -> Placement:
    """``start``, which ends in cycle ``last``, or a placement that ends earlier: backward from one
    cycle less as long as that is possible and one of ``steps`` orders near the times of the one
    before works."""
    numbers = random.Random(0)
    best = start
    while True:
        last -= 1
        if not possible(last):
            return best
        order = Order({index: float(time) for index, (time, _) in best.items()})
        orders = (order.shaken(step % 8, numbers) for step in range(steps))
        found = next((p for p in (place(o, last) for o in orders) if p is not None), None)
        if found is None:
            return best
        best = found
