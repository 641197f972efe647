"""Which slots, ports, banks and pointers are taken in which cycle, flat or modulo an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from npu.vliw.machine import Machine, Operation

# Names of resources with the cycle after issue in which they are needed.
Needs = tuple[tuple[str, int], ...]


class Accessing(Protocol):
    """What an operation accesses beyond its unit: a bank of memory, through a pointer."""

    @property
    def bank(self) -> str | None: ...
    @property
    def pointer(self) -> str | None: ...


def needs(machine: Machine, form: Operation, by: Accessing) -> Needs:
    """What an operation takes when it is issued."""
    beside = [pair for pair in machine.exclusive if form.slot in pair]
    found = [(slot, 0) for slot in {form.slot, *(slot for pair in beside for slot in pair)}]
    found += [(port, stage - 1) for port, stage in form.ports]
    if by.bank and form.memory_stage:
        found.append((f"bank {by.bank}", form.memory_stage - 1))
    if by.pointer:
        found.append((f"pointer {by.pointer}", 0))
    return tuple(sorted(found))


Needed = TypeVar("Needed")


def first_free(
    units: Iterable[tuple[Operation, Needed]],
    search: Callable[..., int | None],
    backward: bool,
    *window: int,
) -> tuple[int, Operation, Needed] | None:
    """The unit that ``search(needed, *window)`` finds free first, or last, with its cycle; of
    several in one cycle the one that comes first."""
    best: tuple[int, Operation, Needed] | None = None
    for form, needed in units:
        at = search(needed, *window)
        if at is not None and (best is None or (at > best[0] if backward else at < best[0])):
            best = at, form, needed
    return best


Cells = tuple[int, ...]  # what is needed as bits, by the cycle of issue modulo an interval


class Reservation:
    """Cycles modulo ``interval``, of all resources as bits of one number."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._first: dict[str, int] = {}  # resource -> its first bit
        self._known: dict[Needs, Cells] = {}
        self._taken = 0

    def copy(self) -> Reservation:
        found = Reservation(self.interval)
        found._first, found._known, found._taken = self._first, self._known, self._taken
        return found

    def cells(self, needed: Needs) -> Cells:
        """What is needed as bits, for copies as well."""
        if needed not in self._known:
            for name, _ in needed:
                self._first.setdefault(name, len(self._first) * self.interval)
            self._known[needed] = tuple(
                sum({1 << self._first[n] + (time + offset) % self.interval for n, offset in needed})
                for time in range(self.interval)
            )
        return self._known[needed]

    def take(self, cells: Cells, time: int) -> None:
        """Takes what an operation needs that is issued at ``time``."""
        self._taken |= cells[time % self.interval]

    def earliest(self, cells: Cells, begin: int) -> int | None:
        """The first cycle from ``begin`` on in which an operation can be issued."""
        return self._free(cells, range(begin, begin + self.interval))

    def latest(self, cells: Cells, last: int) -> int | None:
        """The last such cycle up to ``last``."""
        return self._free(cells, range(last, last - self.interval, -1))

    def _free(self, cells: Cells, times: range) -> int | None:
        taken, interval = self._taken, self.interval
        for time in times:
            if not taken & cells[time % interval]:
                return time
        return None


class Timeline:
    """Cycles from ``first`` on, each its own. Per resource, the taken ones as bits: what is free
    for an operation is found for all cycles at once."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._taken: dict[str, int] = {}

    def copy(self) -> Timeline:
        found = Timeline(self.first)
        found._taken = dict(self._taken)
        return found

    def since(self, cycle: int, first: int) -> Timeline:
        """What is taken from a cycle on, where that cycle is number ``first``."""
        found = Timeline(first)
        found._taken = {what: bits >> cycle - self.first for what, bits in self._taken.items()}
        return found

    def take(self, needed: Needs, time: int) -> None:
        """Takes what an operation needs that is issued at ``time``."""
        for name, offset in needed:
            if (cycle := time + offset - self.first) >= 0:
                self._taken[name] = self._taken.get(name, 0) | 1 << cycle

    def earliest(self, needed: Needs, begin: int, last: int) -> int | None:
        """The first cycle from ``begin`` to ``last`` in which an operation can be issued."""
        free = ~self._busy(needed, begin)
        found = begin + (free & -free).bit_length() - 1
        return found if found <= last else None

    def latest(self, needed: Needs, begin: int, last: int) -> int | None:
        """The last such cycle."""
        if last < begin:
            return None
        free = ~self._busy(needed, begin) & (1 << last - begin + 1) - 1
        return begin + free.bit_length() - 1 if free else None

    def _busy(self, needed: Needs, begin: int) -> int:
        """Bits of the cycles from ``begin`` on in which it cannot be issued."""
        assert begin >= self.first
        busy, at, taken = 0, begin - self.first, self._taken
        for name, offset in needed:
            busy |= taken.get(name, 0) >> at + offset
        return busy
