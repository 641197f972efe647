"""How few cycles npu1's bf16 kernel could take: all orders and times of its first and of its last
multiplications that latencies, load units and the store unit allow, searched exhaustively. Of 8, 4,
8 none leaves fewer than 13 cycles without a multiplication before the loop and 9 behind it, as many
as the generated kernel has: its 278 cycles are the fewest. Shorter latencies would allow fewer.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import pytest

from npu.vliw import kernels
from npu.vliw.aie2 import AIE2

STEPS, ROWS, COLUMNS = 4, 8, 8
FIRST = 24  # multiplications that the search places
_LOADS = 2  # of 32 bytes per tile of A, B and C; as many stores


@dataclass(frozen=True)
class Distances:
    """In cycles, between issues: from a load to the multiplication that takes what it brings as a
    factor or a sum, from one to the next that adds to the same sum, to the store of the sum."""

    factor: int
    sum: int
    chain: int
    store: int


def described() -> Distances:
    operation = AIE2.operation
    load, product = operation["vldb.w"].operands[0], operation["vmac.f"].operands
    result, before, factor = product[:3]
    return Distances(
        load.latency - factor.stage + 1,
        operation["vlda.am"].operands[0].latency - before.stage + 1,
        result.latency - before.stage + 1,
        result.latency - operation["vst.am"].operands[0].stage + 1,
    )


class Before:
    """Whether the first multiplications can be such that ``idle`` cycles at most have none.

    Two units load, 32 bytes each; only one of them loads accumulators. So of the factors that are
    needed by cycle d and the sums that are by e >= d, there are at most d + e + 2 loads. Sums may
    also come as factors do, by either unit, and be moved into accumulators.
    """

    def __init__(self, idle: int, at: Distances) -> None:
        self.idle, self.at = idle, at
        self.seen: set[object] = set()

    def possible(self) -> bool:
        return self._go(0, {}, {}, (0, 0), -99, ())

    def _go(
        self,
        now: int,
        steps: dict[tuple[int, int], int],
        last: dict[tuple[int, int], int],
        loads: tuple[int, int],
        excess: int,
        sums: tuple[tuple[int, int], ...],
    ) -> bool:
        """``now``: the first cycle that is free; ``steps``, ``last``: of each tile of C, how many
        and when; ``loads``: of factors and of sums; ``excess``: the most of factors by some cycle,
        less d + 1; ``sums``: by which late cycles how many are loaded."""
        count = sum(steps.values())
        if count == FIRST:
            return True
        chains = sorted((c, n, max(0, last[c] + self.at.chain - now)) for c, n in steps.items())
        key = now, loads, excess, sums, tuple(chains)
        if key in self.seen:
            return False
        self.seen.add(key)
        height, width = (1 + max((c[axis] for c in steps), default=-1) for axis in (0, 1))
        tiles = itertools.product(range(min(ROWS, height + 1)), range(min(COLUMNS, width + 1)))
        for tile in tiles:  # the next new row stands for all new ones, and so does the column
            step = steps.get(tile, 0)
            if step == STEPS:
                continue
            new = sum(all(tile[a] != c[a] or n <= step for c, n in steps.items()) for a in (0, 1))
            choices = [(_LOADS * new, 0)]
            if not step:
                choices = [(_LOADS * new, _LOADS), (_LOADS * (new + 1), 0)]
            start = max(now, last.get(tile, -99) + self.at.chain)
            for factors, of_sums in choices:
                total = loads[0] + factors, loads[1] + of_sums
                for time in range(count + self.idle, start - 1, -1):
                    after = self._after(time, total, excess, sums, bool(of_sums))
                    if after is None:
                        break  # sooner, the loads have even less room
                    here = {**steps, tile: step + 1}, {**last, tile: time}
                    if self._go(time + 1, *here, total, *after):
                        return True
        return False

    def _after(
        self,
        time: int,
        total: tuple[int, int],
        excess: int,
        sums: tuple[tuple[int, int], ...],
        more: bool,
    ) -> tuple[int, tuple[tuple[int, int], ...]] | None:
        """``excess`` and ``sums`` after a multiplication in cycle ``time``; None if its loads do
        not fit."""
        by, sums_by = time - self.at.factor, time - self.at.sum
        here = total[0] - by - 1
        excess = max(excess, here)
        if more:
            sums = (*sums, (sums_by, total[1]))
            if total[1] > sums_by + 1 or excess + total[1] - sums_by - 1 > 0:
                return None
        earlier = max((count for cycle, count in sums if cycle <= by), default=0)
        if here + max((n - c - 1 for c, n in sums if c >= by), default=-99) > 0:
            return None
        if here + earlier - by - 1 > 0:
            return None
        gone = [s for s in sums if s[0] < time + 1 - self.at.factor]
        return excess, (*gone[-1:], *(s for s in sums if s not in gone))


def fewest_before(at: Distances) -> int:
    return next(idle for idle in itertools.count() if Before(idle, at).possible())


def fewest_after(at: Distances) -> int:
    """From the end on: a tile whose last multiplication is t cycles before the function's last has
    room for its stores, and those of the tiles that are complete after it, behind it."""

    def go(idle: int, count: int, back: int, steps: dict[int, int], first: dict[int, int]) -> bool:
        if count == FIRST:
            return True
        for tile in range(len(steps) + 1):
            if steps.get(tile, 0) == STEPS:
                continue
            least = first[tile] + at.chain if tile in steps else at.store - 1 + _LOADS * (tile + 1)
            time = max(back, least)
            if time <= count + idle:  # as late in the program as it can be
                here = {**steps, tile: steps.get(tile, 0) + 1}, {**first, tile: time}
                if go(idle, count + 1, time + 1, *here):
                    return True
        return False

    return next(idle for idle in itertools.count() if go(idle, 0, 0, {}, {}))


def test_no_order_is_shorter() -> None:
    at = described()
    assert at == Distances(7, 5, 4, 6)
    assert fewest_before(at) == 13
    assert fewest_after(at) == 9


def test_the_generated_kernel_is_as_short() -> None:
    found = kernels.schedule("npu1", "matmul_bf16", 8, 4, 8)
    (loop,) = found.program.loops
    idle = ["vec" not in bundle.slots for bundle in found.program.bundles]
    assert sum(idle[: loop[0]]) == 13 and sum(idle[loop[1] + 1 :]) == 9
    assert not any(idle[loop[0] : loop[1] + 1])
    assert found.simulated().cycles == 13 + 256 + 9


@pytest.mark.parametrize(
    ("part", "before", "after"), [("factor", 12, 9), ("chain", 12, 8), ("store", 13, 8)]
)
def test_shorter_latencies_allow_fewer(part: str, before: int, after: int) -> None:
    at = described()
    at = dataclasses.replace(at, **{part: getattr(at, part) - 1})
    if part != "store":  # which has no influence on it
        assert fewest_before(at) == before
    assert fewest_after(at) == after
