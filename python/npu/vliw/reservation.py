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
    """``interval`` None: every cycle is its own."""

    def __init__(self, interval: int | None = None) -> None:
        self._interval = interval
        self._taken: set[tuple[str, int]] = set()

    def take(self, needed: Needs, time: int) -> bool:
        """Takes what an operation needs that is issued at ``time``; False if something is taken."""
        interval = self._interval
        keys = []
        for name, offset in needed:
            cycle = time + offset if interval is None else (time + offset) % interval
            if (name, cycle) in self._taken:
                return False
            keys.append((name, cycle))
        self._taken.update(keys)
        return True
