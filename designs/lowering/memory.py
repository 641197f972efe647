"""Addresses for the buffers of one tile, between the stack of its core and its data section.

The stack begins at address 0. What the compiler places itself, .data, .rodata and .bss, gets the
end of the memory: mlir-aie's linker scripts give it what lies behind the last buffer, newer ones
the largest gap.

Bank-aware: buffers go round the logical banks, largest first, so that the slots of one FIFO lie in
different banks and DMA and core do not meet. A buffer that fits no single bank may span; if the
rest then does not fit, everything is packed one after the other; if that fails, a table says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from npu.errors import DesignError

from ..hardware import Tile

ALIGNMENT = 64  # bytes: the widest vector load of XDNA2


@dataclass(frozen=True)
class Request:
    """A group of equal buffers (the slots of a FIFO end, or one local buffer)."""

    name: str
    bytes: int
    count: int = 1
    addresses: tuple[int, ...] = ()  # of all, fixed by the author


@dataclass(frozen=True)
class Room:
    """Bytes of a core's memory that buffers leave free: at its start, and at least so many at its
    end. Other tiles need neither."""

    stack: int = 0
    data: int = 0


# Data sections, in bytes, for which the banks may leave the end of the memory free: free space that
# lies between buffers is of no use to a linker.
_ROOMIER = (4096, 2048, 1024, 512)


class _Space:
    """Occupied byte ranges of one memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken: list[tuple[int, int]] = []

    def gap(self, low: int, high: int, size: int) -> int | None:
        """The lowest aligned free address in [low, high) for `size` bytes."""
        at = _align(low)
        for start, end in sorted(self.taken):
            if at + size <= start:
                break
            if end > at:
                at = _align(end)
        return at if at + size <= min(high, self.size) else None

    def take(self, start: int, size: int) -> None:
        if size:
            self.taken.append((start, start + size))


def allocate(tile: Tile, requests: list[Request], room: Room, title: str) -> dict[str, list[int]]:
    """Byte addresses per request name, one per slot; `title` opens the error message."""
    memory = tile.limits.memory_bytes
    fixed = max((at + r.bytes for r in requests for at in r.addresses), default=0)
    roomier = [data for data in _ROOMIER if room.data and room.data < data <= memory - fixed]
    attempts = [(_place_in_banks, data) for data in (*roomier, room.data)] + [(_pack, room.data)]
    for place, data in attempts:
        space = _Space(memory)
        space.take(0, room.stack)
        space.take(memory - data, data)
        placed = _place_fixed(space, tile, requests, title)
        open_requests = [r for r in requests if not r.addresses]
        if place(space, tile, open_requests, placed):
            return placed
    raise DesignError(f"{title} {_table(tile, requests, room)}")


def _place_fixed(
    space: _Space, tile: Tile, requests: list[Request], title: str
) -> dict[str, list[int]]:
    placed: dict[str, list[int]] = {}
    for request in requests:
        for at in request.addresses:
            end = at + request.bytes
            clash = any(at < e and end > s for s, e in space.taken)
            if at < 0 or at % 4 or end > space.size or clash:
                taken = "overlaps another buffer, the stack or the data section"
                raise DesignError(
                    f'{title} {tile}: buffer "{request.name}" is fixed at bytes {at}..{end}, which '
                    f"{taken if clash else 'is not in its memory'}"
                )
            space.take(at, request.bytes)
            placed.setdefault(request.name, []).append(at)
    return placed


def _place_in_banks(
    space: _Space, tile: Tile, requests: list[Request], placed: dict[str, list[int]]
) -> bool:
    banks = tile.limits.banks
    bank_bytes = space.size // banks
    turn = 0
    # Largest first; among equals the later declared, as mlir-aie's allocator does.
    for request in sorted(reversed(requests), key=lambda r: -r.bytes):
        used: set[int] = set()
        placed[request.name] = []
        for _ in range(request.count):
            order = [(turn + i) % banks for i in range(banks)]
            order.sort(key=lambda b: b in used)
            for bank in order:
                at = space.gap(bank * bank_bytes, (bank + 1) * bank_bytes, request.bytes)
                if at is not None:
                    used.add(bank)
                    turn = (bank + 1) % banks
                    break
            else:
                at = space.gap(0, space.size, request.bytes)
            if at is None:
                return False
            space.take(at, request.bytes)
            placed[request.name].append(at)
    return True


def _pack(space: _Space, tile: Tile, requests: list[Request], placed: dict[str, list[int]]) -> bool:
    """First fit, first slots of everything before second slots, largest first."""
    for request in requests:
        placed[request.name] = []
    slots = [(slot, r) for r in requests for slot in range(r.count)]
    for _, request in sorted(slots, key=lambda s: (s[0], -s[1].bytes)):
        at = space.gap(0, space.size, request.bytes)
        if at is None:
            return False
        space.take(at, request.bytes)
        placed[request.name].append(at)
    return True


def _table(tile: Tile, requests: list[Request], room: Room) -> str:
    need = room.stack + room.data + sum(r.bytes * r.count for r in requests)
    lines = [
        f"{tile}: data memory of {tile.limits.memory_bytes} B does not hold {need} B; use smaller "
        "objects or depths"
    ]
    rows = [(name, size, 1) for name, size in (("stack", room.stack), ("data section", room.data))]
    rows = [row for row in rows if row[1]]
    rows += [(r.name, r.bytes, r.count) for r in requests]
    lines += [f"  {name:<28} {count:>2} x {size:>6} B" for name, size, count in rows]
    return "\n".join(lines)


def _align(address: int) -> int:
    return -(-address // ALIGNMENT) * ALIGNMENT
