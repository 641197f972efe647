"""The steady state: a time for every node of a block such that a new block can start every
``interval`` cycles. Multiplications come first, in their order and as early as they can; stores
follow as early, loads as late as registers are best served by."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from npu.errors import DesignError
from npu.vliw.dataflow import Node, Region
from npu.vliw.machine import Machine, Operand, Operation
from npu.vliw.reservation import Cells, Reservation, first_free, needs

COPIES = 2  # blocks per pass of the loop: accumulators are double-buffered
_ATTEMPTS = 1024  # per interval, at most, and fewer for long blocks:
_WORK = 100_000  # nodes
_ENOUGH = 160  # steady states to choose from
_REPAIRS = 4  # times that streams which end too late are moved


@dataclass
class Steady:
    """Times and forms of the nodes of block 0; block b is ``interval`` * b later."""

    interval: int
    time: dict[str, int] = field(default_factory=dict)
    form: dict[str, Operation] = field(default_factory=dict)

    def copy(self) -> Steady:
        return Steady(self.interval, self.time.copy(), self.form.copy())


Products = tuple[Steady, Reservation]  # multiplications that are placed


def least_interval(region: Region, machine: Machine) -> int:
    """The bound by resources: multiplications, loads on two ports, stores, banks, and the registers
    of sums, which are free for another block COPIES intervals later."""
    count: dict[str, int] = {}
    for node in region.nodes:
        forms = [machine.operation[key] for key in node.forms]
        name = " ".join(sorted({form.slot for form in forms}))
        keys = [name, "loads"] if node.role == "load" and not node.points else [name]
        if node.bank:
            keys.append(f"bank {node.bank}")
        for key in keys:
            count[key] = count.get(key, 0) + 1
    count["loads"] = -(-count.get("loads", 0) // 2)
    pooled = " ".join(sorted({"lda", "ldb"}))
    count[pooled] = -(-count.get(pooled, 0) // 2)
    return max(*count.values(), -(-_longest_sum(region, machine) // COPIES))


def _longest_sum(region: Region, machine: Machine) -> int:
    """Cycles from the first reading of a sum to the last, where multiplications add to it."""
    found: dict[str, int] = {}
    for node in region.nodes:
        form = machine.operation[node.forms[0]]
        if node.role == "multiply" and node.operands[:1] == node.operands[1:2]:
            result, before = form.operands[:2]
            name = str(node.operands[0])
            found[name] = found.get(name, 0) + result.latency - before.stage + 1
    return max(found.values(), default=0)


def schedules(region: Region, machine: Machine, interval: int) -> Iterator[Steady]:
    """Steady states with this interval that the search finds.

    A stream that ends late must also begin late, as the next block's part follows it. So when loads
    as late and stores as early as possible do not work, or do not work well, some streams of loads
    end earlier and some of stores begin later, by random numbers of cycles.
    """
    numbers = random.Random(0)
    search = _Search(region, machine, interval)
    found = 0
    for attempt in range(min(_ATTEMPTS, _WORK // len(region.nodes) + 1)):
        # Few streams at a time: most do best where they are.
        moved = {name for name in region.groups if attempt and numbers.random() < 0.5}
        shift = {
            name: numbers.randint(1, interval // 2) if name in moved else 0
            for name in region.groups
        }
        steady = search.run(shift, interval if attempt % 2 == 0 else 0)
        if steady:
            yield steady
            found += 1
        if found == _ENOUGH:
            return


class _Search:
    """Places the nodes of a block again and again."""

    def __init__(self, region: Region, machine: Machine, interval: int) -> None:
        self.region, self.interval = region, interval
        self.before: dict[str, list[tuple[str, int]]] = {}
        self.after: dict[str, list[tuple[str, int]]] = {}
        for first, second, distance in dependences(region, machine):
            self.before.setdefault(second, []).append((first, distance))
            self.after.setdefault(first, []).append((second, distance))
        self.empty = Reservation(interval)
        self.units: dict[str, list[tuple[Operation, Cells]]] = {}
        roles = ("multiply", "store", "move", "load", "advance")
        self.by_role: dict[str, list[Node]] = {role: [] for role in roles}
        for node in region.nodes:
            forms = [machine.operation[key] for key in node.forms]
            self.units[node.name] = [
                (form, self.empty.cells(needs(machine, form, node))) for form in forms
            ]
            self.by_role[node.role].append(node)
        # Loads that only one unit can do choose first, then long streams; each from its end.
        position = {node.name: i for i, node in enumerate(region.nodes)}
        length: dict[str, int] = {}
        for nodes in region.accesses.values():
            length |= {n.name: max(len(nodes), length.get(n.name, 0)) for n in nodes}
        self.by_role["load"].sort(
            key=lambda n: (
                n.group is None, len(n.forms) + n.points, -length[n.name], -position[n.name]
            )
        )  # fmt: skip
        self.products: dict[int, Products | None] = {}  # by spread
        # What runs have found, by products and shifts: of few streams, many are the same.
        self.known: dict[tuple[int, ...], Steady | None] = {}
        self.advancing = {  # stream -> its last load
            name: nodes[-2].name
            for name, nodes in region.accesses.items()
            if nodes[-1].role == "advance"
        }

    def run(self, shift: dict[str, int], spread: int) -> Steady | None:
        """``shift``: cycles by which streams move away from the multiplications, ``spread``: over
        how many these are spread at least."""
        products = self._products_over(spread)
        if products is None:
            return None
        key = id(products), *shift.values()
        if key not in self.known:
            self.known[key] = self._repaired(products, shift)
        return self.known[key]

    def _repaired(self, products: Products, shift: dict[str, int]) -> Steady | None:
        """With streams that end sooner where they ended too late."""
        early: dict[str, int] = {}
        for _ in range(_REPAIRS):
            if not self._run(products, shift, early):
                return None
            late = self._late()
            if not late:
                return self.steady
            if any(name not in self.advancing for name in late):
                return None
            for name, cycles in late.items():
                last = self.advancing[name]
                early[last] = early.get(last, 0) + cycles
        return None

    def _run(self, products: Products, shift: dict[str, int], early: dict[str, int]) -> bool:
        self.steady, self.reserved = products[0].copy(), products[1].copy()
        groups = self.region.groups
        self.shift = {node.name: shift[name] for name in groups for node in groups[name]} | early
        for node in self.by_role["store"]:
            first = max(self._earliest(node), node.at or 0) + self.shift.get(node.name, 0)
            if not self._place(node, first):
                return False
        for node in (*reversed(self.by_role["move"]), *self.by_role["load"]):
            if not self._place(node, self._latest(node), backward=True):
                return False
        for node in self.by_role["advance"]:
            first = self._earliest(node)
            if not self._place(node, first):
                return False
        return True

    def _products_over(self, spread: int) -> Products | None:
        """The same object where another spread makes no difference."""
        if spread not in self.products:
            found = self._place_products(spread)
            for other in self.products.values():
                if found and other and found[0] == other[0]:
                    found = other
            self.products[spread] = found
        return self.products[spread]

    def _place_products(self, spread: int) -> Products | None:
        """Multiplications alone, which no shift moves, in a new steady state."""
        self.steady, self.reserved = Steady(self.interval), self.empty.copy()
        last = 0
        products = self.by_role["multiply"]
        for number, node in enumerate(products):
            # Where loads bind, factors or else sums have to wait in registers.
            wanted = number if node.at is None else node.at
            places = max(spread, len(products))
            last = max(last, self._earliest(node), wanted * places // len(products))
            if not self._place(node, last):
                return None
            last = self.steady.time[node.name]
        return self.steady, self.reserved

    def _earliest(self, node: Node) -> int:
        known = self.steady.time
        return max([known[u] + d for u, d in self.before.get(node.name, ()) if u in known] or [0])

    def _latest(self, node: Node) -> int:
        known = self.steady.time
        latest = min([known[v] - d for v, d in self.after[node.name] if v in known])
        return latest - self.shift.get(node.name, 0)

    def _place(self, node: Node, time: int, backward: bool = False) -> bool:
        """As soon as it can be from a time on, or else as late up to it; forms in their order."""
        search = self.reserved.latest if backward else self.reserved.earliest
        best = first_free(self.units[node.name], search, backward, time)
        if best is None:
            return False
        self.reserved.take(best[2], best[0])
        self.steady.time[node.name], self.steady.form[node.name] = best[:2]
        return True

    def _late(self) -> dict[str, int]:
        """By how many cycles streams' accesses of one block end after those of the next begin."""
        time = self.steady.time
        late = {
            name: time[nodes[-1].name] + 1 - time[nodes[0].name] - self.steady.interval
            for name, nodes in self.region.accesses.items()
        }
        return {name: cycles for name, cycles in late.items() if cycles > 0}


