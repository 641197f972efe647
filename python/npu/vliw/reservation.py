"""Which slots, ports, banks and pointers are taken in which cycle, flat or modulo an interval."""

from __future__ import annotations

from typing import Protocol

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


class Reservation:
    """Cycles modulo ``interval``. Per resource, the taken ones as bits, twice in a row: so the
    cycles from any one on are a shift away."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._all = (1 << interval) - 1
        self._twice = 1 | 1 << interval
        self._taken: dict[str, int] = {}

    def copy(self) -> Reservation:
        found = Reservation(self._interval)
        found._taken = dict(self._taken)
        return found

    def take(self, needed: Needs, time: int) -> None:
        """Takes what an operation needs that is issued at ``time``."""
        for name, offset in needed:
            bits = self._twice << (time + offset) % self._interval
            self._taken[name] = self._taken.get(name, 0) | bits

    def release(self, needed: Needs, time: int) -> None:
        """Gives back what it took."""
        for name, offset in needed:
            self._taken[name] &= ~(self._twice << (time + offset) % self._interval)

    def earliest(self, needed: Needs, begin: int) -> int | None:
        """The first cycle from ``begin`` on in which an operation can be issued."""
        free = self._free(needed, begin)
        return begin + (free & -free).bit_length() - 1 if free else None

    def latest(self, needed: Needs, last: int) -> int | None:
        """The last such cycle up to ``last``."""
        free = self._free(needed, last + 1)
        return last - self._interval + free.bit_length() if free else None

    def _free(self, needed: Needs, begin: int) -> int:
        """Bits of the cycles of an interval from ``begin`` on in which it can be issued."""
        busy = 0
        for name, offset in needed:
            busy |= self._taken.get(name, 0) >> (begin + offset) % self._interval
        return ~busy & self._all


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