def uses(node: Node, form: Operation) -> list[tuple[str, range | None, Operand]]:
    """Value, parts and description of each operand that is a value."""
    return [
        (value, range(o.parts) if part is None and o.parts else part, o)
        for (value, part), o in zip(node.named, form.operands, strict=True)
        if value
    ]


@dataclass(frozen=True)
class Written:
    """Where a part of a value comes from: a node of ``blocks`` blocks ago; None: from before the
    region."""

    node: Node | None
    blocks: int = 0


def writers(region: Region, machine: Machine) -> dict[tuple[str, str], list[Written]]:
    """(reader, value) -> what it reads: of each part, lowest part first, the last writer."""
    last = {v: dict.fromkeys(range(machine.parts(region.values[v]))) for v in region.pinned}
    for (value, part), node in _last_writers(region, machine).items():
        if value in last:
            last[value][part] = node
    before = {(v, p): Written(node, 1) for v, parts in last.items() for p, node in parts.items()}
    return _readers(region, machine, before)


def _last_writers(region: Region, machine: Machine) -> dict[tuple[str, int], Node]:
    """(value, part) -> the last node of a block that writes it."""
    found: dict[tuple[str, int], Node] = {}
    for node in region.nodes:
        for value, part, operand in uses(node, machine.operation[node.forms[0]]):
            if operand.latency and value in region.values:
                parts = range(machine.parts(region.values[value])) if part is None else part
                found |= {(value, p): node for p in parts}
    return found


def lasting(region: Region, machine: Machine) -> dict[str, str]:
    """Part of a pinned register -> the name of the node that writes it."""
    return {
        machine.atoms(region.pinned[value])[part]: node.name
        for (value, part), node in _last_writers(region, machine).items()
        if value in region.pinned
    }


def _readers(
    region: Region, machine: Machine, before: dict[tuple[str, int], Written]
) -> dict[tuple[str, str], list[Written]]:
    last = dict(before)
    count = {value: machine.parts(kind) for value, kind in region.values.items()}
    found: dict[tuple[str, str], list[Written]] = {}
    for node in region.nodes:
        form = machine.operation[node.forms[0]]
        for value, part, operand in uses(node, form):
            if operand.stage and value in region.values:
                needed = [(value, p) for p in (range(count[value]) if part is None else part)]
                if value not in region.partial and not last.keys() >= set(needed):
                    raise DesignError(f"[schedule] {node.name} reads {value}, which nobody writes")
                found[node.name, value] = [last.get(p, Written(None)) for p in needed]
        for value, part, operand in uses(node, form):
            if operand.latency and value in count:
                parts = range(count[value]) if part is None else part
                last |= {(value, p): Written(node) for p in parts}
    return found


def dependences(region: Region, machine: Machine, interval: int = 0) -> list[tuple[str, str, int]]:
    """(first, second, least distance) within a block: values and the order of each stream; what
    comes from the block before is ``interval`` cycles older."""
    edges: list[tuple[str, str, int]] = []
    by_name = {node.name: node for node in region.nodes}
    for (reader, value), found in writers(region, machine).items():
        form = machine.operation[by_name[reader].forms[0]]
        stages = [o.stage for v, _, o in uses(by_name[reader], form) if v == value and o.stage]
        for written in found:
            writer, earlier = written.node, interval * written.blocks
            if writer is None:
                continue
            made = machine.operation[writer.forms[0]]
            latency = max(o.latency for v, _, o in uses(writer, made) if v == value)
            edges.append((writer.name, reader, latency - min(stages) + 1 - earlier))
            if value in region.pinned and writer.name != reader:  # before the register's next
                next_one = interval - earlier
                edges.append((reader, writer.name, max(stages) - latency - next_one))
    for nodes in region.accesses.values():
        edges += [(a.name, b.name, 1) for a, b in pairwise(nodes)]
    return edges
